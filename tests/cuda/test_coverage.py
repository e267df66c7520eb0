"""Uncovered memory has a cause and a size, and each change of memory is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrub_api.measurements import Uncovered
from scrubber.core.measured import OURS, OWN_LISTED
from scrubber.cuda.card import Free
from scrubber.cuda.coverage import CONTEXT_AT_MOST, SLACK, Account, MemoryCounts, disturbance, uncovered

GIB = 2**30
IDLE = MemoryCounts(total=141 * GIB, reserved=GIB, used=0)
CONTEXT = 300 * 2**20
COVERED = 139 * GIB


def account(before: int = 0, context: int = CONTEXT, taken: int = COVERED, hidden: int = 0) -> Account:
    """``hidden``: the bytes that NVML calls allocatable and CUDA does not show."""
    total = IDLE.allocatable - hidden
    seen = [total - before - context, total - before - context - taken]
    opened, after = (Free(free, total) for free in seen)
    return Account(replace(IDLE, used=before), opened, after)


def test_uncovered_memory_is_listed_by_cause_and_adds_up():
    causes = uncovered(account(before=2**20), COVERED, idle=2**18)
    assert causes == (
        Uncovered("in use on an idle device, by the driver or watching programs", 2**18),
        Uncovered("in use before the scrub", 2**20 - 2**18),
        Uncovered("the context of the scrub itself", CONTEXT),
        Uncovered("left free in pieces too small to take", GIB - CONTEXT - 2**20),
    )
    assert sum(it.bytes for it in causes) == IDLE.allocatable - COVERED


def test_what_the_driver_counts_as_ours_has_no_limit():
    seen = account(context=3 * CONTEXT_AT_MOST, taken=COVERED - 3 * GIB)
    assert disturbance(seen, COVERED - 3 * GIB) is not None
    listed = replace(seen, own=3 * CONTEXT_AT_MOST)
    assert disturbance(listed, COVERED - 3 * GIB) is None
    assert uncovered(listed, COVERED - 3 * GIB, idle=0)[0] == Uncovered(OWN_LISTED, 3 * CONTEXT_AT_MOST)
    assert disturbance(replace(seen, own=3 * CONTEXT_AT_MOST - 1), COVERED - 3 * GIB) is not None


def test_only_context_and_driver_tables_are_ours():
    causes = uncovered(account(before=2**20, taken=COVERED + 2**20), COVERED, idle=2**18)
    assert [it.cause in OURS for it in causes] == [True, False, True, False, True]
    assert causes[-1] == Uncovered("the driver's own bookkeeping for the memory that the scrub took", 2**20)


@given(st.integers(0, 2**24), st.integers(0, 2**26), st.integers(-(2**20), 2**28), st.integers(-SLACK, SLACK))
def test_uncovered_memory_is_reported_exactly_once(before, idle, context, books):
    shown = uncovered(account(before, context, COVERED + books), COVERED, idle)
    assert sum(it.bytes for it in shown) == IDLE.allocatable - COVERED
    assert all(it.bytes > 0 for it in shown)


@pytest.mark.parametrize("hidden", [GIB - 2**26, -(2**30)])
def test_a_different_total_of_cuda_is_no_disturbance(hidden):
    seen = account(taken=COVERED - GIB, hidden=hidden)
    assert disturbance(seen, COVERED - GIB) is None
    assert seen.allocatable == IDLE.allocatable + max(0, -hidden)
    assert sum(it.bytes for it in uncovered(seen, COVERED - GIB, idle=0)) == seen.allocatable - (COVERED - GIB)


@pytest.mark.parametrize("when", ["opened", "after"])
@pytest.mark.parametrize("change", [1, -1, GIB])
def test_a_change_of_the_drivers_memory_is_reported_exactly(when, change):
    quiet = account()
    seen = getattr(quiet, when)
    shown = disturbance(replace(quiet, **{when: replace(seen, total=seen.total + change)}), COVERED)
    assert shown == "the memory that the driver keeps for itself changed meanwhile"


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
def test_our_share_of_memory_has_an_upper_limit(most, seen, why):
    assert disturbance(seen(most), COVERED) is None
    shown = disturbance(seen(most + 1), COVERED)
    assert shown is not None
    assert f"{most + 1} bytes" in shown
    assert why in shown


def test_small_devices_have_the_same_allowance_for_driver_tables():
    opened, after = (Free(free, 16 * GIB) for free in (10 * GIB - CONTEXT, 9 * GIB - CONTEXT - SLACK))
    assert disturbance(Account(MemoryCounts(16 * GIB, 6 * GIB, 0), opened, after), GIB) is None
