"""The whole scrub of NVIDIA GPUs, from the command to the receipt: service, zygote, workers, NVML and CUDA calls.

CuPy and its GPUs are stand-ins over numpy (``tests/fakes/cuda``), whose memory outlives the processes that use it.
All of Autoclave is what runs on real GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import on_machine
from tests.cli.on_machine import OnMachine, children, needs_namespace, staged
from tests.fakes.cuda.fixtures import SIZE, equip
from tests.fakes.cuda.gpu import PAGE
from tests.patience import WITHIN

pytestmark = needs_namespace
library = on_machine.library  # a fixture

SECRET = b"the weights of somebody else's model"
POLICY = """\
name: patient
defaults:
  clear: {min_coverage: 0.8}
  selftest: {time: 1s}
  paths: {escalate: false}
  quarantine: {probation: {first: 1h, longest: 1h}}
rules:
  - {name: hurries, match: {gpu: [2]}, policy: {timeouts: {clear: 15s}}}
  - {name: resets, match: {gpu: [3]}, policy: {paths: {escalate: true}}}
"""
SLOW = ["evict", "reset", "clear", "verify", "scratch", "selftest", "settings", "health"]


class OnCuda(OnMachine):
    """With GPUs that CUDA reaches as well."""

    def __init__(self, root: Path, library: Path, count: int) -> None:
        stage = staged(root, library, count)
        self.cuda = equip(root / "cuda", stage.machine.gpus, stage.root)
        super().__init__(root, stage, POLICY, self.cuda.environment(os.environ.get("PYTHONPATH", "")))

    def memory(self, number: int) -> Path:
        return Path(self.cuda.gpus[self.stage.machine.gpu(number).uuid].memory)

    def soil(self, number: int) -> None:
        with self.memory(number).open("r+b") as file:
            for place in (SIZE // 3, SIZE // 2, SIZE - len(SECRET)):
                file.seek(place)
                file.write(SECRET)

    def dirty(self, number: int) -> bool:
        return SECRET in self.memory(number).read_bytes()

    def change(self, number: int, **changes: object) -> None:
        self.cuda.change(self.stage.machine.gpu(number).uuid, **changes)

    def stopped(self, number: int) -> None:
        """Wait until a worker has come to where its GPU stops."""
        self.cuda.stopped(self.stage.machine.gpu(number).uuid)

    def below(self, pid: int | None = None) -> list[int]:
        """All processes that the service has started and that still run."""
        alive = children(pid or self.inner)
        return [*alive, *(deeper for child in alive for deeper in self.below(child))]


@pytest.fixture(scope="module")
def service(library) -> Iterator[OnCuda]:
    """Four GPUs, all dirty; the first look finds them."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as directory:
        running = OnCuda(Path(directory), library, 4)
        for number in range(4):
            running.settled(number, "clean")
        yield running
        running.stop()


@pytest.fixture
def clean(service) -> int:
    """A GPU whose first scrub is over."""
    service.settled(1, "clean")
    return 1


def test_a_gpu_is_proven_clean_before_anybody_asked_and_the_receipt_says_how(service, autoclave):
    service.settled(0, "clean")
    (item,) = json.loads(autoclave("status", "0", "-o", "json").stdout)["items"]
    receipt = item["receipt"]
    assert [step["step"] for step in receipt["steps"]] == SLOW
    assert item["healthy"]
    assert receipt["covered_bytes"] + sum(it["bytes"] for it in receipt["uncovered"]) == receipt["allocatable_bytes"]
    assert receipt["patterns"] == ["random", "zero"]
    assert (receipt["units"], receipt["units_reached"]) == (4, 4)
    assert {"address", "arithmetic"} <= set(receipt["tests"])  # for the others there is more or less time


def test_a_scrub_on_request_finds_the_last_users_bytes_and_leaves_none(service, autoclave, clean):
    service.soil(clean)
    done = autoclave("scrub", clean)
    assert done.exit_code == 0, done.output
    assert not service.dirty(clean)
    assert any(f"{3 * len(SECRET)} bytes of the last owner were found" in text for text in service.texts(clean))


@pytest.mark.usefixtures("service")
def test_it_reads_well(autoclave, clean):
    told = autoclave("explain", clean).stdout
    assert "scratch passed" in told
    assert "selftest passed" in told
    assert "the context of the scrub itself" in told


@pytest.mark.usefixtures("clean")
def test_nothing_of_cupy_is_in_the_service_and_the_zygote_has_it_ready(service):
    assert "numpy" not in Path(f"/proc/{service.inner}/maps").read_text()
    (zygote,) = service.below()
    assert "numpy" in Path(f"/proc/{zygote}/maps").read_text()
    assert len(list(Path(f"/proc/{zygote}/task").iterdir())) == 1


PIECES = SIZE // PAGE - 2  # of memory, each a launch: all but the context and what it needs
CENSUS, PATTERN, PROOF, ZERO = "check 1", "write 2", f"check {PIECES + 1}", f"check {2 * PIECES + 1}"
VERIFY = f"check {3 * PIECES + 1}"
TAKING = "allocate 5"  # with the context and some of the memory in hand


@pytest.mark.parametrize(
    ("launch", "path"), [*((it, "fast") for it in (CENSUS, PATTERN, PROOF)), ("scratch 2", "slow"), ("exact 3", "slow")]
)
def test_a_worker_that_crashes_at_any_moment_leaves_a_device_that_is_not_clean(service, autoclave, launch, path):
    service.settled(2, "clean")
    service.soil(2)
    service.change(2, dies_at=launch)
    done = autoclave("scrub", 2, "--path", path)
    service.change(2, dies_at=None)
    assert done.exit_code == 1
    assert service.settled(2, "quarantined").receipt is None
    assert len(service.below()) == 1  # the zygote
    assert autoclave("reinstate", 2).exit_code == 0
    assert not service.dirty(2)


@pytest.mark.parametrize(("launch", "step"), [(TAKING, "clear"), (ZERO, "clear"), (VERIFY, "verify")])
def test_a_worker_killed_by_somebody_leaves_a_dirty_device_that_is_tried_again(service, autoclave, launch, step):
    """As the kernel does on a node that has no memory left: no fault of the device, so no quarantine."""
    service.settled(2, "clean")
    service.soil(2)
    known = len(service.texts(2))
    service.change(2, dies_at=launch, dies_of=signal.SIGKILL)
    done = autoclave("scrub", 2)
    service.change(2, dies_at=None, dies_of=signal.SIGSEGV)
    assert done.exit_code == 1
    assert f"{step} has no result" in done.stderr
    assert "status -9" in done.stderr
    service.settled(2, "clean")
    assert not any("quarantined" in text for text in service.texts(2)[known:])
    assert not service.dirty(2)
    assert len(service.below()) == 1  # the zygote


def test_a_kernel_that_never_ends_is_cut_off_and_its_worker_is_gone(service, autoclave):
    service.settled(2, "clean")
    service.change(2, stops_at="write 2")
    done = autoclave("scrub", 2)
    service.change(2, stops_at=None)
    assert done.exit_code == 1
    assert "clear was not done within 15 s" in done.stderr
    assert len(service.below()) == 1
    assert autoclave("reinstate", 2).exit_code == 0


def test_memory_that_does_not_hold_a_bit_is_sick_and_not_tried_until_it_is_well(service, autoclave):
    service.settled(2, "clean")
    service.change(2, stuck={str(SIZE // 2): 0x08})
    done = autoclave("scrub", 2)
    service.change(2, stuck={})
    assert done.exit_code == 1
    quarantine = service.settled(2, "quarantined").quarantine
    assert quarantine.reason == "memory-fault"
    assert autoclave("reinstate", 2).exit_code == 0


def test_somebody_elses_memory_that_appears_meanwhile_leaves_it_dirty(service, autoclave):
    service.settled(2, "clean")
    service.change(2, taken_at=["write 3", 2**28])
    done = autoclave("scrub", 2)
    service.change(2, taken_at=None)
    assert done.exit_code == 1
    assert "another process took 268435456 bytes" in done.stderr
    service.settled(2, "clean")  # it was no fault of the device: it is tried again by itself


def test_memory_that_nobody_answers_for_is_freed_by_a_reset(service, autoclave):
    service.settled(3, "clean")
    known = len(service.texts(3))
    service.stage.machine.gpu(3).set({"memory.used": 300 * 2**20})
    autoclave("scrub", 3)  # unless the service has noticed it first
    done = service.settled(3, "clean", "quarantined")
    texts = service.texts(3)[known:]
    (escalated,) = (text for text in texts if text.startswith("escalated to the slow path"))
    assert escalated.endswith(f"{300 * 2**20} bytes of its memory are in use by no visible process")
    assert [step.step for step in done.receipt.steps] == ["evict", "clear", *SLOW]
    assert service.stage.machine.gpu(3).get("memory.used") == "0"


def test_a_multiprocessor_that_computes_wrong_is_sick(service, autoclave):
    service.settled(3, "clean")
    service.change(3, deviating=[1])
    done = autoclave("scrub", 3, "--path", "slow")
    service.change(3, deviating=[])
    assert done.exit_code == 1
    assert service.settled(3, "quarantined").quarantine.reason == "compute-fault"
    assert autoclave("reinstate", 3).exit_code == 0


def test_a_gpu_that_cuda_does_not_give_us_now_is_no_sick_one(service, autoclave):
    service.settled(3, "clean")
    service.change(3, refuses=46)
    done = autoclave("scrub", 3)
    service.change(3, refuses=None)
    assert done.exit_code == 1
    assert "busy" in done.stderr
    service.settled(3, "clean")


def test_the_zygotes_death_fails_a_job_and_no_more(service):
    service.settled(3, "clean")
    service.change(3, stops_at="write 1")
    scrubbing = service.popen("scrub", 3)
    service.stopped(3)
    (zygote,) = (pid for pid in service.below() if service.below(pid))
    os.kill(zygote, signal.SIGKILL)
    assert scrubbing.wait(WITHIN) == 1
    service.change(3, stops_at=None)
    service.settled(3, "clean")  # it was no fault of the device: it is tried again by itself
    assert len(service.below()) == 1


@pytest.fixture
def doomed(library) -> Iterator[OnCuda]:
    """A service to be killed, with one GPU."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as directory:
        running = OnCuda(Path(directory), library, 1)
        yield running
        running.stop()


def test_a_service_killed_in_the_middle_of_a_clear_takes_its_workers_along_and_believes_nothing(doomed):
    doomed.settled(0, "clean")
    doomed.soil(0)
    doomed.change(0, stops_at="write 2")
    scrubbing = doomed.popen("scrub", 0)
    doomed.stopped(0)
    pids = doomed.below()
    os.kill(doomed.inner, signal.SIGKILL)
    doomed.process.wait(WITHIN)
    doomed.log.close()
    scrubbing.wait(WITHIN)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    doomed.change(0, stops_at=None)
    doomed.start()
    assert doomed.settled(0, "clean").receipt is not None
    assert any("cancelled, nothing was proven" in text for text in doomed.texts(0))
    assert not doomed.dirty(0)
