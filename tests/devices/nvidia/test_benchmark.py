"""The published data of a machine's GPUs was read, is complete, and identifies no hardware."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pynvml
import pytest

from benchmarks import nvml as benchmark
from benchmarks.nvml_questions import NotARead, questions, reads_only
from tests.fakes.nvml.machine import Slice

ROOT = Path(__file__).parents[3]
ASKED = re.compile(r"pynvml\.(nvml\w*Get\w+)")
CHANGES = re.compile(r"Set|Reset|Clear|Create|Destroy|nvidia-smi")


@pytest.fixture(autouse=True)
def few(monkeypatch) -> None:
    """The figures do not matter here."""
    monkeypatch.setattr("benchmarks.nvml.TIMES", 3)
    monkeypatch.setattr("benchmarks.nvml.ROUNDS", 2)


@pytest.fixture
def measured(rig, tmp_path) -> tuple[str, dict[str, Any]]:
    """The page, and what is told to machines."""
    status = benchmark.main(["--output", str(tmp_path / "out"), "--host-root", str(rig.root.path)])
    assert status == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "nvidia-h200-nvml.json",
        "nvidia-h200-nvml.md",
    ]
    text = (tmp_path / "out/nvidia-h200-nvml.md").read_text()
    return text, json.loads((tmp_path / "out/nvidia-h200-nvml.json").read_text())


def test_the_benchmark_reports_machine_commands_and_results(rig, measured) -> None:
    page, document = measured
    assert document["command"].startswith("python -m benchmarks.nvml --output ")
    assert document["command"] in page
    assert document["machine"]["driver"] == "580.95.05"
    assert [row["used"] for row in document["memory"]] == [4 * 2**20] * 8
    assert [row["pci_address"] for row in document["inventory"]] == [rig.gpu(number).pci for number in range(8)]
    assert [row["look"] for row in document["looks"]] == ["driver", "inventory", "vitals", "in_use", "listed"]
    assert document["idle_round"]["wall_ms"] > 0
    assert document["settings"]["power_limit"] == 700000
    assert "| nvmlDeviceGetName |  | told |" in page
    assert [row["with"] for row in document["open_files"]["rows"][:2]] == ["not measured: no device node"] * 2
    assert document["open_files"]["modules"] == [{"module": "nvidia_uvm", "count": "0"}]
    assert "| nvidia_uvm | 0 |" in page


def test_no_serial_number_and_no_whole_uuid_is_published(measured) -> None:
    page, document = measured
    for text in (page, json.dumps(document)):
        assert "GPU-5e7f" in text
        assert not re.search(r"GPU-5e7f[0-9a-f-]", text)
        assert "165202200" not in text


@pytest.mark.usefixtures("measured")
def test_the_benchmark_changes_nothing(rig) -> None:
    assert [call for _, call, _ in rig.machine.calls() if CHANGES.search(call)] == []


def test_the_benchmark_asks_all_that_the_service_asks(rig) -> None:
    rig.cut(0, Slice())
    used = {
        name for file in (ROOT / "scrubber/devices/nvidia").rglob("*.py") for name in ASKED.findall(file.read_text())
    }
    with rig.library.session() as nvml:
        asked = {question.name for question in questions(nvml)}
    assert used - asked == set()
    assert "nvmlDeviceGetName" in used


def test_a_slice_is_measured_if_present(rig, tmp_path) -> None:
    [uuid] = rig.cut(0, Slice())
    assert benchmark.main(["--output", str(tmp_path), "--host-root", str(rig.root.path)]) == 0
    document = (tmp_path / "nvidia-h200-nvml.json").read_text()
    answers = {row["question"]: row["answer"] for row in json.loads(document)["questions"]}
    assert answers["nvmlComputeInstanceGetInfo_v2"] == "told"
    assert uuid[:8] in document
    assert uuid not in document


def test_unknown_and_failed_measurements_are_reported_as_such(rig, tmp_path) -> None:
    rig.gpu(0).fail("nvmlDeviceGetArchitecture", pynvml.NVML_ERROR_NOT_SUPPORTED)
    rig.gpu(0).set({"field_fail.230": pynvml.NVML_ERROR_NOT_SUPPORTED})
    rig.gpu(0).fail("nvmlDeviceGetVirtualizationMode", pynvml.NVML_ERROR_UNKNOWN)
    assert benchmark.main(["--output", str(tmp_path), "--host-root", str(rig.root.path)]) == 0
    rows = json.loads((tmp_path / "nvidia-h200-nvml.json").read_text())["questions"]
    answers = {row["question"]: (row["answer"], row["why"]) for row in rows if row["about"] != "link 0"}
    assert answers["nvmlDeviceGetArchitecture"] == ("untold", "Not Supported")
    assert answers["nvmlDeviceGetFieldValues"] == ("untold", "")
    assert answers["nvmlDeviceGetVirtualizationMode"] == ("error", "Unknown Error")
    beyond = pynvml.NVML_NVLINK_MAX_LINKS > 18  # releases before 13.590 ask for no more links than this GPU has
    assert answers["nvmlDeviceGetNvLinkState"][0] == ("none" if beyond else "told")


@pytest.mark.usefixtures("rig")
def test_the_library_is_measured_without_a_driver_in_proc(tmp_path) -> None:
    assert benchmark.main(["--output", str(tmp_path), "--host-root", str(tmp_path / "nothing")]) == 0
    document = json.loads((tmp_path / "nvidia-h200-nvml.json").read_text())
    assert document["inventory"].startswith("not told: cannot find the NVIDIA driver")
    assert document["looks"] == []
    assert document["open_files"] == "not measured: no module"
    assert document["questions"] != []


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


def test_a_call_that_changes_something_does_not_reach_the_library(rig) -> None:
    with rig.library.session() as nvml:
        gpu = nvml.handle(rig.gpu(0).uuid)
        with reads_only(), pytest.raises(NotARead, match="nvmlDeviceSetPersistenceMode"):
            nvml.ask(pynvml.nvmlDeviceSetPersistenceMode, gpu, 0)
    assert rig.gpu(0)["persistence_mode"] == "1"
    assert "nvmlDeviceSetPersistenceMode" not in [call for _, call, _ in rig.machine.calls()]
