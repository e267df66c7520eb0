"""The tests for real hardware run on the stand-in first, so that they are known to run before they meet a GPU."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pynvml
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.trial import checks, command, job, needs, report, running, service
from benchmarks.trial.card import Where
from benchmarks.trial.figures import NotDone, Part, Question, one, rounds
from benchmarks.trial.parts import LAST, PARTS, WITHIN, Kind, time_for
from benchmarks.trial.records import Records, Writer
from remnant.idle import IdleObserver, InUse
from scrubber.cuda.images import FOLDER
from scrubber.devices.nvidia import holders
from scrubber.devices.nvidia.holders import LISTS
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library
from tests.cli.on_machine import FLAGS, needs_namespace
from tests.fakes.cuda.fixtures import libraries
from tests.fakes.cuda.machine import PAGE, equip
from tests.fakes.kmsg import Kmsg
from tests.fakes.nvml.changing_calls import CHANGERS
from tests.fakes.nvml.fixtures import on_stage
from tests.fakes.nvml.machine import Process
from tests.gpu.rehearsing import ROOT, environment, failed, free, rehearse, uninstalled

CHANGES = re.compile(rf"(?!nvmlEventSet|\w*Get){CHANGERS.pattern}|nvidia-smi")  # a set of events changes no GPU
SIZE = 10 * PAGE
FEW = ("launches", "nvml", "faults", "timeline", "zeros")
SOME = ("launches", "nvml", "service", "pods", "faults", "timeline", "ahead", "zeros")
TOO_SMALL = {  # what the tests say of a memory of this size
    "test_every_device_is_described_by_what_is_there",
    "test_all_but_a_hundredth_of_the_memory_can_be_taken",
    "test_a_context_is_listed_until_its_process_ends",
}
TUNED = {  # nothing of it is the driver's default
    "power.limit": "452500", "clock.locked.gpu": "210 1410", "clock.locked.memory": "405 3201", "clock.app.0": "1500",
    "persistence_mode": "0",
}  # fmt: skip

SLOW = 2500  # milliseconds to set a GPU up

FILE = "test_nvml.py"


@pytest.mark.night
def test_all_of_them_run_on_the_stand_in(stage) -> None:
    run = rehearse(stage, FILE, "-m", "gpu")
    assert run.returncode == 0, run.stdout
    assert "there is no GPU to look at" not in run.stdout
    assert "seen on this GPU" in run.stdout
    assert stage.machine.gpu(0).uuid not in run.stdout


@pytest.mark.night
def test_all_of_them_run_where_the_driver_lists_no_processes(stage) -> None:
    for question in LISTS:
        stage.machine.fail(question.__name__, pynvml.NVML_ERROR_NOT_SUPPORTED)
    run = rehearse(stage, FILE, "-m", "gpu")
    assert run.returncode == 0, run.stdout


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
    lock = [line.partition(" ")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()]
    found: set[str] = set()
    for name in ("autoclave", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout"):
        needed(name, found)
    assert list(needs.pinned()) == sorted(found - {"autoclave"})
    assert {f"{name}=={release}" for name, release in needs.pinned().items()} <= {*lock}


def test_a_trial_that_was_ended_goes_on_where_it_was(tmp_path) -> None:
    records = Records(tmp_path / "gpu.jsonl")
    records.begin({"model": "GPU"})
    with records.path.open("ab", buffering=0) as file:

        def done(name: str, what: str = "", why: str = "", not_done: str = "", *, ended: bool = True) -> None:
            records.begin_part(name)
            if what:
                Writer(file.fileno(), name).add(one(what, 1, ""))
            if ended:
                Writer(file.fileno(), name).end(1.0, why, not_done)

        done("imports")
        done("launches", "registers", ended=False)  # the trial was killed here
        done("nvml", "questions")
        done("tests", "of the first try", "one test failed")
        done("dram", not_done="ncu is not here")
        assert [name for name in PARTS if name not in records.missing()] == ["imports", "nvml", "dram"]
        assert records.part("launches").figures == (one("registers", 1, ""),)
        done("tests", "tests that passed")
    assert records.missing()[:2] == ("launches", "opens")
    assert [it.what for it in records.part("tests").figures] == ["tests that passed"]


@pytest.mark.parametrize(("within", "number"), [(WITHIN, len(PARTS)), (300.0, len(PARTS)), (100.0, 8), (8.0, 1)])
def test_all_parts_of_a_call_fit_into_its_time(within: float, number: int) -> None:
    """On a clock of its own: each part takes all the time that it gets."""
    left, begun = within, []
    for place, name in enumerate(PARTS):
        if (seconds := time_for(name, [*PARTS][place + 1 :], left)) is not None:
            assert seconds >= PARTS[name].seconds / 2
            begun.append(name)
            left -= seconds
    assert left >= 0
    assert begun == [*[*PARTS][: number - 1], LAST]


def test_one_call_of_the_page_fills_the_returned_folder() -> None:
    page = (ROOT / "benchmarks/trial/README.md").read_text()
    [line] = [line for line in page.splitlines() if "-m benchmarks.trial --within" in line]
    options = command._options(shlex.split(line.partition("-m benchmarks.trial ")[2].partition("`")[0]))
    assert (str(options.output), options.within) == ("$OUT", WITHIN)
    assert WITHIN <= 600 - 60  # to start the machine's Python, and to install
    assert sum(kind.seconds for kind in PARTS.values()) == WITHIN


def test_time_that_parts_leave_goes_to_the_others() -> None:
    assert time_for("ramp", ["sizes", LAST], 33) == 21  # of 55 that all need
    assert time_for("ramp", ["sizes", LAST], 500) == 2 * PARTS["ramp"].seconds


@pytest.mark.parametrize("everybody", [True, False])
def test_without_lists_of_the_driver_all_processes_are_searched(stage, monkeypatch, everybody) -> None:
    gpu = stage.machine.gpu(0)
    gpu.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NOT_SUPPORTED)
    monkeypatch.setattr(IdleObserver, "_look", lambda *_: ((), everybody))
    with on_stage(stage):
        idle = IdleObserver(Host(stage.root.path), Library())
        board = idle.board("0")
        with nullcontext() if everybody else pytest.raises(InUse, match="not every process can be searched"):
            idle.expect_no_holder(board)
        gpu.set({"memory.used": 65 * 2**20})
        with pytest.raises(InUse):
            idle.expect_no_holder(board)
        idle.library.close()


def test_a_process_that_begins_between_two_looks_is_seen(stage, monkeypatch) -> None:
    """By the second question for the lists, also where not every process can be searched."""
    stage.machine.gpu(0).run(Process(os.getpid()))
    monkeypatch.setattr(holders, "pids", lambda *_: frozenset())
    monkeypatch.setattr(IdleObserver, "_look", lambda *_: ((), False))
    with on_stage(stage):
        idle = IdleObserver(Host(stage.root.path), Library())
        with pytest.raises(InUse, match="the driver lists a process"):
            idle.expect_no_holder(idle.board("0"))
        idle.library.close()


def test_what_was_not_predicted_is_marked() -> None:
    question = Question("clock", 200, 600, "MHz", "it rests")
    assert question.answered(100, 300, 700).cells[-2] == "200 to 600: it rests"
    assert question.answered(601, note="warm").cells[-2:] == ("NOT 200 to 600: it rests", "warm")
    assert question.answered(note="no clock").cells[-2:] == ("200 to 600: it rests", "no clock")
    text = report.page({"model": "", "taken": ""}, [Part("ramp", 1.0, (question.answered(601),))])
    assert "* Figures that are not as predicted: ramp: clock\n" in text


def test_rounds_shrink_to_the_time_that_they_take() -> None:
    now = [0.0]

    def of_seconds(took: float, ends: float) -> int:
        done, now[0] = 0, 0.0
        for _ in rounds(20, ends, lambda: now[0]):
            now[0] += took
            done += 1
        return done

    assert [of_seconds(0.1, 10), of_seconds(3, 10), of_seconds(30, 10)] == [20, 3, 1]


def where(**more) -> Where:
    return replace(Where("GPU-none", "0000:00:00.0", 0, 1, None, "/", 0), **more)


def test_a_checkout_that_travelled_says_what_it_lacks(stage, tmp_path) -> None:
    """What git does not ignore travels by itself; the packages and the compiled kernels must be carried."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: git cannot say which files travel")
    here, gpu = tmp_path / "travelled", stage.machine.gpu(0)
    files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(files, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, here / name)
    cuda = equip(tmp_path / "cuda", [gpu], libraries(), SIZE)
    alone = uninstalled(tmp_path, environment(stage, cuda.environment(stage.library.parent)))

    def tried(*options: str) -> tuple[int, str]:
        command = [sys.executable, *options, "-m", "benchmarks.trial", "--only", "imports"]
        places = ["--output", str(tmp_path / "out"), "--host-root", str(stage.root.path)]
        run = subprocess.run([*command, *places], cwd=here, env=alone, capture_output=True, text=True, check=False)
        return run.returncode, run.stderr

    lacks = (
        "cannot begin: the compiled kernels are not in this checkout; .* carry the folder scrubber/cuda/kernels .*\n"
    )
    status, said = tried()
    assert status == 2
    assert re.fullmatch(lacks, said)
    shutil.copytree(FOLDER, here / needs.KERNELS, dirs_exist_ok=True)
    status, said = tried("-S")
    assert status == 2
    assert re.fullmatch(r"cannot begin: these packages are not installed: .*, pytest, .*; carry .*README.md.*\n", said)
    status, said = tried()
    assert status == 0, said
    assert str(ROOT) not in said


def test_a_plugin_of_the_machine_does_not_disturb_the_tests(tmp_path, monkeypatch) -> None:
    plugin = tmp_path / "foreign-1.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Name: foreign\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[pytest11]\nforeign = no_such_module\n")
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.gpu\nasync def test_it(): pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(checks, "FILES", (str(tmp_path / "test_it.py"),))
    assert [it.samples for it in checks.measure(where())] == [(1,), (0,), (0,)]


def refuse(_pid: int) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_without_pidfds_parts_end_and_the_service_is_not_proved(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", refuse)
    records = Records(tmp_path / "gpu.jsonl")
    records.begin({})
    monkeypatch.setitem(PARTS, "none", Kind("no_such_module", 1.0))
    assert running.run("none", where(), 60.0, records).why == "it ended with status 1: KeyError: 'none'"
    with pytest.raises(NotDone, match=r"Function not implemented, so .* no scrub by the service is proved here"):
        next(iter(service.measure(where())))
    with pytest.raises(NotDone, match="Function not implemented, so no zygote can hold a worker"):
        next(iter(job.measure(where())))


@pytest.mark.parametrize(("part", "moment"), [("launches", "scratch 1"), ("passes", "check 1")])
def test_a_killed_trial_frees_the_gpu_and_keeps_its_results(stage, tmp_path, part: str, moment: str) -> None:
    gpu = stage.machine.gpu(0)
    cuda = equip(tmp_path / "cuda", [gpu], libraries(), SIZE)
    cuda.change(gpu.uuid, stops_at=moment)
    arguments = ["--output", tmp_path, "--host-root", stage.root.path, "--only", part]
    trial = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.trial", *map(str, arguments)],
        cwd=ROOT,
        env=environment(stage, cuda.environment(stage.library.parent)),
        stderr=subprocess.DEVNULL,
    )
    cuda.stopped(gpu.uuid)
    trial.kill()
    trial.wait()
    free(stage)
    found = Records(tmp_path / "nvidia-h200.jsonl").part(part)
    assert found.why == "it was ended together with the trial"
    names = ["invert", "invert: no shared memory"] if part == "launches" else []  # all of one wait for its end
    assert [it.what for it in found.figures][-2:] == names


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


def trial(stage, cuda, output: Path, *only: str) -> subprocess.CompletedProcess[str]:
    """The trial of the second GPU, which somebody has tuned. Afterwards nothing of the machine may be changed."""
    gpu, kernel = stage.machine.gpu(1), kernel_files(stage)
    gpu.set(TUNED)
    arguments = ["--gpu", 1, "--output", output, "--host-root", stage.root.path, "--rounds", 1]
    arguments += [word for name in only for word in ("--only", name)]
    run = subprocess.run(
        ["unshare", *FLAGS, sys.executable, "-m", "benchmarks.trial", *map(str, arguments)],
        cwd=ROOT,
        env=environment(stage, cuda.environment(stage.library.parent)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert {call for _, call, _ in stage.machine.calls() if CHANGES.match(call)} == set()
    assert {key: gpu[key] for key in TUNED} == TUNED
    assert kernel_files(stage) == kernel
    return run


def kernel_files(stage) -> dict[Path, tuple[int, bytes]]:
    """The files below /proc and /sys of the host, and when each was written."""
    files = (file for tree in ("proc", "sys") for file in (stage.root.path / tree).rglob("*") if file.is_file())
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


@needs_namespace
@pytest.mark.parametrize(
    "only",
    [
        pytest.param(FEW, id="few parts"),
        pytest.param(SOME, id="some parts", marks=pytest.mark.night),
        pytest.param(tuple(PARTS), id="all", marks=pytest.mark.night),
    ],
)
def test_the_trial_runs_on_the_stand_ins(stage, tmp_path, only) -> None:
    """On the second GPU: the first one is not as believed, and left alone by every part."""
    install(stage, "ncu", PROFILER)
    install(stage, "compute-sanitizer", SANITIZER)
    gpus, output = [stage.machine.gpu(number) for number in (0, 1)], tmp_path / "out"
    cuda = equip(tmp_path / "cuda", gpus, libraries(), SIZE)
    others, memory = (cuda.memory(gpu.uuid) for gpu in gpus)
    for file in (others, memory):
        file.write_bytes(b"x" * SIZE)
    gpus[1].set({"open_ms": SLOW if only == tuple(PARTS) else SLOW // 5})
    gpus[0].set({"fail.nvmlDeviceGetPersistenceMode": 999})
    run = trial(stage, cuda, output, *only)
    records = Records(output / "nvidia-h200.jsonl")
    parts = {part.name: part for part in records.parts()}
    assert list(parts) == [*only], run.stderr
    faults = {part.name: part.why or part.not_done for part in parts.values() if part.why or part.not_done}
    assert list(faults) == [name for name in only if name == "tests"], faults
    assert set(re.findall(r"::(\w+)", faults.get("tests", ""))) == (TOO_SMALL if "tests" in only else set())
    assert run.returncode == len(faults)
    samples = {name: {it.what: list(it.samples) for it in part.figures} for name, part in parts.items()}
    notes = {it.what: it.note for it in parts["launches"].figures}
    assert notes["scratch: 232448 bytes"] == "passed"
    assert samples["faults"]["a write that leaves out the last bytes: noticed"] == [1]
    if only == SOME:
        set_ups = [uuid for _, call, uuid in stage.machine.calls() if call == "set-up"]
        # By each of the four starts of a service, which has it to itself, by the use between two of them, and by the
        # trial before, between and after its parts.
        assert set_ups == [gpus[1].uuid] * 8
    assert others.read_bytes() == b"x" * SIZE
    assert not any(memory.read_bytes()[2 * PAGE :])  # the context was in the first pages
    published = [records.path, records.page, output / "nvidia-h200-nvml.md"]
    assert gpus[1].uuid not in "".join(file.read_text() for file in published)
    evidence = {file.name: file.read_text() for file in records.evidence.iterdir()}
    assert sorted(output.iterdir()) == sorted([*published, records.evidence])
    assert [name for name in only if f"\n===== {name}, " not in evidence["stderr.txt"]] == []
    if only == FEW:
        assert [*evidence] == ["stderr.txt"]
        return
    assert {*evidence} == {"stderr.txt", "service.log", "status.json", "ledger.jsonl", "pods.log"}
    assert samples["service"]["receipt: not covered: the context of the scrub itself"] == [2 * PAGE]
    states = {row["device"]: row["state"] for row in json.loads(evidence["status.json"])["items"]}
    assert states[gpus[1].uuid] == "clean"
    assert "scrub-passed" in evidence["ledger.jsonl"]


@needs_namespace
def test_an_old_grave_error_makes_the_trial_change_nothing(stage, tmp_path) -> None:
    """The service finds that the GPU needs a reset, says so, and does none."""
    gpu, output = stage.machine.gpu(1), tmp_path / "out"
    with closing(Kmsg(stage.root.path / "dev/kmsg")) as log:
        log.xid(gpu.pci, 48)
        run = trial(stage, equip(tmp_path / "cuda", [stage.machine.gpu(0), gpu], libraries(), SIZE), output, "service")
    assert run.returncode == 1
    assert "the policy forbids resets" in Records(output / "nvidia-h200.jsonl").part("service").why
