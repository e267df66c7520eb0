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
