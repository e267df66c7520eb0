"""What is to be done about a device that nobody asked for just now, and what may be said of it.

The monitor asks ``tend`` in every round: level-triggered, so that whatever was missed is seen the next time.
"""

from __future__ import annotations

from dataclasses import replace

from policies.model import Mode, Policy
from scrubber.core import answers, decide, grounds
from scrubber.core import events as ev
from scrubber.core.model import (
    Ailment,
    Facts,
    Moment,
    Owner,
    Path,
    Quarantine,
    Record,
    Sickness,
    State,
    Trigger,
    Vitals,
)
from scrubber.core.verdict import diagnose, known

FLAPPING = "it came back from quarantine {count} times within the flap window"
RETRY_FIRST = 1.0  # seconds until a scrub that failed for a process on the device is tried again ...
RETRY_LONGEST = 60.0  # ... doubling up to this: a process may stay for days, and each try looks through /proc


def interruption(record: Record, why: str, now: Moment) -> ev.Event:
    """A job was cut off. A device on probation goes back to where it was, for the same reason."""
    if record.job is None:
        raise ValueError(f"{record.device.uuid} has no job to interrupt")
    if record.quarantine is None:
        return ev.ScrubInterrupted(record.job.id, why)
    waits = record.quarantine.next_probe is None
    again = None if waits else now.uptime + grounds.pause_after_cut(record.quarantine)
    return ev.Quarantined(replace(record.quarantine, next_probe=again))


def probation(record: Record, now: Moment) -> answers.ProbationAnswer:
    """Is it time to try a quarantined device again?"""
    due = record.quarantine.next_probe if record.quarantine else None
    if due is None:
        return answers.AskOperator()
    return answers.Probe() if now.uptime >= due else answers.NotYet(due)


def tend(record: Record, facts: Facts, policy: Policy, now: Moment, chance: float) -> answers.TendAnswer:
    """What the monitor should do about a device nobody asked for just now. ``chance`` in [0, 1) spreads probes."""
    stale = grounds.distrust(record, facts)
    if stale is not None:
        return answers.Note(stale)
    if record.state is State.UNKNOWN and (container := grounds.user_of(facts.holders or ())) is not None:
        return answers.Note(ev.Exposed(Owner(container, now, seen=True)))
    sick = _sickness(record, facts, policy)
    if sick is not None:
        return _isolate(record, sick, facts.vitals, policy, now, chance)
    match record.state:
        case State.SCRUBBING:
            return answers.Proceed()
        case State.QUARANTINED:
            due = isinstance(probation(record, now), answers.Probe) and not _absent(facts)
            return answers.Probe() if due and grounds.clearable(record, facts, policy) else answers.Proceed()
        case State.GRANTED | State.EXPOSED:
            return _tend_tenancy(record, facts, policy, now)
        case State.CLEAN if (soiled := grounds.soiled(facts)) is not None:
            return answers.Note(soiled)
    if policy.mode is Mode.OBSERVE or facts.domain_resetting:
        return answers.Proceed()
    return _tend_idle(record, facts, policy, now)


def advertise(record: Record, policy: Policy, now: Moment) -> answers.Advert:
    """Whether the kubelet may be told that this device is healthy."""
    if record.quarantine is not None:
        return answers.Advert(healthy=False, why=f"quarantined: {record.quarantine.sickness.detail}")
    if record.sickness is not None:
        return answers.Advert(healthy=False, why=f"sick: {record.sickness.detail}")
    if policy.mode is Mode.OBSERVE:
        return answers.Advert(healthy=True, why="policy observe refuses nothing")
    match record.state:
        case State.CLEAN | State.GRANTED | State.EXPOSED:
            return answers.Advert(healthy=True, why=record.state.value)
        case State.SCRUBBING if _soon_done(record, policy, now):
            return answers.Advert(healthy=True, why="being scrubbed, clean within the allocate budget")
        case State.DIRTY if record.setback is None and _just_released(record, policy, now):
            return answers.Advert(healthy=True, why="released, about to be scrubbed")
        case State.UNKNOWN | State.DIRTY | State.SCRUBBING | State.QUARANTINED:
            return answers.Advert(healthy=False, why=record.state.value)


def confine(
    record: Record, sickness: Sickness, by: str, vitals: Vitals | None, policy: Policy, now: Moment, chance: float
) -> ev.Quarantined:
    """The quarantine of a sick device: when it may be tried again, or never without a person."""
    rules = policy.quarantine.probation
    recent = [wall for wall in record.returns if now.wall - wall <= rules.flap_window]
    if len(recent) >= rules.flap_limit and not sickness.sticky:
        detail = f"{sickness.detail}; {FLAPPING.format(count=len(recent))}"
        sickness = Sickness(Ailment.FLAPPING, detail, sticky=True)
    before = record.quarantine
    probes = before.probes if before else 0
    pause = grounds.growing(rules.first, rules.factor, rules.longest, probes) * (0.8 + 0.2 * chance)
    since = before.since if before else now
    # What waits for a person goes on waiting: a failed reinstatement must not start probation by itself.
    sticky = sickness.sticky or (before is not None and before.next_probe is None)
    due = None if sticky else now.uptime + pause
    return ev.Quarantined(Quarantine(sickness, since, by, known(vitals, record.baseline), probes, due))


def _sickness(record: Record, facts: Facts, policy: Policy) -> Sickness | None:
    """A diagnosis that was not acted upon yet. A job in progress judges for itself."""
    if record.state in (State.SCRUBBING, State.QUARANTINED):
        return None
    if record.sickness is not None:
        return None if record.state in (State.GRANTED, State.EXPOSED) else record.sickness
    return diagnose(facts.vitals, record.baseline, policy) if facts.vitals is not None else None


def _isolate(
    record: Record, sickness: Sickness, vitals: Vitals | None, policy: Policy, now: Moment, chance: float
) -> answers.Note:
    if record.state in (State.GRANTED, State.EXPOSED):
        return answers.Note(ev.Sickened(sickness))
    by = "an operator" if sickness.ailment is Ailment.OPERATOR else "autoclave"
    return answers.Note(confine(record, sickness, by, vitals, policy, now, chance))


def _tend_tenancy(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.TendAnswer:
    if facts.holders is None:
        return answers.Proceed()
    visit = grounds.visit(record, facts, now)
    if visit is not None:
        return answers.Note(visit)
    owner, user = record.owner, grounds.user_of(facts.holders)
    if owner is None and (record.sickness is not None or facts.wanted) and _abandoned(record, policy, now):
        # Neither is offered, so that nobody would ever ask for it and show that the grant is void.
        why = "it fell sick" if record.sickness is not None else "it was asked for in vain"
        return answers.Note(ev.Released(f"{why} before anybody started on it"))
    crowd = grounds.crowd(record, facts)
    if crowd is not None:
        return answers.Note(crowd)
    seen = grounds.sighting(record, facts)
    if seen is not None:
        return answers.Note(seen)
    if owner is None or user is not None:
        return answers.Proceed()
    # An owner that was never seen has not gone: its container may be about to start. Whoever asks for the device next
    # has a better reason to say so than we.
    if facts.owner_alive is False and owner.seen:
        return answers.Note(ev.Released("its owner is gone"))
    if (record.sickness is not None or facts.wanted) and _deserted(owner, facts, now):
        # Neither is offered, so that nobody would ever ask for it and show that the last user is gone.
        why = "it is sick" if record.sickness is not None else "it was asked for"
        return answers.Note(ev.Released(f"{why} and nobody is on it"))
    return answers.Proceed()


def _tend_idle(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.TendAnswer:
    if record.state is State.CLEAN:
        if facts.holders is None:
            return answers.Blocked("it cannot be proven that nobody uses it")
        if grounds.proof_stands(record.receipt, facts, policy, now):
            return answers.Proceed()
        return answers.Scrub(grounds.path_for(record, policy), Trigger.PROOF_EXPIRED)
    if record.setback is not None:
        pause = grounds.growing(RETRY_FIRST, 2, RETRY_LONGEST, record.setback.count - 1)
        if now.uptime - record.setback.at.uptime < pause:
            return answers.Proceed()
    answer = decide.from_dirty(record, facts, policy, _idle_trigger(record))
    if isinstance(answer, answers.Scrub):
        return answer
    if facts.holders is None:
        return answers.Blocked("it cannot be proven that nobody uses it")
    return answers.Blocked(f"waiting for {grounds.names(facts.holders)} to leave it")


def _absent(facts: Facts) -> bool:
    """What is not there cannot be tried: it waits until it is back."""
    return facts.vitals is not None and facts.vitals.lost


def _idle_trigger(record: Record) -> Trigger:
    if record.state is State.UNKNOWN:
        return Trigger.FIRST_LOOK
    if record.setback is not None or record.owed is not None:
        return Trigger.RETRY
    return Trigger.RELEASE if record.tenancy_began is not None else Trigger.FOREIGN_USE


def _deserted(owner: Owner, facts: Facts, now: Moment) -> bool:
    """Nobody was ever seen to hold it on, and nobody is about to."""
    gone = owner.container is None or facts.owner_alive is False
    return facts.holders == () and gone and not grounds.about_to_start(owner, now)


def _abandoned(record: Record, policy: Policy, now: Moment) -> bool:
    """Nobody came for the grant. Who announces a start asks again before it; the others had their time."""
    grant = record.grant
    return grant is not None and (grant.announced or now.uptime - grant.at.uptime > policy.budgets.start)


def _just_released(record: Record, policy: Policy, now: Moment) -> bool:
    """A tenant has just left. What is still dirty after the allocate budget has somebody on it who does not leave."""
    return record.tenancy_began is not None and now.uptime - record.since.uptime <= policy.budgets.allocate


def _soon_done(record: Record, policy: Policy, now: Moment) -> bool:
    job = record.job
    if job is None or record.setback is not None or job.path is not Path.FAST:
        return False
    return now.uptime - job.started.uptime <= policy.budgets.allocate
