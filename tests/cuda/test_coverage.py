"""What was not covered has a cause and a size, and nobody's memory comes or goes unseen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core.measurements import OURS, Uncovered
from scrubber.cuda.card import Free
from scrubber.cuda.coverage import CONTEXT_AT_MOST, SLACK, Account, Books, disturbance, uncovered

GIB = 2**30
IDLE = Books(total=141 * GIB, reserved=GIB, used=0)
CONTEXT = 300 * 2**20
COVERED = 139 * GIB


def account(before: int = 0, context: int = CONTEXT, taken: int = COVERED, hidden: int = 0) -> Account:
    """``hidden``: the bytes that NVML calls allocatable and CUDA does not show."""
    total = IDLE.allocatable - hidden
    seen = [total - before - context, total - before - context - taken]
    return Account(replace(IDLE, used=before), *(Free(free, total) for free in seen))


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


@given(st.integers(0, 2**24), st.integers(0, 2**26), st.integers(-(2**20), 2**28), st.integers(-SLACK, SLACK))
def test_all_that_was_not_covered_is_told_and_nothing_twice(before, idle, context, books):
    told = uncovered(account(before, context, COVERED + books), COVERED, idle)
    assert sum(it.bytes for it in told) == IDLE.allocatable - COVERED
    assert all(it.bytes > 0 for it in told)


@pytest.mark.parametrize("hidden", [GIB - 2**26, -(2**30)])
def test_another_total_of_cuda_is_no_disturbance_and_all_is_accounted_for(hidden):
    seen = account(taken=COVERED - GIB, hidden=hidden)
    assert disturbance(seen, COVERED - GIB) is None
    assert seen.allocatable == IDLE.allocatable + max(0, -hidden)
    assert sum(it.bytes for it in uncovered(seen, COVERED - GIB, idle=0)) == seen.allocatable - (COVERED - GIB)


def test_a_quiet_device_is_not_disturbed():
    assert disturbance(account(), COVERED) is None


@pytest.mark.parametrize("when", ["opened", "after"])
@pytest.mark.parametrize("change", [1, -1, GIB])
def test_a_driver_that_keeps_more_or_less_for_itself_meanwhile_is_told_to_the_byte(when, change):
    quiet = account()
    seen = getattr(quiet, when)
    told = disturbance(replace(quiet, **{when: replace(seen, total=seen.total + change)}), COVERED)
    assert told == "the memory that the driver keeps for itself changed meanwhile"


BIG = int(IDLE.total / 1000)  # more than SLACK: the driver's maps of so much memory


@pytest.mark.parametrize(
    ("most", "seen", "why"),
    [
        (CONTEXT_AT_MOST, lambda size: account(context=size), "another process took"),
        (BIG, lambda size: account(taken=COVERED + size), "another process took"),
        (BIG, lambda size: account(before=GIB, context=-size), "were given back"),
        (BIG, lambda size: account(taken=COVERED - size), "were given back"),
    ],
)
def test_how_much_is_believed_to_be_ours_and_how_much_may_go(most, seen, why):
    assert disturbance(seen(most), COVERED) is None
    told = disturbance(seen(most + 1), COVERED)
    assert told is not None
    assert f"{most + 1} bytes" in told
    assert why in told


def test_a_context_of_the_reported_size_is_no_disturbance():
    assert disturbance(account(context=612 * 2**20), COVERED) is None


def test_a_small_device_gets_the_same_room_for_the_drivers_maps():
    books = (Free(free, 16 * GIB) for free in (10 * GIB - CONTEXT, 9 * GIB - CONTEXT - SLACK))
    assert disturbance(Account(Books(16 * GIB, 6 * GIB, 0), *books), GIB) is None
