"""The tests for real hardware run on the stand-in first, so that they are known to run before they meet a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.trial.figures import one
from benchmarks.trial.parts import PARTS, Part
from benchmarks.trial.records import Records
from tests.cli.on_machine import FLAGS, needs_namespace
from tests.fakes.cuda.fixtures import equip
from tests.fakes.cuda.gpu import PAGE
from tests.gpu.rehearsing import ROOT, environment, failed, rehearse

SIZE = 24 * PAGE
SOME = ("nvml", "dram", "faults", "service", "zeros")
TOO_SMALL = {  # what the tests say of a memory of this size
    "test_every_device_is_described_by_what_is_there",
    "test_all_but_a_hundredth_of_the_memory_can_be_taken",
}

FILE = "test_nvml.py"


@pytest.mark.night
def test_all_of_them_run_on_the_stand_in(stage) -> None:
    run = rehearse(stage, FILE, "-m", "gpu")
    assert run.returncode == 0, run.stdout
    assert "there is no GPU to look at" not in run.stdout
    assert "seen on this GPU" in run.stdout
    assert stage.machine.gpu(0).uuid not in run.stdout


@pytest.mark.night
def test_a_gpu_that_is_not_as_believed_turns_them_red(stage) -> None:
    stage.machine.gpu(0).set({"memory.used": 65 * 2**20, "remap.pending": 1, "fail.nvmlDeviceGetPersistenceMode": 999})
    run = rehearse(stage, FILE, "-m", "gpu")
    assert {
        "test_an_idle_gpu_uses_less_memory_than_assumed",
        "test_an_idle_gpu_is_known_to_have_no_holder",
        "test_a_gpu_is_well",
        "test_no_question_of_the_service_ends_in_an_error",
    } <= failed(run)


def test_no_gpu_is_touched_without_a_request(stage) -> None:
    run = rehearse(stage, FILE)
    assert "12 deselected" in run.stdout
    assert stage.machine.calls() == []


def needed(name: str, found: set[str]) -> None:
    """Add a package and all that it needs to those that were found."""
    if (plain := canonicalize_name(name)) not in found:
        found.add(plain)
        for it in map(Requirement, metadata.requires(name) or ()):
            if it.marker is None or it.marker.evaluate({"extra": "", "python_version": "3.12"}):
                needed(it.name, found)


def test_the_list_of_packages_is_what_the_trial_needs() -> None:
    lines = (ROOT / "benchmarks/trial/packages.txt").read_text().splitlines()
    found: set[str] = set()
    for name in ("autoclave", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout"):
        needed(name, found)
    assert [line for line in lines if not line.startswith("#")] == sorted(found - {"autoclave"})


def test_a_trial_that_was_ended_goes_on_where_it_was(tmp_path) -> None:
    records = Records(tmp_path / "gpu.jsonl")
    records.begin({"model": "GPU"})
    records.add(Part("nvml", 1.0, (one("questions", 3, ""),)))
    records.add(Part("tests", 1.0, why="one test failed"))
    records.add(Part("dram", 1.0, not_done="ncu is not here"))
    assert [name for name in PARTS if name not in records.missing()] == ["nvml", "dram"]
    records.add(Part("tests", 2.0, (one("tests that passed", 22, ""),)))
    assert records.missing()[0] == "clear"
    assert [(part.name, [it.what for it in part.figures]) for part in records.parts()] == [
        ("nvml", ["questions"]), ("tests", ["tests that passed"]), ("dram", []),
    ]  # fmt: skip


PROFILER = """\
import subprocess, sys
program = sys.argv[sys.argv.index("none") + 1 :]
text = subprocess.run(program, check=True, capture_output=True, text=True).stdout
size = int(text.rpartition(" ")[2])
print(text, '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"', sep="")
for kernel, metric in (("write", "dram__bytes_write.sum"), ("check", "dram__bytes_read.sum")):
    print(f'"0","{kernel}(unsigned long)","{metric}","byte","{round(size * 0.99):,}"')
"""
SANITIZER = """\
import subprocess, sys
subprocess.run(sys.argv[3:], check=True, stdout=subprocess.DEVNULL)
print("========= ERROR SUMMARY: 0 errors")
"""


def install(stage, name: str, text: str) -> None:
    program = stage.programs / name
    program.write_text(f"#!{sys.executable}\n{text}")
    program.chmod(0o755)


@needs_namespace
@pytest.mark.parametrize("only", [SOME, pytest.param(tuple(PARTS), marks=pytest.mark.night)], ids=["some parts", "all"])
def test_the_trial_runs_on_the_stand_ins(stage, tmp_path, only) -> None:
    install(stage, "ncu", PROFILER)
    install(stage, "compute-sanitizer", SANITIZER)
    cuda = equip(tmp_path / "cuda", [stage.machine.gpu(0)], stage.root, SIZE)
    memory = Path(cuda.gpus[stage.machine.gpu(0).uuid].memory)
    with memory.open("r+b") as file:
        file.write(b"x" * SIZE)
    arguments = ["--output", tmp_path, "--host-root", stage.root.path, "--rounds", 1, "--seconds", 1]
    arguments += [word for name in only for word in ("--only", name)]
    run = subprocess.run(
        ["unshare", *FLAGS, sys.executable, "-m", "benchmarks.trial", *map(str, arguments)],
        cwd=ROOT,
        env=environment(stage, cuda.environment(os.environ.get("PYTHONPATH", ""))),
        capture_output=True,
        text=True,
        check=False,
    )
    records = Records(tmp_path / "nvidia-h200.jsonl")
    parts = {part.name: part for part in records.parts()}
    assert list(parts) == [*only]
    faults = {part.name: part.why or part.not_done for part in parts.values() if part.why or part.not_done}
    assert list(faults) == [name for name in only if name == "tests"], faults
    assert set(re.findall(r"::(\w+)", faults.get("tests", ""))) == (TOO_SMALL if "tests" in only else set())
    assert run.returncode == len(faults)
    samples = {name: {it.what: list(it.samples) for it in part.figures} for name, part in parts.items()}
    assert samples["faults"]["a write that leaves out the last bytes: noticed"] == [1]
    assert samples["service"]["receipt: not covered: the context of the scrub itself"] == [2 * PAGE]
    assert not any(memory.read_bytes()[2 * PAGE :])  # the context was in the first pages
    assert stage.machine.gpu(0).uuid not in records.path.read_text() + records.page.read_text()
