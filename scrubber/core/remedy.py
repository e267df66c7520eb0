"""What each ailment needs: what the service tries by itself, and what a person should do.

A device whose hardware was proven faulty gets no probation, because it could pass one by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from policies.xids import Action, required_action
from scrubber.core.model import Ailment, AilmentKind, ScrubPath, Vitals


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
        "look for a hung driver in the kernel log; Autoclave waits until the driver answers, then scrubs the GPU, and"
        " resets it only if the driver also logs an error (XID) or asks for a reset",
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
    AilmentKind.FABRIC: Remedy(Course.WAIT, f"check the fabric manager and the switches; {_BACK} once they work"),
    AilmentKind.SWITCH: Remedy(Course.RESET, f"look for the NVSwitch in the kernel log; {_BACK}, with a reset"),
    AilmentKind.PCIE: Remedy(
        Course.WAIT,
        f"check the seating and the slot; {_BACK} once the link has its former speed and width",
        doubtful=False,
    ),
    AilmentKind.HEAT: Remedy(Course.WAIT, f"check cooling and power; {_BACK} once it has cooled down", doubtful=False),
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

# These ailments are no faults of the device: a return from one of them does not count as flapping.
BLAMELESS = frozenset({AilmentKind.STUCK_PROCESS, AilmentKind.RELAID})

_ASKED = {
    Action.CONTACT_SUPPORT: Remedy(Course.PERSON, "open a case with the vendor; then `autoclave reinstate {gpu}`"),
    Action.CHECK_MECHANICALS: Remedy(Course.RESET, f"check the seating, power leads and cables; {_BACK}"),
    Action.RESTART_VM_OR_NODE: Remedy(Course.RESET, f"{_REBOOT}; {_BACK}, with a reset, also after the reboot"),
    Action.UPDATE_SOFTWARE: Remedy(Course.RESET, f"bring driver and firmware up to date; {_BACK}"),
}


def of(ailment: Ailment) -> Remedy:
    """The remedy of this ailment. A sticky ailment always needs a person, and no test begins by itself."""
    remedy = REMEDIES[ailment.kind]
    if ailment.xid is not None:
        remedy = _ASKED.get(required_action(ailment.xid), remedy)
    decided = not ailment.sticky or remedy.course is Course.PERSON
    return remedy if decided else Remedy(Course.PERSON, BY_PERSON)


def of_sign(kind: AilmentKind) -> str:
    """What a person does about a sign of a device that stays in service, for which no test is made."""
    return REMEDIES[kind].advice.partition(f"; {_BACK}")[0]


def path(ailment: Ailment) -> ScrubPath:
    """The least thorough path that may prove a device clean after this ailment. Only a doubt asks for a reset."""
    without_reset = of(ailment).course is Course.WAIT or ailment.kind is AilmentKind.OPERATOR
    return ScrubPath.FAST if without_reset else ScrubPath.RESET


def rank(ailment: Ailment) -> int:
    """How strong a remedy the ailment needs. Of equal ones, an ailment that puts results in doubt is worse."""
    remedy = of(ailment)
    return 2 * list(Course).index(remedy.course) + remedy.doubtful


def persists(ailment: Ailment, vitals: Vitals) -> bool:
    """Whether a device that answers still reports the ailment, so that a probation would fail."""
    without_reset = ailment.kind is AilmentKind.SWITCH or of(ailment).course is Course.WAIT
    return without_reset and any(sign.kind is ailment.kind for sign in vitals.signs)
