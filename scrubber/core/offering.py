"""Whether the kubelet may count on a device: the only place that decides which devices ListAndWatch calls Healthy.

The offer depends only on the record, the policy, the time and ``OfferFacts``.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.policy_model import Mode, Policy
from scrubber.core import answers, next_scrub, pauses
from scrubber.core.model import Availability, Moment, ScrubPath, State, Trigger
from scrubber.core.record import Record


@dataclass(frozen=True, slots=True)
class OfferFacts:
    """What the service knows about a device and has not written into the ledger."""

    ledger_fault: bool = False  # the ledger cannot be written ...
    unrecorded: str = ""  # ... so it does not say that the device has this ailment
    withheld: bool = False  # a request for the device was refused lately
    containers_wait: bool = False  # for the proof: none can use the device before the service says yes
    blocked: str = ""  # what is in the way of its next scrub, by the last observation

    @property
    def in_the_way(self) -> bool:
        """Whether the device cannot become clean now."""
        return self.ledger_fault or bool(self.blocked)


NOTHING = OfferFacts()
# Seconds without the service for which the plugin keeps its list. `service/report` sends the larger one that applies.
LIST_LASTS = 5.0  # a restart of the service takes less
WAITED_FOR = 60.0  # while pods may wait for a device: a slow path takes about that long


def availability(record: Record, facts: OfferFacts, *, offered: bool) -> Availability:
    """The group of a device."""
    if record.health.quarantine is not None:  # also during a probation
        return Availability.QUARANTINED
    if record.state in (State.GRANTED, State.IN_USE):
        return Availability.IN_USE
    if offered:
        return Availability.AVAILABLE
    return Availability.BLOCKED if facts.in_the_way else Availability.PREPARING


def offer(record: Record, policy: Policy, now: Moment, facts: OfferFacts = NOTHING) -> answers.Offer:
    """Whether to offer this device as Healthy, and why."""
    # The scrub failed, and what prevents it is still there.
    stuck = facts.blocked and record.scrubs.setback is not None
    answer = _by_record(record, policy, now, waits=facts.containers_wait and not stuck)
    if not answer.healthy:
        return answer
    if facts.unrecorded:
        return answers.Offer(healthy=False, why=f"sick: {facts.unrecorded}; not recorded yet")
    # A device that cannot be granted must not be offered: the kubelet would try it with pod after pod.
    if facts.ledger_fault and record.state not in (State.GRANTED, State.IN_USE):
        return answers.Offer(healthy=False, why="the ledger cannot be written")
    if facts.withheld:
        return answers.Offer(healthy=False, why="withheld: a request for it was refused")
    if facts.blocked and record.state is State.CLEAN:
        return answers.Offer(healthy=False, why=facts.blocked)
    return answer


def _by_record(record: Record, policy: Policy, now: Moment, *, waits: bool) -> answers.Offer:
    if record.health.quarantine is not None:
        return answers.Offer(healthy=False, why=f"quarantined: {record.health.quarantine.ailment.detail}")
    if record.health.ailment is not None:
        return answers.Offer(healthy=False, why=f"sick: {record.health.ailment.detail}")
    if policy.mode is Mode.OBSERVE:
        return answers.Offer(healthy=True, why="policy observe refuses only quarantined devices")
    match record.state:
        case State.CLEAN | State.GRANTED | State.IN_USE:
            return answers.Offer(healthy=True, why=record.state.value)
        case State.SCRUBBING if waits and _lately(record, now, WAITED_FOR):
            return answers.Offer(healthy=True, why="being scrubbed; containers wait for it")
        case State.UNKNOWN if waits and _lately(record, now, WAITED_FOR):
            # The kubelet admits pods again after a reboot, and fails one whose device is not in the list.
            return answers.Offer(healthy=True, why="first looked at; containers wait for its scrub")
        case State.DIRTY if waits and _lately(record, now, WAITED_FOR):
            why = "released" if record.scrubs.setback is None else "its scrub failed and is tried again soon"
            return answers.Offer(healthy=True, why=f"{why}; containers wait for its scrub")
        case State.SCRUBBING if _within_budget(record, policy, now):
            return answers.Offer(healthy=True, why="being scrubbed, clean within the allocate budget")
        case State.DIRTY if _within_budget(record, policy, now):
            return answers.Offer(healthy=True, why="released, about to be scrubbed")
        case State.UNKNOWN | State.DIRTY | State.SCRUBBING | State.QUARANTINED:
            return answers.Offer(healthy=False, why=record.state.value)


def _lately(record: Record, now: Moment, within: float) -> bool:
    """Whether the device will probably be clean soon.

    A tenant has left, or a scrub has begun or failed, a short time ago. A device that nothing is known about yet also
    counts, from its discovery or from the reboot on. A device that is dirty for longer has a holder that does not
    leave. A scrub that fails repeatedly, with growing pauses, has a lasting cause.
    """
    job, failed = record.scrubs.job, record.scrubs.setback
    if record.scrubs.stuck is not None or (failed is not None and 2 * pauses.until_retry(failed) > within):
        return False
    if job is not None:
        return job.trigger is not Trigger.REINSTATE and now.uptime - job.started.uptime <= within
    scrub_follows = record.state is State.UNKNOWN or record.tenancy.began is not None or failed is not None
    return scrub_follows and now.uptime - record.since.uptime <= within


def _within_budget(record: Record, policy: Policy, now: Moment) -> bool:
    """Whether the scrub of the device will probably end while Allocate waits for it."""
    path = next_scrub.next_path(record, policy) if record.scrubs.job is None else record.scrubs.job.path
    if record.scrubs.setback is not None or path is not ScrubPath.FAST or not _fits_allocate_budget(record, policy):
        return False
    return _lately(record, now, policy.budgets.allocate)


def _fits_allocate_budget(record: Record, policy: Policy) -> bool:
    """Whether the device's fast path usually ends within the budget of Allocate.

    True until a fast path was measured.
    """
    return (record.scrubs.usual_seconds or 0.0) <= policy.budgets.allocate
