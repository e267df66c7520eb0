"""Which rows are due about openers: those who try to open a device that was not given to them.

They are counted in periods. A device begins a period when it is given to somebody, and when it is given back: its rows
say who tried to open it while a tenant had it, and who between two tenants. A flood must not fill the ledger: the rows
of a period are few, and the caller says how many first rows there may be now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scrubber.core.events import OpenAttempted
from scrubber.core.model import Opener, State, Who
from scrubber.core.record import Record

MOST = 8  # openers with rows in a period
AT_ONCE, WITHIN = 20, 600.0  # first rows of the whole node at most, within so many seconds

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
    """What the rows of a device's present period tell."""

    period: Period
    before: Mapping[Who, Opener] = field(default_factory=dict)  # as they were counted when the period began
    rows: Mapping[Who, Opener] = field(default_factory=dict)  # the newest row of each

    def first_rows(self, counted: Iterable[Opener], room: int) -> list[OpenAttempted]:
        """Those due, at most as many as there is room for: also of who was refused so far, and is let through.

        ``counted``: all openers, with all their attempts so far.
        """
        new, opened = list[Opener](), list[Opener]()
        for opener in self._in_period(counted):
            row = self.rows.get(opener.who)
            if row is None and opener.times:
                new.append(opener)
            elif row is not None and row.times == row.refused and opener.times > opener.refused:
                opened.append(opener)  # he was refused before
        new.sort(key=lambda opener: (opener.exempt, opener.times == opener.refused))  # if few fit, the worst do
        new = new[: max(MOST - len(self.rows), 0)]
        return [self._row(opener) for opener in [*opened, *new][: max(room, 0)]]

    def last_rows(self, counted: Iterable[Opener]) -> list[OpenAttempted]:
        """Those due at the end of the period, or of the service."""
        rows = self.rows
        now = [opener for opener in self._in_period(counted) if opener.who in rows]
        return [self._row(opener, ended=True) for opener in now if opener.times > rows[opener.who].times]

    def with_rows(self, events: Iterable[OpenAttempted]) -> Written:
        """What they tell once these rows are written."""
        return replace(self, rows={**self.rows, **{event.opener.who: event.opener for event in events}})

    def _row(self, opener: Opener, *, ended: bool = False) -> OpenAttempted:
        return OpenAttempted(opener, *self.period, ended)

    def _in_period(self, counted: Iterable[Opener]) -> Iterable[Opener]:
        """These openers, with their attempts in this period."""
        for opener in counted:
            before, row = self.before.get(opener.who), self.rows.get(opener.who)
            if before is not None and before.first == opener.first:
                times, refused = opener.times - before.times, opener.refused - before.refused
                yield replace(opener, times=times, refused=refused, first=row.first if row else opener.last)
            elif row is not None and row.first < opener.first:  # forgotten since, and counted again
                times, refused = opener.times + row.times, opener.refused + row.refused
                yield replace(opener, times=times, refused=refused, first=row.first)
            else:
                yield opener


def begun(now: Period, counted: Iterable[Opener]) -> Written:
    """A period in which nobody has tried yet. ``counted``: as they are when it begins."""
    return Written(now, {opener.who: opener for opener in counted})


def remembered(events: Sequence[OpenAttempted], now: Period) -> tuple[list[Opener], Written]:
    """What these rows of a device, oldest first, tell: all openers, with all their attempts, and the present period."""
    newest: dict[tuple[Who, Period], Opener] = {}
    for event in events:
        key = event.opener.who, Period(event.tenancy, event.held)
        newest.pop(key, None)
        newest[key] = event.opener
    totals: dict[Who, Opener] = {}
    for (who, _), opener in newest.items():
        totals[who] = added(totals.pop(who, None), opener)
    rows = {who: opener for (who, when), opener in newest.items() if when == now}
    before = {who: _without(total, rows.get(who)) for who, total in totals.items()}
    return list(totals.values()), Written(now, before, rows)


def added(earlier: Opener | None, later: Opener) -> Opener:
    """Both together."""
    if earlier is None:
        return later
    times, refused = earlier.times + later.times, earlier.refused + later.refused
    first = min(earlier.first, later.first)
    return replace(later, pod=later.pod or earlier.pod, times=times, refused=refused, first=first)


def _without(total: Opener, row: Opener | None) -> Opener:
    return total if row is None else replace(total, times=total.times - row.times, refused=total.refused - row.refused)
