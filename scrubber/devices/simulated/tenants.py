"""Start and end real processes that hold a simulated GPU, and search the memory for the data that they left."""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import containers, layout
from scrubber.devices.simulated.layout import GpuFiles
from scrubber.node.open_files import Search, Timer
from scrubber.node.proc import ENDED

_PROGRAM = "scrubber.devices.simulated.tenant"
_START_SECONDS = 10.0
_END_SECONDS = 5.0


def occupy(root: Path, uuid: str, secret: bytes, container: str, offset: int = 0) -> int:
    """Start a process in a container; returns its pid.

    It writes the secret to ``offset``, the middle and the end of the memory, and to the on-chip memory.
    """
    place = layout.find(root, uuid)
    size = place.info().memory_bytes
    if len(secret) > size // 2:
        raise DeviceError(f"cannot hold a secret of {len(secret)} bytes: the memory has {size}")
    offsets = (min(offset, size - len(secret)), size // 2, size - len(secret))
    return _start(place, "stay", secret, offsets, os.environ | {containers.MARK: container})


def zombie(root: Path, uuid: str, secret: bytes = b"") -> int:
    """Start a process outside any container that holds the memory and ignores SIGTERM; returns its pid."""
    environment = {name: value for name, value in os.environ.items() if name != containers.MARK}
    return _start(layout.find(root, uuid), "linger", secret, (0,), environment)


def release(root: Path, uuid: str) -> tuple[int, ...]:
    """End the container processes that hold a GPU, as a container runtime does; returns their pids."""
    search = Search({uuid: [str(layout.find(root, uuid).memory)]})
    ended = tuple(pid for pid, _ in containers.members() if _holds(pid, search))
    for pid in ended:
        _end(pid, signal.SIGTERM, lambda it: containers.of(it) is not None)
    return ended


def kill(pid: int) -> None:
    """Kill a process that ignores SIGTERM, but only if it is one of ours: another process may have its pid now."""
    _end(pid, signal.SIGKILL, lambda it: _PROGRAM.encode() in Path(f"/proc/{it}/cmdline").read_bytes())


def scan(root: Path, uuid: str, needle: bytes) -> int:
    """Count how often some bytes are in the memory, which the next pod could read."""
    count, at = 0, -1
    with layout.find(root, uuid).memory.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as cells:
        while (at := cells.find(needle, at + 1)) >= 0:
            count += 1
    return count


def _start(
    place: GpuFiles, manner: str, secret: bytes, offsets: tuple[int, ...], environment: Mapping[str, str]
) -> int:
    program = (sys.executable, "-P", "-m", _PROGRAM)
    done = subprocess.run(
        [*program, str(place.memory), str(place.chip), manner, *map(str, offsets)],
        input=secret,
        capture_output=True,
        env=environment,
        start_new_session=True,
        timeout=_START_SECONDS,
        check=False,
    )
    if not done.stdout.strip().isdigit():
        raise DeviceError(f"cannot start a process: {done.stderr.decode(errors='replace').strip() or 'no output'}")
    return int(done.stdout)


def _holds(pid: int, search: Search) -> bool:
    try:
        return bool(search.held_by(f"/proc/{pid}", Timer()))
    except PermissionError:
        return False  # another user's process: not ours to end


def _end(pid: int, number: signal.Signals, ours: Callable[[int], bool]) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Check now that the pidfd is open: the pid may belong to another process.
        if not ours(pid):
            return
        signal.pidfd_send_signal(process, number)
        poll = select.poll()
        poll.register(process, select.POLLIN)
        if not poll.poll(_END_SECONDS * 1000):
            raise DeviceError(f"cannot end process {pid}: it does not end on {number.name}; end it with SIGKILL")
    except ENDED:
        return
    finally:
        os.close(process)
