"""What was not covered has a cause and a size, and nobody's memory comes or goes unseen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core.measurements import OURS, Uncovered
from scrubber.cuda.coverage import CONTEXT_AT_MOST, NOISE, SLACK, Account, Books, disturbance, uncovered

GIB = 2**30
IDLE = Books(total=141 * GIB, reserved=GIB, used=0)
CONTEXT = 300 * 2**20
COVERED = 139 * GIB


def account(before: int = 0, context: int = CONTEXT, taken: int = COVERED, later: int = 0) -> Account:
    used = (before, before + context, before + context + taken, before + context + taken + later)
    return Account(*(replace(IDLE, used=it) for it in used))


def test_the_rest_is_told_by_cause_and_adds_up():
    causes = uncovered(account(before=2**20), COVERED, idle=2**18)
    assert causes == (
        Uncovered("in use by the driver itself on an idle device", 2**18),
        Uncovered("in use before the scrub", 2**20 - 2**18),
        Uncovered("the context of the scrub itself", CONTEXT),
        Uncovered("left free in pieces too small to take", GIB - CONTEXT - 2**20),
    )
    assert sum(it.bytes for it in causes) == IDLE.allocatable - COVERED


def test_what_the_driver_needs_for_its_books_is_told_as_that():
    causes = uncovered(account(taken=COVERED + 2**20), COVERED, idle=0)
    assert causes[-1] == Uncovered("the driver's own bookkeeping for the memory that the scrub took", 2**20)


def test_only_the_context_and_what_the_driver_itself_needs_are_ours():
    causes = uncovered(account(before=2**20, taken=COVERED + 2**20), COVERED, idle=2**18)
    assert [it.cause in OURS for it in causes] == [True, False, True, False, True]


def test_no_more_is_the_drivers_own_than_is_in_use_at_all():
    assert uncovered(account(before=2**20), COVERED, idle=2**26)[0].bytes == 2**20


@given(
    st.integers(0, 2**24),
    st.integers(0, 2**26),
    st.integers(-(2**20), 2**28),
    st.integers(-SLACK, SLACK),
    st.integers(-SLACK, SLACK),
)
def test_all_that_was_not_covered_is_told_and_nothing_twice(before, idle, context, books, later):
    told = uncovered(account(before, context, COVERED + books, later), COVERED, idle)
    assert sum(it.bytes for it in told) == IDLE.allocatable - COVERED
    assert all(it.bytes > 0 for it in told)


def test_a_quiet_device_is_not_disturbed():
    assert disturbance(account(), COVERED) is None


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (account(taken=COVERED + GIB), "another process took"),
        (account(later=GIB), "another process took"),
        (account(taken=COVERED - GIB), "were given back"),
        (account(later=-GIB), "were given back"),
        (account(before=2 * GIB, context=-GIB), "were given back"),
    ],
)
def test_memory_of_others_that_comes_or_goes_is_told(seen, why):
    told = disturbance(seen, COVERED)
    assert told is not None
    assert why in told
    assert str(GIB) in told


@pytest.mark.parametrize("when", ["before", "opened", "taken", "after"])
@pytest.mark.parametrize("book", ["reserved", "total"])
@pytest.mark.parametrize("change", [1, -1, GIB])
def test_a_driver_that_keeps_more_or_less_for_itself_meanwhile_is_told_to_the_byte(when, book, change):
    quiet = account()
    seen = getattr(quiet, when)
    told = disturbance(replace(quiet, **{when: replace(seen, **{book: getattr(seen, book) + change})}), COVERED)
    assert told == "the memory that the driver keeps for itself changed meanwhile"


BIG = int(IDLE.total / 1000)  # more than SLACK: the driver's maps of so much memory


@pytest.mark.parametrize(
    ("most", "seen"),
    [
        (CONTEXT_AT_MOST, lambda size: account(context=size)),
        (BIG, lambda size: account(taken=COVERED + size)),
        (BIG, lambda size: account(later=size)),
        (NOISE, lambda size: account(before=GIB, context=-size)),
        (NOISE, lambda size: account(taken=COVERED - size)),
        (NOISE, lambda size: account(later=-size)),
    ],
)
def test_how_much_is_believed_to_be_ours_and_how_little_may_go(most, seen):
    assert disturbance(seen(most), COVERED) is None
    told = disturbance(seen(most + 1), COVERED)
    assert told is not None
    assert told.split(" bytes ")[0].endswith(str(most + 1))


def test_a_context_of_the_reported_size_is_no_disturbance():
    assert disturbance(account(context=500 * 2**20), COVERED) is None


def test_a_small_device_gets_the_same_room_for_the_drivers_maps():
    small = replace(IDLE, total=16 * GIB)
    books = (replace(small, used=it) for it in (0, CONTEXT, CONTEXT + GIB, CONTEXT + GIB + SLACK))
    assert disturbance(Account(*books), GIB) is None
