"""The tests of the scrub, and its measurement, run on stand-ins first: they are known to run before they meet a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.trial import command, variants
from benchmarks.trial.card import Listening, Where, opened_as
from benchmarks.trial.figures import Part
from benchmarks.trial.parts import PARTS
from benchmarks.trial.records import Records
from scrubber.cuda.card import KernelProgram, Unit
from scrubber.cuda.cuda_card import CudaCard
from tests.cli.on_machine import FLAGS, needs_namespace
from tests.fakes.cuda.fixtures import in_this_process, libraries
from tests.fakes.cuda.machine import PAGE, CudaMachine, equip
from tests.fakes.nvml.machine import Process, Slice
from tests.gpu.rehearsing import ROOT, environment, failed, free, rehearse, uninstalled

pytestmark = pytest.mark.night

FILE = "test_scrub.py"
LARGE = 512 * PAGE  # next to which a context is small; most of it is never touched
SMALL = 12 * PAGE
SMALLER = {"GPU_MEMORY_LIMIT": str(12 * PAGE), "GPU_TEST_SECONDS": "12"}
NAME = "nvidia-h200"
MORE = ("tests", "dram", "service", "pods", "sanitizer", "ramp")  # these need more than a GPU and a moment
ALONE = [name for name in PARTS if name not in MORE]
CHANGES = re.compile(r"Set|Reset|Clear|Create|Destroy|nvidia-smi")


def seen(stage, machine: CudaMachine) -> dict[str, str]:
    """As from the checkout alone: neither installed nor named in PYTHONPATH."""
    return uninstalled(machine.machine.path.parent, machine.environment(stage.library.parent))


@pytest.fixture
def large(stage, tmp_path) -> CudaMachine:
    return equip(tmp_path / "cuda", [stage.machine.gpu(0)], libraries(), LARGE)


@pytest.fixture
def small(stage, tmp_path) -> CudaMachine:
    return equip(tmp_path / "cuda", [stage.machine.gpu(0)], libraries(), SMALL)


def measure(stage, machine: CudaMachine, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--output", str(output), "--host-root", str(stage.root.path), "--rounds", "2", *more]
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.trial", *arguments],
        cwd=ROOT,
        env=environment(stage, seen(stage, machine)),
        capture_output=True,
        text=True,
        check=False,
    )


def only(*parts: str) -> list[str]:
    return [word for part in parts for word in ("--only", part)]


def parts(output: Path) -> list[Part]:
    return Records(output / f"{NAME}.jsonl").parts()


def measurements(output: Path) -> dict[str, dict[str, list[float]]]:
    """The samples of every figure, by part and by what was measured."""
    return {part.name: {it.what: list(it.samples) for it in part.figures} for part in parts(output)}


def faults(output: Path) -> dict[str, str]:
    """Why parts failed, by their names."""
    return {part.name: part.why for part in parts(output)}


def test_all_tests_run_on_the_stand_ins(stage, large) -> None:
    run = rehearse(stage, FILE, "-m", "gpu", **seen(stage, large), **SMALLER)
    assert run.returncode == 0, run.stdout
    assert re.search(r"^\d+ passed in ", run.stdout, re.MULTILINE)
    assert "seen on this GPU" in run.stdout
    assert stage.machine.gpu(0).uuid not in run.stdout


def test_a_broken_gpu_makes_the_trial_fail(stage, large) -> None:
    stuck = {str(place): 0xFF for place in range(2 * PAGE, 2 * PAGE + 64)}
    large.change(stage.machine.gpu(0).uuid, stuck=stuck, leaky=(1,), deviating=(2,), unreached=(3,))
    run = rehearse(stage, FILE, "-m", "gpu", **seen(stage, large), **SMALLER)
    assert {
        "test_the_kernels_compute_what_the_model_computes",
        "test_a_bit_that_flips_anywhere_is_found_where_it_is",
        "test_a_clear_finds_what_was_left_and_leaves_zeros",
        "test_the_memory_on_the_chip_is_overwritten_in_every_unit",
        "test_every_unit_computes_the_same_to_the_last_bit",
        "test_a_healthy_gpu_passes_its_self_test_in_its_time",
    } <= failed(run)


def test_a_gpu_that_is_cut_into_slices_is_left_alone(stage, large) -> None:
    stage.machine.gpu(0).cut([Slice("1g.18gb")])
    run = rehearse(stage, FILE, "-m", "gpu", **seen(stage, large))
    assert re.search(r"^\d+ skipped in ", run.stdout, re.MULTILINE), run.stdout
    assert "is divided into MIG slices" in run.stdout


def test_the_measurement_is_whole_and_true_and_leaves_zeros(stage, small, tmp_path) -> None:
    memory = small.memory(stage.machine.gpu(0).uuid)
    with memory.open("r+b") as file:
        file.write(b"x" * SMALL)
    run = measure(stage, small, tmp_path, *only(*ALONE))
    assert run.returncode == 0, run.stderr + (tmp_path / f"{NAME}.md").read_text()
    assert run.stdout == f"{tmp_path / NAME}.md\n"
    found = measurements(tmp_path)
    assert list(found) == ALONE
    empty = {(part, what) for part, of in found.items() for what, samples in of.items() if not samples}
    assert {part for part, _ in empty} == {"imports", "launches", "opens", "faults", "variants", "traps"}
    assert not any(memory.read_bytes()[2 * PAGE :])  # beside the context, and where results are told
    what_is_measured_is_what_is_there(found)


def test_a_changed_source_is_compiled_and_used(stage, small, monkeypatch) -> None:
    """The compiler is none: the stand-in runs its own kernels, whatever the file has."""
    gpu, sources = stage.machine.gpu(0), list[tuple[str, str]]()
    where = Where(gpu.uuid, gpu.pci, gpu.minor, 1, None, str(stage.root.path), 0)

    def machine_code(source: str, architecture: str) -> bytes:
        sources.append((source, architecture))
        return b""

    monkeypatch.setattr(variants, "machine_code", machine_code)
    monkeypatch.setattr(variants, "in_a_fork", lambda deed: deed())
    with in_this_process(small):
        measured = variants._compiled(where, "8 accesses in flight")
    assert [(it.what, len(it.samples)) for it in measured] == [
        ("kernels, 8 accesses in flight: write keyed", 5),
        ("kernels, 8 accesses in flight: check keyed", 5),
    ]
    [(source, architecture)] = sources
    assert ("constexpr u32 UNROLL = 8;" in source, "#include" in source, architecture) == (True, False, "sm_90")


def test_the_clock_is_read_while_the_gpu_wakes_up(stage, small, tmp_path) -> None:
    stage.machine.gpu(0).set({"ramp": f"345 1980 50 {tmp_path / 'ramp'}"})
    run = measure(stage, small, tmp_path / "out", "--within", "35", *only("ramp"))
    assert run.returncode == 0, run.stderr
    found = measurements(tmp_path / "out")["ramp"]
    assert found["clock at the end of the rest"] == [345]
    assert found["clock: from the first launch to 95 % of its highest"][0] > 0


def test_a_bit_that_is_not_found_fails_the_flips(stage, small, tmp_path) -> None:
    small.change(stage.machine.gpu(0).uuid, stuck={str(2 * PAGE + 40): 0xFF})
    run = measure(stage, small, tmp_path / "out", "--within", "20", *only("flips"))
    assert run.returncode == 1
    assert re.search("flipped bits are not reported as they are: check constant, ", faults(tmp_path / "out")["flips"])


def test_the_chip_is_read_before_it_is_overwritten(stage, small, monkeypatch) -> None:
    gpu, run = stage.machine.gpu(0), CudaCard._ran
    where = Where(gpu.uuid, gpu.pci, gpu.minor, 1, None, str(stage.root.path), 0)
    ran: list[KernelProgram] = []

    def noted(card: CudaCard, program: KernelProgram, number: int) -> list[Unit]:
        ran.append(program)
        return run(card, program, number)

    monkeypatch.setattr(CudaCard, "_ran", noted)
    with in_this_process(small):
        card = opened_as(Listening, where)
        assert ran == []
        card.everywhere(KernelProgram.LISTEN, 1)
        assert ran == [KernelProgram.LISTEN]


def what_is_measured_is_what_is_there(found: dict[str, dict[str, list[float]]]) -> None:
    held = SMALL - 2 * PAGE
    clear, chip = found["clear"], found["scratch"]
    assert clear["random+zero: covered"] == [held]
    assert clear["random+zero: allocatable"] == [SMALL]
    assert clear["random+zero: not covered: the context of the scrub itself"] == [2 * PAGE]
    assert clear["random+zero: others' memory came or went"] == [0]
    assert clear["NVML, afterwards: used"] == clear["NVML, before: used"] == [0]
    assert chip["units reached by both programs"] == [4, 4]
    for what in ("shared memory", "registers"):
        planted = chip[f"{what}: words of a canary, heard by their planter"][0]
        assert (planted > 0) == (what == "shared memory")  # registers of the stand-in are new in each launch
        assert chip[f"{what}: heard by the planter, after the scratch"] == [0]
    assert len(found["passes"]["write keyed, by the device"]) == 2
    assert found["flips"]["flips that a kernel does not report exactly"] == [0]
    assert found["traps"]["a kernel that traps: CUDA's status"] == [719]
    assert found["traps"]["a kernel that traps: a worker leaves open whose fault it is"] == [1]
    for fault in ("a kernel that traps", "a process that is killed inside a kernel"):
        assert found["traps"][f"{fault}: multiprocessors that compute alike in the next process"] == [100]
    for how in ("as usual", "with eight connections"):
        assert len(found["allocations"][f"{how}: all memory, 1024 MiB, created and mapped"]) == 1


def test_a_failed_part_does_not_stop_the_others(stage, small, tmp_path) -> None:
    """One that finds a fault, and one that is killed."""
    small.change(stage.machine.gpu(0).uuid, leaky=(1,), dies_at="invert 1", dies_of=9)
    run = measure(stage, small, tmp_path, *only("passes", "scratch", "timeline"))
    assert run.returncode == 1
    why = faults(tmp_path)
    assert list(why) == ["scratch", "passes", "timeline", "zeros"]
    assert why["passes"].startswith("it ended with status -9")
    assert (why["timeline"], why["zeros"]) == ("", "")
    assert why["scratch"].endswith("1 unit does not hold what is written to it")
    page = (tmp_path / f"{NAME}.md").read_text()
    assert re.search(r"\| scratch \| FAILED \|", page)


RUN = """\
import json, sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, "")
from benchmarks.trial.card import Where
from benchmarks.trial.records import Records
from benchmarks.trial.running import run
from scrubber.node import proc
part, where, path = sys.argv[1:]
where = replace(Where(**json.loads(where)), pid_namespace=proc.own_namespace(Path("/proc")))
run(part, where, 20.0, Records(Path(path)))  # a third of them to save what it has
"""


@pytest.mark.parametrize(
    ("part", "moment"),
    [("ahead", "check 1"), ("one worker", "check 2"), ("service", "check 2")],  # with the most processes of their own
)
@needs_namespace
def test_a_part_that_hangs_is_ended_with_all_its_processes(stage, small, tmp_path, part: str, moment: str) -> None:
    one, records = stage.machine.gpu(0), Records(tmp_path / "out" / "gpu.jsonl")
    small.change(one.uuid, stops_at=moment)
    where = Where(one.uuid, one.pci, one.minor, 1, None, str(stage.root.path), 0)
    records.begin({})
    subprocess.run(
        ["unshare", *FLAGS, sys.executable, "-c", RUN, part, json.dumps(asdict(where)), str(records.path)],
        cwd=ROOT,
        env=environment(stage, seen(stage, small)),
        check=True,
    )
    assert re.match("it was not done within 13 s|.*--timeout ended the waiting", records.part(part).why)
    free(stage)
    if part == "service":
        assert '"state": "scrubbing"' in (records.evidence / "status.json").read_text()
        assert '"kind": "scrub-started"' in (records.evidence / "ledger.jsonl").read_text()
        assert "stopping" in (records.evidence / "service.log").read_text()


def test_a_daemon_that_is_named_may_have_the_gpu_open(stage, small, tmp_path) -> None:
    monitor = tmp_path / "monitor"
    shutil.copy(shutil.which("sleep") or "", monitor)
    with stage.root.node(stage.machine.gpu(0)).open() as node:
        daemon = subprocess.Popen([monitor, "1000"], stdin=node)
    try:
        said = refused(stage, small, tmp_path / "out")
        assert f"it is open in {monitor} ({daemon.pid}); " in said
        assert "--beside PATH" in said
        done = measure(stage, small, tmp_path / "out", "--beside", str(monitor), *only("zeros"))
        assert done.returncode == 0, done.stderr
        about = Records(tmp_path / "out" / f"{NAME}.jsonl").machine() or {}
        assert about["programs that have the GPU open meanwhile"] == f"{monitor} ({daemon.pid})"
    finally:
        daemon.kill()
        daemon.wait()


def test_a_trial_takes_the_allowed_memory_and_zeroes_it(stage, small, tmp_path) -> None:
    limit, memory = 4 * PAGE, small.memory(stage.machine.gpu(0).uuid)
    memory.write_bytes(b"x" * SMALL)
    run = measure(stage, small, tmp_path, "--limit", str(limit), *only("passes", "one worker"))
    assert run.returncode == 0
    found = measurements(tmp_path)
    assert found["passes"]["memory that each pass goes over"] == [limit]
    assert found["passes"]["the four passes of a fast scrub: time"]
    assert found["zeros"]["memory that was made zero and read back"] == [limit]
    assert found["one worker"] == {}  # not measured
    left = memory.read_bytes()[2 * PAGE :]  # a page of it was the context's, one for results
    assert set(left) == {0, ord("x")}
    assert left.count(b"x") >= SMALL - 2 * PAGE - limit
    assert not left.rstrip(b"x").count(b"x")


def refused(stage, machine: CudaMachine, output: Path, *more: str) -> str:
    """Why nothing was begun."""
    run = measure(stage, machine, output, *more)
    assert (run.returncode, run.stdout) == (2, "")
    assert not output.exists()
    return run.stderr


def test_a_gpu_in_use_is_not_measured(stage, small, tmp_path) -> None:
    output, one = tmp_path / "out", stage.machine.gpu(0)
    with stage.root.node(one).open():
        assert f"({os.getpid()})" in refused(stage, small, output)
    one.run(Process(os.getpid()))
    assert f"the driver lists 1 process on it: {os.getpid()}" in refused(stage, small, output)
    one.run()
    one.set({"memory.used": 65 * 2**20})
    assert "bytes of its memory are in use, and there is no process for them" in refused(stage, small, output)
    assert "there is no GPU 9: the driver lists 8" in refused(stage, small, output, "--gpu", "9")


def test_without_cupy_the_trial_reports_it_and_stops(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("scrubber.cuda.cupy_loading.missing", lambda: "CuPy is not installed")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert command.main(["--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("cannot begin: CuPy is not installed; ")
