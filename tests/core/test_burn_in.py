"""Whether an idle device may be tested: when it is due, and how many others must be left alone meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.hardware import Periodic
from policies.policy_model import Mode, Policy
from scrubber.core import burn_in
from scrubber.core import events as ev
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import Ailment, AilmentKind, ScrubPath, State, Trigger
from scrubber.core.record import Record
from tests.core import lives
from tests.core.lives import ENFORCE, later, live, rows

OVERDUE = later(1e6)
TESTED = live(lives.CLEAN, ev.ScrubStarted(lives.job(ScrubPath.SLOW, Trigger.BURN_IN)))
AFTER_A_TENANT = live(lives.CLEAN, ev.ScrubStarted(lives.job(ScrubPath.FAST, Trigger.RELEASE)))


def named(name: str, record: Record = lives.CLEAN, domain: str | None = None, resource: str = "a/gpu") -> Record:
    """One of several devices."""
    return replace(record, device=replace(record.device, uuid=name, reset_domain=domain, resource=resource))


def out(kind: AilmentKind) -> Record:
    """A device that is quarantined for this ailment."""
    return lives.but(lives.QUARANTINED, quarantine=lives.quarantine(Ailment(kind, ""), None))


ONE = named("GPU-1")
SPARE = rows(
    ("it is not its own spare", [], 0),
    ("two are clean", [named("GPU-2"), named("GPU-3")], 2),
    ("who is not clean is nobody's spare", [named("GPU-2"), named("GPU-3", lives.DIRTY)], 1),
    ("nor is who can do something else", [named("GPU-2"), named("GPU-3", resource="a/slice")], 1),
    ("another one is tested", [named("GPU-2"), named("GPU-3", TESTED)], -1),
)


@pytest.mark.parametrize(("others", "spare"), SPARE)
def test_spare_devices_stay_clean_during_a_burn_in(others: list[Record], spare: int) -> None:
    assert burn_in.spare_devices(ONE, [ONE, *others]) == spare


NEAR = rows(
    ("it takes a clean one with it", [named("GPU-2", domain="switch"), named("GPU-3")], 1),
    ("that one is in use", [named("GPU-2", lives.IN_USE, "switch"), named("GPU-3")], -1),
    ("that one is quarantined", [named("GPU-2", out(AilmentKind.ECC), "switch"), named("GPU-3")], -1),
    *((f"that one is {kind.value}: it may return", [named("GPU-2", out(kind), "switch"), named("GPU-3")], 1)
      for kind, traits in AILMENTS.items() if traits.gone),
    ("that one is in use elsewhere", [named("GPU-2", lives.IN_USE, "another"), named("GPU-3")], 1),
)  # fmt: skip


@pytest.mark.parametrize(("others", "spare"), NEAR)
def test_a_sibling_is_no_spare_and_must_be_idle(others: list[Record], spare: int) -> None:
    one = named("GPU-1", domain="switch")
    assert burn_in.spare_devices(one, [one, *others]) == spare


def policy(every: str = "1h", keep_free: int = 0, mode: Mode = Mode.ENFORCE) -> Policy:
    """One that tests idle devices."""
    periodic = Periodic.model_validate({"every": every, "keep_free": keep_free})
    return ENFORCE.model_copy(update={"periodic": periodic, "mode": mode})


@pytest.mark.parametrize("record", [it for it in lives.LIVES.values() if it.state is not State.CLEAN])
def test_only_a_clean_device_is_tested(record: Record) -> None:
    assert not burn_in.is_due(record, [record], policy(), OVERDUE)


def test_burn_in_runs_only_while_enough_devices_are_free():
    assert burn_in.is_due(ONE, [ONE], policy(), OVERDUE)
    assert not burn_in.is_due(ONE, [ONE], ENFORCE, OVERDUE)
    assert not burn_in.is_due(ONE, [ONE], policy(mode=Mode.OBSERVE), OVERDUE)
    assert not burn_in.is_due(ONE, [ONE], policy(keep_free=1), OVERDUE)
    assert burn_in.is_due(ONE, [ONE, named("GPU-2")], policy(keep_free=1), OVERDUE)


def test_after_a_burn_in_no_other_scrub_is_needed():
    assert (TESTED.scrubs.due_path, TESTED.scrubs.burn_in_begun) == (None, lives.NOW.wall)
    assert (AFTER_A_TENANT.scrubs.due_path, AFTER_A_TENANT.scrubs.burn_in_begun) == (ScrubPath.FAST, None)


def test_after_the_first_proof_only_slow_scrubs_count_as_tests():
    fast = live(lives.UNKNOWN, ev.ScrubStarted(lives.job(ScrubPath.FAST)))
    assert live(fast, lives.passed(fast), at=later(1)).scrubs.tested == later(1).wall
    known = lives.but(fast, tested=lives.NOW.wall)
    assert live(known, lives.passed(known), at=later(1)).scrubs.tested == lives.NOW.wall
    slow = lives.but(lives.FIRST_LOOK, tested=lives.NOW.wall)
    assert live(slow, lives.passed(slow), at=later(1)).scrubs.tested == later(1).wall
