"""How a child ends, who is told so and when; and whose fault that is."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from scrubber.core.model import Blame, Outcome
from scrubber.node import proc
from scrubber.workers import worker as workers
from scrubber.workers.pool import ZygoteLostError
from scrubber.workers.worker import BrokenError, Child, ChildEnding
from tests.workers.zygotes import (
    ASLEEP,
    ECHO,
    LAST,
    LONG,
    MakePool,
    children,
    ending,
    on_first,
    stalled_clear,
    zygote_of,
)


@pytest.mark.parametrize(
    ("life", "status"),
    [
        ("pass", 0),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("1 / 0", 1),
        ("sys.exit(0)", 1),  # only a life that was lived to its end is a good one
        ("os.close(2); 1 / 0", 1),
    ],
)
async def test_the_exit_status_of_a_child_is_reported(make: MakePool, life: str, status: int) -> None:
    assert await ending(await make(life).spawn()) == ChildEnding(status, orphaned=False)


async def test_the_traceback_of_a_child_arrives(make: MakePool) -> None:
    child = await make("1 / 0").spawn()
    await ending(child)
    assert child.complaint == "ZeroDivisionError: division by zero"


async def test_a_child_of_a_stopped_zygote_ends_with_unknown_status(make: MakePool, monkeypatch) -> None:
    monkeypatch.setattr(workers, "_REPORTED_WITHIN", 0.1)
    pool = make(ASLEEP)
    zygote = await zygote_of(pool)
    child = await pool.spawn()
    os.kill(zygote, signal.SIGSTOP)
    child.kill()
    assert await ending(child) == ChildEnding(None, orphaned=False)
    assert proc.status(f"/proc/{child.pid}").state == "Z"
    os.kill(zygote, signal.SIGCONT)


async def test_a_worker_that_is_gone_is_not_called_stuck(bank, make: MakePool, monkeypatch) -> None:
    """Its zygote has a time of its own to tell how it ended."""
    monkeypatch.setattr(workers, "_REPORTED_WITHIN", 0.3)
    monkeypatch.setattr(workers, "_LEAVES_WITHIN", 0.0)
    worker = await make().start_worker(on_first(bank))
    [zygote] = children()
    os.kill(zygote, signal.SIGSTOP)
    os.kill(worker.pid, signal.SIGTERM)
    while worker._child._running:  # noqa: ASYNC110 -- only the child is told
        await asyncio.sleep(0.001)
    result = await worker.finish(LAST)
    assert (result.outcome, result.blame) == (Outcome.DIED, Blame.SERVICE)
    os.kill(zygote, signal.SIGCONT)


async def test_a_worker_stuck_in_the_kernel_is_lost(bank, make: MakePool, monkeypatch) -> None:
    """All GPUs of a node at once may keep the kernel busy for longer than anybody waits."""

    async def not_yet(_child: Child, _seconds: float) -> ChildEnding | None:
        return None

    monkeypatch.setattr(Child, "end", not_yet)
    pool = make()
    worker, step = await stalled_clear(bank, pool)
    idle = await pool.start_worker(on_first(bank))
    [zygote] = children()
    os.kill(zygote, signal.SIGKILL)
    results = (await step, await idle.finish(LAST))
    assert {(result.outcome, result.blame) for result in results} == {(Outcome.DIED, Blame.SERVICE)}
    assert f"(pid {worker.pid}) cannot be killed: its zygote was lost, and it is not gone yet" in results[0].detail


async def test_a_killed_worker_has_time_to_leave_the_kernel(bank, make: MakePool, monkeypatch) -> None:
    end = Child.end

    async def five_seconds(child: Child, seconds: float) -> ChildEnding | None:
        return await end(child, LONG) if seconds > 5 else None

    monkeypatch.setattr(Child, "end", five_seconds)
    worker, step = await stalled_clear(bank, make())
    os.kill(worker.pid, signal.SIGKILL)
    result = await step
    assert (result.outcome, result.blame) == (Outcome.DIED, Blame.SERVICE)
    assert "signal 9 (SIGKILL)" in result.detail


async def test_a_child_orphaned_while_it_connects_is_replaced(make: MakePool, monkeypatch) -> None:
    """Whichever of its pipes is listened to by then."""
    connect = Child.connect
    pool = make(ECHO)
    for slots in range(4):

        async def interrupted(child: Child, slots: int = slots) -> None:
            monkeypatch.setattr(Child, "connect", connect)
            connecting = asyncio.create_task(child.connect())
            for _ in range(slots):
                await asyncio.sleep(0)
            too_late = connecting.done()
            pool._zygote._discard("it says one thing too many")  # type: ignore[union-attr]  # it is there: one was asked for a child
            await connecting
            assert too_late
            raise ZygoteLostError("it was connected by then")

        await pool.start()
        monkeypatch.setattr(Child, "connect", interrupted)
        child = await pool.spawn()
        child.send(b"\n")
        assert await child.receive() == b"%d \n" % child.pid
        child.kill()
        await ending(child)


async def test_a_worker_that_cannot_be_connected_is_an_error(make: MakePool, monkeypatch) -> None:
    async def refused(_child: Child) -> None:
        raise OSError(28, "No space left on device")  # as when too much is waited for on this node

    monkeypatch.setattr(Child, "connect", refused)
    with pytest.raises(BrokenError, match="cannot start a worker: it cannot be listened to: No space left on device"):
        await make(ECHO).spawn()
