"""The hooks' questions: may this device go out, is it free, may a job go on? ``starting`` asks the fourth.

A record, fresh facts, the policy and the time in; one small answer out.

Rule 1: unknown is no. Facts that could not be gathered (``None``) never lead to a yes or to a deed.
Rule 2: a process of a live container is never touched; what may be ended is said by ``grounds.terminable``.
Rule 3: an answer ``Note`` means: this has happened, record it, look again, ask again.
"""

from __future__ import annotations

from policies.model import Gate, Mode, Policy
from scrubber.core import answers, grounds
from scrubber.core import events as ev
from scrubber.core.ailments import diagnose
from scrubber.core.model import Blame, Facts, Moment, Record, State, Step, Trigger
from scrubber.ground.errors import Reason


def acquire(
    record: Record, facts: Facts, policy: Policy, now: Moment, *, announced: bool = False, fresh: bool = False
) -> answers.AcquireAnswer:
    """May this device go to a new tenant? ``announced``: the caller will say ``start`` before it is used.

    ``fresh``: the question does not say that the last tenant is gone, so what was granted is a no. That comes before
    all that could make a yes of it; only a grant of another boot is none.
    """
    stale = grounds.distrust(record, facts)
    if stale is not None:
        return answers.Note(stale)
    if fresh and record.state in (State.GRANTED, State.IN_USE):
        why = f"it is {record.state.value}; once its job has ended, `autoclave release` it"
        return answers.Refuse(Reason.IN_USE, f"cannot hand out {record.device.uuid}: {why}")
    answer = _acquire(record, facts, policy, now)
    if policy.mode is Mode.OBSERVE and record.state is State.SCRUBBING and not isinstance(answer, answers.Note):
        return under_way(record)  # also when it is sick: whatever is under way ends before it may go out
    if policy.mode is Mode.OBSERVE and facts.domain_resetting and isinstance(answer, (answers.Wait, answers.Refuse)):
        return answer  # whoever only looks sends nobody into a reset
    if policy.mode is Mode.OBSERVE and record.state is not State.QUARANTINED:
        return _observed(answer)
    if policy.gate is Gate.PRESTART and announced:
        return _deferred(answer)
    return answer


def _observed(answer: answers.AcquireAnswer) -> answers.AcquireAnswer:
    """What policy ``observe`` makes of it: yes, with the no written down."""
    match answer:
        case answers.Wait(_, message) | answers.Refuse(_, message):
            return answers.HandOut(unproven=message)
        case answers.Scrub(path, trigger):
            return answers.HandOut(unproven=f"not scrubbed: would have taken the {path.value} path ({trigger.value})")
        case answers.HandOut() | answers.Defer() | answers.Join() | answers.CancelJob() | answers.Note():
            return answer


def _deferred(answer: answers.AcquireAnswer) -> answers.AcquireAnswer:
    """What policy ``gate: prestart`` makes of it: what would have to wait here waits at the start."""
    match answer:
        case answers.Scrub():
            return answers.Defer(answer)
        case answers.Wait() | answers.Join():
            return answers.Defer()
        case answers.HandOut() | answers.Defer() | answers.CancelJob() | answers.Refuse() | answers.Note():
            return answer


def _acquire(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.AcquireAnswer:
    if record.ailment is not None or (facts.vitals and diagnose(facts.vitals, record.baseline, policy)):
        return answers.Refuse(Reason.SICK, f"cannot hand out {record.device.uuid}: it is unhealthy")
    match record.state:
        case State.QUARANTINED:
            return answers.Refuse(Reason.QUARANTINED, f"cannot hand out {record.device.uuid}: it is quarantined")
        case State.SCRUBBING:
            return under_way(record)
        case _ if facts.domain_resetting:
            return answers.Wait(Reason.NOT_READY, f"cannot hand out {record.device.uuid}: it is being reset")
        case State.CLEAN:
            return _from_clean(record, facts, policy, now)
        case State.GRANTED if reusable(record, facts, policy, now):
            return answers.HandOut()
        case State.GRANTED | State.IN_USE:
            return _from_tenancy(record, facts, now)
        case State.DIRTY | State.UNKNOWN:
            return from_dirty(record, facts, policy, Trigger.ACQUIRE)


def release(record: Record, facts: Facts, now: Moment) -> answers.ReleaseAnswer:
    """Has the last user really gone, and is nobody about to come? The caller's word is not enough."""
    if record.state not in (State.GRANTED, State.IN_USE):
        return answers.Proceed()
    used = in_use(record, facts, now)
    if used is not None:
        return answers.Refuse(used.reason, used.message.replace("hand out", "take back"))
    return answers.Note(ev.Released("it was given back"))


def fence(record: Record, job: str, step: Step, facts: Facts) -> answers.Fenced | None:
    """Whether a job may go on with a step; asked again just before each one.

    The job may have outlived its caller, and the device may have found a new user meanwhile.
    """
    if record.state is not State.SCRUBBING or record.job is None or record.job.id != job:
        return answers.Fenced(Blame.SERVICE, "the device does not belong to this job any more")
    if facts.incarnation != record.incarnation:
        return answers.Fenced(Blame.SERVICE, "the node or the driver was restarted under the job")
    if facts.domain_resetting:
        return answers.Fenced(Blame.SERVICE, "a device of the same reset domain is being reset")
    if facts.holders is None:
        return answers.Fenced(Blame.TENANT, "it cannot be proven that nobody uses the device")
    if grounds.user_of(facts.holders) is not None:
        return answers.Fenced(Blame.TENANT, f"a live container uses the device ({grounds.holder_names(facts.holders)})")
    if step is not Step.EVICT and facts.holders:
        return answers.Fenced(Blame.TENANT, f"the device is used by {grounds.holder_names(facts.holders)}")
    if step is Step.RESET and facts.siblings_busy is not False:
        return answers.Fenced(Blame.TENANT, "a device of the same reset domain is in use")
    return None


def reusable(record: Record, facts: Facts, policy: Policy, now: Moment) -> bool:
    """Whether a grant can be given again without a scrub: announced, never started on, in the same kubelet life."""
    grant = record.grant
    if grant is None or record.owner is not None or not grounds.proof_stands(record.receipt, facts, policy, now):
        return False
    return grant.announced and grant.epoch == facts.epoch and facts.holders == () and not grounds.leak(facts)


def _from_clean(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.AcquireAnswer:
    if facts.holders is None:
        return unproven(record)
    soiled = grounds.soiled(facts)
    if soiled is not None:
        return answers.Note(soiled)
    if not grounds.proof_stands(record.receipt, facts, policy, now):
        return answers.Scrub(grounds.path_for(record, policy), Trigger.PROOF_EXPIRED)
    return answers.HandOut()


def _from_tenancy(record: Record, facts: Facts, now: Moment) -> answers.Wait | answers.Note:
    seen = grounds.visit(record, facts, now) or grounds.sighting(record, facts)
    if seen is not None:
        return answers.Note(seen)
    gone = answers.Note(ev.Released("it was asked for again and its last user is gone"))
    return in_use(record, facts, now) or gone


def from_dirty(record: Record, facts: Facts, policy: Policy, trigger: Trigger) -> answers.Scrub | answers.Wait:
    """A device that needs a scrub: start one, unless somebody is on it who must not be disturbed."""
    if facts.holders is None:
        return unproven(record)
    if not grounds.clearable(record, facts, policy):
        return busy(record)
    return answers.Scrub(grounds.path_for(record, policy), trigger)


def in_use(record: Record, facts: Facts, now: Moment) -> answers.Wait | None:
    """Somebody who must not be disturbed is on it or about to come; or nobody can say."""
    if grounds.passed_by(record, facts):
        return None
    named = record.owner is not None and record.owner.container is not None
    if facts.holders is None or (named and facts.owner_alive is None):
        return unproven(record)
    if facts.owner_alive is True or grounds.user_of(facts.holders) is not None:
        return busy(record)
    if named and grounds.about_to_start(record.owner, now):
        return busy(record)
    return None


def unproven(record: Record) -> answers.Wait:
    """Nobody can say who uses it."""
    return answers.Wait(
        Reason.NOT_PROVEN_FREE, f"cannot hand out {record.device.uuid}: it cannot be proven that nobody uses it"
    )


def under_way(record: Record) -> answers.Join | answers.CancelJob | answers.Wait:
    """A job is on it: to be waited for, or to be ended where nobody needs it now. No reset can be called off."""
    job = record.job
    if job is None or record.quarantine is not None or job.trigger is not Trigger.BURN_IN:
        return answers.Join()
    return answers.CancelJob() if grounds.yields(record) else being_reset(record)


def being_reset(record: Record) -> answers.Wait:
    """Nobody needs the job, and it cannot be called off just now."""
    return answers.Wait(Reason.SCRUBBING, f"cannot hand out {record.device.uuid}: it is being reset; ask again")


def busy(record: Record) -> answers.Wait:
    """Somebody who must not be disturbed uses it."""
    return answers.Wait(Reason.IN_USE, f"cannot hand out {record.device.uuid}: it is still in use")
