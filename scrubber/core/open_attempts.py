"""Decides which rows about open attempts are due; their openers try to open a device that was not given to them.

The attempts are counted in periods. A period of a device begins when the device is given to somebody, and when it is
given back. So its rows say who tried to open it while a tenant had it, and who tried between two tenants. A flood of
attempts must not fill the ledger: a period has few rows, and the caller says how many first rows there may be now. One
more row counts those that are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scrubber.core.events import OpenAttempted
from scrubber.core.model import OTHER_CONTAINERS, OTHER_PROGRAMS, OTHERS, Opener, State, Who
from scrubber.core.record import Record

MOST = 8  # openers with rows in a period
AT_ONCE, WITHIN = 20, 600.0  # first rows of the whole node at most, within so many seconds
MOST_FORGOTTEN = 1000  # openers of a device that are counted at most, beside those whom the caller keeps in mind

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
    """What the rows of a device's present period say."""

    period: Period
    before: Mapping[Who, Opener] = field(default_factory=dict)  # as they were counted when the period began
    rows: Mapping[Who, Opener] = field(default_factory=dict)  # the newest row of each, also of ``OTHERS``
    forgotten: Mapping[Who, Opener] = field(default_factory=dict)  # those of the period whom the caller forgot
    firsts: Mapping[Who, float] = field(default_factory=dict)  # wall times of first attempts that nobody saw at once

    def first_rows(self, counted: Iterable[Opener], room: int) -> list[OpenAttempted]:
        """The first rows that are due, as far as there is room for them.

        An opener that was refused before and is let through now also gets one. ``counted``: all openers, with all their
        attempts so far.
        """
        new, opened = list[Opener](), list[Opener]()
        for opener in self._in_period(counted):
            row = self.rows.get(opener.who)
            if row is None and opener.times:
                new.append(opener)
            elif row is not None and row.times == row.refused and opener.times > opener.refused:
                opened.append(opener)  # he was refused before
        new.sort(key=lambda opener: (opener.exempt, opener.times == opener.refused))  # if few fit, the worst do
        new = new[: max(MOST - sum(row.place not in OTHERS for row in self.rows.values()), 0)]
        return [self._row(opener) for opener in [*opened, *new][: max(room, 0)]]

    def last_rows(self, counted: Iterable[Opener]) -> list[OpenAttempted]:
        """The rows that are due at the end of the period, or of the service."""
        rows = self.rows
        now = [opener for opener in self._in_period(counted) if opener.who in rows]
        return [self._row(opener, ended=True) for opener in now if opener.times > rows[opener.who].times]

    def rows_of_others(self, counted: Iterable[Opener], *, ended: bool = False) -> list[OpenAttempted]:
        """Those due, after all others, about openers without a row: how many they are.

        ``ended``: at the end of the period, or of the service.
        """
        left_out = {who: opener for who, opener in self.forgotten.items() if who not in self.rows}
        for opener in self._in_period(counted):
            if opener.times and opener.who not in self.rows:
                left_out[opener.who] = added(left_out.get(opener.who), opener)
        due = list[Opener]()
        for others in _together(left_out.values()):
            row = self.rows.get(others.who)
            is_new = row is None or (row.times == row.refused and others.times > others.refused)
            if is_new or (ended and (row is None or (row.command, row.times) != (others.command, others.times))):
                due.append(others)
        return [self._row(others, ended=ended) for others in due]

    def with_forgotten(self, openers: Iterable[Opener]) -> Written:
        """What they tell once the caller has forgotten these openers, with all their attempts so far."""
        forgotten = dict(self.forgotten)
        for opener in self._in_period(openers):
            if opener.times and (opener.who in forgotten or len(forgotten) < MOST_FORGOTTEN):
                forgotten[opener.who] = added(forgotten.get(opener.who), opener)
        return replace(self, forgotten=forgotten)

    def with_rows(self, events: Iterable[OpenAttempted]) -> Written:
        """What the rows say when these rows are written too."""
        return replace(self, rows={**self.rows, **{event.opener.who: event.opener for event in events}})

    def _row(self, opener: Opener, *, ended: bool = False) -> OpenAttempted:
        return OpenAttempted(opener, *self.period, ended)

    def _in_period(self, counted: Iterable[Opener]) -> Iterable[Opener]:
        """These openers, with their attempts in this period."""
        for opener in counted:
            before, row = self.before.get(opener.who), self.rows.get(opener.who)
            if before is not None and before.first == opener.first:
                times, refused = opener.times - before.times, opener.refused - before.refused
                first = row.first if row else self.firsts.get(opener.who, opener.last)
                yield replace(opener, times=times, refused=refused, first=first)
            elif row is not None and row.first < opener.first:  # forgotten since, and counted again
                times, refused = opener.times + row.times, opener.refused + row.refused
                yield replace(opener, times=times, refused=refused, first=row.first)
            else:
                yield opener


def begun(now: Period, counted: Iterable[Opener]) -> Written:
    """A period in which nobody has tried yet. ``counted``: the counts of all openers when it begins."""
    return Written(now, {opener.who: opener for opener in counted})


def remembered(events: Sequence[OpenAttempted], now: Period) -> tuple[list[Opener], Written]:
    """What these rows of a device, oldest first, say: all openers, with all their attempts, and the present period."""
    newest: dict[tuple[Who, Period], Opener] = {}
    for event in events:
        if event.opener.place in OTHERS:  # they have no names, and who asks from now on is counted anew
            continue
        key = event.opener.who, Period(event.tenancy, event.held)
        newest.pop(key, None)
        newest[key] = event.opener
    totals: dict[Who, Opener] = {}
    for (who, _), opener in newest.items():
        totals[who] = added(totals.pop(who, None), opener)
    rows = {who: opener for (who, when), opener in newest.items() if when == now}
    before = {who: _without(total, rows.get(who)) for who, total in totals.items()}
    return list(totals.values()), Written(now, before, rows)


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


def _without(total: Opener, row: Opener | None) -> Opener:
    return total if row is None else replace(total, times=total.times - row.times, refused=total.refused - row.refused)
