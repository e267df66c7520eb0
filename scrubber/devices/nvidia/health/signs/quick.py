"""The signs that one reading shows. Workers import this module, so its imports must be fast."""

from __future__ import annotations

from collections.abc import Callable

from scrubber.core.model import Sign
from scrubber.devices.nvidia.health.signs import nvlinks, sram
from scrubber.devices.nvidia.nvml import Handle, NoPermissionError, Session


def at_once(nvml: Session, gpu: Handle, links_before: frozenset[int]) -> tuple[Sign, ...]:
    """The signs for a worker, whose reading is the last before a device counts as clean."""
    found = [_allowed(lambda: sram.judge(sram.read(nvml, gpu)))]
    if links_before:
        found.append(_allowed(lambda: nvlinks.judge(links_before, nvlinks.read(nvml, gpu))))
    return tuple(sign for sign in found if sign is not None)


def _allowed(read: Callable[[], Sign | None]) -> Sign | None:
    """Without permission there is no sign. The service reads all signs at the end of a job too."""
    try:
        return read()
    except NoPermissionError:
        return None
