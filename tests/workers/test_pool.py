"""Each request for a child gets one, or an error in time; no process outlives the service or the zygote."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path as File

import pytest

from scrubber.core.model import Blame, Outcome, ScrubPath, Step
from scrubber.devices.simulated import drills
from scrubber.node import proc
from scrubber.steps.orders import Order
from scrubber.workers import pool as pools
from scrubber.workers.pool import WorkerPool, ZygoteLostError
from scrubber.workers.worker import BrokenError, Child, ChildEnding
from tests.cli.on_machine import needs_namespace
from tests.descriptors import opened
from tests.patience import WITHIN
from tests.workers.zygotes import (
    ASLEEP,
    ECHO,
    LAST,
    LONG,
    MakePool,
    children,
    ending,
    files_at_most,
    gone_within,
    left,
    on_first,
    stalled_clear,
    zygote_of,
)


def dead(pid: int) -> bool:
    """Gone, or left to the process that adopts the children of a dead zygote."""
    try:
        return proc.status(f"/proc/{pid}").state in proc.DEAD
    except proc.ENDED:
        return True


async def test_a_killed_zygote_ends_the_step_and_is_replaced(bank, make: MakePool) -> None:
    pool = make()
    worker, step = await stalled_clear(bank, pool)
    [zygote] = children()
    os.kill(zygote, signal.SIGKILL)
    result = await step
    assert (result.outcome, result.blame) == (Outcome.DIED, Blame.SERVICE)
    assert "its worker ended with the zygote that it was forked from" in result.detail
    assert dead(worker.pid)
    drills.heal(bank.root, bank.first)
    heir = await pool.start_worker(on_first(bank))
    result = await heir.do(Step.CLEAR, ScrubPath.FAST, Order(), LONG, lambda _done, _total: None)
    assert result.outcome is Outcome.PASSED
    assert await heir.finish(LAST) is LAST


async def test_a_deaf_child_ends_with_its_zygote(make: MakePool) -> None:
    """Although none of our processes is left to kill it: the kernel does."""
    pool = make(f"os.write(1, b'here\\n'); {ASLEEP}")
    zygote = await zygote_of(pool)
    child = await pool.spawn()
    await child.receive()
    handle = os.pidfd_open(child.pid)
    os.kill(zygote, signal.SIGKILL)
    assert gone_within(handle, 10)  # this holds the loop: the service had no part in it
    os.close(handle)
    assert await ending(child) == ChildEnding(None, orphaned=True)


async def test_a_stopped_zygote_is_replaced_after_its_deadline(bank, make: MakePool, monkeypatch) -> None:
    pool = make()
    worker, step = await stalled_clear(bank, pool)
    [zygote] = children()
    monkeypatch.setattr(pools, "_FORKS_WITHIN", 0.2)
    os.kill(zygote, signal.SIGSTOP)
    with pytest.raises(BrokenError, match=r"it did not answer within 0\.2 s"):
        await pool.spawn()
    assert (await step).outcome is Outcome.DIED
    assert dead(worker.pid)
    monkeypatch.setattr(pools, "_FORKS_WITHIN", LONG)
    (await pool.spawn()).kill()
    assert zygote not in children()


async def test_callers_of_a_dying_zygote_get_children_of_the_next(make: MakePool) -> None:
    pool = make(ECHO)
    zygote = await zygote_of(pool)
    os.kill(zygote, signal.SIGSTOP)
    waiting = [asyncio.create_task(pool.spawn()) for _ in range(5)]
    while len(pool._zygote._asked) < 5:  # type: ignore[union-attr]  # noqa: ASYNC110 -- there is no event for it
        await asyncio.sleep(0)
    os.kill(zygote, signal.SIGKILL)
    born = await asyncio.gather(*waiting)
    [heir] = children()
    assert {child.pid for child in born} == set(children(heir))


async def test_a_lost_zygote_is_not_waited_for(make: MakePool) -> None:
    pool = make(ECHO)
    zygote = await zygote_of(pool)
    lost = pool._zygote
    assert lost is not None
    os.kill(zygote, signal.SIGKILL)
    await lost._gone
    with pytest.raises(ZygoteLostError, match=r"its zygote is lost: it (closed its socket|died)"):
        await asyncio.wait_for(lost.fork(), WITHIN)
    (await pool.spawn()).kill()


async def test_a_zygote_that_is_not_ready_in_time_is_replaced(make: MakePool, monkeypatch) -> None:
    monkeypatch.setattr(pools, "_WARM_WITHIN", 0.2)
    with pytest.raises(BrokenError, match=r"it did not answer within 0\.2 s"):
        await make("pass", prelude=ASLEEP).spawn()


async def test_a_zygote_that_cannot_load_its_libraries_says_why(make: MakePool) -> None:
    with pytest.raises(BrokenError, match=r"its zygote is lost: .*status 1.* No module named 'no_such_module'"):
        await make("pass", prelude="import no_such_module").spawn()


async def test_a_start_and_a_stop_wait_for_no_warm_zygote(make: MakePool, monkeypatch) -> None:
    """Neither at the start nor at the end."""
    monkeypatch.setattr(pools, "_GONE_WITHIN", LONG)
    began = time.monotonic()
    pool = make("pass", prelude=ASLEEP)
    await pool.start()
    await pool.close()
    assert time.monotonic() - began < LONG


async def test_a_cancelled_spawn_leaves_no_child_and_no_pipe(make: MakePool, monkeypatch) -> None:
    pool = make(ASLEEP)
    zygote = await zygote_of(pool)
    before = opened()
    there: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    async def connect(child: Child) -> None:
        there.set_result(child)
        await asyncio.Event().wait()

    monkeypatch.setattr(Child, "connect", connect)
    spawning = asyncio.create_task(pool.spawn())
    await there
    spawning.cancel()
    async with asyncio.timeout(WITHIN):
        while children(zygote) or left(before):  # noqa: ASYNC110 -- the kernel sends no event
            await asyncio.sleep(0.001)


async def test_a_zygote_that_cannot_be_held_is_ended_at_once(make: MakePool, monkeypatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(24, "Too many open files")

    before = opened()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", refuse)
        with pytest.raises(BrokenError, match="its zygote does not start: Too many open files"):
            await make(ASLEEP).spawn()
    assert left(before) == set()
    assert children() == []


async def test_a_service_starts_without_a_zygote() -> None:
    pool = WorkerPool(warm_cuda=False, program=("no-such-program",))
    await pool.start()
    with pytest.raises(BrokenError, match="its zygote does not start"):
        await pool.spawn()
    await pool.close()


async def test_no_child_is_spawned_after_the_end(make: MakePool) -> None:
    pool = make(ASLEEP)
    child = await pool.spawn()
    await pool.close()
    assert children() == []
    assert await ending(child) == ChildEnding(None, orphaned=True)
    with pytest.raises(BrokenError, match="the service is stopping"):
        await pool.spawn()


async def test_a_zygote_that_does_not_hear_the_farewell_is_killed(make: MakePool, monkeypatch) -> None:
    monkeypatch.setattr(pools, "_GONE_WITHIN", 0.2)
    pool = make(ASLEEP)
    os.kill(await zygote_of(pool), signal.SIGSTOP)
    await pool.close()
    assert children() == []


async def test_fifty_at_once_get_a_child_each(make: MakePool) -> None:
    pool = make(ECHO)
    born = await asyncio.gather(*(pool.spawn() for _ in range(50)))
    for number, child in enumerate(born):
        child.send(b"%d\n" % number)
    received = [await child.receive() for child in born]
    assert received == [b"%d %d\n" % (child.pid, number) for number, child in enumerate(born)]
    assert len({child.pid for child in born}) == 50
    for child in born:
        child.hang_up()
    assert {await ending(child) for child in born} == {ChildEnding(0, orphaned=False)}


async def test_a_worker_descends_from_the_service(make: MakePool) -> None:
    child = await make(ASLEEP).spawn()
    assert proc.status(f"/proc/{child.pid}").parent != os.getpid()
    assert proc.descends(File("/proc"), child.pid, (os.getpid(),))


FIRST = f"""
import asyncio, os, signal
from scrubber.workers import worker as workers
from scrubber.workers.pool import WorkerPool
from tests.workers.zygotes import children, living

async def main():
    workers._REPORTED_WITHIN = 0.05
    pool = WorkerPool(warm_cuda=False, program=living({ASLEEP!r}))
    born = [await pool.spawn() for _ in range(3)]
    zygote = pool._zygote
    os.kill(zygote._process.pid, signal.SIGSTOP)
    born[0].kill()
    await born[0].end(10)  # a zombie of the zygote's by now
    os.kill(zygote._process.pid, signal.SIGKILL)
    await asyncio.gather(zygote._gone, *(child.end(10) for child in born))
    print(os.getpid(), children())
    await pool.close()

asyncio.run(main())
"""


@needs_namespace
def test_pid_1_reaps_the_children_of_a_dead_zygote() -> None:
    """As in a container whose first process is the service: no other process would."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", FIRST]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=File(__file__).parents[2])
    assert (run.stdout.splitlines()[-1:], run.stderr, run.returncode) == (["1 []"], "", 0)


async def test_a_service_without_free_descriptors_says_so(make: MakePool) -> None:
    pool = make(ECHO)
    zygote = await zygote_of(pool)
    lowest = os.dup(0)
    os.close(lowest)
    with files_at_most(os.getpid(), lowest), pytest.raises(BrokenError, match="no pipes to it: Too many open files"):
        await pool.spawn()
    assert await zygote_of(pool) == zygote


async def test_a_worker_without_a_pidfd_ends_when_its_zygote_ends(make: MakePool) -> None:
    pool = make(ECHO)
    zygote = await zygote_of(pool)
    handle = os.pidfd_open(zygote)
    spawning = asyncio.create_task(pool.spawn())
    while not pool._zygote._asked:  # type: ignore[union-attr]  # noqa: ASYNC110 -- there is no event for it
        await asyncio.sleep(0)
    with files_at_most(os.getpid(), 3), pytest.raises(BrokenError, match="cannot start a worker"):
        await asyncio.wait_for(spawning, 5)  # at once, not when its time is up
    assert gone_within(handle, 10)
    os.close(handle)
    (await pool.spawn()).kill()
