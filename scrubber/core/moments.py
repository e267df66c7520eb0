"""When something was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time on two clocks: wall time for people, uptime for arithmetic, because uptime never jumps."""

    wall: float
    uptime: float
