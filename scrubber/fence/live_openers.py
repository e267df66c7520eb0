"""Remembers who asked for a device that was not given to them. Many attempts from one place are one entry.

The place is a pod, a container, a unit or another control group: its programs choose their names, and could fill a list
of names. Only where the place tells nothing, since all may run there, is an entry that of a program's name.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from ground import log, process_names
from scrubber.core import open_attempts
from scrubber.core.fencing import MayOpen, OpenTo
from scrubber.core.model import Holder, Opener, Who
from scrubber.core.open_attempts import Period, added
from scrubber.core.record import Record

logger = log.get("fence")

LOGGED_EVERY = 3600.0  # seconds between two lines about one entry
KEPT_FOR = 7 * 86_400.0  # seconds
_KEPT = 16  # entries of a device at most
_PHASES = 16  # of a device: an attempt is read within moments, or it was made while no service ran
_LINES, _LINES_WITHIN = 20, 600.0  # lines in the log at most, within so many seconds


@dataclass(frozen=True, slots=True)
class LiveOpener:
    """Who asked for a device, with all his attempts so far, and what only this life of the service knows of him."""

    opener: Opener
    ignored: bool = False  # it is a bystander: its attempts are no uses
    logged: float = -math.inf  # wall time of the last line in the log
    opened: float = -math.inf  # wall time at which it was last let through

    def has(self, holder: Holder) -> bool:
        """Whether this process is known to be of the opener, whose place may hold several."""
        opener = self.opener
        return opener.place == holder.container if holder.container is not None else opener.pid == holder.pid


_Key: TypeAlias = tuple[Who, bool]  # and whether it is a bystander


class Answer(NamedTuple):
    """What became of an attempt."""

    refused: bool
    held: bool  # whether somebody had the device


class _Phase(NamedTuple):
    """A time in which nothing changed in who had a device."""

    since: float  # uptime
    period: Period
    counts: bool = True  # False: the device was open to all, so each attempt may be its owner's


class LiveOpeners:
    """Those of each device."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._turn = threading.Lock()  # of changes: several threads make them
        self.attempts = 0  # of all devices, so far
        self._of: dict[str, dict[_Key, LiveOpener]] = {}
        self._answers: dict[str, Counter[Answer]] = {}
        self._phases: dict[str, list[_Phase]] = {}
        self._new: dict[str, dict[Period, dict[Who, Opener]]] = {}  # the attempts that were not taken before
        self._gaps: dict[tuple[str, str], None] = {}
        self._lines = deque[float](maxlen=_LINES)  # wall times of the last ones in the log

    def began(self, record: Record, open_to: MayOpen, at: float) -> None:
        """A new record of a device, which holds for the attempts from this uptime on: they may be read later.

        The first record of this life of the service holds for all attempts before it, too.
        """
        with self._turn:
            phases = self._phases.setdefault(record.device.uuid, [])
            phase = _Phase(at if phases else -math.inf, open_attempts.period(record), counts=open_to is not OpenTo.ALL)
            if not phases or phases[-1][1:] != phase[1:]:
                phases.append(phase)
            del phases[:-_PHASES]

    def add(self, device: str, new: Opener, *, ignored: bool, at: float) -> None:
        """Add an attempt of this uptime to the entry that it belongs to. Once an hour, the log tells of it."""
        with self._turn:
            to_log = self._add(device, new, self._wall(), ignored=ignored)
            phase = self._phase(device, at)
            if not (ignored or new.exempt):
                held = phase is None or phase.period.held  # unknown: somebody may have had it
                self._answers.setdefault(device, Counter())[Answer(bool(new.refused), held)] += 1
            if phase is not None and phase.counts and not ignored:
                open_attempts.count(self._new.setdefault(device, {}).setdefault(phase.period, {}), new)
        if to_log is not None:
            _log(device, to_log.opener)

    def _phase(self, device: str, at: float) -> _Phase | None:
        phases = self._phases.get(device, [])
        phase = next((phase for phase in reversed(phases) if phase.since <= at), None)
        if phase is None and phases:  # it is not known any more: somebody may have had the device
            tenancy, held = phases[0].period
            return _Phase(-math.inf, Period(tenancy if held else tenancy - 1, held=True))
        return phase

    def _add(self, device: str, new: Opener, now: float, *, ignored: bool) -> LiveOpener | None:
        self.attempts += 1
        mine = self._of.setdefault(device, {})
        key = new.who, ignored
        before = mine.pop(key, None)
        opener = LiveOpener(new, ignored) if before is None else replace(before, opener=added(before.opener, new))
        if not new.refused:
            opener = replace(opener, opened=max(opener.opened, new.last))
        due = not ignored and now >= opener.logged + LOGGED_EVERY and self._has_line(now)
        if due:
            opener = replace(opener, logged=now)
            self._lines.append(now)
        mine[key] = opener
        if len(mine) > _KEPT:  # who is let in goes first, and then names that programs have chosen
            let_in = (who for who, it in mine.items() if it.ignored and it.opener.exempt)
            oldest = next(let_in, next((who for who in mine if who[0].command), next(iter(mine))))
            del mine[oldest]
        return opener if due else None

    def take(self, device: str) -> list[tuple[Period, tuple[Opener, ...]]]:
        """The attempts since the last call that may be those of others, each in the period in which it was made."""
        with self._turn:
            return [(period, tuple(new.values())) for period, new in self._new.pop(device, {}).items()]

    def missed(self, device: str, why: str) -> None:
        """Somebody may not have been counted, for this reason."""
        with self._turn:
            self._gaps[device, why] = None

    def take_gaps(self, most: int) -> list[tuple[str, str]]:
        """Up to ``most`` devices and reasons that were not taken before."""
        with self._turn:
            taken = [*self._gaps][:most]
            for gap in taken:
                del self._gaps[gap]
            return taken

    def remember(self, device: str, openers: Iterable[Opener]) -> None:
        """Add those whom earlier lives of the service have recorded, the latest last."""
        with self._turn:
            earlier: dict[_Key, Opener] = {(opener.who, False): opener for opener in openers}
            live = self._of.get(device, {})
            entries = {key: LiveOpener(opener) for key, opener in earlier.items() if key not in live}
            for key, opener in live.items():
                entries[key] = replace(opener, opener=added(earlier.get(key), opener.opener))
            self._of[device] = dict([*entries.items()][-_KEPT:])

    def name(self, device: str, pods: Mapping[str, str]) -> None:
        """Keep the names of these pods, by UID: the kubelet forgets the name of a pod that has ended."""
        with self._turn:
            for key, opener in self._of.get(device, {}).items():
                if pod := pods.get(opener.opener.place):
                    self._of[device][key] = replace(opener, opener=replace(opener.opener, pod=pod))

    def _has_line(self, now: float) -> bool:
        return len(self._lines) < _LINES or now >= self._lines[0] + _LINES_WITHIN

    def of(self, device: str) -> tuple[LiveOpener, ...]:
        """Those of the last days, the latest last."""
        since = self._wall() - KEPT_FOR
        return tuple(opener for opener in [*self._of.get(device, {}).values()] if opener.opener.last >= since)

    def users(self, device: str, since: float) -> list[LiveOpener]:
        """Who was let through since this wall time: those that the policy exempts, then others, the latest last."""
        users = [opener for opener in self.of(device) if not opener.ignored and opener.opened >= since]
        return sorted(users, key=lambda opener: (not opener.opener.exempt, opener.opened))

    def asked(self, device: str) -> Mapping[Answer, int]:
        """How often others have asked for the device since the service started, as far as it was told."""
        return Counter(self._answers.get(device, ()))


def _log(device: str, opener: Opener) -> None:
    who = process_names.describe(opener.command, opener.pid, opener.place or "it has ended")
    facts = {"device": device, "process": who, "times": opener.times, "refused": opener.refused}
    if opener.exempt:
        logger.warning("an exempt process opened a GPU that is not its own", **facts)
    else:
        logger.warning("a process asked for a GPU that is not its own", **facts)
