"""How long the last full observation stands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from scrubber.core.model import Facts, Moment
from scrubber.core.record import Record
from scrubber.core.witness import FENCE, FILES, Counted, NoWitness, Testimony
from scrubber.observe import observation_cache
from scrubber.observe.observation_cache import CPU_SHARE, UNOBSERVED, VALID_FOR, ObservationCache, ObservedSince
from tests.core import lives
from tests.core.lives import FOREIGN, OF_A, OF_B, facts

CHEAP, LONG = 0.0, 100 * CPU_SHARE  # seconds that a look took: it stands for one second, and for a hundred
NO_HOLDER = replace(facts(), owner_alive=None)
AT_WORK = facts((OF_A,), alive=True)


@dataclass
class Clock:
    """In the place of the event loop."""

    now: float = 0.0

    def time(self) -> float:
        """The time of the clock of this test."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


def seen(record: Record, facts: Facts, took: float = LONG) -> ObservationCache:
    """Make one observation of the device."""
    known = ObservationCache()
    known.remember(record, facts, frozenset(), facts.holders or (), took)
    return known


@pytest.mark.parametrize(("took", "stands"), [(CHEAP, 1.0), (LONG, 100.0)], ids=["a cheap look", "a costly look"])
def test_a_costly_observation_stands_longer(clock, took, stands):
    free, used = seen(lives.CLEAN, NO_HOLDER, took), seen(lives.IN_USE, AT_WORK, took)
    clock.now = stands - 0.01
    assert free.shows_no_holder(lives.CLEAN)
    assert used.confirmed(lives.IN_USE) is not None
    clock.now = stands + 0.01
    assert not free.shows_no_holder(lives.CLEAN)
    assert used.confirmed(lives.IN_USE) is None


def test_an_observation_without_holders_known_replaces_the_last_one(clock):
    assert clock.now == 0.0
    known = seen(lives.IN_USE, AT_WORK)
    known.remember(lives.IN_USE, facts(None, alive=True), frozenset(), (OF_A,), LONG)
    assert known.confirmed(lives.IN_USE) is None
    assert not known.shows_no_holder(lives.IN_USE)


def test_a_foreign_process_confirms_for_a_short_time(clock):
    known = seen(lives.SOILED, facts((FOREIGN,)))
    clock.now = VALID_FOR
    assert known.confirmed(lives.SOILED) is not None
    clock.now = VALID_FOR + 0.01
    assert known.confirmed(lives.SOILED) is None
    assert observation_cache.ObservationCache().confirmed(lives.SOILED) is None


@pytest.mark.parametrize(
    ("record", "look"),
    [
        pytest.param(lives.IN_USE, facts((OF_A,), alive=False), id="the owner did not run"),
        pytest.param(lives.IN_USE, facts((OF_A,)), id="nobody could say whether the owner runs"),
        pytest.param(lives.IN_USE, facts((OF_B,), alive=True), id="somebody else was on it"),
        pytest.param(lives.USED_BY_B, facts(alive=True), id="who was merely met had let go"),
    ],
)
def test_no_other_process_confirms(clock, record, look):
    assert clock.now == 0.0
    known = ObservationCache()
    known.remember(record, look, frozenset(), look.holders or (OF_B,), LONG)
    assert known.confirmed(record) is None


def test_the_starting_pod_is_not_cached(clock):
    assert clock.now == 0.0
    observe_once, confirming = seen(lives.IN_USE, replace(AT_WORK, starting_pod_alive=True)).confirmed(
        lives.IN_USE
    ) or (
        None,
        None,
    )
    assert observe_once is not None
    assert (observe_once.facts, confirming) == (AT_WORK, OF_A)


@pytest.mark.parametrize(
    ("before", "after", "is_gap"),
    [
        (Counted(FENCE, 1), Counted(FENCE, 1), False),
        (Counted(FILES, 1), Counted(FILES, 1), True),
        (NoWitness("none"), NoWitness("none"), True),
        (NoWitness("none"), Counted(FENCE, 1), True),
        (Counted(FENCE, 1), NoWitness("none"), True),
    ],
)
def test_a_time_without_observations_is_a_gap_without_a_fence(
    before: Testimony, after: Testimony, *, is_gap: bool
) -> None:
    moments = [Moment(1.0, 1.0)]
    since = ObservedSince(0.0, lambda: moments[-1])
    since.testified("GPU-1", before)
    since.stamped("GPU-1", NO_HOLDER)
    moments.append(Moment(2.0 + UNOBSERVED, 2.0 + UNOBSERVED))
    since.testified("GPU-1", after)
    assert (since.stamped("GPU-1", NO_HOLDER).observed_since > 0) is is_gap


@pytest.mark.parametrize(("began", "counts"), [(0.0, True), (2.0, False)])
def test_uses_of_a_time_without_witness_are_not_known(began: float, *, counts: bool) -> None:
    """A proof of an earlier run, whose witness did not count on."""
    since = ObservedSince(began, lambda: Moment(3.0, 3.0))
    since.testified("GPU-1", said := Counted(FENCE, 4))
    assert since.uses_since("GPU-1", 1.0) == (said if counts else None)
    since.resume("GPU-1", 1.0, said)
    assert since.uses_since("GPU-1", 1.0) == said
