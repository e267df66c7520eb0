"""Since when a device is observed without a gap."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

import pytest

from scrubber.core.model import Facts, Moment, Sighting
from scrubber.core.use_counter import Counted, Missed, NoUseCounter, UseCounter, UseReading
from scrubber.observe.observed_since import UNOBSERVED, ObservedSince, Use, compared
from tests.core.lives import HERE

NO_HOLDER = Sighting(HERE, ())
ONE, TWO, OTHER = Counted(UseCounter.FENCE, 1), Counted(UseCounter.FENCE, 2), Counted(UseCounter.FILES, 1)
NONE, LOST = NoUseCounter("switched off"), Missed("raise its limit")


@pytest.mark.parametrize(
    ("before", "after", "is_gap"),
    [
        (Counted(UseCounter.FENCE, 1), Counted(UseCounter.FENCE, 1), False),
        (Counted(UseCounter.FILES, 1), Counted(UseCounter.FILES, 1), True),
        (NoUseCounter("none"), NoUseCounter("none"), True),
        (NoUseCounter("none"), Counted(UseCounter.FENCE, 1), True),
        (Counted(UseCounter.FENCE, 1), NoUseCounter("none"), True),
    ],
)
def test_a_time_without_observations_is_a_gap_without_a_fence(
    before: UseReading, after: UseReading, *, is_gap: bool
) -> None:
    moments = [Moment(1.0, 1.0)]
    since = ObservedSince(0.0, lambda: moments[-1])
    since.facts("GPU-1", replace(NO_HOLDER, use_reading=before), domain_resetting=False)
    moments.append(Moment(2.0 + UNOBSERVED, 2.0 + UNOBSERVED))
    facts = since.facts("GPU-1", replace(NO_HOLDER, use_reading=after), domain_resetting=False)
    assert (facts.observed_since > 0) is is_gap


def test_facts_have_no_blanks() -> None:
    """What was not asked about must not read as an answer."""
    assert [it.name for it in fields(Facts) if it.default is not MISSING or it.default_factory is not MISSING] == []


@pytest.mark.parametrize(("began", "counts"), [(0.0, True), (2.0, False)])
def test_uses_of_a_time_without_a_counter_are_unknown(began: float, *, counts: bool) -> None:
    """A proof of an earlier run, whose use counter did not count on."""
    since = ObservedSince(began, lambda: Moment(3.0, 3.0))
    since.read("GPU-1", said := Counted(UseCounter.FENCE, 4))
    assert since.uses_since("GPU-1", 1.0) == (said if counts else None)
    since.resume("GPU-1", 1.0, said)
    assert since.uses_since("GPU-1", 1.0) == said


@pytest.mark.parametrize(
    ("before", "now", "use"),
    [
        (None, ONE, None),
        (None, NONE, None),
        (None, LOST, Use("raise its limit")),
        (ONE, ONE, None),
        (ONE, TWO, Use()),
        (ONE, replace(TWO, missed="it was taken away"), Use("it was taken away")),
        (TWO, OTHER, Use("fence in the kernel no longer counts, and watch on files had not counted before")),
        (ONE, NONE, Use("switched off")),
        (ONE, LOST, Use("raise its limit")),
        (NONE, NONE, None),
        (NONE, ONE, Use("nobody had counted short uses before: switched off")),
        (LOST, ONE, Use("raise its limit")),
        (LOST, NONE, Use("raise its limit")),
        (LOST, LOST, Use("raise its limit")),
    ],
)
def test_only_a_use_counter_that_missed_nothing_excludes_a_use(
    before: UseReading | None, now: UseReading, use: Use | None
) -> None:
    assert compared(before, now) == (now, use)


def test_an_older_count_of_one_counter_is_passed_over() -> None:
    assert compared(TWO, ONE) == (TWO, None)
