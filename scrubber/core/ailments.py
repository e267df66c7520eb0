"""What is newly wrong with a device, by what it reports and what was known before; and what an ailment needs.

A remedy is what the service tries on its own, and what a person should do. A device whose hardware was proven faulty
gets no probation, because it could pass a probation by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from ground.quantities import quantity
from policies import xids
from policies.policy_model import Policy
from scrubber.core.ailment_traits import AFTER_XID, AILMENTS, Course, Lasts, Remedy
from scrubber.core.model import Ailment, AilmentKind, Baseline, Facts, ScrubPath, Vitals, Xid


def new_errors(vitals: Vitals, baseline: Baseline) -> tuple[Xid, ...]:
    """The errors that no diagnosis has seen yet."""
    return tuple(xid for xid in vitals.xids if xid.number > baseline.last_xid)


def without_programs(vitals: Vitals | None, pids: Collection[int]) -> Vitals | None:
    """The vitals without the errors that the driver logged of these processes because their program failed."""
    if vitals is None:
        return None
    others = tuple(xid for xid in vitals.xids if xid.code not in xids.PROGRAM_FAULTS or xid.pid not in pids)
    return replace(vitals, xids=others)


def diagnose(vitals: Vitals | None, baseline: Baseline, policy: Policy) -> Ailment | None:
    """The worst new ailment of a device. None if there is none, or if the device was not asked."""
    return worst(_ailments(vitals, baseline, policy)) if vitals is not None else None


def worst(candidates: Iterable[Ailment]) -> Ailment | None:
    """The ailment that needs the strongest remedy, because that remedy covers the weaker ones. Of equals, the first."""
    return max(candidates, key=rank, default=None)


def _ailments(vitals: Vitals, baseline: Baseline, policy: Policy) -> Iterator[Ailment]:
    counted = baseline.ecc_uncorrectable if vitals.ecc_uncorrectable >= baseline.ecc_uncorrectable else 0
    worst_xid = xids.worst_finding(policy.quarantine.xids, vitals.xids, new_errors(vitals, baseline))
    reported = [Ailment(AilmentKind.XID, worst_xid.why, xid=worst_xid.code)] if worst_xid else []
    if vitals.lost or vitals.unresponsive:  # the device itself reports nothing else; logged errors still count
        yield unreachable(vitals)
        yield from reported
        return
    if vitals.remap_failed:
        yield Ailment(AilmentKind.REMAP_FAILED, "a memory row could not be remapped", sticky=True)
    if vitals.ecc_uncorrectable > counted:
        new = vitals.ecc_uncorrectable - counted
        yield Ailment(AilmentKind.ECC, quantity(new, "new uncorrectable memory error"))
    yield from reported
    if vitals.reset_required:
        yield Ailment(AilmentKind.RESET_REQUIRED, "the driver asks for a reset")
    if vitals.remap_pending:
        yield Ailment(AilmentKind.REMAP_PENDING, "a memory row waits to be remapped: needs a reset")
    if vitals.signs:  # seldom, and this runs in every round
        serious = {AilmentKind(sign.value) for sign in policy.quarantine.signs}
        for sign in sorted(vitals.signs, key=lambda sign: list(AILMENTS).index(sign.kind)):
            if sign.kind in serious:
                yield Ailment(sign.kind, sign.detail)


def unreachable(vitals: Vitals) -> Ailment:
    """The ailment of a device that is gone or does not answer."""
    if vitals.relaid:
        return Ailment(AilmentKind.RELAID, "its GPU has a MIG layout without this device")
    if vitals.lost:
        return Ailment(AilmentKind.LOST, "the device has fallen off its bus")
    why = f": {vitals.why}" if vitals.why else ""
    return Ailment(AilmentKind.UNRESPONSIVE, f"the driver does not answer for this device{why}")


def next_baseline(vitals: Vitals | None, before: Baseline) -> Baseline:
    """The baseline after these vitals were diagnosed: their errors are not new next time."""
    if vitals is None:
        return before
    # After a restart of the service the vitals may lack older errors, so the number never decreases.
    last = max((before.last_xid, *(xid.number for xid in vitals.xids)))
    uncounted = vitals.lost or vitals.unresponsive or vitals.partial  # no counters were read: keep the last ones
    return Baseline(last, before.ecc_uncorrectable if uncounted else vitals.ecc_uncorrectable)


RESET_BY_PERSON = (
    "reboot the node, or reset the device and run `autoclave reinstate {gpu} --without-scrub --i-know --reason TEXT`,"
    " or allow resets in the policy"
)
BY_PERSON = "run `autoclave reinstate {gpu}` to test the GPU again", "Autoclave does not do that by itself"


def remedy(ailment: Ailment) -> Remedy:
    """The remedy of this ailment. A sticky ailment always needs a person: the service starts no test."""
    needed: Remedy = AILMENTS[ailment.kind]
    if ailment.xid is not None:
        needed = AFTER_XID.get(xids.required_action(ailment.xid), needed)
    decided = not ailment.sticky or needed.course is Course.PERSON
    return needed if decided else Remedy(Course.PERSON, BY_PERSON)


def path_after(ailment: Ailment) -> ScrubPath:
    """The least thorough path that may prove a device clean after this ailment. Only a doubt asks for a reset."""
    needed = remedy(ailment)
    return ScrubPath.FAST if needed.course is Course.WAIT or needed.without_reset else ScrubPath.RESET


def rank(ailment: Ailment) -> int:
    """How strong a remedy the ailment needs. Of equal ones, an ailment that puts results in doubt is worse."""
    needed = remedy(ailment)
    return 2 * list(Course).index(needed.course) + needed.doubtful


def lasts(ailment: Ailment, facts: Facts) -> bool:
    """Whether a device that answers still has the ailment for certain, so that a probation would fail."""
    match AILMENTS[ailment.kind].lasts:
        case Lasts.REPORTED:
            return facts.vitals is not None and any(sign.kind is ailment.kind for sign in facts.vitals.signs)
        case Lasts.HELD:
            return facts.holders != ()
        case Lasts.UNKNOWN:
            return False
