"""Which containers came past the create gate of a device: one part of the record. ``in_force`` judges by it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scrubber.core import events as ev
from scrubber.core.model import Moment, Passage


@dataclass(frozen=True, slots=True)
class Bypasses:
    """The containers of this boot that came past the create gate."""

    last: Passage | None = None
    pods: tuple[str, ...] = ()  # those that came since the last proof
    unproven: float = 0.0  # uptime; when the last of them came while the device was not proven clean; 0: never


def fold(bypasses: Bypasses, event: ev.Event, at: Moment, *, rebooted: bool) -> Bypasses:
    """What an event changes. ``rebooted``: with it the service notices another boot."""
    match event:
        case ev.PastGate(pod, unproven):
            last_unproven = at.uptime if unproven else bypasses.unproven
            return Bypasses(Passage(pod, at.uptime), (*bypasses.pods, pod), last_unproven)
        case ev.ScrubPassed():
            return replace(bypasses, pods=())
        case ev.Distrusted() if rebooted:
            return Bypasses()
        case _:
            return bypasses
