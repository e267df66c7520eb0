"""What a process costs, by /proc; when one ends; and a crowd of them that does nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scrubber.node import clock

TICKS = os.sysconf("SC_CLK_TCK")


async def share(pid: int, seconds: float) -> float:
    """The share of a core that it uses during the next seconds."""
    before = _ticks(pid)
    await asyncio.sleep(seconds)
    return (_ticks(pid) - before) / TICKS / seconds


def rss(pid: int) -> int:
    """Resident bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def mapped(pid: int, names: tuple[str, ...]) -> int:
    """How many mappings have one of these words in their names."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum(any(name in line for name in names) for line in maps)


@contextmanager
def ends(pids: Sequence[int]) -> Iterator[Awaitable[list[float]]]:
    """The uptimes at which these processes end. They are watched from now on: none ends unseen."""
    loop = asyncio.get_running_loop()
    watched: dict[int, asyncio.Future[float]] = {}
    try:
        for pid in pids:
            descriptor = os.pidfd_open(pid)
            watched[descriptor] = loop.create_future()
            loop.add_reader(descriptor, _ended, loop, descriptor, watched[descriptor])
        yield asyncio.gather(*watched.values())
    finally:
        for descriptor in watched:
            loop.remove_reader(descriptor)
            os.close(descriptor)


@contextmanager
def crowd(size: int, files: int = 0) -> Iterator[int]:
    """So many processes that sleep, each with so many files open beside the usual three (at most seven)."""
    opened = "".join(f"exec {3 + number}</dev/null; " for number in range(files))
    script = f"{opened}for _ in $(seq {size}); do sleep 3600 & done; echo; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            await_line(process)
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def await_line(process: subprocess.Popen[bytes]) -> None:
    """Return when it has said that it is ready."""
    if process.stdout is None or not process.stdout.readline():
        raise RuntimeError("a process did not start")


def _ended(loop: asyncio.AbstractEventLoop, descriptor: int, end: asyncio.Future[float]) -> None:
    loop.remove_reader(descriptor)  # it stays readable
    end.set_result(clock.now().uptime)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
