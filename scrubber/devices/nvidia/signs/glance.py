"""The signs that a single look can tell. Loaded by workers, so it loads nothing that is slow."""

from __future__ import annotations

from scrubber.core.model import Sign
from scrubber.devices.nvidia.library import Handle, Session
from scrubber.devices.nvidia.signs import nvlinks, sram


def at_once(nvml: Session, gpu: Handle, links_before: frozenset[int]) -> tuple[Sign, ...]:
    """What a single look can tell: for a worker, whose look is the last before a device counts as clean."""
    now = nvlinks.read(nvml, gpu) if links_before else nvlinks.Reading()
    found = (sram.judge(sram.read(nvml, gpu)), nvlinks.judge(links_before, now))
    return tuple(sign for sign in found if sign is not None)
