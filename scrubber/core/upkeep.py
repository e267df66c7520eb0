"""What is to be done about a device that nobody asked for just now.

The monitor asks ``tend`` in every round: level-triggered, so that whatever was missed is seen the next time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from policies import xids
from policies.model import Mode, Policy
from scrubber.core import answers, burn_in, leftover, ownership, pauses, presence, proof, remedy, verdict
from scrubber.core import events as ev
from scrubber.core.ailments import diagnose, known, news, silent, worst
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    Baseline,
    Facts,
    Moment,
    Owner,
    Path,
    Quarantine,
    Record,
    State,
    Trigger,
    Vitals,
)

FLAPPING = "it came back from quarantine {count} times within the flap window"
HEARD_EVERY = 60.0  # seconds from one note of errors that make nobody sick to the next
RETRY_FIRST = 1.0  # seconds until a scrub that failed for a process on the device is tried again ...
RETRY_LONGEST = 60.0  # ... doubling up to this: a process may stay for days, and each try looks through /proc


def interruption(record: Record, why: str, now: Moment) -> ev.Event:
    """A job was cut off. A device on probation goes back to where it was, for the same reason."""
    if record.job is None:
        raise ValueError(f"{record.device.uuid} has no job to interrupt")
    proven = verdict.proven_fault(record.job)
    if proven is not None:  # however it was cut off
        return ev.Quarantined(Quarantine(proven, _since(record, now), "autoclave", record.baseline, _probes(record)))
    if record.quarantine is None:
        return ev.ScrubInterrupted(record.job.id, why)
    waits = record.quarantine.next_probe is None
    again = None if waits else now.uptime + pauses.after_interruption(record.quarantine)
    return ev.Quarantined(replace(record.quarantine, next_probe=again, last_try=why))


def probation(record: Record, policy: Policy, now: Moment) -> answers.Probe | None:
    """The trial of a quarantined device, once it is due. Without a due time the device waits for a person."""
    due = record.quarantine.next_probe if record.quarantine else None
    return None if due is None or now.uptime < due else answers.Probe(trial(record, policy))


def trial(record: Record, policy: Policy) -> Path:
    """What a device in quarantine has to pass: what its reason asks for, and no less than if it were well."""
    asked = remedy.of(record.quarantine.ailment).course.path if record.quarantine else Path.SLOW
    return Path.SLOW if Path.SLOW in (asked, proof.next_path(record, policy)) else Path.FAST


def tend(record: Record, facts: Facts, policy: Policy, now: Moment, chance: float) -> answers.TendAnswer:
    """What the monitor should do about a device nobody asked for just now. ``chance`` in [0, 1) spreads probes."""
    stale = proof.ended_by_restart(record, facts)
    if stale is not None:
        return answers.Note(stale)
    if record.state is State.UNKNOWN and (container := ownership.live_container(facts.holders or ())) is not None:
        return answers.Note(ev.PutInUse(Owner(container, now, seen=True, unannounced=True)))
    if facts.vitals is not None and facts.vitals.relaid and record.state in (State.GRANTED, State.IN_USE):
        # Nobody lays out anew what is in use: whoever has it misses it.
        facts = replace(facts, vitals=replace(facts.vitals, relaid=False))
    sick = _sickness(record, facts, policy)
    if sick is not None:
        return _isolate(record, sick, facts.vitals, policy, now, chance)
    noted = _heard(record, facts.vitals, now)
    if noted is not None:
        return answers.Note(noted)
    match record.state:
        case State.SCRUBBING:
            # A device that is tested is offered meanwhile.
            ill = burn_in.gives_way(record) and facts.vitals and diagnose(facts.vitals, record.baseline, policy)
            return answers.CancelJob() if ill else answers.Proceed()
        case State.QUARANTINED:
            return _tend_quarantined(record, facts, policy, now, chance)
        case State.GRANTED | State.IN_USE:
            return _tend_tenancy(record, facts, policy, now)
        case State.CLEAN if (soiled := proof.ended_by_use(facts)) is not None:
            return answers.Note(soiled)
    if policy.mode is Mode.OBSERVE or facts.domain_resetting:
        return answers.Proceed()
    return _tend_idle(record, facts, policy, now)


def confine(
    record: Record, ailment: Ailment, by: str, vitals: Vitals | None, policy: Policy, now: Moment, chance: float
) -> ev.Quarantined:
    """The quarantine of a sick device: when it may be tried again, or never without a person."""
    rules = policy.quarantine.probation
    recent = [wall for wall in record.returns if 0 <= now.wall - wall <= rules.flap_window]
    # What is out already comes back no more often for being lost; and it must be known as lost, or it is told for ever.
    lost = record.quarantine is not None and ailment.kind in presence.GONE
    alone = remedy.of(ailment).course is remedy.Course.PERSON  # says why already, and more than that it flaps
    excused = lost or ailment.kind in remedy.BLAMELESS
    if len(recent) >= rules.flap_limit and not alone and not excused:
        detail = f"{ailment.detail}; {FLAPPING.format(count=len(recent))}"
        ailment = Ailment(AilmentKind.FLAPPING, detail, sticky=True)
    before, probes = record.quarantine, _probes(record)
    told = ailment
    if before is not None and _stands(before, ailment):
        ailment = before.ailment
    pause = pauses.growing(rules.first, rules.factor, rules.longest, probes) * (0.8 + 0.2 * chance)
    # What waits for a person goes on waiting: a failed reinstatement must not start probation by itself.
    alone = remedy.of(ailment).course is remedy.Course.PERSON
    sticky = alone or (before is not None and before.next_probe is None)
    due = None if sticky else now.uptime + pause
    last_try = told.detail if before is not None and record.job is not None else ""
    since = now if ailment.kind in presence.TAKEN_AWAY else _since(record, now)
    out = Quarantine(ailment, since, by, record.baseline, probes, due, last_try)
    if told.kind is AilmentKind.OPERATOR:  # a person's word is no judgement of what the device has told
        return ev.Quarantined(out)
    judged = errors_to_note(record.baseline, vitals)
    codes = judged.codes if judged is not None else ()
    return ev.Quarantined(replace(out, baseline=known(vitals, record.baseline), errors=codes))


def taken_out(record: Record, words: str) -> Ailment:
    """A person takes out a device that is in use; what needs a person more than that stays the reason."""
    known_of = record.ailment
    if known_of is not None and remedy.of(known_of).course is remedy.Course.PERSON:
        return replace(known_of, detail=f"{known_of.detail}; {words}")
    return Ailment(AilmentKind.OPERATOR, words, sticky=True)


def _stands(before: Quarantine, ailment: Ailment) -> bool:
    """Whether the reason that a person has to decide about is still the one to be told."""
    person = remedy.Course.PERSON
    if ailment.kind is AilmentKind.OPERATOR:
        return remedy.of(before.ailment).course is person
    return before.next_probe is None and remedy.of(ailment).course is not person and ailment.kind not in presence.GONE


def _since(record: Record, now: Moment) -> Moment:
    return record.quarantine.since if record.quarantine else now


def _probes(record: Record) -> int:
    return record.quarantine.probes if record.quarantine else 0


def _sickness(record: Record, facts: Facts, policy: Policy) -> Ailment | None:
    """A diagnosis that was not acted upon yet. A job in progress judges for itself."""
    if record.state in (State.SCRUBBING, State.QUARANTINED):
        return None
    if record.ailment is not None and record.state in (State.GRANTED, State.IN_USE):
        return _worse(record.ailment, facts, record, policy)
    now = diagnose(facts.vitals, record.baseline, policy) if facts.vitals is not None else None
    # What came while it was in use and sick is no news after the quarantine: it must not be forgotten over the first.
    return worst(it for it in (record.ailment, now) if it is not None)


def _worse(known_of: Ailment, facts: Facts, record: Record, policy: Policy) -> Ailment | None:
    """What came while it was in use and sick, and asks for more: it decides whether a container may start again."""
    found = diagnose(facts.vitals, record.baseline, policy) if facts.vitals is not None else None
    return found if found is not None and remedy.rank(found) > remedy.rank(known_of) else None


def _heard(record: Record, vitals: Vitals | None, now: Moment) -> ev.ErrorsNoted | None:
    """Errors that make nobody sick. Not at every look: who has the device can cause as many as he likes."""
    lately = record.errors_noted is not None and now.uptime - record.errors_noted < HEARD_EVERY
    if lately or record.ailment is not None or record.state in (State.SCRUBBING, State.QUARANTINED):
        return None
    return errors_to_note(record.baseline, vitals)


def errors_to_note(baseline: Baseline, vitals: Vitals | None) -> ev.ErrorsNoted | None:
    """What was reported and is not on record yet."""
    new = news(vitals, baseline) if vitals is not None else ()
    if not new:
        return None
    counts = Counter(xid.code for xid in new)
    return ev.ErrorsNoted(tuple(sorted(counts.items())), max(xid.number for xid in new))


def history(vitals: Vitals | None, policy: Policy) -> ev.ErrorsNoted | None:
    """What was reported of a device before anybody here had seen it: no verdict on it, and a reason to look closely."""
    told = errors_to_note(Baseline(), vitals)
    if told is None or vitals is None:
        return None
    return replace(told, grave=xids.worst_finding(policy.quarantine.xids, vitals.xids, vitals.xids) is not None)


def _isolate(
    record: Record, ailment: Ailment, vitals: Vitals | None, policy: Policy, now: Moment, chance: float
) -> answers.Note:
    if record.state in (State.GRANTED, State.IN_USE):
        return answers.Note(ev.AilmentFound(ailment))
    by = "an operator" if ailment.kind is AilmentKind.OPERATOR else "autoclave"
    return answers.Note(confine(record, ailment, by, vitals, policy, now, chance))


def _tend_tenancy(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.TendAnswer:
    if facts.holders is None:
        return answers.Proceed()
    visit = ownership.unannounced_use(record, facts, now)
    if visit is not None:
        return answers.Note(visit)
    if _outstayed(record, facts):
        return _tend_hung(record, facts, policy, now)
    owner, user = record.owner, ownership.live_container(facts.holders)
    kept = (
        record.grant is not None and record.grant.until_release
    )  # whoever has it gives it back, whatever comes and goes on it
    if owner is None and not kept and (record.ailment is not None or facts.wanted) and _abandoned(record, policy, now):
        # Neither is offered, so that nobody would ever ask for it and show that the grant is void.
        why = "it fell sick" if record.ailment is not None else "it was asked for in vain"
        return answers.Note(ev.Released(f"{why} before anybody started on it"))
    rightful = ownership.confirmed_by_checkpoint(record, facts, now)
    if rightful is not None:
        return answers.Note(rightful)
    crowd = ownership.shared_use(record, facts)
    if crowd is not None:
        return answers.Note(crowd)
    seen = ownership.first_seen(record, facts)
    if seen is not None:
        return answers.Note(seen)
    if owner is None or user is not None or kept:
        return answers.Proceed()
    # Given to another pod, it waits for that one's start: after a restart of the kubelet that may come without a word.
    if ownership.unannounced_pod_has_left(record, facts) and not facts.assigned_pods:
        return answers.Note(ev.Released("who was met on it before its first start has let go of it"))
    # An owner that was never seen has not gone: its container may be about to start. Whoever asks for the device next
    # has a better reason to say so than we.
    held = _held_for_another(record, facts)
    if facts.owner_alive is False and owner.seen and not held:
        return answers.Note(ev.Released("its owner is gone"))
    taken = (
        facts.assigned_pods is not None and owner.container is not None and owner.container not in facts.assigned_pods
    )
    if taken and not held and _deserted(owner, facts, now):
        return answers.Note(ev.Released("nobody came, and the kubelet has taken it from its owner"))
    if (record.ailment is not None or facts.wanted) and _deserted(owner, facts, now):
        # Neither is offered, so that nobody would ever ask for it and show that the last user is gone.
        why = "it is sick" if record.ailment is not None else "it was asked for"
        return answers.Note(ev.Released(f"{why} and nobody is on it"))
    return answers.Proceed()


def _held_for_another(record: Record, facts: Facts) -> bool:
    """Whoever was met on it has ended, and it may be somebody else's, of whom nothing is seen while he is off it.

    The kubelet knows whose it is, if its word can be read. A visitor of an unannounced grant is who it was granted to.
    """
    grant, owner = record.grant, record.owner
    if owner is None or not owner.unannounced:
        return False
    if grant is None or not grant.announced:
        return bool(facts.assigned_pods)
    return facts.assigned_pods != frozenset()


def _outstayed(record: Record, facts: Facts) -> bool:
    """Who had it does not end: the kubelet has given it to somebody else, or taken it, and all on it hang."""
    owner = record.owner
    if owner is None or not ownership.all_holders_hang(facts):
        return False
    return facts.wanted or (facts.assigned_pods is not None and owner.container not in facts.assigned_pods)


def _tend_hung(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.TendAnswer:
    """Nothing can be done about whoever hangs in the kernel, and he is not to be disturbed: he is told of."""
    told = f"whoever had it hangs in the kernel (state D): {ownership.holder_names(facts.holders or ())}"
    waited = facts.hung_since is not None and now.uptime - facts.hung_since >= policy.evict.give_up
    if waited and record.ailment is None:
        return answers.Note(ev.AilmentFound(Ailment(AilmentKind.STUCK_PROCESS, told)))
    return answers.Proceed() if record.ailment is not None else answers.Blocked(told)


def _tend_quarantined(
    record: Record, facts: Facts, policy: Policy, now: Moment, chance: float
) -> answers.Note | answers.Probe | answers.Proceed:
    """What is told still needs no trial, and what is not there cannot have one."""
    gone = _gone(record, facts)
    if gone is not None:
        return answers.Note(confine(record, gone, "autoclave", facts.vitals, policy, now, chance))
    graver = _graver(record, facts.vitals, policy)
    if graver is not None:
        return answers.Note(confine(record, graver, "autoclave", facts.vitals, policy, now, chance))
    due = probation(record, policy, now)
    seen = facts.vitals  # None while another one is reset: then nobody can tell
    absent = seen is None or seen.lost or seen.unresponsive or seen.partial
    ill = record.quarantine is not None and _lasts(record.quarantine.ailment, facts)
    if due is None or absent or ill or not leftover.all_terminable(record, facts, policy):
        return answers.Proceed()
    before = errors_to_note(record.baseline, facts.vitals)  # the trial has to do with what comes after its beginning
    return due if before is None else answers.Note(before)


def _lasts(ailment: Ailment, facts: Facts) -> bool:
    """Whether a trial could only fail: it is told still, or who cannot be ended is still there."""
    if ailment.kind is AilmentKind.STUCK_PROCESS:
        return facts.holders != ()
    return remedy.persists(ailment, facts.vitals)


def _gone(record: Record, facts: Facts) -> Ailment | None:
    """That it is not there any more, which its neighbours have to know: nobody is on it, so they may be reset.

    Slices are away for a moment while others are made.
    """
    if facts.vitals is None or not facts.vitals.lost or record.quarantine is None:
        return None
    reason = record.quarantine.ailment.kind
    if facts.vitals.relaid:
        return _relaid(record.quarantine, facts)
    if record.device.parent is not None:
        return None
    if facts.successor is not None:
        told = Ailment(AilmentKind.REPLACED, f"{facts.successor} sits in its place")
        return told if reason is not AilmentKind.REPLACED else None
    told = Ailment(
        AilmentKind.LOST, f"the device has fallen off its bus; it was out before: {record.quarantine.ailment.detail}"
    )
    return told if reason not in presence.GONE or reason is AilmentKind.RELAID else None


def _relaid(out: Quarantine, facts: Facts) -> Ailment | None:
    """That its GPU has another layout now: it is not lost, whatever it was taken for. A reset brings slices back."""
    if facts.vitals is None or facts.domain_resetting or out.ailment.kind is AilmentKind.RELAID:
        return None
    told = silent(facts.vitals)
    if out.next_probe is not None:
        return told
    return replace(told, detail=f"{told.detail}; it was out before: {out.ailment.detail}")


def _graver(record: Record, vitals: Vitals | None, policy: Policy) -> Ailment | None:
    """What was reported of a device in quarantine, and asks for more than what it is out for: a reset, a person."""
    if vitals is None or vitals.lost or record.quarantine is None or record.quarantine.next_probe is None:
        return None  # slices are away for a moment while others are made, and nobody is there to be worse
    found = diagnose(vitals, record.baseline, policy)
    out_for = record.quarantine.ailment
    return found if found is not None and remedy.rank(found) > remedy.rank(out_for) else None


def _tend_idle(record: Record, facts: Facts, policy: Policy, now: Moment) -> answers.TendAnswer:
    if record.state is State.CLEAN:
        if facts.holders is None:
            return answers.Blocked("it cannot be proven that nobody uses it")
        if proof.is_valid(record.receipt, facts, policy, now):
            return answers.Proceed()
        return answers.Scrub(proof.next_path(record, policy), Trigger.PROOF_EXPIRED)
    if record.setback is not None:
        pause = pauses.growing(RETRY_FIRST, 2, RETRY_LONGEST, record.setback.count - 1)
        if now.uptime - record.setback.at.uptime < pause:
            return answers.Proceed()
    if leftover.all_terminable(record, facts, policy):
        return answers.Scrub(proof.next_path(record, policy), _idle_trigger(record))
    if facts.holders is None:
        return answers.Blocked("it cannot be proven that nobody uses it")
    return answers.Blocked(f"waiting for {ownership.holder_names(facts.holders)} to leave it")


def _idle_trigger(record: Record) -> Trigger:
    if record.state is State.UNKNOWN:
        return Trigger.FIRST_LOOK
    if record.setback is not None or record.due_path is not None:
        return Trigger.RETRY
    return Trigger.RELEASE if record.tenancy_began is not None else Trigger.FOREIGN_USE


def _deserted(owner: Owner, facts: Facts, now: Moment) -> bool:
    """Nobody was ever seen to hold it on, and nobody is about to."""
    gone = owner.container is None or facts.owner_alive is False
    return facts.holders == () and gone and not ownership.about_to_start(owner, now)


def _abandoned(record: Record, policy: Policy, now: Moment) -> bool:
    """Nobody came for the grant. Who announces a start asks again before it; the others had their time."""
    grant = record.grant
    return grant is not None and (grant.announced or now.uptime - grant.at.uptime > policy.budgets.start)
