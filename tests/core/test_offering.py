"""What the kubelet is told of a device."""

from dataclasses import replace
from typing import Any

import pytest

from scrubber.core import events as ev
from scrubber.core import offering
from scrubber.core.answers import Offer
from scrubber.core.model import Availability, ScrubPath, State, Stuck, Trigger
from scrubber.core.offering import OfferFacts
from tests.core import lives
from tests.core.lives import ENFORCE, NOW, OBSERVE, STRICT, later, rows

AT = later(1)
LOST = "the device has fallen off its bus"
WITHHELD = "withheld: a request for it was refused"
FAULT = "the ledger cannot be written"
OBSERVED = "policy observe refuses only quarantined devices"
SOON = "being scrubbed, clean within the allocate budget"
AVAILABLE, USED, PREPARING, BLOCKED, OUT = Availability
# What the service knows beside the record; whether the device is Healthy, and why; its group.
OFFERS: tuple[tuple[Any, ...], ...] = (
    ("clean", lives.CLEAN, ENFORCE, {}, True, "clean", AVAILABLE),
    ("a device in use is never unlisted: granted", lives.GRANTED, ENFORCE, {}, True, "granted", USED),
    ("a device in use is never unlisted: in use", lives.IN_USE, ENFORCE, {}, True, "in_use", USED),
    ("just released", lives.DIRTY, ENFORCE, {}, True, "released, about to be scrubbed", AVAILABLE),
    ("cancelled right after a release", lives.live(lives.SCRUBBING, ev.ScrubInterrupted("job-1", "x")), ENFORCE, {},
     True, "released, about to be scrubbed", AVAILABLE),
    ("on its fast path", lives.SCRUBBING, ENFORCE, {}, True, SOON, AVAILABLE),
    ("on its slow path", lives.FIRST_LOOK, ENFORCE, {}, False, "scrubbing", PREPARING),
    ("on its fast path, again", lives.live(lives.SET_BACK, ev.ScrubStarted(lives.job())), ENFORCE, {}, False,
     "scrubbing", PREPARING),
    ("on its fast path, reinstated", lives.live(lives.QUARANTINED, ev.Reinstated("ann"),
     ev.ScrubStarted(lives.job(trigger=Trigger.REINSTATE))), ENFORCE, {}, False, "scrubbing", PREPARING),
    ("escalated", lives.live(lives.SCRUBBING, ev.Escalated("job-1", "x", ScrubPath.SLOW)), ENFORCE, {}, False,
     "scrubbing", PREPARING),
    ("soiled", lives.SOILED, ENFORCE, {}, False, "dirty", PREPARING),
    ("its scrub failed", lives.SET_BACK, ENFORCE, {}, False, "dirty", PREPARING),
    ("unknown", lives.UNKNOWN, ENFORCE, {}, False, "unknown", PREPARING),
    ("quarantined", lives.QUARANTINED, ENFORCE, {}, False, f"quarantined: {LOST}", OUT),
    ("on probation", lives.PROBED, ENFORCE, {}, False, f"quarantined: {LOST}", OUT),
    ("sick in use", lives.SICK_IN_USE, ENFORCE, {}, False, f"sick: {LOST}", USED),
    ("sick and released", lives.SICK_DIRTY, ENFORCE, {}, False, f"sick: {LOST}", PREPARING),
    ("just released, and containers wait", lives.DIRTY, ENFORCE, {"containers_wait": True}, True,
     "released; containers wait for its scrub", AVAILABLE),
    ("its scrub failed, and containers wait", lives.SET_BACK, ENFORCE, {"containers_wait": True}, True,
     "its scrub failed and is tried again soon; containers wait for its scrub", AVAILABLE),
    ("unknown, and containers wait", lives.UNKNOWN, ENFORCE, {"containers_wait": True}, True,
     "first looked at; containers wait for its scrub", AVAILABLE),
    ("observe: dirty", lives.DIRTY, OBSERVE, {}, True, OBSERVED, AVAILABLE),
    ("observe: in use", lives.IN_USE, OBSERVE, {}, True, OBSERVED, USED),
    ("observe: quarantined", lives.QUARANTINED, OBSERVE, {}, False, f"quarantined: {LOST}", OUT),
    ("observe: sick", lives.SICK_IN_USE, OBSERVE, {}, False, f"sick: {LOST}", USED),
    ("observe: blocked", lives.SOILED, OBSERVE, {"blocked": "x"}, True, OBSERVED, AVAILABLE),
    ("ledger fault: a clean device cannot be granted", lives.CLEAN, ENFORCE, {"ledger_fault": True}, False, FAULT,
     BLOCKED),
    ("ledger fault: a granted device stays listed", lives.GRANTED, ENFORCE, {"ledger_fault": True}, True, "granted",
     USED),
    ("ledger fault: a device in use stays listed", lives.IN_USE, ENFORCE, {"ledger_fault": True}, True, "in_use", USED),
    ("ledger fault: an ailment is not recorded", lives.IN_USE, ENFORCE, {"ledger_fault": True, "unrecorded": LOST},
     False, f"sick: {LOST}; not recorded yet", USED),
    ("withheld", lives.CLEAN, ENFORCE, {"withheld": True}, False, WITHHELD, PREPARING),
    ("withheld while granted", lives.GRANTED, ENFORCE, {"withheld": True}, False, WITHHELD, USED),
    ("blocked", lives.CLEAN, ENFORCE, {"blocked": "waiting"}, False, "waiting", BLOCKED),
    ("blocked in use", lives.IN_USE, ENFORCE, {"blocked": "waiting"}, True, "in_use", USED),
    ("blocked and just released", lives.DIRTY, ENFORCE, {"blocked": "waiting"}, True, "released, about to be scrubbed",
     AVAILABLE),
    ("blocked, and its scrub failed", lives.SET_BACK, ENFORCE, {"blocked": "x"}, False, "dirty", BLOCKED),
    ("the ledger fault is named first", lives.CLEAN, ENFORCE, {"ledger_fault": True, "withheld": True, "blocked": "x"},
     False, FAULT, BLOCKED),
    ("an unhealthy device keeps its own reason", lives.QUARANTINED, ENFORCE,
     {"ledger_fault": True, "withheld": True, "blocked": "x"}, False, f"quarantined: {LOST}", OUT),
)  # fmt: skip


@pytest.mark.parametrize(("record", "policy", "known", "healthy", "why", "group"), rows(*OFFERS))
def test_each_device_has_its_offer_and_its_group(record, policy, known, healthy, why, group):
    seen = OfferFacts(**known)
    assert offering.offer(record, policy, AT, seen) == Offer(healthy=healthy, why=why)
    assert offering.availability(record, seen, offered=healthy) is group


def test_the_offers_cover_every_state():
    assert {record.state for _, record, *_ in OFFERS} == set(State)


@pytest.mark.parametrize("record", [lives.DIRTY, lives.SCRUBBING], ids=["no scrub starts", "its scrub hangs"])
def test_a_dirty_device_is_offered_for_the_allocate_budget_only(record):
    budget = ENFORCE.budgets.allocate
    assert offering.offer(record, ENFORCE, later(budget)).healthy
    assert not offering.offer(record, ENFORCE, later(budget + 0.001)).healthy


SETBACK = lives.SET_BACK.scrubs.setback
assert SETBACK is not None
REBOOTED = ev.Distrusted("the node was rebooted", lives.REBOOTED)
WAITED = rows(
    ("unknown", lives.UNKNOWN, True),
    ("unknown since a second reboot", lives.live(replace(lives.UNKNOWN, since=later(-70)), REBOOTED), True),
    ("unknown, and first scrubbed", lives.FIRST_LOOK, True),
    ("just released", lives.DIRTY, True),
    ("on its fast path", lives.SCRUBBING, True),
    ("soiled", lives.SOILED, False),
    ("its scrub failed", lives.SET_BACK, True),
    ("its scrub failed, without a tenant before", lives.but(lives.SET_BACK, began=None), True),
    ("its scrub failed, and runs again", lives.live(lives.SET_BACK, ev.ScrubStarted(lives.job())), True),
    ("its scrub failed five times", lives.but(lives.SET_BACK, setback=replace(SETBACK, count=5)), True),
    ("its scrub failed six times", lives.but(lives.SET_BACK, setback=replace(SETBACK, count=6)), False),
    ("a process does not end", lives.but(lives.SET_BACK, stuck=Stuck((lives.FOREIGN,), NOW)), False),
)


@pytest.mark.parametrize(("record", "healthy"), WAITED)
def test_where_containers_wait_a_device_is_offered_for_a_minute(record, healthy):
    facts = OfferFacts(containers_wait=True)
    offers = [offering.offer(record, ENFORCE, later(at), facts).healthy for at in (30, 59, 61)]
    assert offers == [healthy, healthy, False]


@pytest.mark.parametrize(("record", "healthy"), [(lives.DIRTY, True), (lives.SET_BACK, False)])
def test_a_failed_scrub_that_cannot_be_repeated_withdraws_the_offer(record, healthy):
    assert offering.offer(record, ENFORCE, AT, OfferFacts(containers_wait=True, blocked="a process")).healthy is healthy


@pytest.mark.parametrize("record", [lives.DIRTY, lives.SCRUBBING], ids=["released", "being scrubbed"])
def test_a_device_with_too_slow_scrubs_is_not_offered(record):
    budget = ENFORCE.budgets.allocate
    assert offering.offer(lives.but(record, fast_seconds=(9 * budget, budget, 0.1)), ENFORCE, NOW).healthy
    assert not offering.offer(lives.but(record, fast_seconds=(budget + 1, budget + 1, 0.1)), ENFORCE, NOW).healthy


def test_a_device_waiting_for_the_slow_path_is_not_offered():
    assert not offering.offer(lives.but(lives.DIRTY, due_path=ScrubPath.SLOW), STRICT, NOW).healthy
