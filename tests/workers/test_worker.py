"""A step ends with a result, in time, with no child left; only the child's own word can pass it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ground.documents import strict_json
from scrubber.core.model import Blame, Evicted, Outcome, ScrubPath, Step, StepResult
from scrubber.devices.base import DeviceHandling
from scrubber.devices.simulated import drills
from scrubber.steps.orders import Order, Report
from scrubber.workers import wire
from scrubber.workers import worker as workers
from scrubber.workers.worker import Worker
from tests.workers.zygotes import LAST, MakePool, exists, on_first, stalled_clear

LONG = 60.0
CLEAR = Order(patterns=("random", "zero"), key="00ff")
LEFTOVERS = Order(terminate_leftovers=True, tenancy=(0.0, math.inf), grace=0.05)
Spawn = Callable[..., Awaitable[Worker]]


def ignore(_done: int, _total: int) -> None:
    """Progress is not reported."""


async def do(worker: Worker, step: Step, order: Order = CLEAR, deadline: float = LONG) -> StepResult:
    return await worker.do(step, ScrubPath.FAST, order, deadline, ignore)


def evicted(result: StepResult) -> Evicted:
    assert isinstance(result.findings, Evicted)
    return result.findings


@pytest.fixture
def spawn(bank, make: MakePool) -> Spawn:
    """Starts a worker on the first GPU, or a child that lives by a few lines of its own."""

    async def start(life: str = "") -> Worker:
        return await make(life).start_worker(on_first(bank))

    return start


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
    pid = drills.zombie(bank.root, bank.first)
    result = await do(await spawn(), Step.EVICT, LEFTOVERS)
    assert (result.outcome, evicted(result).terminated) == (Outcome.PASSED, (pid,))


async def test_prepare_describes_the_device_anew(bank, make: MakePool) -> None:
    """What the service knew when the worker started may be old by then: evict or a reset came between."""
    former, now = bank.backend.address(bank.second, DeviceHandling()), on_first(bank).address
    asked: list[str] = []

    async def describe() -> wire.Prepare:
        asked.append("asked")
        return wire.Prepare(now, None)

    worker = await make().start_worker(replace(on_first(bank), address=former), describe)
    bank.place(bank.first).memory.write_bytes(b"secret" * 1000)
    assert (await do(worker, Step.EVICT)).outcome is Outcome.PASSED
    assert (asked, bank.untouched()) == ([], True)
    await worker.prepare()
    assert (await do(worker, Step.CLEAR)).outcome is Outcome.PASSED
    assert asked == ["asked"]
    assert b"secret" not in bank.place(bank.first).memory.read_bytes()


async def test_a_worker_of_pid_1_ends_no_other_worker(bank, make: MakePool) -> None:
    """A service that is the first process of its container inherits every orphan: descent from it shows no worker."""
    pool = make()
    busy, clearing = await stalled_clear(bank, pool)
    other = await pool.start_worker(replace(on_first(bank), service=1))
    result = await do(other, Step.EVICT, replace(LEFTOVERS, terminate_foreign=True))
    assert (result.outcome, result.blame, evicted(result).terminated) == (Outcome.FAILED, Blame.TENANT, ())
    assert [holder.pid for holder in evicted(result).holders] == [busy.pid]
    assert (clearing.done(), busy.has_ended) == (False, False)
    await busy.kill()
    await clearing
    assert busy.has_ended


async def test_the_service_is_no_holder(bank, spawn: Spawn) -> None:
    """It has the memory open for a moment whenever it asks whether anybody has."""
    worker = await spawn()
    with bank.place(bank.first).memory.open("rb"):
        result = await do(worker, Step.EVICT, Order())
    assert (result.outcome, evicted(result).holders) == (Outcome.PASSED, ())


async def test_progress_is_reported_until_the_end(bank, spawn: Spawn) -> None:
    said: list[tuple[int, int]] = []
    worker = await spawn()
    await worker.do(Step.CLEAR, ScrubPath.FAST, CLEAR, LONG, lambda done, total: said.append((done, total)))
    total = 3 * bank.place(bank.first).memory.stat().st_size
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
        (signal.SIGABRT, Blame.DEVICE),
    ],
)
async def test_a_child_that_is_killed_during_a_step_has_died(bank, spawn: Spawn, number, blame) -> None:
    drills.stall_clears(bank.root, bank.first)
    worker = await spawn()
    killed = lambda _done, _total: os.kill(worker.pid, number)  # noqa: E731 -- as short as it is deadly
    result = await worker.do(Step.CLEAR, ScrubPath.FAST, CLEAR, LONG, killed)
    assert (result.outcome, result.blame) == (Outcome.DIED, blame)
    assert f"by signal {int(number)} ({signal.Signals(number).name})" in result.detail


@pytest.mark.parametrize(
    ("life", "blame", "words"),
    [
        ("os._exit(3)", Blame.SERVICE, "with status 3"),
        ("raise MemoryError", Blame.SERVICE, "with status 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", Blame.SERVICE, "by signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Blame.DEVICE, "by signal 11 (SIGSEGV)"),
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


PASSED = json.loads(strict_json.encode(wire.Answer(report=Report(Outcome.PASSED))))["report"]


def printed(progress: object, report: object, end: str = "\n") -> str:
    """Code that answers so."""
    return f"print({json.dumps({'progress': progress, 'report': report})!r}, end={end!r})"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('hello')", "not a frame"),
        (printed(None, None), "neither progress nor a report"),
        (printed([1], None), "not a frame"),
        (printed(None, {}), "not a frame"),
        (printed(None, PASSED | {"outcome": "fine"}), "not a frame"),
        (printed([1, 2], PASSED), "neither progress nor a report"),
        (printed(None, PASSED, end=""), "closed its output"),
        ("print('x' * 2**21)", "more than"),
        ("os._exit(0)", "status 0"),
        ("print('oops', file=sys.stderr); os._exit(5)", "status 5 oops"),
        ("os.close(1); time.sleep(60)", "signal 9 (SIGKILL)"),
        ("os.abort()", "signal 6 (SIGABRT)"),
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


async def test_a_cancelled_step_kills_its_child(bank, make: MakePool) -> None:
    worker, step = await stalled_clear(bank, make())
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


@pytest.mark.parametrize("program", ["__main__", "zygote"])
def test_a_worker_loads_no_heavy_library(program: str) -> None:
    code = f"import sys, scrubber.workers.{program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert f"scrubber.workers.{program}" in loaded
    heavy = {"pydantic", "grpc", "asyncio", "rich", "structlog", "click", "ruamel", "google", "sqlite3"}
    assert heavy.isdisjoint(loaded)
    assert {name for name in loaded if name.startswith("policies")} <= {"policies", "policies.values"}
    assert {"cupy", "numpy"}.isdisjoint(loaded)
