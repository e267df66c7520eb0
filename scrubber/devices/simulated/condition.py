"""How a simulated GPU is doing, as its documents say: what both ports read before they answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from scrubber.core.model import Vitals, Xid
from scrubber.devices.base import DeviceError, DeviceLostError, Readings
from scrubber.devices.simulated import documents
from scrubber.devices.simulated.documents import Counters, Faults, Measured
from scrubber.devices.simulated.layout import GpuFiles

_BLINK = 0.02  # how soon a blocked call notices that its fault was healed


def faults(place: GpuFiles) -> Faults:
    """The faults in force. While the device hangs this call does not return, as a driver call would not."""
    while (found := documents.read(place.faults, Faults)).hang:
        time.sleep(_BLINK)
    return found


def stall(place: GpuFiles, meanwhile: Callable[[], None]) -> None:
    """Go nowhere for as long as clears are to stall, and go on saying so."""
    while documents.read(place.faults, Faults).stall_clears:
        meanwhile()
        time.sleep(_BLINK)


def vitals(place: GpuFiles) -> Vitals:
    """Health from the counters, the faults and the event log."""
    found = faults(place)
    counters = documents.read(place.counters, Counters)
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
    """What it measures; nothing is told by one of an older version, which has no such document."""
    if faults(place).lost:
        raise DeviceLostError(f"cannot read what {place.directory.name} measures: it has fallen off the bus")
    index = place.info().index
    if not place.readings.exists():
        return Readings(index, None, None, None)
    told = documents.read(place.readings, Measured)
    return Readings(index, told.celsius, told.slowdown_celsius, told.watts)


def xids(place: GpuFiles) -> tuple[Xid, ...]:
    """The event log, numbered by line; a line that says anything else, or is not ended yet, makes it unreadable."""
    try:
        return _numbered(documents.contents(place.events))
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
    """Numbered by its time, as those of a real driver are: a log that was begun anew goes on with greater ones."""
    return Xid(max(before + 1, int(float(at) * 1e6)), int(code), float(at))
