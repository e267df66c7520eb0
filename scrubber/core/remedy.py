"""What a sickness asks for: what is tried by itself, and what a person should do.

What is tried follows from the reason. A device that was proven bad is not tried until it happens to pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from policies.xids import Action, required_action
from scrubber.core.model import Ailment, AilmentKind, Path, Vitals


class Course(Enum):
    """What may bring a device back without a person."""

    WAIT = "wait"  # until it is not told any more; then its memory is proven anew
    RESET = "reset"  # the slow path: reset, scrub, test
    PERSON = "person"

    @property
    def path(self) -> Path:
        """What a trial runs."""
        return Path.SLOW if self is Course.RESET else Path.FAST


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way back. ``doubtful``: what is computed on the device meanwhile, or who sees it, is in doubt."""

    course: Course
    advice: str
    doubtful: bool = True


_BACK = "it is tried again by itself"
_RMA = "replace it (RMA); then `autoclave reinstate`"
_RESET = f"nothing yet: {_BACK}, with a reset; if that keeps failing, reboot the node"

REMEDIES: dict[AilmentKind, Remedy] = {
    AilmentKind.LOST: Remedy(Course.RESET, f"reboot the node; check power and seating; {_BACK} once it is seen"),
    AilmentKind.UNRESPONSIVE: Remedy(
        Course.RESET, f"look for a hung driver in the kernel log; {_BACK} once it answers"
    ),
    AilmentKind.XID: Remedy(Course.RESET, _RESET),
    AilmentKind.ECC: Remedy(Course.RESET, f"{_RESET}; if the errors return, replace it (RMA)"),
    AilmentKind.SRAM: Remedy(Course.PERSON, _RMA),
    AilmentKind.REMAP_PENDING: Remedy(Course.RESET, _RESET),
    AilmentKind.REMAP_FAILED: Remedy(Course.PERSON, _RMA),
    AilmentKind.RESET_REQUIRED: Remedy(Course.RESET, _RESET),
    AilmentKind.REBOOT_REQUIRED: Remedy(Course.WAIT, f"reboot the node; {_BACK} after that"),
    AilmentKind.MEMORY_FAULT: Remedy(Course.PERSON, f"its memory does not hold what is written: {_RMA}"),
    AilmentKind.COMPUTE_FAULT: Remedy(Course.PERSON, f"it computes wrongly: {_RMA}"),
    AilmentKind.RESET_FAILED: Remedy(Course.RESET, f"nothing yet: {_BACK}; if that keeps failing, reboot the node"),
    AilmentKind.SCRUB_FAILED: Remedy(Course.RESET, f"look which step failed, with `autoclave explain`; {_BACK}"),
    AilmentKind.LINKS: Remedy(Course.RESET, f"check cables and NVLink switches; {_BACK}"),
    AilmentKind.FABRIC: Remedy(
        Course.WAIT, f"look after the fabric manager and the switches; {_BACK} once they are well"
    ),
    AilmentKind.SWITCH: Remedy(Course.RESET, f"look after the NVSwitch in the kernel log; {_BACK}, with a reset"),
    AilmentKind.PCIE: Remedy(
        Course.WAIT, f"check its seating and the slot; {_BACK} once the link is as before", doubtful=False
    ),
    AilmentKind.HEAT: Remedy(
        Course.WAIT, f"look after cooling and power; {_BACK} once it has cooled down", doubtful=False
    ),
    AilmentKind.REPLACED: Remedy(
        Course.RESET, f"nothing: another GPU sits in its place; {_BACK} should it be put back"
    ),
    AilmentKind.RELAID: Remedy(
        Course.WAIT, f"nothing: its GPU has another layout; {_BACK} should it have this one again"
    ),
    AilmentKind.STUCK_PROCESS: Remedy(
        Course.WAIT,
        "a process that cannot be ended holds it: look at its kernel stack (/proc/PID/stack), reboot the node if it"
        f" stays; {_BACK} once nobody is on it",
    ),
    AilmentKind.FLAPPING: Remedy(Course.PERSON, f"it does not stay well: {_RMA}"),
    AilmentKind.OPERATOR: Remedy(Course.PERSON, "bring it back with `autoclave reinstate` when you are done with it"),
}

# They say nothing about the device: a return from one of them does not count as flapping.
BLAMELESS = frozenset({AilmentKind.STUCK_PROCESS, AilmentKind.RELAID})

_ASKED = {
    Action.CONTACT_SUPPORT: Remedy(Course.PERSON, "open a case with the vendor; then `autoclave reinstate`"),
    Action.CHECK_MECHANICALS: Remedy(Course.RESET, f"check its seating, power leads and cables; {_BACK}"),
    Action.RESTART_VM_OR_NODE: Remedy(Course.RESET, f"reboot the node; {_BACK}, with a reset, and after the reboot"),
    Action.UPDATE_SOFTWARE: Remedy(Course.RESET, f"bring driver and firmware up to date; {_BACK}"),
}


def of(ailment: Ailment) -> Remedy:
    """What this sickness asks for; a person, once it was said that one must decide."""
    remedy = REMEDIES[ailment.kind]
    if ailment.kind is AilmentKind.XID and ailment.xid is not None:
        remedy = _ASKED.get(required_action(ailment.xid), remedy)
    return replace(remedy, course=Course.PERSON) if ailment.sticky else remedy


def rank(ailment: Ailment) -> int:
    """How much it asks for; where that is the same, doubt counts more."""
    remedy = of(ailment)
    return 2 * list(Course).index(remedy.course) + remedy.doubtful


def persists(ailment: Ailment, vitals: Vitals | None) -> bool:
    """Whether it is told still, so that there is no use in trying; what nobody can tell is not told."""
    if vitals is None:
        return False
    if ailment.kind in (AilmentKind.LOST, AilmentKind.REPLACED, AilmentKind.RELAID):
        return vitals.lost
    if ailment.kind is AilmentKind.UNRESPONSIVE:
        return vitals.unresponsive
    if ailment.kind is AilmentKind.SWITCH or of(ailment).course is Course.WAIT:
        return any(sign.kind is ailment.kind for sign in vitals.signs)
    return False
