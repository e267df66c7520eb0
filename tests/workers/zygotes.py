"""Zygotes whose children live by a few lines of a test's own, and what is left of processes and open files."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from scrubber.core.model import Outcome, ScrubPath, Step, StepResult
from scrubber.devices.base import DeviceHandling
from scrubber.devices.simulated import drills
from scrubber.steps.orders import Order
from scrubber.workers import pool as pools
from scrubber.workers.pool import WorkerPool
from scrubber.workers.wire import Assignment
from scrubber.workers.worker import Child, ChildEnding, Worker
from tests import forking
from tests.descriptors import opened
from tests.patience import WITHIN

ASLEEP = "time.sleep(60)"
ECHO = "for line in sys.stdin: print(os.getpid(), line, end='', flush=True)"
LONG = 60.0
LAST = StepResult(Step.HEALTH, ScrubPath.FAST, Outcome.PASSED, 0.0)
MakePool = Callable[..., WorkerPool]


def living(life: str, before: str = "") -> tuple[str, ...]:
    """A zygote for such children; ``before`` runs in it before it serves."""
    prelude = "import ctypes, os, signal, socket, sys, threading, time\nfrom scrubber.workers import zygote"
    code = f"{prelude}\nzygote.child_program.main = lambda: exec({life!r}, globals())\n{before}\nzygote.main()"
    return (sys.executable, "-P", "-c", code)


def children(pid: int | None = None) -> list[int]:
    """The children of a process, by default of this one, including dead children that were not reaped.

    The fork server of the tests does not count.
    """
    parent = os.getpid() if pid is None else pid
    found = [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return [child for child in found if child not in forking.SERVERS]


def left(before: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What was opened since then and still is. What an earlier test had open, threads of gRPC may close meanwhile."""
    return opened() - before


def exists(pid: int) -> bool:
    """Whether there is such a process, dead or alive."""
    return Path("/proc", str(pid)).exists()


def gone_within(handle: int, seconds: float) -> bool:
    """Whether a process, by its pidfd, has ended by then."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@pytest.fixture
async def make() -> AsyncIterator[MakePool]:
    """Nurseries whose children live by a few lines; nothing of them may remain."""
    before = opened()
    made: list[WorkerPool] = []

    def pool(life: str = "", *, prelude: str = "", warm_cuda: bool = False) -> WorkerPool:
        program = living(life, prelude) if life else pools.PROGRAM
        made.append(WorkerPool(warm_cuda=warm_cuda, program=program))
        return made[-1]

    yield pool
    for each in made:
        await each.close()
    with suppress(TimeoutError):  # what is left then is told below
        async with asyncio.timeout(WITHIN):
            while left(before):  # noqa: ASYNC110 -- the kernel sends no event
                await asyncio.sleep(0.001)
    assert left(before) == set()
    assert children() == []


@contextmanager
def files_at_most(pid: int, most: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def zygote_of(pool: WorkerPool) -> int:
    """Its pid, once it is warm."""
    child = await pool.spawn()
    child.kill()
    await ending(child)
    await asyncio.sleep(0)  # the loop closes pipes one turn after their end
    [pid] = children()
    return pid


async def ending(child: Child) -> ChildEnding:
    how = await child.end(LONG)
    assert how is not None
    return how


def on_first(bank) -> Assignment:
    address, files = bank.backend.address(bank.first, DeviceHandling()), bank.backend.files(bank.first)
    return Assignment(address, files, whole_node=False, service=os.getpid())


async def stalled_clear(bank, pool: WorkerPool) -> tuple[Worker, asyncio.Task[StepResult]]:
    """A worker in the middle of a clear that does not end."""
    drills.stall_clears(bank.root, bank.first)
    worker = await pool.start_worker(on_first(bank))
    begun = asyncio.Event()
    work = worker.do(Step.CLEAR, ScrubPath.FAST, Order(), LONG, lambda _done, _total: begun.set())
    step = asyncio.create_task(work)
    await begun.wait()
    return worker, step


def links(pid: int) -> set[str]:
    """What its open files are."""
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}


def open_files(pid: int) -> list[str]:
    """Their numbers."""
    return sorted(link.name for link in Path(f"/proc/{pid}/fd").iterdir())
