"""What is newly wrong with a device, by what it reports and what was known before; and what each ailment needs.

A remedy is what the service tries by itself, and what a person should do. A device whose hardware was proven faulty
gets no probation, because it could pass one by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from ground.quantities import quantity
from policies import xids
from policies.model import Policy
from scrubber.core.model import Ailment, AilmentKind, Baseline, ScrubPath, Vitals, Xid

WORST_FIRST = (
    AilmentKind.SRAM,
    AilmentKind.REBOOT_REQUIRED,
    AilmentKind.LINKS,
    AilmentKind.SWITCH,
    AilmentKind.FABRIC,
    AilmentKind.PCIE,
    AilmentKind.HEAT,
    AilmentKind.GHOST_LOAD,
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
    return worst(_ailments(vitals, baseline, policy)) if vitals is not None else None


def worst(candidates: Iterable[Ailment]) -> Ailment | None:
    """The ailment that needs the strongest remedy, because it covers the weaker ones. Of equals, the first."""
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
        for sign in sorted(vitals.signs, key=lambda it: WORST_FIRST.index(it.kind)):
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


class Course(Enum):
    """What may end a quarantine."""

    WAIT = "wait"  # until the device no longer reports the ailment; then the fast path
    RESET = "reset"  # the path ``reset``: reset, scrub, test
    PERSON = "person"  # a decision of an operator


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way back. ``doubtful``: while the ailment lasts, the device may compute wrongly or leak data.

    ``advice`` has ``{gpu}`` where the name of the device belongs.
    """

    course: Course
    advice: str
    doubtful: bool = True


_BACK = "Autoclave tests the GPU again automatically"
_RMA = "replace the GPU (RMA){}; then `autoclave reinstate {{gpu}}`"
_REBOOT = "drain and reboot the node"
RESET_BY_PERSON = (
    "reboot the node, or reset the device and run `autoclave reinstate {gpu} --without-scrub --i-know --reason TEXT`,"
    " or allow resets in the policy"
)
BY_PERSON = "run `autoclave reinstate {gpu}` to test the GPU again; Autoclave does not do that by itself"
_RESET = f"wait: {_BACK}, with a reset; if that keeps failing, {_REBOOT}"

REMEDIES: dict[AilmentKind, Remedy] = {
    AilmentKind.LOST: Remedy(Course.RESET, f"{_REBOOT}; check power and seating; {_BACK} once it is visible"),
    AilmentKind.UNRESPONSIVE: Remedy(
        Course.WAIT,
        "look on the node for a driver that hangs: `journalctl -k --grep 'NVRM|Xid|blocked for more'`; Autoclave waits"
        " until the driver answers, then scrubs the GPU, and resets it only if the driver also logs an error (XID) or"
        " asks for a reset",
    ),
    AilmentKind.XID: Remedy(Course.RESET, _RESET),
    AilmentKind.ECC: Remedy(Course.RESET, f"{_RESET}; if the errors return, replace the GPU (RMA)"),
    AilmentKind.SRAM: Remedy(Course.PERSON, _RMA.format("")),
    AilmentKind.REMAP_PENDING: Remedy(Course.RESET, _RESET),
    AilmentKind.REMAP_FAILED: Remedy(Course.PERSON, _RMA.format("")),
    AilmentKind.RESET_REQUIRED: Remedy(Course.RESET, _RESET),
    AilmentKind.REBOOT_REQUIRED: Remedy(Course.WAIT, f"{_REBOOT}; {_BACK} after that"),
    AilmentKind.MEMORY_FAULT: Remedy(Course.PERSON, _RMA.format(", because its memory does not hold what is written")),
    AilmentKind.COMPUTE_FAULT: Remedy(Course.PERSON, _RMA.format(", because it computes wrongly")),
    AilmentKind.RESET_FAILED: Remedy(Course.RESET, f"wait: {_BACK}; if that keeps failing, {_REBOOT}"),
    AilmentKind.SCRUB_FAILED: Remedy(Course.RESET, f"see above which step failed; {_BACK}"),
    AilmentKind.LINKS: Remedy(Course.RESET, f"check cables and NVLink switches; {_BACK}"),
    AilmentKind.FABRIC: Remedy(
        Course.WAIT,
        f"check the fabric manager and the switches, and nvidia-imex if the fabric has it; {_BACK} once they work",
    ),
    AilmentKind.SWITCH: Remedy(Course.RESET, f"look for the NVSwitch in the kernel log; {_BACK}, with a reset"),
    AilmentKind.PCIE: Remedy(
        Course.WAIT,
        f"check the seating and the slot; {_BACK} once the link has its former speed and width",
        doubtful=False,
    ),
    AilmentKind.HEAT: Remedy(Course.WAIT, f"check cooling and power; {_BACK} once it has cooled down", doubtful=False),
    AilmentKind.GHOST_LOAD: Remedy(
        Course.WAIT,
        "look in /proc for a process that the driver does not list; if there is none, only the report of its load is"
        f" wrong, and `autoclave scrub {{gpu}}` may mend it; {_BACK}",
        doubtful=False,
    ),
    AilmentKind.REPLACED: Remedy(Course.RESET, f"do nothing: another GPU is in its place; {_BACK} if it is put back"),
    AilmentKind.RELAID: Remedy(
        Course.WAIT, "do nothing: its GPU has another MIG layout; if the slice returns, Autoclave tests it again"
    ),
    AilmentKind.STUCK_PROCESS: Remedy(
        Course.WAIT,
        "look at the kernel stack (/proc/PID/stack) of the process that does not end; if it stays,"
        f" {_REBOOT}; {_BACK} once no process holds the GPU",
    ),
    AilmentKind.FLAPPING: Remedy(Course.PERSON, _RMA.format(", because it keeps failing")),
    AilmentKind.OPERATOR: Remedy(Course.PERSON, "run `autoclave reinstate {gpu}` when your work on the GPU is done"),
}

# These ailments are not faults of the device: a return from one of them does not count as flapping.
BLAMELESS = frozenset({AilmentKind.STUCK_PROCESS, AilmentKind.RELAID})

_ASKED = {
    xids.RequiredAction.CONTACT_SUPPORT: Remedy(
        Course.PERSON, "open a case with the vendor; then `autoclave reinstate {gpu}`"
    ),
    xids.RequiredAction.CHECK_MECHANICALS: Remedy(Course.RESET, f"check the seating, power leads and cables; {_BACK}"),
    xids.RequiredAction.RESTART_VM_OR_NODE: Remedy(
        Course.RESET, f"{_REBOOT}; {_BACK}, with a reset, also after the reboot"
    ),
    xids.RequiredAction.UPDATE_SOFTWARE: Remedy(Course.RESET, f"bring driver and firmware up to date; {_BACK}"),
}


def remedy(ailment: Ailment) -> Remedy:
    """The remedy of this ailment. A sticky ailment always needs a person, and no test begins by itself."""
    known = REMEDIES[ailment.kind]
    if ailment.xid is not None:
        known = _ASKED.get(xids.required_action(ailment.xid), known)
    decided = not ailment.sticky or known.course is Course.PERSON
    return known if decided else Remedy(Course.PERSON, BY_PERSON)


def remedy_of_sign(kind: AilmentKind) -> str:
    """What a person does about a sign of a device that stays in service, for which no test is made."""
    return REMEDIES[kind].advice.partition(f"; {_BACK}")[0]


def path_after(ailment: Ailment) -> ScrubPath:
    """The least thorough path that may prove a device clean after this ailment. Only a doubt asks for a reset."""
    without_reset = remedy(ailment).course is Course.WAIT or ailment.kind is AilmentKind.OPERATOR
    return ScrubPath.FAST if without_reset else ScrubPath.RESET


def rank(ailment: Ailment) -> int:
    """How strong a remedy the ailment needs. Of equal ones, an ailment that puts results in doubt is worse."""
    needed = remedy(ailment)
    return 2 * list(Course).index(needed.course) + needed.doubtful


def persists(ailment: Ailment, vitals: Vitals) -> bool:
    """Whether a device that answers still reports the ailment, so that a probation would fail."""
    if ailment.kind is AilmentKind.GHOST_LOAD:  # a scrub may end it
        return False
    without_reset = ailment.kind is AilmentKind.SWITCH or remedy(ailment).course is Course.WAIT
    return without_reset and any(sign.kind is ailment.kind for sign in vitals.signs)
