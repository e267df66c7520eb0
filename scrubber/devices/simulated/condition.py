"""Read the state of a simulated GPU from its documents."""

from __future__ import annotations

import time
from collections.abc import Callable

from scrubber.core.model import Vitals, Xid
from scrubber.devices.base import DeviceError, DeviceLostError, Readings
from scrubber.devices.simulated import layout
from scrubber.devices.simulated.layout import Counters, Faults, GpuFiles, Measured

_POLL_SECONDS = 0.02  # a blocked call notices after this time that its fault was healed


def faults(place: GpuFiles) -> Faults:
    """The current faults. While the device hangs, this call blocks, as a driver call does."""
    while (found := layout.read(place.faults, Faults)).hang:
        time.sleep(_POLL_SECONDS)
    return found


def stall(place: GpuFiles, meanwhile: Callable[[], None]) -> None:
    """Block while the fault ``stall_clears`` is set, and call ``meanwhile`` again and again."""
    while layout.read(place.faults, Faults).stall_clears:
        meanwhile()
        time.sleep(_POLL_SECONDS)


def vitals(place: GpuFiles) -> Vitals:
    """The health, from the counters, the faults and the event log."""
    found = faults(place)
    counters = layout.read(place.counters, Counters)
    return Vitals(
        lost=found.lost,
        xids=xids(place),
        ecc_uncorrectable=counters.ecc_uncorrectable,
        remap_pending=counters.remap_pending,
        remap_failed=counters.remap_failed,
        leaked_bytes=counters.leaked_bytes,
        signs=found.signs,
    )


def readings(place: GpuFiles) -> Readings:
    """The sensor values."""
    if faults(place).lost:
        raise DeviceLostError(f"cannot read the sensors of {place.directory.name}: it has fallen off the bus")
    measured = layout.read(place.readings, Measured)
    return Readings(place.info().index, measured.celsius, measured.slowdown_celsius, measured.watts)


def xids(place: GpuFiles) -> tuple[Xid, ...]:
    """The events in the log; DeviceError if a line is incomplete or cannot be parsed."""
    try:
        return _numbered(layout.contents(place.events))
    except (OSError, OverflowError, TypeError, ValueError) as error:  # TypeError: a line with too many words
        raise DeviceError(f"cannot read events.log of {place.directory.name}: {error}") from error


def _numbered(text: bytes) -> tuple[Xid, ...]:
    *lines, rest = text.decode().split("\n")
    if rest:
        raise ValueError("the last line is not complete")
    events: list[Xid] = []
    for line in lines:
        events.append(_event(events[-1].number if events else 0, *line.split(" ")))
    return tuple(events)


def _event(before: int, code: str, at: str = "0") -> Xid:
    """The number follows from the time, as with a real driver, so numbers still rise after a new log begins."""
    return Xid(max(before + 1, int(float(at) * 1e6)), int(code), float(at))
