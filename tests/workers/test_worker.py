"""A step ends with a result, in time, with no child left; only the child's own word can pass it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from scrubber.core.model import Blame, Outcome, ScrubPath, Step, StepResult
from scrubber.devices.base import Address, DeviceHandling
from scrubber.devices.simulated import drills, tenants
from scrubber.steps.base import Order, Report
from scrubber.workers import wire
from scrubber.workers import worker as workers
from scrubber.workers.nursery import Nursery
from scrubber.workers.wire import Assignment
from scrubber.workers.worker import BrokenError, Worker
from tests.patience import WITHIN
from tests.workers.zygotes import LAST, children, descriptors, exists, gone_within, left, links, living

LONG = 60.0
CLEAR = Order(patterns=("random", "zero"), key="00ff")
Spawn = Callable[..., Awaitable[Worker]]


def ignore(_done: int, _total: int) -> None:
    """Progress is not reported."""


def at(bank) -> tuple[Address, tuple[str, ...]]:
    return bank.backend.address(bank.first, DeviceHandling()), bank.backend.files(bank.first)


def assigned(address: Address, files: tuple[str, ...]) -> Assignment:
    return Assignment(address, files, whole_node=False, service=os.getpid())


async def do(worker: Worker, step: Step, order: Order = CLEAR, deadline: float = LONG) -> StepResult:
    return await worker.do(step, ScrubPath.FAST, order, deadline, ignore)


@pytest.fixture
async def spawn(bank) -> AsyncIterator[Spawn]:
    """Spawn workers on the first GPU; whatever a test does with them, nothing of them may remain."""
    before = descriptors()
    spawned: list[Worker] = []
    nurseries: list[Nursery] = []

    async def start(life: str = "") -> Worker:
        """A worker, or a child that lives by a few lines of its own."""
        nursery = Nursery(warm_cuda=False, program=living(life)) if life else Nursery(warm_cuda=False)
        nurseries.append(nursery)
        worker = await nursery.start_worker(assigned(*at(bank)))
        spawned.append(worker)
        return worker

    yield start
    for worker in spawned:
        await worker.kill()
        assert not exists(worker.pid)
    for nursery in nurseries:
        await nursery.close()
    await asyncio.sleep(0)  # the loop closes pipes one turn after their end
    assert left(before) == set()
    assert children() == []


def saying(code: str) -> str:
    """A child that is not our own: it has read its assignment and its first task when the code runs."""
    return f"sys.stdin.readline()\nsys.stdin.readline()\n{code}\nsys.stdout.flush()"


async def test_all_steps_pass_and_the_child_ends_well(bank, spawn: Spawn) -> None:
    bank.place(bank.first).memory.write_bytes(b"secret" * 1000)
    worker = await spawn()
    results = [await do(worker, step) for step in Step]
    assert [(result.step, result.outcome) for result in results] == [(step, Outcome.PASSED) for step in Step]
    assert all(0 < result.seconds < LONG for result in results)
    assert b"secret" not in bank.place(bank.first).memory.read_bytes()
    assert await worker.finish(LAST) is LAST


async def test_a_worker_evicts_a_leftover(bank, spawn: Spawn) -> None:
    pid = tenants.zombie(bank.root, bank.first)
    order = Order(terminate_leftovers=True, tenancy=(0.0, math.inf), grace=0.05)
    result = await do(await spawn(), Step.EVICT, order)
    assert (result.outcome, result.findings.terminated) == (Outcome.PASSED, (pid,))


async def test_the_service_is_no_holder(bank, spawn: Spawn) -> None:
    """It has the memory open for a moment whenever it asks whether anybody has."""
    worker = await spawn()
    with bank.place(bank.first).memory.open("rb"):
        result = await do(worker, Step.EVICT, Order())
    assert (result.outcome, result.findings.holders) == (Outcome.PASSED, ())


async def test_progress_is_reported_until_the_end(bank, spawn: Spawn) -> None:
    said: list[tuple[int, int]] = []
    worker = await spawn()
    await worker.do(Step.CLEAR, ScrubPath.FAST, CLEAR, LONG, lambda done, total: said.append((done, total)))
    total = 4 * bank.place(bank.first).memory.stat().st_size
    assert said[-1] == (total, total)


async def test_a_failure_of_the_device_is_a_report(bank, spawn: Spawn) -> None:
    drills.lose(bank.root, bank.first)
    worker = await spawn()
    result = await do(worker, Step.RESET)
    assert (result.outcome, result.blame) == (Outcome.FAILED, Blame.DEVICE)
    drills.heal(bank.root, bank.first)
    assert (await do(worker, Step.RESET)).outcome is Outcome.PASSED
    assert await worker.finish(LAST) is LAST


async def test_a_stalled_clear_is_killed_at_its_deadline(bank, spawn: Spawn) -> None:
    drills.stall_clears(bank.root, bank.first)
    worker = await spawn()
    result = await do(worker, Step.CLEAR, deadline=0.5)
    assert (result.outcome, result.blame) == (Outcome.TIMED_OUT, Blame.DEVICE)
    assert "clear was not done within 0.5 s" in result.detail
    assert 0.5 <= result.seconds < LONG
    assert not exists(worker.pid)
    assert bank.backend.has_holders(bank.first) is False


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("time.sleep(60)", Outcome.TIMED_OUT), ("os.kill(os.getpid(), signal.SIGSEGV)", Outcome.DIED)],
)
async def test_an_endless_evict_is_no_fault_of_the_device(spawn: Spawn, code: str, outcome: Outcome) -> None:
    """A dead file system, for one."""
    deadline = 0.2 if outcome is Outcome.TIMED_OUT else LONG
    result = await do(await spawn(saying(code)), Step.EVICT, deadline=deadline)
    assert (result.outcome, result.blame) == (outcome, Blame.TENANT)


async def test_a_worker_that_ended_a_step_badly_runs_no_more(bank, spawn: Spawn) -> None:
    drills.stall_clears(bank.root, bank.first)
    worker = await spawn()
    await do(worker, Step.CLEAR, deadline=0.3)
    drills.heal(bank.root, bank.first)
    assert (await do(worker, Step.HEALTH)).outcome is Outcome.DIED
    assert (await worker.finish(LAST)).outcome is Outcome.DIED


@pytest.mark.parametrize(
    ("number", "blame"),
    [
        (signal.SIGKILL, Blame.SERVICE),  # the kernel of a node without memory, or somebody else: no device
        (signal.SIGTERM, Blame.SERVICE),
        (signal.SIGSEGV, Blame.DEVICE),
        (signal.SIGBUS, Blame.DEVICE),
        (signal.SIGABRT, Blame.DEVICE),
        (signal.SIGFPE, Blame.DEVICE),
        (signal.SIGILL, Blame.DEVICE),
        (signal.SIGTRAP, Blame.DEVICE),
    ],
)
async def test_a_child_that_is_killed_during_a_step_has_died(bank, spawn: Spawn, number, blame) -> None:
    drills.stall_clears(bank.root, bank.first)
    worker = await spawn()
    killed = lambda _done, _total: os.kill(worker.pid, number)  # noqa: E731 -- as short as it is deadly
    result = await worker.do(Step.CLEAR, ScrubPath.FAST, CLEAR, LONG, killed)
    assert (result.outcome, result.blame) == (Outcome.DIED, blame)
    assert f"status -{int(number)}" in result.detail


@pytest.mark.parametrize(
    ("life", "blame", "words"),
    [
        ("os._exit(3)", Blame.SERVICE, "with status 3"),
        ("raise MemoryError", Blame.SERVICE, "with status 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", Blame.SERVICE, "with status -9"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Blame.DEVICE, "with status -11"),
    ],
)
async def test_a_child_that_ends_badly_voids_its_last_result(spawn: Spawn, life: str, blame: Blame, words: str) -> None:
    result = await (await spawn(life)).finish(LAST)
    assert (result.step, result.outcome, result.blame) == (LAST.step, Outcome.DIED, blame)
    assert "its worker did not end well after health" in result.detail
    assert words in result.detail


async def test_a_bug_in_a_step_is_an_internal_fault(spawn: Spawn) -> None:
    result = await do(await spawn(), Step.CLEAR, Order(patterns=("noise",)))
    assert (result.outcome, result.blame) == (Outcome.DIED, Blame.SERVICE)
    assert "status 1" in result.detail
    assert "ValueError: cannot write pattern 'noise'" in result.detail


PASSED = json.loads(wire.encode(wire.Answer(report=Report(Outcome.PASSED))))["report"]


def printed(progress: object, report: object, end: str = "\n") -> str:
    """Code that answers so."""
    return f"print({json.dumps({'progress': progress, 'report': report})!r}, end={end!r})"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('hello')", "no frame"),
        ("print('{}')", "no frame"),
        (printed(None, None), "neither progress nor a report"),
        (printed([1], None), "no frame"),
        (printed(None, {}), "no frame"),
        (printed(None, PASSED | {"outcome": "fine"}), "no frame"),
        (printed(None, PASSED | {"outcome": True}), "no frame"),
        (printed([1, 2], PASSED), "neither progress nor a report"),
        (printed(None, PASSED, end=""), "closed its output"),
        ("print('x' * 2**21)", "more than"),
        ("os._exit(0)", "status 0"),
        ("print('oops', file=sys.stderr); os._exit(5)", "status 5 oops"),
        ("os.close(1); time.sleep(60)", "status -9"),
        ("os.abort()", "status -6"),
    ],
)
async def test_a_worker_that_writes_no_report_counts_as_dead(spawn: Spawn, code: str, words: str) -> None:
    worker = await spawn(saying(code))
    result = await do(worker, Step.CLEAR)
    assert result.outcome is Outcome.DIED
    assert words in result.detail
    assert not exists(worker.pid)


async def test_a_child_that_floods_is_killed_and_not_stored(spawn: Spawn) -> None:
    worker = await spawn(saying("while True: os.write(2, b'x' * 65536); os.write(1, b'{}' * 4096)"))
    result = await do(worker, Step.CLEAR)
    assert result.outcome is Outcome.DIED
    assert len(result.detail) < 10_000


async def test_a_worker_that_never_started_counts_as_dead(spawn: Spawn) -> None:
    result = await do(await spawn("import no_such_module"), Step.CLEAR)
    assert result.outcome is Outcome.DIED
    assert "No module named 'no_such_module'" in result.detail


async def test_a_cancelled_step_kills_its_child(bank, spawn: Spawn) -> None:
    drills.stall_clears(bank.root, bank.first)
    worker = await spawn()
    begun = asyncio.Event()
    step = asyncio.create_task(worker.do(Step.CLEAR, ScrubPath.FAST, CLEAR, LONG, lambda _done, _total: begun.set()))
    await begun.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert not exists(worker.pid)


async def test_a_listener_that_fails_kills_the_child(spawn: Spawn) -> None:
    def fail(_done: int, _total: int) -> None:
        raise ZeroDivisionError

    worker = await spawn()
    with pytest.raises(ZeroDivisionError):
        await worker.do(Step.CLEAR, ScrubPath.FAST, CLEAR, LONG, fail)
    assert not exists(worker.pid)


@pytest.mark.parametrize("warm", [True, False])
async def test_a_cancelled_spawn_leaves_no_process(bank, warm: bool) -> None:  # noqa: FBT001 -- a parameter
    before = descriptors()
    for slots in range(12):
        nursery = Nursery(warm_cuda=False)
        if warm:
            await (await nursery.start_worker(assigned(*at(bank)))).kill()
        spawning = asyncio.create_task(nursery.start_worker(assigned(*at(bank))))
        for _ in range(slots):
            await asyncio.sleep(0.0002 if slots > 6 else 0)
        spawning.cancel()
        [outcome] = await asyncio.gather(spawning, return_exceptions=True)
        if isinstance(outcome, Worker):
            await outcome.kill()
        async with asyncio.timeout(WITHIN):
            while any(children(zygote) for zygote in children()):  # noqa: ASYNC110 -- the kernel sends no event
                await asyncio.sleep(0.001)
        await nursery.close()
    async with asyncio.timeout(WITHIN):
        while left(before):  # noqa: ASYNC110 -- the kernel sends no event
            await asyncio.sleep(0.001)
    assert children() == []


async def test_a_worker_that_cannot_be_had_is_an_error(bank) -> None:
    nursery = Nursery(warm_cuda=False, program=("no-such-program",))
    with pytest.raises(BrokenError, match="cannot start a worker: its zygote does not start: No such file"):
        await nursery.start_worker(assigned(*at(bank)))


async def test_a_worker_that_does_not_exit_is_killed(spawn: Spawn, monkeypatch) -> None:
    monkeypatch.setattr(workers, "_LEAVES_WITHIN", 0.2)
    worker = await spawn("time.sleep(60)")
    result = await worker.finish(LAST)
    assert (result.outcome, result.blame) == (Outcome.DIED, Blame.DEVICE)
    assert "it was not gone within 0.2 s" in result.detail
    assert not exists(worker.pid)


async def test_a_cancelled_wait_for_the_end_kills_the_worker(spawn: Spawn) -> None:
    worker = await spawn("time.sleep(60)")
    farewell = asyncio.create_task(worker.finish(LAST))
    await asyncio.sleep(0)
    farewell.cancel()
    with pytest.raises(asyncio.CancelledError):
        await farewell
    assert not exists(worker.pid)


async def test_ctrl_c_does_not_reach_the_child(spawn: Spawn) -> None:
    worker = await spawn()
    await do(worker, Step.HEALTH)
    assert os.getsid(worker.pid) == worker.pid
    os.kill(worker.pid, signal.SIGINT)
    assert (await do(worker, Step.HEALTH)).outcome is Outcome.PASSED


async def test_a_worker_has_nothing_but_pipes_open_after_a_step(spawn: Spawn) -> None:
    worker = await spawn()
    await do(worker, Step.HEALTH)
    assert [file for file in links(worker.pid) if not file.startswith("pipe:")] == []


@pytest.mark.parametrize("program", ["__main__", "zygote"])
def test_a_worker_loads_no_heavy_library(program: str) -> None:
    code = f"import sys, scrubber.workers.{program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert f"scrubber.workers.{program}" in loaded
    heavy = {"pydantic", "grpc", "asyncio", "rich", "structlog", "click", "ruamel", "google", "sqlite3"}
    assert heavy.isdisjoint(loaded)
    assert {name for name in loaded if name.startswith("policies")} <= {"policies", "policies.plain"}
    assert {"cupy", "numpy"}.isdisjoint(loaded)


SERVICE = """
import asyncio, os, sys
from scrubber.ground import log
from scrubber.core.model import ScrubPath, Step
from scrubber.devices.base import Address
from scrubber.steps.base import Order
from scrubber.workers.wire import Assignment
from scrubber.workers.nursery import Nursery
from scrubber.workers.worker import Worker

async def main(place, step):
    address, files = Address("simulated", place), (place + "/memory",)
    assignment = Assignment(address, files, whole_node=False, service=os.getpid())
    worker = await Nursery(warm_cuda=False).start_worker(assignment)
    zygote = open(f"/proc/self/task/{os.getpid()}/children").read()
    tell = lambda *_: print(worker.pid, zygote, flush=True)
    if step == "idle":
        await worker.do(Step.HEALTH, ScrubPath.FAST, Order(), 60, print)
        tell()
        await asyncio.sleep(60)
    await worker.do(Step.CLEAR, ScrubPath.FAST, Order(), 60, tell)

log.configure()
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("zygote_is", ["awake", "stopped"])
@pytest.mark.parametrize("step", ["idle", "clear"])
def test_a_killed_service_leaves_no_working_process(bank, step: str, zygote_is: str) -> None:
    """At once, also where the zygote is in no state to see to it."""
    drills.stall_clears(bank.root, bank.first)
    command = [sys.executable, "-c", SERVICE, str(bank.place(bank.first).directory), step]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        child, zygote = map(int, service.stdout.readline().split())
        handles = [os.pidfd_open(child), os.pidfd_open(zygote)]
        if zygote_is == "stopped":
            os.kill(zygote, signal.SIGSTOP)
        service.kill()
    for handle in handles:
        assert gone_within(handle, 10)
        os.close(handle)
    assert bank.backend.has_holders(bank.first) is False
