"""Drills on simulated GPUs, from any process: inject faults, start and end real processes that hold one.

Each function breaks or heals one GPU under a root, or searches its memory for the data that a process left.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ground import private_files
from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import containers, layout
from scrubber.devices.simulated.layout import (
    Counters,
    Faults,
    GpuFiles,
    Measured,
    Resetting,
    SimulatedSettings,
    StuckBit,
)
from scrubber.node.open_files import Search, Timer
from scrubber.node.proc import ENDED

T = TypeVar("T", Counters, Faults, Measured, SimulatedSettings)
_BITS = 8

_PROGRAM = "scrubber.devices.simulated.holder_process"
_START_SECONDS = 10.0
_END_SECONDS = 5.0


def xid(root: Path, uuid: str, code: int, count: int = 1) -> None:
    """The driver reports ``count`` error events."""
    with layout.find(root, uuid).events.open("a") as log:
        log.write(f"{code} {time.clock_gettime(time.CLOCK_BOOTTIME)}\n" * count)


def ecc(root: Path, uuid: str, count: int = 1) -> None:
    """Uncorrectable memory errors are counted."""
    _change(root, uuid, Counters, lambda old: replace(old, ecc_uncorrectable=old.ecc_uncorrectable + count))


def remap(root: Path, uuid: str, *, failed: bool = False) -> None:
    """A row remap is pending until the next reset, or has failed for good."""
    change = {"remap_failed": True} if failed else {"remap_pending": True}
    _change(root, uuid, Counters, lambda old: replace(old, **change))


def leak(root: Path, uuid: str, count: int = 2**20) -> None:
    """Memory is in use without a process until the next reset."""
    _change(root, uuid, Counters, lambda old: replace(old, leaked_bytes=old.leaked_bytes + count))


def lose(root: Path, uuid: str) -> None:
    """The device falls off the bus."""
    _change(root, uuid, Faults, lambda old: replace(old, lost=True))


def hang(root: Path, uuid: str) -> None:
    """Driver calls for the device block until it is healed."""
    _change(root, uuid, Faults, lambda old: replace(old, hang=True))


def break_reset(root: Path, uuid: str, how: Resetting, seconds: float = 0.0) -> None:
    """Resets are refused, fail, or take ``seconds``."""
    _change(root, uuid, Faults, lambda old: replace(old, reset=how, reset_seconds=float(seconds)))


def bad_memory(root: Path, uuid: str, offset: int = 0, bit: int = 0) -> None:
    """One more memory cell is stuck at one."""
    memory_bytes = layout.find(root, uuid).info().memory_bytes
    if not (0 <= offset < memory_bytes and 0 <= bit < _BITS):
        raise DeviceError(f"cannot break bit {bit} at offset {offset}: the memory has {memory_bytes} bytes of 8 bits")
    _change(root, uuid, Faults, lambda old: replace(old, stuck_bits=(*old.stuck_bits, StuckBit(offset, bit))))


def stall_clears(root: Path, uuid: str) -> None:
    """Clears stop after counting the old data, until the device is healed."""
    _change(root, uuid, Faults, lambda old: replace(old, stall_clears=True))


def skip_clears(root: Path, uuid: str) -> None:
    """Clears write nothing, and read back what is there."""
    _change(root, uuid, Faults, lambda old: replace(old, skip_clears=True))


def skip_scratch(root: Path, uuid: str) -> None:
    """Scratch writes nothing to the on-chip memory, and reads back what is there."""
    _change(root, uuid, Faults, lambda old: replace(old, skip_scratch=True))


def bad_compute(root: Path, uuid: str, unit: int = 0) -> None:
    """One more unit computes wrong results."""
    if not 0 <= unit < layout.UNITS:
        raise DeviceError(f"cannot break unit {unit}: the GPU has units 0 to {layout.UNITS - 1}")
    _change(root, uuid, Faults, lambda old: replace(old, bad_units=(*old.bad_units, unit)))


def sign(root: Path, uuid: str, kind: AilmentKind, detail: str) -> None:
    """The device reports one more sign until it is healed."""
    _change(root, uuid, Faults, lambda old: replace(old, signs=(*old.signs, Sign(kind, detail))))


def drift(root: Path, uuid: str, power_limit_watts: int) -> None:
    """A setting is changed, as a pod could do."""
    _change(root, uuid, SimulatedSettings, lambda old: replace(old, power_limit_watts=power_limit_watts))


def heat(root: Path, uuid: str, celsius: float) -> None:
    """The device has this temperature until it is healed. From its limit on, it reports the sign heat."""
    _change(root, uuid, Measured, lambda _: Measured(celsius=float(celsius)))


def heal(root: Path, uuid: str) -> None:
    """Remove all faults. Counted and logged errors stay, and so do processes."""
    _change(root, uuid, Measured, lambda _: Measured())
    _change(root, uuid, Faults, lambda _: Faults())
    _change(root, uuid, Counters, lambda old: Counters(ecc_uncorrectable=old.ecc_uncorrectable))


def _change(root: Path, uuid: str, kind: type[T], change: Callable[[T], T]) -> None:
    place = layout.find(root, uuid)
    files = {
        Counters: place.counters,
        Faults: place.faults,
        Measured: place.readings,
        SimulatedSettings: place.settings,
    }
    with private_files.locked(place.directory):
        layout.write(files[kind], change(layout.read(files[kind], kind)))


def occupy(root: Path, uuid: str, secret: bytes, container: str, offset: int = 0, *, before: Sequence[str] = ()) -> int:
    """Start a process in a container; returns its pid. ``before``: the words of a command that executes it.

    It writes the secret to ``offset``, the middle and the end of the memory, and to the on-chip memory.
    """
    place = layout.find(root, uuid)
    size = place.info().memory_bytes
    if len(secret) > size // 2:
        raise DeviceError(f"cannot hold a secret of {len(secret)} bytes: the memory has {size}")
    offsets = (min(offset, size - len(secret)), size // 2, size - len(secret))
    environment = os.environ | {containers.MARK: container, containers.NODE: containers.node_of(root)}
    return _start(place, "stay", secret, offsets, environment, before)


def zombie(root: Path, uuid: str, secret: bytes = b"", *, before: Sequence[str] = ()) -> int:
    """Start a process outside any container that holds the memory and ignores SIGTERM; returns its pid."""
    environment = {name: value for name, value in os.environ.items() if name != containers.MARK}
    return _start(layout.find(root, uuid), "linger", secret, (0,), environment, before)


def release(root: Path, uuid: str) -> tuple[int, ...]:
    """End the container processes that hold a GPU, as a container runtime does; returns their pids."""
    search = Search({uuid: [str(layout.find(root, uuid).memory)]})
    holders: list[int] = []
    for pid, _ in containers.members():  # of all nodes: it has the memory of this one
        with suppress(PermissionError):  # another user's process: not ours to end
            if search.held_by(f"/proc/{pid}", Timer()):
                holders.append(pid)
    for pid in holders:
        _end(pid, signal.SIGTERM, lambda found: containers.of(found) is not None)
    return tuple(holders)


def kill(pid: int) -> None:
    """Kill a process that ignores SIGTERM, but only if it is one of ours: another process may have its pid now."""
    _end(pid, signal.SIGKILL, lambda found: _PROGRAM.encode() in Path(f"/proc/{found}/cmdline").read_bytes())


def scan(root: Path, uuid: str, needle: bytes) -> int:
    """Count how often some bytes are in the memory, which the next pod could read."""
    count, at = 0, -1
    with layout.find(root, uuid).memory.open("rb") as file:
        size = file.seek(0, os.SEEK_END)  # a scrub may have cut the file, and a device node has no size of its own
        if size == 0:
            return 0
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as cells:
            while (at := cells.find(needle, at + 1)) >= 0:
                count += 1
    return count


def _start(
    place: GpuFiles,
    manner: str,
    secret: bytes,
    offsets: tuple[int, ...],
    environment: Mapping[str, str],
    before: Sequence[str],
) -> int:
    program = (*before, sys.executable, "-P", "-m", _PROGRAM)
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
