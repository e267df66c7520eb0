"""What a single look can tell. Loaded by workers, so it loads nothing that is slow."""

from __future__ import annotations

from collections.abc import Callable

from scrubber.core.model import Sign
from scrubber.devices.nvidia.health.signs import nvlinks, sram
from scrubber.devices.nvidia.nvml import ForbiddenError, Handle, Session


def at_once(nvml: Session, gpu: Handle, links_before: frozenset[int]) -> tuple[Sign, ...]:
    """What a single look can tell: for a worker, whose look is the last before a device counts as clean."""
    found = [_allowed(lambda: sram.judge(sram.read(nvml, gpu)))]
    if links_before:
        found.append(_allowed(lambda: nvlinks.judge(links_before, nvlinks.read(nvml, gpu))))
    return tuple(sign for sign in found if sign is not None)


def _allowed(look: Callable[[], Sign | None]) -> Sign | None:
    """What we may not read is no sign, as for the service, which sees all that it may read at the end of a job, too."""
    try:
        return look()
    except ForbiddenError:
        return None
