"""What the kubelet is told of a device: whether it may count on it."""

from __future__ import annotations

from policies.model import Mode, Policy
from scrubber.core import answers, grounds
from scrubber.core.model import Moment, Path, Record, State, Trigger


def advertise(record: Record, policy: Policy, now: Moment) -> answers.Offer:
    """Whether the kubelet may be told that this device is healthy."""
    if record.quarantine is not None:
        return answers.Offer(healthy=False, why=f"quarantined: {record.quarantine.ailment.detail}")
    if record.ailment is not None:
        return answers.Offer(healthy=False, why=f"sick: {record.ailment.detail}")
    if policy.mode is Mode.OBSERVE:
        return answers.Offer(healthy=True, why="policy observe refuses nothing")
    match record.state:
        case State.CLEAN | State.GRANTED | State.IN_USE:
            return answers.Offer(healthy=True, why=record.state.value)
        case State.SCRUBBING if grounds.yields(record):
            return answers.Offer(healthy=True, why="being tested; whoever asks for it gets it")
        case State.SCRUBBING if _soon_done(record, policy, now):
            return answers.Offer(healthy=True, why="being scrubbed, clean within the allocate budget")
        case State.DIRTY if _just_released(record, policy, now):
            return answers.Offer(healthy=True, why="released, about to be scrubbed")
        case State.UNKNOWN | State.DIRTY | State.SCRUBBING | State.QUARANTINED:
            return answers.Offer(healthy=False, why=record.state.value)


def _just_released(record: Record, policy: Policy, now: Moment) -> bool:
    """A tenant has just left. What is still dirty after the allocate budget has somebody on it who does not leave."""
    if record.setback is not None or grounds.path_for(record, policy) is not Path.FAST:
        return False
    if not grounds.quick(record, policy):
        return False
    return record.tenancy_began is not None and now.uptime - record.since.uptime <= policy.budgets.allocate


def _soon_done(record: Record, policy: Policy, now: Moment) -> bool:
    job = record.job
    if job is None or record.setback is not None or job.path is not Path.FAST or job.trigger is Trigger.REINSTATE:
        return False
    return grounds.quick(record, policy) and now.uptime - job.started.uptime <= policy.budgets.allocate
