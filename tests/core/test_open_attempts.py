"""Which rows are due about those who open a device that was not given to them, and what such rows tell a later life."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrubber.core import open_attempts
from scrubber.core.events import OpenAttempted
from scrubber.core.model import Opener
from scrubber.core.open_attempts import MOST, MOST_COUNTED, Period, Written
from tests.core import lives
from tests.core.lives import OPENER, rows

HELD = Period(7, held=True)
FREE = Period(7, held=False)


def opener(place: str = "pod-b", times: int = 1, refused: int = 0, first: float = 100.0, **fields: object) -> Opener:
    """Somebody who asked last when he had asked so often."""
    written = replace(OPENER, place=place, times=times, refused=refused, first=first, last=first + times)
    return replace(written, **fields)  # type: ignore[arg-type] # by name


def rows_of(*openers: Opener) -> Written:
    """A period with these rows."""
    rows = {each.who: each for each in openers}
    return Written(HELD, rows, rows)


def counts(events: list[OpenAttempted]) -> list[tuple[str, int, int]]:
    return [(event.opener.place, event.opener.times, event.opener.refused) for event in events]


A, B = opener("pod-a"), opener("pod-b")
FLOOD = tuple(opener(f"pod-{number}") for number in range(500))
REFUSED_FLOOD = tuple(opener(f"flood-{number}", refused=1) for number in range(MOST_COUNTED))


@pytest.mark.parametrize(
    ("written", "new", "room", "due"),
    rows(
        ("nobody", rows_of(), (), 20, []),
        ("one", rows_of(), (B,), 20, [("pod-b", 1, 0)]),
        ("one with a row", rows_of(B), (opener(times=8),), 20, []),
        ("one more", rows_of(B), (A,), 20, [("pod-a", 1, 0)]),
        ("one twice", rows_of(), (opener(times=4, refused=3), opener(times=2, refused=1)), 20, [("pod-b", 6, 4)]),
        ("several programs of no place", rows_of(opener("", command="a")),
         (opener("", command="a"), opener("", command="b")), 20, [("", 1, 0)]),
        ("several programs of a pod", rows_of(opener(command="a")), (opener(command="b"),), 20, []),
        ("no room", rows_of(), (A, B), 0, []),
        ("too much", rows_of(), (A, B), -1, []),
        ("let through after it was refused", rows_of(opener(refused=1)), (opener(times=2),), 20, [("pod-b", 3, 1)]),
        ("refused again", rows_of(opener(refused=1)), (opener(refused=1),), 20, []),
        ("let through again", rows_of(opener(times=2, refused=1)), (opener(times=2),), 20, []),
        ("room for one", rows_of(), (opener("pod-a", refused=1), B), 1, [("pod-b", 1, 0)]),
        ("room for one beside an exempt one", rows_of(), (opener("pod-a", exempt=True), B), 1, [("pod-b", 1, 0)]),
        ("a flood", rows_of(), FLOOD, 20, counts([OpenAttempted(it, *HELD) for it in FLOOD[:MOST]])),
        ("a flood that goes on", rows_of(*FLOOD[:MOST]), FLOOD[MOST:], 20, []),
        ("one after a refused flood", rows_of(), (*REFUSED_FLOOD, B), 1, [("pod-b", 1, 0)]),
    ),
)  # fmt: skip
def test_each_opener_has_one_first_row_within_the_limits(written, new, room, due):
    events = written.with_attempts(new).first_rows(room)
    assert counts(events) == due
    assert all((Period(event.tenancy, event.held), event.ended) == (HELD, False) for event in events)


@pytest.mark.parametrize(
    ("written", "new", "due"),
    rows(
        ("nothing since its row", rows_of(B), (), []),
        ("more since its row", rows_of(B), (opener(times=4, refused=2),), [("pod-b", 5, 2)]),
        ("without a first row", rows_of(), (B,), []),
    ),
)
def test_a_period_ends_with_the_counts_that_have_changed(written, new, due):
    events = written.with_attempts(new).last_rows()
    assert counts(events) == due
    assert all(event.ended for event in events)


UNIT = opener("/system.slice/x.service")
NAMED = tuple(opener(f"named-{number}") for number in range(MOST))
REFUSED = opener("pod-c", times=2, refused=2)


@pytest.mark.parametrize(
    ("written", "new", "ended", "due"),
    rows(
        ("all have rows", rows_of(A, B), (A, B), True, []),
        ("some", rows_of(*NAMED), (*NAMED, A, B), False, [("other containers", "2", 2, 0)]),
        ("one", rows_of(*NAMED), (A,), False, [("other containers", "1", 1, 0)]),
        ("one twice", rows_of(*NAMED), (A, A), False, [("other containers", "1", 2, 0)]),
        ("programs of the node", rows_of(*NAMED), (A, UNIT, opener("", command="a"), opener("", command="b")), False,
         [("other containers", "1", 1, 0), ("other programs of the node", "3", 3, 0)]),
        ("exempt ones", rows_of(*NAMED), (A, opener(exempt=True)), False,
         [("other containers", "1", 1, 0), ("other containers", "1", 1, 0)]),
        ("a flood", rows_of(*NAMED), (opener(f"pod-{it}") for it in range(5000)), False,
         [("other containers", str(MOST_COUNTED - MOST), MOST_COUNTED - MOST, 0)]),
    ),
)  # fmt: skip
def test_those_without_rows_are_counted_in_one(written, new, ended, due):
    written = written.with_attempts(new)
    events = written.rows_of_others(ended=ended)
    assert [(it.opener.place, it.opener.command, it.opener.times, it.opener.refused) for it in events] == due
    assert written.with_rows(events).rows_of_others(ended=True) == []


def test_only_worse_or_last_rows_follow_one_of_others():
    written = rows_of(*NAMED).with_attempts([REFUSED])
    written = written.with_rows(written.rows_of_others())
    assert written.with_attempts([A]).first_rows(20) == [], "it takes no place of a name"
    again = written.with_attempts([replace(REFUSED, times=3, refused=3)])
    assert again.rows_of_others() == []
    [worse] = written.with_attempts([replace(REFUSED, times=3, refused=2)]).rows_of_others()
    assert (worse.opener.times, worse.opener.was_let_through, worse.ended) == (5, True, False)
    [last] = again.with_attempts([A]).rows_of_others(ended=True)
    assert (last.opener.command, last.opener.times, last.ended) == ("2", 6, True)


def test_a_later_life_counts_those_without_rows_anew():
    assert open_attempts.remembered(rows_of(*NAMED).with_attempts([A, B]).rows_of_others()) == ([], {})


def test_a_device_begins_a_period_when_it_changes_hands():
    number = lives.CLEAN.tenancy.number
    life = (lives.CLEAN, lives.GRANTED, lives.IN_USE, lives.DIRTY, lives.SCRUBBING)
    held = [(number, False), (number, True), (number, True), (number + 1, False), (number + 1, False)]
    assert [open_attempts.period(record) for record in life] == held


def test_a_later_life_counts_on_and_writes_no_row_again():
    first = rows_of().with_attempts([A, opener(times=2)]).first_rows(20)
    free = Written(FREE).with_attempts([opener(times=40)]).first_rows(20)
    earlier, periods = open_attempts.remembered([*free, *first])
    assert [(it.place, it.times) for it in earlier] == [("pod-a", 1), ("pod-b", 42)]
    assert (periods[HELD].first_rows(20), periods[HELD].last_rows()) == ([], [])
    new = [opener(times=3, first=900.0)]
    assert counts(periods[HELD].with_attempts(new).last_rows()) == [("pod-b", 5, 0)]
    assert counts(periods[FREE].with_attempts(new).last_rows()) == [("pod-b", 43, 0)]
