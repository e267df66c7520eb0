"""Which rows are due about those who open a device that was not given to them, and what such rows tell a later life."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrubber.core import open_attempts
from scrubber.core.events import OpenAttempted
from scrubber.core.model import Opener
from scrubber.core.open_attempts import MOST, Period, Written
from tests.core import lives
from tests.core.lives import OPENER, rows

HELD = Period(7, held=True)
FREE = Period(7, held=False)


def opener(place: str = "pod-b", times: int = 1, refused: int = 0, first: float = 100.0, **fields: object) -> Opener:
    """Somebody who asked last when he had asked so often."""
    written = replace(OPENER, place=place, times=times, refused=refused, first=first, last=first + times)
    return replace(written, **fields)  # type: ignore[arg-type] # by name


def rows_of(*openers: Opener, before: tuple[Opener, ...] = ()) -> Written:
    """A period with these rows."""
    return Written(HELD, {each.who: each for each in before}, {each.who: each for each in openers})


def counts(events: list[OpenAttempted]) -> list[tuple[str, int, int]]:
    return [(event.opener.place, event.opener.times, event.opener.refused) for event in events]


A, B = opener("pod-a"), opener("pod-b")
FLOOD = tuple(opener(f"pod-{number}") for number in range(500))


@pytest.mark.parametrize(
    ("written", "counted", "room", "due"),
    rows(
        ("nobody", rows_of(), (), 20, []),
        ("one", rows_of(), (B,), 20, [("pod-b", 1, 0)]),
        ("one with a row", rows_of(B), (opener(times=9),), 20, []),
        ("one more", rows_of(B), (A, B), 20, [("pod-a", 1, 0)]),
        ("one of before, who is quiet", rows_of(before=(B,)), (B,), 20, []),
        ("one of before, again", rows_of(before=(opener(times=4, refused=3),)),
         (opener(times=6, refused=4),), 20, [("pod-b", 2, 1)]),
        ("one of before, who was forgotten meanwhile", rows_of(before=(opener(times=4),)),
         (opener(times=2, first=500.0),), 20, [("pod-b", 2, 0)]),
        ("several programs of no place", rows_of(opener("", command="a")),
         (opener("", command="a"), opener("", command="b")), 20, [("", 1, 0)]),
        ("several programs of a pod", rows_of(opener(command="a")), (opener(command="b"),), 20, []),
        ("no room", rows_of(), (A, B), 0, []),
        ("too much", rows_of(), (A, B), -1, []),
        ("let through after it was refused", rows_of(opener(refused=1)), (opener(times=3, refused=1),), 20,
         [("pod-b", 3, 1)]),
        ("refused again", rows_of(opener(refused=1)), (opener(times=2, refused=2),), 20, []),
        ("let through again", rows_of(opener(times=2, refused=1)), (opener(times=4, refused=1),), 20, []),
        ("room for one", rows_of(), (opener("pod-a", refused=1), B), 1, [("pod-b", 1, 0)]),
        ("room for one beside an exempt one", rows_of(), (opener("pod-a", exempt=True), B), 1, [("pod-b", 1, 0)]),
        ("a flood", rows_of(), FLOOD, 20, counts([OpenAttempted(it, *HELD) for it in FLOOD[:MOST]])),
        ("a flood that goes on", rows_of(*FLOOD[:MOST]), FLOOD[MOST:], 20, []),
    ),
)  # fmt: skip
def test_each_opener_has_one_first_row_within_the_limits(written, counted, room, due):
    events = written.first_rows(counted, room)
    assert counts(events) == due
    assert all((Period(event.tenancy, event.held), event.ended) == (HELD, False) for event in events)


@pytest.mark.parametrize(
    ("written", "counted", "due"),
    rows(
        ("nothing since its row", rows_of(B), (B,), []),
        ("more since its row", rows_of(B), (opener(times=5, refused=2),), [("pod-b", 5, 2)]),
        ("more than before", rows_of(opener(times=1, first=104.0), before=(opener(times=4),)),
         (opener(times=9),), [("pod-b", 5, 0)]),
        ("forgotten and counted again", rows_of(opener(times=4)), (opener(times=2, first=500.0),), [("pod-b", 6, 0)]),
        ("without a first row", rows_of(), (B,), []),
    ),
)  # fmt: skip
def test_a_period_ends_with_the_counts_that_have_changed(written, counted, due):
    events = written.last_rows(counted)
    assert counts(events) == due
    assert all(event.ended for event in events)


UNIT = opener("/system.slice/x.service")
NAMED = tuple(opener(f"named-{number}") for number in range(MOST))
AGAIN = opener(first=500.0)
REFUSED = opener("pod-c", times=2, refused=2)


@pytest.mark.parametrize(
    ("written", "counted", "ended", "due"),
    rows(
        ("all have rows", rows_of(A, B), (A, B), True, []),
        ("nobody has asked since", rows_of(before=(A,)), (A,), True, []),
        ("some", rows_of(*NAMED), (*NAMED, A, B), False, [("other containers", "2", 2, 0)]),
        ("one", rows_of(*NAMED), (A,), False, [("other containers", "1", 1, 0)]),
        ("programs of the node", rows_of(*NAMED), (A, UNIT, opener("", command="a"), opener("", command="b")), False,
         [("other containers", "1", 1, 0), ("other programs of the node", "3", 3, 0)]),
        ("exempt ones", rows_of(*NAMED), (A, opener(exempt=True)), False,
         [("other containers", "1", 1, 0), ("other containers", "1", 1, 0)]),
        ("forgotten ones", rows_of(*NAMED).with_forgotten([B, opener("pod-c", times=7)]), (A,), False,
         [("other containers", "3", 9, 0)]),
        ("forgotten and counted again", rows_of(*NAMED).with_forgotten([opener(times=4)]), (AGAIN,), False,
         [("other containers", "1", 5, 0)]),
        ("forgotten twice", rows_of(*NAMED).with_forgotten([B]).with_forgotten([AGAIN]), (), False,
         [("other containers", "1", 2, 0)]),
        ("forgotten, and quiet in this period", rows_of(*NAMED, before=(B,)).with_forgotten([B]), (), False, []),
        ("forgotten, with a row", rows_of(*NAMED).with_forgotten([NAMED[0]]), (), False, []),
        ("a flood", rows_of(*NAMED).with_forgotten(opener(f"pod-{it}") for it in range(5000)), (), False,
         [("other containers", "1000", 1000, 0)]),
    ),
)  # fmt: skip
def test_those_without_rows_are_counted_in_one(written, counted, ended, due):
    events = written.rows_of_others(counted, ended=ended)
    assert [(it.opener.place, it.opener.command, it.opener.times, it.opener.refused) for it in events] == due
    assert written.with_rows(events).rows_of_others(counted, ended=True) == []


def test_only_worse_or_last_rows_follow_one_of_others():
    written = rows_of(*NAMED)
    written = written.with_rows(written.rows_of_others([REFUSED]))
    assert written.first_rows([A], 20) == [], "it takes no place of a name"
    assert written.rows_of_others([replace(REFUSED, times=5, refused=5)]) == []
    [worse] = written.rows_of_others([replace(REFUSED, times=5, refused=4)])
    assert (worse.opener.times, worse.opener.was_let_through, worse.ended) == (5, True, False)
    [last] = written.rows_of_others([replace(REFUSED, times=5, refused=5), A], ended=True)
    assert (last.opener.command, last.opener.times, last.ended) == ("2", 6, True)


def test_a_later_life_counts_those_without_rows_anew():
    others = rows_of(*NAMED).rows_of_others([A, B])
    assert open_attempts.remembered(others, HELD) == ([], Written(HELD))


def test_a_device_begins_a_period_when_it_changes_hands():
    number = lives.CLEAN.tenancy.number
    life = (lives.CLEAN, lives.GRANTED, lives.IN_USE, lives.DIRTY, lives.SCRUBBING)
    held = [(number, False), (number, True), (number, True), (number + 1, False), (number + 1, False)]
    assert [open_attempts.period(record) for record in life] == held


def test_a_later_life_counts_on_and_writes_no_row_again():
    first = rows_of().first_rows([A, opener(times=2)], 20)
    earlier, written = open_attempts.remembered([*Written(FREE).first_rows([opener(times=40)], 20), *first], HELD)
    assert [(it.place, it.times) for it in earlier] == [("pod-a", 1), ("pod-b", 42)]
    assert (written.first_rows(earlier, 20), written.last_rows(earlier)) == ([], [])
    now = [open_attempts.added(earlier[1], opener(times=3, first=900.0))]
    assert counts(written.last_rows(now)) == [("pod-b", 5, 0)]
    _, next_period = open_attempts.remembered(first, FREE)
    assert counts(next_period.first_rows(now, 20)) == [("pod-b", 43, 0)]
