"""Decides which rows about open attempts are due; their openers try to open a device that was not given to them.

The attempts are counted in periods. A period of a device begins when the device is given to somebody, and when it is
given back. So its rows say who tried to open it while a tenant had it, and who tried between two tenants. A flood of
attempts must not fill the ledger: a period has few rows, and the caller says how many first rows there may be now. One
more row counts those that are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scrubber.core.events import OpenAttempted
from scrubber.core.model import OTHER_CONTAINERS, OTHER_PROGRAMS, OTHERS, Opener, State, Who
from scrubber.core.record import Record

MOST = 8  # openers with rows in a period
AT_ONCE, WITHIN = 20, 600.0  # first rows of the whole node at most, within so many seconds
MOST_COUNTED = 1000  # openers of a period at most

_HELD = (State.GRANTED, State.IN_USE)


class Period(NamedTuple):
    """A time in which the attempts on a device are counted together."""

    tenancy: int
    held: bool


def period(record: Record) -> Period:
    """The present period of a device."""
    return Period(record.tenancy.number, record.state in _HELD)


@dataclass(frozen=True, slots=True)
class Written:
    """A device's period: who has tried to open it, with all his attempts of the period, and what its rows say."""

    period: Period
    counted: Mapping[Who, Opener] = field(default_factory=dict)
    rows: Mapping[Who, Opener] = field(default_factory=dict)  # the newest row of each, also of ``OTHERS``

    def first_rows(self, room: int) -> list[OpenAttempted]:
        """The first rows that are due, as far as there is room for them.

        An opener that was refused before and is let through now also gets one.
        """
        new, opened = list[Opener](), list[Opener]()
        for who, opener in self.counted.items():
            row = self.rows.get(who)
            if row is None:
                new.append(opener)
            elif row.times == row.refused and opener.times > opener.refused:
                opened.append(opener)  # he was refused before
        new.sort(key=lambda opener: (opener.exempt, opener.times == opener.refused))  # if few fit, the worst do
        new = new[: max(MOST - sum(row.place not in OTHERS for row in self.rows.values()), 0)]
        return [self._row(opener) for opener in [*opened, *new][: max(room, 0)]]

    def last_rows(self) -> list[OpenAttempted]:
        """The rows that are due at the end of the period, or of the service."""
        now = [(opener, self.rows[who]) for who, opener in self.counted.items() if who in self.rows]
        return [self._row(opener, ended=True) for opener, row in now if opener.times > row.times]

    def rows_of_others(self, *, ended: bool = False) -> list[OpenAttempted]:
        """Those due, after all others, about openers without a row: how many they are.

        ``ended``: at the end of the period, or of the service.
        """
        due = list[Opener]()
        for others in _together(opener for who, opener in self.counted.items() if who not in self.rows):
            row = self.rows.get(others.who)
            is_new = row is None or (row.times == row.refused and others.times > others.refused)
            if is_new or (ended and (row is None or (row.command, row.times) != (others.command, others.times))):
                due.append(others)
        return [self._row(others, ended=ended) for others in due]

    def with_attempts(self, openers: Iterable[Opener]) -> Written:
        """The period with these attempts, which were not counted before."""
        counted = dict(self.counted)
        for opener in openers:
            count(counted, opener)
        return replace(self, counted=counted)

    def with_rows(self, events: Iterable[OpenAttempted]) -> Written:
        """What the rows say when these rows are written too."""
        return replace(self, rows={**self.rows, **{event.opener.who: event.opener for event in events}})

    def _row(self, opener: Opener, *, ended: bool = False) -> OpenAttempted:
        return OpenAttempted(opener, *self.period, ended)


def count(counted: dict[Who, Opener], new: Opener) -> None:
    """Add these attempts to those of their opener.

    If there are too many openers, one that is let through takes the place of one that was always refused.
    """
    if new.who not in counted and len(counted) >= MOST_COUNTED:
        refused = next((who for who, opener in counted.items() if opener.times == opener.refused), None)
        if refused is None or new.times == new.refused:
            return
        del counted[refused]
    counted[new.who] = added(counted.get(new.who), new)


def remembered(events: Iterable[OpenAttempted]) -> tuple[list[Opener], dict[Period, Written]]:
    """What these rows of a device, oldest first, say: all openers, with all their attempts, and the periods."""
    newest: dict[tuple[Who, Period], Opener] = {}
    for event in events:
        if event.opener.place in OTHERS:  # they have no names, and who asks from now on is counted anew
            continue
        key = event.opener.who, Period(event.tenancy, event.held)
        newest.pop(key, None)
        newest[key] = event.opener
    totals: dict[Who, Opener] = {}
    periods: dict[Period, dict[Who, Opener]] = {}
    for (who, when), opener in newest.items():
        totals[who] = added(totals.pop(who, None), opener)
        periods.setdefault(when, {})[who] = opener
    return list(totals.values()), {when: Written(when, of, of) for when, of in periods.items()}


def added(one: Opener | None, other: Opener) -> Opener:
    """Both together: the newest attempt names the process. Attempts are not always read in their order."""
    if one is None:
        return other
    older, newer = (one, other) if one.last <= other.last else (other, one)
    times, refused = one.times + other.times, one.refused + other.refused
    first = min(one.first, other.first)
    return replace(newer, pod=newer.pod or older.pod, times=times, refused=refused, first=first)


def _together(openers: Iterable[Opener]) -> Iterable[Opener]:
    """All in containers as one opener, and all other programs; those apart that the policy exempts."""
    groups: dict[tuple[bool, bool], list[Opener]] = {}
    for opener in openers:
        groups.setdefault((opener.is_contained, opener.exempt), []).append(opener)
    for (is_contained, exempt), some in groups.items():
        place = OTHER_CONTAINERS if is_contained else OTHER_PROGRAMS
        times, refused = sum(it.times for it in some), sum(it.refused for it in some)
        first, last = min(it.first for it in some), max(it.last for it in some)
        yield Opener(place, "", str(len(some)), 0, exempt, times, refused, first, last)
