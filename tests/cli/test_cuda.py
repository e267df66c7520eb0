"""The whole scrub of NVIDIA GPUs, from the command to the receipt: service, zygote, workers, NVML and CUDA calls.

All of Autoclave, CuPy and pynvml are what runs on real GPUs. The two libraries of the driver are stand-ins, whose
memory outlives the processes that use it; one of them runs the shipped kernels (``tests/fakes/cuda/driver``).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scrub_api import client
from tests.cli import on_machine
from tests.cli.on_machine import OnMachine, children, needs_namespace, staged
from tests.fakes.cuda.fixtures import libraries
from tests.fakes.cuda.machine import PAGE, SIZE, equip
from tests.patience import WITHIN

pytestmark = needs_namespace
library = on_machine.library  # a fixture
NIGHT = pytest.mark.night

SECRET = b"the weights of somebody else's model"
POLICY = """\
name: patient
defaults:
  clear: {min_coverage: 0.7}
  selftest: {time: 1s}
  quarantine: {probation: {first: 1h}}
"""
SLOW = ["evict", "clear", "verify", "scratch", "selftest", "settings", "health"]


class OnCuda(OnMachine):
    """With GPUs that CUDA reaches as well."""

    def __init__(self, root: Path, library: Path, count: int) -> None:
        stage = staged(root, library, count)
        self.cuda = equip(root / "cuda", stage.machine.gpus, libraries())
        super().__init__(root, stage, POLICY, self.cuda.environment(library.parent))

    @contextmanager
    def tenant(self, number: int, program: str) -> Iterator[subprocess.Popen[str]]:
        """A program of a pod, from its first line to the end of the block."""
        until_next_tick()
        env = {**os.environ, **self.stage.environment(), **self.more}
        env["CUDA_VISIBLE_DEVICES"] = self.stage.machine.gpu(number).uuid
        command = ["nsenter", "--target", str(self.inner), "--pid", sys.executable, "-c", program]
        with subprocess.Popen(command, stdin=-1, stdout=-1, env=env, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            yield process

    def policy(self, text: str) -> None:
        """Change the policy of all GPUs."""
        (self.root / "policy.yaml").write_text(text)
        self.hear("policy loaded")

    def memory(self, number: int) -> Path:
        return self.cuda.memory(self.stage.machine.gpu(number).uuid)

    def soil(self, number: int) -> None:
        with self.memory(number).open("r+b") as file:
            for place in (SIZE // 3, SIZE // 2, SIZE - len(SECRET)):
                file.seek(place)
                file.write(SECRET)

    def dirty(self, number: int) -> bool:
        return SECRET in self.memory(number).read_bytes()

    def change(self, number: int, **changes: object) -> None:
        self.cuda.change(self.stage.machine.gpu(number).uuid, **changes)

    def below(self, pid: int | None = None) -> list[int]:
        """All processes that the service has started and that still run."""
        alive = children(pid or self.inner)
        return [*alive, *(deeper for child in alive for deeper in self.below(child))]


@pytest.fixture(scope="module")
def service(library) -> Iterator[OnCuda]:
    """Three GPUs, all dirty. The service scrubs them at its start."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as directory:
        running = OnCuda(Path(directory), library, 3)
        for number in range(3):
            running.settled(number, "clean")
        yield running
        running.stop()


@pytest.fixture
def clean(service) -> int:
    """A GPU that is clean."""
    service.settled(1, "clean")
    return 1


def test_a_new_gpu_is_scrubbed_and_its_receipt_says_how(service, autoclave):
    service.settled(0, "clean")
    (item,) = json.loads(autoclave("status", "0", "-o", "json").stdout)["items"]
    history = json.loads(autoclave("history", "0", "--limit", "1000", "-o", "json").stdout)["items"]
    receipt = next(entry["body"]["receipt"] for entry in history if entry["kind"] == "scrub-passed")
    assert [step for step, _ in receipt["steps"]] == SLOW
    assert item["healthy"]
    assert receipt["covered_bytes"] + sum(it["bytes"] for it in receipt["uncovered"]) == receipt["allocatable_bytes"]
    assert receipt["patterns"] == ["random", "zero"]
    assert (receipt["units"], receipt["units_reached"]) == (4, 4)
    assert {"address", "arithmetic"} <= set(receipt["tests"])  # for the others there is more or less time


def test_a_scrub_finds_the_last_owners_bytes_and_leaves_none(service, autoclave, clean):
    service.soil(clean)
    done = autoclave("scrub", clean)
    assert done.exit_code == 0, done.output
    assert not service.dirty(clean)
    assert any(f"{3 * len(SECRET)} bytes were not zero before" in text for text in service.texts(clean))


TENANT = f"""
import ctypes, sys
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
for status in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(address), {PAGE}),
    cuda.cuMemcpyHtoD_v2(address, {SECRET!r}, {len(SECRET)}),
):
    assert status == 0, status
print(flush=True)
sys.stdin.read()
"""


def until_next_tick() -> None:
    """Return in the kernel's next tick. It counts starts of processes in ticks, and grants have an exact time.

    So a process that starts in the tick of its grant may be older than the grant, and no scrub ends it.
    """

    def tick() -> int:
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))

    first = tick()
    while tick() == first:
        pass


def acquire(service: OnCuda, number: int) -> None:
    async def call() -> None:
        async with client.ScrubberClient(service.run_dir / "scrubber.sock") as scrubber:
            await scrubber.acquire([service.stage.machine.gpu(number).uuid])

    asyncio.run(call())


@pytest.fixture
def lent(service, clean) -> Iterator[int]:
    """A GPU that pods get, and that is free again in the end."""
    yield clean
    run_dir, device = service.run_dir, service.stage.machine.gpu(clean).uuid

    async def call() -> None:
        async with client.ScrubberClient(run_dir / "scrubber.sock") as scrubber:
            await scrubber.release([device])

    asyncio.run(call())


def test_the_next_pod_gets_no_byte_of_a_living_tenant(service, lent):
    """From the Acquire of a pod, whose program writes through CUDA and stays, to the next Acquire and its receipt."""
    acquire(service, lent)
    with service.tenant(lent, TENANT) as tenant:
        assert service.dirty(lent)
        acquire(service, lent)
        assert tenant.wait(WITHIN) == -signal.SIGTERM
    assert not service.dirty(lent)
    receipt = service.settled(lent, "granted").receipt
    assert (receipt.residue_bytes, receipt.processes_terminated) == (len(SECRET), 1)
    assert receipt.covered_bytes + sum(it.bytes for it in receipt.uncovered) == receipt.allocatable_bytes


PIECES = SIZE // PAGE - 2  # of memory, each a launch: all but the context and what it needs
PROOF, VERIFY = (f"check {number * PIECES + 1}" for number in (1, 2))  # after the census
TAKING = "allocate 5"  # with the context and some of the memory in hand


@pytest.mark.parametrize(
    ("launch", "path"),
    [
        ("write 2", "fast"),
        ("exact 3", "slow"),  # after a clear that has passed
        *(pytest.param(*it, marks=NIGHT) for it in (("check 1", "fast"), (PROOF, "fast"), ("scratch 2", "slow"))),
    ],
)
def test_a_device_whose_worker_crashes_is_quarantined(service, autoclave, launch, path):
    service.settled(1, "clean")
    service.soil(1)
    service.change(1, dies_at=launch)
    done = autoclave("scrub", 1, "--path", path)
    service.change(1, dies_at=None)
    assert done.exit_code == 1
    assert service.settled(1, "quarantined").receipt is None
    assert len(service.below()) == 1  # the zygote
    done = autoclave("reinstate", 1)
    assert done.exit_code == 0, done.output
    assert not service.dirty(2)


@pytest.mark.parametrize(
    ("launch", "step"), [(TAKING, "clear"), pytest.param(PROOF, "clear", marks=NIGHT), (VERIFY, "verify")]
)
def test_a_device_whose_worker_is_killed_is_scrubbed_again(service, autoclave, launch, step):
    """As the kernel does on a node that has no memory left: no fault of the device, so no quarantine.

    The load that the GPU goes on reporting ends with the context of the next scrub.
    """
    service.settled(1, "clean")
    service.soil(1)
    known = len(service.texts(1))
    service.change(1, dies_at=launch, dies_of=signal.SIGKILL)
    done = autoclave("scrub", 1)
    service.change(1, dies_at=None, dies_of=signal.SIGSEGV)
    assert done.exit_code == 1
    assert f"{step} has no result" in done.stderr
    assert "signal 9 (SIGKILL)" in done.stderr
    service.settled(1, "clean")
    assert service.stage.machine.gpu(1).get("load") == "0"
    assert not any("quarantined" in text for text in service.texts(1)[known:])
    assert not service.dirty(2)
    assert len(service.below()) == 1  # the zygote


def test_a_clear_past_its_deadline_is_ended(service, autoclave):
    """A deadline is no part of a proof: with another policy all GPUs stay clean."""
    service.settled(1, "clean")
    hurried = POLICY + "  timeouts: 0.1\n  evict: {grace: 1s}\n"
    service.change(1, stops_at="write 2")
    service.policy(hurried)
    done = autoclave("scrub", 1)
    service.policy(POLICY)
    service.change(1, stops_at=None)
    assert done.exit_code == 1
    assert "clear was not done within 6 s" in done.stderr
    assert len(service.below()) == 1
    done = autoclave("reinstate", 1)
    assert done.exit_code == 0, done.output


def test_memory_of_no_visible_process_is_freed_by_a_reset(service, autoclave):
    service.settled(2, "clean")
    known = len(service.texts(2))
    service.stage.machine.gpu(2).set({"memory.used": 300 * 2**20})
    autoclave("scrub", 2)  # unless the service has noticed it first
    done = service.settled(2, "clean", "quarantined")
    texts = service.texts(2)[known:]
    (escalated,) = (text for text in texts if text.startswith("escalated to the reset path"))
    assert escalated.endswith(f"{300 * 2**20} bytes of its memory are in use by no visible process")
    assert [step.step for step in done.receipt.steps] == ["evict", "clear", "evict", "reset", *SLOW[1:]]
    assert service.stage.machine.gpu(2).get("memory.used") == "0"
