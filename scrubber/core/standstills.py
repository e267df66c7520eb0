"""What the clocks say about the whole node: whether the service stood still, and whether the wall clock was set.

The service takes short pauses of a known length. A pause that lasts longer shows that the process did not run: it was
stopped or frozen, or the machine was busy or suspended. The ledger has few rows about standstills, because a busy
machine must not push out the other rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scrubber.core import events as ev
from scrubber.core.model import Moment

PAUSE = 0.5  # seconds: a standstill is measured to half a second
LATE = 1.0  # seconds that the end of a pause may come late on a busy machine
LONG = 5.0  # seconds: `Allocate` waits at most 4 s, so such a standstill fails each request that comes while it lasts
LONG_EVERY = 60.0  # seconds between two rows about long standstills
SHORT_EVERY = 3600.0  # seconds between two rows about short ones, which are reported if they are long together
CLOCK_MOVED = 1.0  # seconds: NTP slews the uptime together with the wall clock, so only a step is that much


@dataclass(frozen=True, slots=True)
class Clocks:
    """All clocks at one moment."""

    now: Moment
    awake: float  # seconds since the boot, without those for which the machine was suspended

    @property
    def boot(self) -> float:
        """The wall time of the boot, by the wall clock of this moment."""
        return self.now.wall - self.now.uptime


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen so far."""

    boot: float  # the wall time of the boot, as the rows have it so far
    unreported: ev.StoodStill | None = None  # the standstills that are in no row yet
    longest: float = 0.0  # seconds, of those
    reported: float = -math.inf  # uptime of the last row about a standstill
    clock_reported: float = -math.inf  # uptime of the last row about the wall clock


def after_pause(seen: Seen, began: Clocks, ended: Clocks) -> tuple[Seen, tuple[ev.NodeEvent, ...]]:
    """What was seen after one more pause, and what is to be recorded now."""
    seen = _with_standstill(seen, began, ended)
    events: list[ev.NodeEvent] = []
    uptime, moved = ended.now.uptime, ended.boot - seen.boot
    if seen.unreported is not None and _is_due(seen, seen.unreported, uptime):
        events.append(seen.unreported)
        seen = replace(seen, unreported=None, longest=0.0, reported=uptime)
    if abs(moved) >= CLOCK_MOVED and uptime - seen.clock_reported >= LONG_EVERY:
        events.append(ev.ClockMoved(moved))
        seen = replace(seen, boot=ended.boot, clock_reported=uptime)
    return seen, tuple(events)


def _with_standstill(seen: Seen, began: Clocks, ended: Clocks) -> Seen:
    lasted = ended.now.uptime - began.now.uptime
    late = lasted - PAUSE
    if late <= LATE:
        return seen
    suspended = lasted - (ended.awake - began.awake)
    suspended = suspended if suspended >= LATE else 0.0  # less is between the readings of two clocks
    before = seen.unreported
    if before is None or ended.now.uptime - before.since.uptime > SHORT_EVERY:  # few and short: they are not reported
        return replace(seen, unreported=ev.StoodStill(began.now, late, suspended=suspended), longest=late)
    both = ev.StoodStill(before.since, before.seconds + late, before.times + 1, before.suspended + suspended)
    return replace(seen, unreported=both, longest=max(seen.longest, late))


def _is_due(seen: Seen, unreported: ev.StoodStill, uptime: float) -> bool:
    every = LONG_EVERY if seen.longest >= LONG else SHORT_EVERY
    return unreported.seconds >= LONG and uptime - seen.reported >= every
