"""The next action on a device without a request: scrub, probation, quarantine, or what a new ailment needs.

The monitor calls ``tend`` in every round. What one round misses, the next one sees.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ground.quantities import quantity
from policies import xids
from policies.hardware import FLAP_WINDOW
from policies.policy_model import Mode, Policy
from scrubber.core import ailments, answers, next_scrub, ownership, pauses, proof, tenancy_upkeep, verdict
from scrubber.core import events as ev
from scrubber.core.ailment_traits import AILMENTS, Course
from scrubber.core.ailments import diagnose, new_errors, next_baseline, unreachable, worst
from scrubber.core.model import (
    NO_HOLDER,
    Ailment,
    AilmentKind,
    Baseline,
    Blame,
    Facts,
    InTheWay,
    Moment,
    Owner,
    Quarantine,
    State,
    Trigger,
    Vitals,
)
from scrubber.core.record import Record

NOTE_EVERY = 60.0  # seconds between two records of errors that lead to no ailment


def interruption(record: Record, why: str, now: Moment) -> ev.Event:
    """How a job that was cancelled or could not be completed is recorded.

    A device on probation returns to quarantine, for the same reason.
    """
    if record.scrubs.job is None:
        raise ValueError(f"{record.device.uuid} has no job to cancel")
    proven = verdict.proven_fault(record.scrubs.job)
    if proven is not None:  # a fault that a step has proven counts, also in a cancelled job
        return ev.Quarantined(
            Quarantine(proven, _since(record, now), "autoclave", record.health.baseline, _probations(record))
        )
    if record.health.quarantine is None:
        return ev.ScrubInterrupted(record.scrubs.job.id, why)
    waits = record.health.quarantine.next_probe is None
    again = None if waits else now.uptime + pauses.after_interruption(record.health.quarantine)
    return ev.Quarantined(replace(record.health.quarantine, next_probe=again, last_try=why))


def failure(record: Record, why: str, blame: Blame, in_the_way: InTheWay = NO_HOLDER) -> ev.ScrubFailed:
    """How the running job is recorded if it ends without a proof, with the processes that prevented it."""
    if record.scrubs.job is None:
        raise ValueError(f"{record.device.uuid} has no job that could fail")
    times = record.scrubs.failures + 1
    return ev.ScrubFailed(record.scrubs.job.id, why, blame, in_the_way.holders, in_the_way.unnamed, times)


def probation(record: Record, policy: Policy, now: Moment) -> answers.StartProbation | None:
    """The probation of a quarantined device, once it is due. Without a due time the device waits for a person."""
    due = record.health.quarantine.next_probe if record.health.quarantine else None
    waits = due is None or now.uptime < due or next_scrub.reset_forbidden(record, policy)
    return None if waits else answers.StartProbation(next_scrub.next_path(record, policy))


def tend(record: Record, facts: Facts, policy: Policy, now: Moment, chance: float) -> answers.TendAnswer:
    """What the monitor should do about this device. ``chance`` in [0, 1) spreads the probations of several devices."""
    ended = proof.ended(record, facts)
    if ended is not None:
        return answers.RecordFirst(ended)
    if record.state is State.UNKNOWN and (container := ownership.live_container(facts.holders or ())) is not None:
        return answers.RecordFirst(ev.PutInUse(Owner(container, now, seen=True, unannounced=True)))
    if facts.vitals is not None and facts.vitals.relaid and record.state in (State.GRANTED, State.IN_USE):
        # The MIG layout of a device in use is not changed on purpose: to its owner the device is lost.
        facts = replace(facts, vitals=replace(facts.vitals, relaid=False))
    ailment = _new_ailment(record, facts, policy)
    if ailment is not None:
        if record.state in (State.GRANTED, State.IN_USE):
            return answers.RecordFirst(ev.AilmentFound(ailment))
        by = "an operator" if ailment.kind is AilmentKind.OPERATOR else "autoclave"
        return answers.RecordFirst(quarantine(record, ailment, by, facts.vitals, policy, now, chance))
    noted = _harmless_errors(record, facts.vitals, now)
    if noted is not None:
        return answers.RecordFirst(noted)
    match record.state:
        case State.SCRUBBING:
            return answers.Proceed()
        case State.QUARANTINED:
            return _tend_quarantined(record, facts, policy, now, chance)
        case State.GRANTED | State.IN_USE:
            return tenancy_upkeep.tend(record, facts, now)
        case State.CLEAN | State.DIRTY | State.UNKNOWN:
            return _tend_free(record, facts, policy, now, chance)


def _tend_free(record: Record, facts: Facts, policy: Policy, now: Moment, chance: float) -> answers.TendAnswer:
    if policy.mode is Mode.OBSERVE or facts.domain_resetting:
        return answers.Proceed()
    if next_scrub.reset_forbidden(record, policy):
        needed = Ailment(AilmentKind.RESET_REQUIRED, next_scrub.RESET_FORBIDDEN)
        return answers.RecordFirst(quarantine(record, needed, "autoclave", facts.vitals, policy, now, chance))
    if record.state is State.CLEAN:
        if facts.holders is None:
            return answers.Blocked(answers.why_unknown_for_operators(facts))
        if proof.is_valid(record.scrubs.receipt, facts, policy, now):
            return answers.Proceed()
        return answers.Scrub(next_scrub.next_path(record, policy), Trigger.PROOF_EXPIRED)
    failed = record.scrubs.setback
    if failed is not None and now.uptime - failed.at.uptime < pauses.until_retry(failed):
        return answers.Proceed()
    if next_scrub.all_terminable(record, facts, policy):
        return answers.Scrub(next_scrub.next_path(record, policy), _idle_trigger(record))
    if facts.holders is None:
        return answers.Blocked(answers.why_unknown_for_operators(facts))
    return answers.Blocked(f"waiting for {facts.who} to end")


def quarantine(
    record: Record, ailment: Ailment, by: str, vitals: Vitals | None, policy: Policy, now: Moment, chance: float
) -> ev.Quarantined:
    """The quarantine of a device with this ailment, and when its probation is due: never if a person decides."""
    rules = policy.quarantine.probation
    recent = [wall for wall in record.health.returns if 0 <= now.wall - wall <= FLAP_WINDOW]
    # A device that is lost while in quarantine has not returned, so it does not flap.
    lost = record.health.quarantine is not None and AILMENTS[ailment.kind].gone
    person = _needs_person(ailment)  # an ailment that needs a person is worse than flapping
    excused = lost or AILMENTS[ailment.kind].blameless
    if len(recent) >= rules.flap_limit and not person and not excused:
        returned = quantity(len(recent), "time")
        detail = f"{ailment.detail}; it returned from quarantine {returned} within a week"
        ailment = Ailment(AilmentKind.FLAPPING, detail, sticky=True)
    before, probes = record.health.quarantine, _probations(record)
    newest = ailment
    if before is not None and _keeps_reason(before, ailment):
        ailment = before.ailment
    pause = pauses.until_probation(rules.first, probes, chance)
    # A device that waits for a person goes on waiting: a failed reinstatement must not start a probation.
    sticky = _needs_person(ailment) or (before is not None and before.next_probe is None)
    due = None if sticky else now.uptime + pause
    last_try = newest.detail if before is not None and record.scrubs.job is not None else ""
    since = now if AILMENTS[newest.kind].taken_away else _since(record, now)
    entered = Quarantine(ailment, since, by, record.health.baseline, probes, due, last_try)
    # An operator's quarantine judges no errors: errors since the present baseline still count as new.
    if newest.kind is AilmentKind.OPERATOR:
        return ev.Quarantined(entered)
    judged = errors_to_note(record.health.baseline, vitals)
    codes = judged.codes if judged is not None else ()
    return ev.Quarantined(replace(entered, baseline=next_baseline(vitals, record.health.baseline), errors=codes))


def operator_ailment(record: Record, words: str) -> Ailment:
    """The ailment of a device in use that an operator quarantines.

    A present ailment of the hardware stays, and from now on it needs a person. The words replace those of an earlier
    request.
    """
    present = record.health.ailment
    if present is None or present.kind is AilmentKind.OPERATOR:
        return Ailment(AilmentKind.OPERATOR, words, sticky=True)
    before = present.before_asked or present.detail
    detail = f"{before}; an operator has asked for its quarantine: {words}"
    return replace(present, detail=detail, sticky=True, before_asked=before)


def _keeps_reason(before: Quarantine, ailment: Ailment) -> bool:
    """Whether the quarantine keeps its present reason, because a person still has to decide about it."""
    if ailment.kind is AilmentKind.OPERATOR:
        return before.ailment.kind is not AilmentKind.OPERATOR and _needs_person(before.ailment)
    return before.next_probe is None and not _needs_person(ailment) and not AILMENTS[ailment.kind].gone


def _needs_person(ailment: Ailment) -> bool:
    return ailments.remedy(ailment).course is Course.PERSON


def _since(record: Record, now: Moment) -> Moment:
    return record.health.quarantine.since if record.health.quarantine else now


def _probations(record: Record) -> int:
    return record.health.quarantine.probes if record.health.quarantine else 0


def _new_ailment(record: Record, facts: Facts, policy: Policy) -> Ailment | None:
    """An ailment that is not recorded yet, or that a free device still has to be quarantined for.

    A running job judges the device itself.
    """
    if record.state in (State.SCRUBBING, State.QUARANTINED):
        return None
    if record.health.ailment is not None and record.state in (State.GRANTED, State.IN_USE):
        return _worse(record.health.ailment, record, facts.vitals, policy)
    now = diagnose(facts.vitals, record.health.baseline, policy)
    # Count an ailment that was found in use: the quarantine sets a new baseline, so it is not diagnosed again.
    return worst(ailment for ailment in (record.health.ailment, now) if ailment is not None)


def _worse(present: Ailment, record: Record, vitals: Vitals | None, policy: Policy) -> Ailment | None:
    """A new ailment that ``ailments.rank`` ranks above the present one.

    The worse ailment decides whether a container may start again on a device in use, and when a quarantined device is
    tested.
    """
    ailment = diagnose(vitals, record.health.baseline, policy)
    return ailment if ailment is not None and ailments.rank(ailment) > ailments.rank(present) else None


def _harmless_errors(record: Record, vitals: Vitals | None, now: Moment) -> ev.ErrorsNoted | None:
    """Errors that lead to no ailment. Recorded once a minute at most: a tenant can cause any number of them."""
    lately = record.health.errors_noted is not None and now.uptime - record.health.errors_noted < NOTE_EVERY
    if lately or record.health.ailment is not None or record.state in (State.SCRUBBING, State.QUARANTINED):
        return None
    return errors_to_note(record.health.baseline, vitals)


def errors_to_note(baseline: Baseline, vitals: Vitals | None) -> ev.ErrorsNoted | None:
    """The reported errors that are not on record yet."""
    new = new_errors(vitals, baseline) if vitals is not None else ()
    if not new:
        return None
    counts = Counter(xid.code for xid in new)
    return ev.ErrorsNoted(tuple(sorted(counts.items())), max(xid.number for xid in new))


def earlier_errors(baseline: Baseline, vitals: Vitals | None, policy: Policy) -> ev.ErrorsNoted | None:
    """New errors from before the first observation or a reinstatement.

    They are not an ailment, but a grave error needs a reset.
    """
    noted = errors_to_note(baseline, vitals)
    if noted is None or vitals is None:
        return None
    new = new_errors(vitals, baseline)
    return replace(noted, grave=xids.worst_finding(policy.quarantine.xids, vitals.xids, new) is not None)


def _tend_quarantined(
    record: Record, facts: Facts, policy: Policy, now: Moment, chance: float
) -> answers.RecordFirst | answers.StartProbation | answers.Proceed:
    """No probation while the ailment lasts or the device is gone: it could only fail."""
    ailment = _gone(record, facts) or _worse_in_quarantine(record, facts.vitals, policy)
    if ailment is not None:
        return answers.RecordFirst(quarantine(record, ailment, "autoclave", facts.vitals, policy, now, chance))
    due = probation(record, policy, now)
    present, vitals = record.health.quarantine, facts.vitals  # no vitals while another device is reset
    if due is None or vitals is None or vitals.lost or vitals.unresponsive or vitals.partial:
        return answers.Proceed()
    lasts = present is not None and ailments.lasts(present.ailment, facts)
    if lasts or not next_scrub.all_terminable(record, facts, policy):
        return answers.Proceed()
    before = errors_to_note(record.health.baseline, vitals)  # the probation judges only later errors
    return due if before is None else answers.RecordFirst(before)


def _gone(record: Record, facts: Facts) -> Ailment | None:
    """The ailment of a quarantined device that is gone. Once recorded, its siblings can be reset without it.

    A lost slice is gone only if its GPU has another layout: slices are away for a moment while others are made.
    """
    present = record.health.quarantine
    if facts.vitals is None or not facts.vitals.lost or present is None:
        return None
    reason, before = present.ailment.kind, f"it was quarantined before: {present.ailment.detail}"
    if facts.vitals.relaid:
        if facts.domain_resetting or reason is AilmentKind.RELAID:  # the layout is not known while a sibling is reset
            return None
        relaid = unreachable(facts.vitals)
        return relaid if present.next_probe is not None else replace(relaid, detail=f"{relaid.detail}; {before}")
    if record.device.parent is not None:
        return None
    if facts.successor is not None:
        replaced = Ailment(AilmentKind.REPLACED, f"{facts.successor} is in its place")
        return replaced if reason is not AilmentKind.REPLACED else None
    lost = Ailment(AilmentKind.LOST, f"the device has fallen off its bus; {before}")
    return lost if not AILMENTS[reason].gone or reason is AilmentKind.RELAID else None


def _worse_in_quarantine(record: Record, vitals: Vitals | None, policy: Policy) -> Ailment | None:
    present = record.health.quarantine
    if vitals is None or vitals.lost or present is None or present.next_probe is None:
        return None  # a device that is not there gets no worse
    return _worse(present.ailment, record, vitals, policy)


def _idle_trigger(record: Record) -> Trigger:
    if record.state is State.UNKNOWN:
        return Trigger.FIRST_LOOK
    if record.scrubs.setback is not None or record.scrubs.due_path is not None:
        return Trigger.RETRY
    return Trigger.RELEASE if record.tenancy.began is not None else Trigger.FOREIGN_USE
