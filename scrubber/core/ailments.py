"""Diagnosis: what is newly wrong with a device, by what it reports and what was known before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from policies import xids
from policies.model import Policy
from scrubber.core import remedy
from scrubber.core.model import Ailment, AilmentKind, Baseline, Vitals, Xid

WORST_FIRST = (
    AilmentKind.SRAM,
    AilmentKind.REBOOT_REQUIRED,
    AilmentKind.LINKS,
    AilmentKind.SWITCH,
    AilmentKind.FABRIC,
    AilmentKind.PCIE,
    AilmentKind.HEAT,
)


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
    return worst(_found(vitals, baseline, policy)) if vitals is not None else None


def worst(found: Iterable[Ailment]) -> Ailment | None:
    """The ailment that needs the strongest remedy, because it covers the weaker ones. Of equals, the first."""
    return max(found, key=remedy.rank, default=None)


def _found(vitals: Vitals, baseline: Baseline, policy: Policy) -> Iterator[Ailment]:
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
        yield Ailment(AilmentKind.ECC, f"{new} new uncorrectable memory error(s)")
    yield from reported
    if vitals.reset_required:
        yield Ailment(AilmentKind.RESET_REQUIRED, "the driver asks for a reset")
    if vitals.remap_pending:
        yield Ailment(AilmentKind.REMAP_PENDING, "a memory row waits to be remapped: needs a reset")
    yield from _serious_signs(vitals, policy)


def unreachable(vitals: Vitals) -> Ailment:
    """The ailment of a device that is gone or does not answer."""
    if vitals.relaid:
        return Ailment(AilmentKind.RELAID, "its GPU has a MIG layout without this device")
    if vitals.lost:
        return Ailment(AilmentKind.LOST, "the device has fallen off its bus")
    why = f": {vitals.why}" if vitals.why else ""
    return Ailment(AilmentKind.UNRESPONSIVE, f"the driver does not answer for this device{why}")


def _serious_signs(vitals: Vitals, policy: Policy) -> Iterator[Ailment]:
    """The signs that lead to a quarantine under this policy, worst first."""
    if not vitals.signs:  # the usual case, in every round
        return
    serious = {AilmentKind(sign.value) for sign in policy.quarantine.signs}
    for sign in sorted(vitals.signs, key=lambda it: WORST_FIRST.index(it.kind)):
        if sign.kind in serious:
            yield Ailment(sign.kind, sign.detail)


def next_baseline(vitals: Vitals | None, before: Baseline) -> Baseline:
    """The baseline after these vitals were diagnosed: their errors are not new next time."""
    if vitals is None:
        return before
    # After a restart of the service the vitals may lack older errors, so the number never decreases.
    last = max((before.last_xid, *(xid.number for xid in vitals.xids)))
    uncounted = vitals.lost or vitals.unresponsive or vitals.partial  # no counters were read: keep the last ones
    return Baseline(last, before.ecc_uncorrectable if uncounted else vitals.ecc_uncorrectable)
