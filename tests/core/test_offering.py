"""What the kubelet is told of a device."""

from dataclasses import replace

import pytest

from policies.model import GateMode, Policy
from scrubber.core import events as ev
from scrubber.core import offering
from scrubber.core.answers import Offer
from scrubber.core.model import Availability, Record, ScrubPath, State, Trigger
from scrubber.core.offering import OfferFacts
from tests.core import lives
from tests.core.lives import ENFORCE, NOW, OBSERVE, STRICT, later, rows

AT = later(1)
ADVERT = rows(
    ("clean", lives.CLEAN, ENFORCE, True, "clean"),
    ("a device in use is never unlisted: granted", lives.GRANTED, ENFORCE, True, "granted"),
    ("a device in use is never unlisted: in use", lives.IN_USE, ENFORCE, True, "in_use"),
    ("just released", lives.DIRTY, ENFORCE, True, "released, about to be scrubbed"),
    ("cancelled right after a release", lives.live(lives.SCRUBBING, ev.ScrubInterrupted("job-1", "x")), ENFORCE, True,
     "released, about to be scrubbed"),
    ("on its fast path", lives.SCRUBBING, ENFORCE, True, "being scrubbed, clean within the allocate budget"),
    ("on its slow path", lives.FIRST_LOOK, ENFORCE, False, "scrubbing"),
    ("on its fast path, again", lives.live(lives.SET_BACK, ev.ScrubStarted(lives.job())), ENFORCE, False, "scrubbing"),
    ("on its fast path, reinstated", lives.live(lives.QUARANTINED, ev.Reinstated("ann"),
     ev.ScrubStarted(lives.job(trigger=Trigger.REINSTATE))), ENFORCE, False, "scrubbing"),
    ("escalated", lives.live(lives.SCRUBBING, ev.Escalated("job-1", "x", ScrubPath.SLOW)), ENFORCE, False, "scrubbing"),
    ("soiled", lives.SOILED, ENFORCE, False, "dirty"),
    ("its scrub failed", lives.SET_BACK, ENFORCE, False, "dirty"),
    ("unknown", lives.UNKNOWN, ENFORCE, False, "unknown"),
    ("quarantined", lives.QUARANTINED, ENFORCE, False, "quarantined: the device has fallen off its bus"),
    ("on probation", lives.PROBED, ENFORCE, False, "quarantined: the device has fallen off its bus"),
    ("sick in use", lives.SICK_IN_USE, ENFORCE, False, "sick: the device has fallen off its bus"),
    ("sick and released", lives.SICK_DIRTY, ENFORCE, False, "sick: the device has fallen off its bus"),
    ("observe: dirty", lives.DIRTY, OBSERVE, True, "policy observe refuses only quarantined devices"),
    ("observe: unknown", lives.UNKNOWN, OBSERVE, True, "policy observe refuses only quarantined devices"),
    ("observe: quarantined", lives.QUARANTINED, OBSERVE, False, "quarantined: the device has fallen off its bus"),
    ("observe: sick", lives.SICK_IN_USE, OBSERVE, False, "sick: the device has fallen off its bus"),
)  # fmt: skip


@pytest.mark.parametrize(("record", "policy", "healthy", "why"), ADVERT)
def test_offer_of_each_state(record, policy, healthy, why):
    assert offering.offer(record, policy, AT) == Offer(healthy=healthy, why=why)


@pytest.mark.parametrize("record", [lives.DIRTY, lives.SCRUBBING], ids=["no scrub starts", "its scrub hangs"])
def test_a_dirty_device_is_offered_for_the_allocate_budget_only(record):
    budget = ENFORCE.budgets.allocate
    assert offering.offer(record, ENFORCE, later(budget)).healthy
    assert not offering.offer(record, ENFORCE, later(budget + 0.001)).healthy


CREATE = ENFORCE.model_copy(update={"gate": GateMode.CREATE})
WAITED = rows(
    ("just released", lives.DIRTY, True),
    ("on its fast path", lives.SCRUBBING, True),
    ("on its slow path", lives.FIRST_LOOK, True),
    ("soiled", lives.SOILED, False),
    ("its scrub failed", lives.SET_BACK, False),
    ("unknown", lives.UNKNOWN, False),
    ("quarantined", lives.QUARANTINED, False),
)


@pytest.mark.parametrize(("record", "healthy"), WAITED)
def test_where_containers_wait_a_dirty_device_is_offered_longer(record, healthy):
    offers = [offering.offer(record, CREATE, later(at), OfferFacts(gated=True)).healthy for at in (30, 59, 61)]
    assert offers == [healthy, healthy, False]
    assert offering.offer(record, CREATE, later(1)) == offering.offer(record, ENFORCE, later(1))


WITHHELD = "withheld: a request for it was refused"
FAULT = "the ledger cannot be written"
SERVICE_KNOWS = rows(
    ("ledger fault: a clean device cannot be granted", lives.CLEAN, {"ledger_fault": True}, FAULT),
    ("ledger fault: a granted device stays listed", lives.GRANTED, {"ledger_fault": True}, None),
    ("ledger fault: a device in use stays listed", lives.IN_USE, {"ledger_fault": True}, None),
    ("withheld", lives.CLEAN, {"withheld": True}, WITHHELD),
    ("withheld while granted", lives.GRANTED, {"withheld": True}, WITHHELD),
    ("blocked", lives.CLEAN, {"blocked": "waiting"}, "waiting"),
    ("blocked in use", lives.IN_USE, {"blocked": "waiting"}, None),
    ("blocked and just released", lives.DIRTY, {"blocked": "waiting"}, None),
    ("the ledger fault is named first", lives.CLEAN, {"ledger_fault": True, "withheld": True, "blocked": "x"}, FAULT),
)  # fmt: skip


@pytest.mark.parametrize(("record", "known", "why"), SERVICE_KNOWS)
def test_what_the_service_knows_can_only_take_an_offer_back(record, known, why):
    plain = offering.offer(record, ENFORCE, AT)
    assert plain.healthy
    expected = plain if why is None else Offer(healthy=False, why=why)
    assert offering.offer(record, ENFORCE, AT, OfferFacts(**known)) == expected


def test_an_unhealthy_device_keeps_its_own_reason():
    plain = offering.offer(lives.QUARANTINED, ENFORCE, AT)
    seen = OfferFacts(ledger_fault=True, withheld=True, blocked="x")
    assert offering.offer(lives.QUARANTINED, ENFORCE, AT, seen) == plain


@pytest.mark.parametrize("record", [lives.DIRTY, lives.SCRUBBING], ids=["released", "being scrubbed"])
def test_a_device_with_too_slow_scrubs_is_not_offered(record):
    budget = ENFORCE.budgets.allocate
    assert offering.offer(replace(record, fast_seconds=(9 * budget, budget, 0.1)), ENFORCE, NOW).healthy
    assert not offering.offer(replace(record, fast_seconds=(budget + 1, budget + 1, 0.1)), ENFORCE, NOW).healthy


def test_a_device_waiting_for_the_slow_path_is_not_offered():
    assert not offering.offer(replace(lives.DIRTY, due_path=ScrubPath.SLOW), STRICT, NOW).healthy


AVAILABILITY: tuple[tuple[str, Record, Policy, dict[str, object], Availability], ...] = (
    ("clean", lives.CLEAN, ENFORCE, {}, Availability.AVAILABLE),
    ("granted", lives.GRANTED, ENFORCE, {}, Availability.IN_USE),
    ("in use", lives.IN_USE, ENFORCE, {}, Availability.IN_USE),
    ("sick in use", lives.SICK_IN_USE, ENFORCE, {}, Availability.IN_USE),
    ("in use, and its next scrub is blocked", lives.IN_USE, ENFORCE, {"blocked": "x"}, Availability.IN_USE),
    ("in use under observe", lives.IN_USE, OBSERVE, {}, Availability.IN_USE),
    ("unknown", lives.UNKNOWN, ENFORCE, {}, Availability.PREPARING),
    ("soiled", lives.SOILED, ENFORCE, {}, Availability.PREPARING),
    ("on its slow path", lives.FIRST_LOOK, ENFORCE, {}, Availability.PREPARING),
    ("just released", lives.DIRTY, ENFORCE, {}, Availability.AVAILABLE),
    ("sick and released", lives.SICK_DIRTY, ENFORCE, {}, Availability.PREPARING),
    ("withheld", lives.CLEAN, ENFORCE, {"withheld": True}, Availability.PREPARING),
    ("dirty and blocked", lives.SET_BACK, ENFORCE, {"blocked": "x"}, Availability.BLOCKED),
    ("clean and blocked", lives.CLEAN, ENFORCE, {"blocked": "x"}, Availability.BLOCKED),
    ("ledger fault", lives.CLEAN, ENFORCE, {"ledger_fault": True}, Availability.BLOCKED),
    ("ledger fault, in use", lives.IN_USE, ENFORCE, {"ledger_fault": True}, Availability.IN_USE),
    ("observe: dirty", lives.DIRTY, OBSERVE, {}, Availability.AVAILABLE),
    ("observe: blocked", lives.SOILED, OBSERVE, {"blocked": "x"}, Availability.AVAILABLE),
    ("quarantined", lives.QUARANTINED, ENFORCE, {}, Availability.QUARANTINED),
    ("quarantined and blocked", lives.QUARANTINED, ENFORCE, {"blocked": "x"}, Availability.QUARANTINED),
    ("on probation", lives.PROBED, ENFORCE, {}, Availability.QUARANTINED),
)  # fmt: skip


@pytest.mark.parametrize(("record", "policy", "known", "expected"), rows(*AVAILABILITY))
def test_a_device_is_in_exactly_one_group(record, policy, known, expected):
    seen = OfferFacts(**known)
    offer = offering.offer(record, policy, AT, seen)
    assert offering.availability(record, seen, offered=offer.healthy) is expected


def test_the_groups_cover_every_state():
    assert {record.state for _, record, *_ in AVAILABILITY} == set(State)
    assert {group for *_, group in AVAILABILITY} == set(Availability)
