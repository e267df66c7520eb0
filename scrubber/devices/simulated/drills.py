"""Inject faults, from any process: each function breaks or heals one GPU under a root.

A drill changes documents only; ``tenants`` starts processes that hold a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ground import private_files
from scrubber.core.model import AilmentKind, Sign
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import chip, layout
from scrubber.devices.simulated.layout import Counters, Faults, Measured, Resetting, SimulatedSettings, StuckBit

T = TypeVar("T", Counters, Faults, Measured, SimulatedSettings)
_BITS = 8


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
    if not 0 <= unit < chip.UNITS:
        raise DeviceError(f"cannot break unit {unit}: the GPU has units 0 to {chip.UNITS - 1}")
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
