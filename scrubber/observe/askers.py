"""Remembers which programs asked for a device that they were not given. Many questions of one program are one entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

LOGGED_EVERY = 3600.0  # seconds between two lines about one program that asks again and again
KEPT_FOR = 7 * 86_400.0  # seconds
_KEPT = 16  # entries of a device at most: a pod may start programs with any number of names


@dataclass(frozen=True, slots=True)
class Asker:
    """A program that asked for a device, at one place."""

    command: str
    pid: int  # of the process that asked last
    place: str  # the UID of its pod, container:ID, a unit, a control group, or "no container"; empty: it has ended
    first: float  # wall time
    last: float
    times: int  # that it asked
    refused: int  # of them
    logged: float  # wall time of the last line in the log


@dataclass(frozen=True, slots=True)
class Asked:
    """How often others have asked for a device since the service started, and were refused."""

    times: int = 0
    refused: int = 0


class Askers:
    """Those of each device, as long as the service runs."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._of: dict[str, dict[tuple[str, str], Asker]] = {}
        self._totals: dict[str, Asked] = {}

    def add(self, device: str, command: str, pid: int, place: str, *, refused: bool) -> Asker | None:
        """Add a question to the entry that it belongs to, and return that once an hour, for a line in the log."""
        now, mine = self._wall(), self._of.setdefault(device, {})
        before = mine.pop((command, place), None) or Asker(command, pid, place, now, now, 0, 0, -math.inf)
        asker = replace(before, pid=pid, last=now, times=before.times + 1, refused=before.refused + refused)
        due = now >= asker.logged + LOGGED_EVERY
        if due:
            asker = replace(asker, logged=now)
        mine[command, place] = asker
        if len(mine) > _KEPT:
            del mine[next(iter(mine))]
        total = self._totals.get(device, Asked())
        self._totals[device] = Asked(total.times + 1, total.refused + refused)
        return asker if due else None

    def of(self, device: str) -> tuple[Asker, ...]:
        """Those of the last days, the latest last."""
        since = self._wall() - KEPT_FOR
        return tuple(asker for asker in [*self._of.get(device, {}).values()] if asker.last >= since)

    def asked(self, device: str) -> Asked:
        """How often others have asked for the device."""
        return self._totals.get(device, Asked())
