"""The published page of a machine's GPUs was read, is complete, and identifies no hardware."""

from __future__ import annotations

import re
from pathlib import Path

import pynvml
import pytest

from benchmarks import nvml as benchmark
from benchmarks.nvml_questions import questions
from tests.fakes.nvml.machine import Slice

ROOT = Path(__file__).parents[3]
ASKED = re.compile(r"pynvml\.(nvml\w*Get\w+)")
CHANGES = re.compile(r"Set|Reset|Clear|Create|Destroy|nvidia-smi")


@pytest.fixture(autouse=True)
def few(monkeypatch) -> None:
    """The figures do not matter here."""
    monkeypatch.setattr("benchmarks.nvml.TIMES", 3)
    monkeypatch.setattr("benchmarks.nvml.ROUNDS", 2)


def asked(root: Path, output: Path) -> str:
    """The page."""
    assert benchmark.main(["--output", str(output), "--host-root", str(root)]) == 0
    [page] = output.iterdir()
    assert page.name == "nvidia-h200-nvml.md"
    return page.read_text()


def test_the_benchmark_reports_machine_commands_and_results(rig, tmp_path) -> None:
    page, document = asked(rig.root.path, tmp_path / "out"), benchmark.measure(rig.host, rig.library)
    assert f"with `python -m benchmarks.nvml --output {tmp_path / 'out'} --host-root {rig.root.path}`" in " ".join(
        page.split()
    )
    assert document["machine"]["driver"] == "580.95.05"
    assert [row["used"] for row in document["memory"]] == [4 * 2**20] * 8
    assert [row["pci_address"] for row in document["inventory"]] == [rig.gpu(number).pci for number in range(8)]
    assert [row["look"] for row in document["looks"]] == ["driver", "inventory", "vitals", "in_use", "listed"]
    assert document["idle_round"]["wall_ms"] > 0
    assert document["settings"]["power_limit"] == 700000
    assert "| nvmlDeviceGetName |  | told |" in page


def test_the_benchmark_publishes_no_serial_and_changes_nothing(rig, tmp_path) -> None:
    page = asked(rig.root.path, tmp_path / "out")
    assert "GPU-5e7f" in page
    assert not re.search(r"GPU-5e7f[0-9a-f-]", page)
    assert "165202200" not in page
    assert [call for _, call, _ in rig.machine.calls() if CHANGES.search(call)] == []


def test_the_benchmark_asks_all_that_the_service_asks(rig) -> None:
    rig.cut(0, Slice())
    used = {
        name for file in (ROOT / "scrubber/devices/nvidia").rglob("*.py") for name in ASKED.findall(file.read_text())
    }
    with rig.library.session() as nvml:
        gpu = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, 0)
        asked = {question.name for question in questions(nvml, gpu)}
    assert used - asked == set()
    assert "nvmlDeviceGetName" in used


def test_a_slice_is_measured_if_present(rig, tmp_path) -> None:
    [uuid] = rig.cut(0, Slice())
    page = asked(rig.root.path, tmp_path / "out")
    assert re.search(r"\| nvmlComputeInstanceGetInfo_v2 \|[^|]*\| told ", page)
    assert uuid[:8] in page
    assert uuid not in page


def test_unknown_and_failed_measurements_are_reported_as_such(rig) -> None:
    rig.gpu(0).fail("nvmlDeviceGetArchitecture", pynvml.NVML_ERROR_NOT_SUPPORTED)
    rig.gpu(0).set({"field_fail.230": pynvml.NVML_ERROR_NOT_SUPPORTED})
    rig.gpu(0).fail("nvmlDeviceGetVirtualizationMode", pynvml.NVML_ERROR_UNKNOWN)
    rows = benchmark.measure(rig.host, rig.library)["questions"]
    answers = {row["question"]: (row["answer"], row["why"]) for row in rows if row["about"] != "link 0"}
    assert answers["nvmlDeviceGetArchitecture"] == ("untold", "Not Supported")
    assert answers["nvmlDeviceGetFieldValues"] == ("untold", "")
    assert answers["nvmlDeviceGetVirtualizationMode"] == ("error", "Unknown Error")
    beyond = pynvml.NVML_NVLINK_MAX_LINKS > 18  # releases before 13.590 ask for no more links than this GPU has
    assert answers["nvmlDeviceGetNvLinkState"][0] == ("none" if beyond else "told")


@pytest.mark.parametrize(
    ("without", "why"), [("driver", "the driver is not loaded"), ("gpus", "the driver lists no GPU")]
)
def test_without_a_gpu_the_benchmark_writes_no_file(rig, tmp_path, capsys, without: str, why: str) -> None:
    if without == "driver":
        rig.machine.unload()
    else:
        for gpu in rig.machine.gpus:
            gpu.set(absent=True)
    assert benchmark.main(["--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(rf"cannot measure: .*{why}; run this where an NVIDIA GPU and its driver are\n", said.err)
    assert not (tmp_path / "out").exists()
