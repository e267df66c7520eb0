"""What a process costs, by /proc; when one ends; and a crowd of them that does nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scrubber.node import clock

TICKS = os.sysconf("SC_CLK_TCK")
_FIRST = r"""
import ctypes, os, signal, sys, tempfile, threading, time

processes, threads, files, mappings, working = map(int, sys.argv[1:])
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
with tempfile.TemporaryFile() as shared, open(sys.executable, "rb") as program:
    shared.truncate(4096)
    # As in a process that uses CUDA: memory of its own, shared memory, and files. Neighbours differ, or they were one.
    kinds = [(0x22, -1), (2, program.fileno()), (1, shared.fileno())]  # MAP_PRIVATE | MAP_ANONYMOUS, _PRIVATE, _SHARED
    for number in range(mappings):
        flags, handle = kinds[number % 3]
        assert libc.mmap(None, 4096, 1 + 2 * (number // 3 % 2), flags, handle, 0) != ctypes.c_void_p(-1).value
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(files)]
threading.stack_size(2**16)
for number in range(processes):
    if os.fork() == 0:
        for _ in range(threads - 1):
            threading.Thread(target=signal.pause, daemon=True).start()
        while number < working:
            time.sleep(0.1)
        while True:
            signal.pause()
print(flush=True)
signal.pause()
"""


def used(pid: int) -> float:
    """The seconds of processor time that it has used."""
    return sum(map(int, _fields(pid)[11:13])) / TICKS


async def share(pid: int, seconds: float) -> float:
    """The share of a core that it uses during the next seconds."""
    before = used(pid)
    await asyncio.sleep(seconds)
    return (used(pid) - before) / seconds


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


def of_session(pid: int) -> float:
    """The seconds of processor time of a process, and of all that it has started and not sent away."""
    used = 0
    for entry in Path("/proc").glob("[0-9]*"):
        if (fields := _fields(int(entry.name))) and int(fields[3]) == pid:
            used += sum(map(int, fields[11:15]))
    return used / TICKS


@contextmanager
def programs(size: int, threads: int, files: int, mappings: int, working: int) -> Iterator[None]:
    """So many processes with so many threads, open files and mappings more than an idle Python; some work a little."""
    command = [sys.executable, "-c", _FIRST, *map(str, (size, threads, files, mappings, working))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            await_line(process)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


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


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
