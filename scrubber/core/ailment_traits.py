"""What is known of each ailment: one row for each kind, from which all rooms decide."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from policies.xidtable import RequiredAction
from scrubber.core.model import AilmentKind


class Course(Enum):
    """What may end a quarantine."""

    WAIT = "wait"  # until the device no longer reports the ailment; then the fast path
    RESET = "reset"  # the path ``reset``: reset, scrub, test
    PERSON = "person"  # a decision of an operator


class Lasts(Enum):
    """How long an ailment lasts at least. A probation before that could only fail."""

    REPORTED = "while the device reports its sign"
    HELD = "while a process holds the device"
    UNKNOWN = "a scrub may end it"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way back. In its sentences, each with one command at most, ``{gpu}`` stands for the name of the device."""

    course: Course
    action: tuple[str, ...]  # what a person does
    then: str = ""  # what Autoclave does after it, if the device is in quarantine
    doubtful: bool = True  # while the ailment lasts, the device may compute wrongly or leak data
    without_reset: bool = False  # although a person decides: nothing puts the device in doubt

    @property
    def advice(self) -> tuple[str, ...]:
        """What a person should do about a device in quarantine, and what follows."""
        return (*self.action, self.then) if self.then else self.action


@dataclass(frozen=True, slots=True)
class AilmentTraits(Remedy):
    """The remedy of an ailment, and what else the other rooms must know about the ailment."""

    lasts: Lasts = Lasts.UNKNOWN
    sign_after: float | None = None  # seconds for which the device must show its sign; None: it has no sign
    of_slices: bool = True  # a slice of a GPU shows the sign, too
    escalates: bool = True  # a scrub without a reset that fails because of it begins again with one
    blameless: bool = False  # no fault of the device: a return from it does not count as flapping
    gone: bool = False  # the device is not there
    taken_away: bool = False  # ... on purpose: no person waits for it
    first_look: bool = False  # nothing is known about its memory, as at a first observation


_BACK = "Autoclave tests the GPU again automatically"
_REPLACE, _THEN = "replace the GPU (RMA)", "then `autoclave reinstate {gpu}`"
_REPLACED = "a new GPU needs nothing more; after a repair of this one, run `autoclave reinstate {gpu}`"
_REBOOT = "drain and reboot the node"
_FAILS = f"if that keeps failing, {_REBOOT}"
_RESET = f"wait: {_BACK}, with a reset", _FAILS

AILMENTS = {
    # Found in what the device or its driver reports.
    AilmentKind.LOST: AilmentTraits(
        Course.RESET, (_REBOOT, "check power and seating"), f"{_BACK} once it is visible", gone=True
    ),
    AilmentKind.UNRESPONSIVE: AilmentTraits(
        Course.WAIT,
        ("look on the node for a driver that hangs: `journalctl -k --grep 'NVRM|Xid|blocked for more'`",),
        "Autoclave waits until the driver answers, then scrubs the GPU, and resets it only if the driver also logs an"
        " error (XID) or asks for a reset",
        escalates=False,  # a reset because of late answers alone would make the answers of other GPUs late
    ),
    AilmentKind.XID: AilmentTraits(Course.RESET, _RESET, escalates=False),  # no scrub removes a logged error
    AilmentKind.ECC: AilmentTraits(Course.RESET, (*_RESET, "if the errors return, replace the GPU (RMA)")),
    AilmentKind.REMAP_PENDING: AilmentTraits(Course.RESET, _RESET),
    AilmentKind.REMAP_FAILED: AilmentTraits(Course.PERSON, (_REPLACE, _REPLACED)),
    AilmentKind.RESET_REQUIRED: AilmentTraits(Course.RESET, _RESET),
    # Found by its sign. The worse sign stands first: of two that need an equally strong remedy, it is the ailment.
    AilmentKind.SRAM: AilmentTraits(Course.PERSON, (_REPLACE, _REPLACED), lasts=Lasts.REPORTED, sign_after=0.0),
    AilmentKind.REBOOT_REQUIRED: AilmentTraits(
        Course.WAIT, (_REBOOT,), f"{_BACK} after that", lasts=Lasts.REPORTED, sign_after=0.0
    ),
    AilmentKind.LINKS: AilmentTraits(
        Course.RESET, ("check cables and NVLink switches",), _BACK,
        sign_after=10.0,  # links are trained within seconds
        of_slices=False,
    ),
    AilmentKind.SWITCH: AilmentTraits(
        Course.RESET, ("look for the NVSwitch in the kernel log",), f"{_BACK}, with a reset",
        lasts=Lasts.REPORTED, sign_after=0.0,
    ),
    AilmentKind.FABRIC: AilmentTraits(
        Course.WAIT, ("check the fabric manager and the switches, and nvidia-imex if the fabric has it",),
        f"{_BACK} once they work", lasts=Lasts.REPORTED,
        sign_after=30.0,  # a restart of the fabric manager ends sooner
        of_slices=False,
    ),
    AilmentKind.PCIE: AilmentTraits(
        Course.WAIT, ("check the seating and the slot",), f"{_BACK} once the link has its former speed and width",
        doubtful=False, lasts=Lasts.REPORTED, sign_after=10.0,
    ),
    AilmentKind.HEAT: AilmentTraits(
        Course.WAIT, ("check cooling and power",), f"{_BACK} once it has cooled down",
        doubtful=False, lasts=Lasts.REPORTED, sign_after=30.0,
    ),
    AilmentKind.GHOST_LOAD: AilmentTraits(
        Course.WAIT,
        (
            "look in /proc for a process that the driver does not list",
            "if there is none, only the report of its load is wrong, and `autoclave scrub {gpu}` may correct it",
        ),
        _BACK,
        doubtful=False,
        sign_after=30.0,  # a peak of load ends sooner
        of_slices=False,
    ),
    # Found by a scrub.
    AilmentKind.MEMORY_FAULT: AilmentTraits(
        Course.PERSON, (f"{_REPLACE}, because its memory does not hold what is written", _REPLACED)
    ),
    AilmentKind.COMPUTE_FAULT: AilmentTraits(Course.PERSON, (f"{_REPLACE}, because it computes wrongly", _REPLACED)),
    AilmentKind.RESET_FAILED: AilmentTraits(Course.RESET, (f"wait: {_BACK}", _FAILS)),
    AilmentKind.SCRUB_FAILED: AilmentTraits(Course.RESET, ("see above which step failed",), _BACK),
    AilmentKind.STUCK_PROCESS: AilmentTraits(
        Course.WAIT,
        ("look at the kernel stack (/proc/PID/stack) of the process that does not end", f"if it stays, {_REBOOT}"),
        f"{_BACK} once no process holds the GPU", lasts=Lasts.HELD, blameless=True,
    ),
    # Found by what happened to the device before.
    AilmentKind.REPLACED: AilmentTraits(
        Course.RESET, ("do nothing: another GPU is in its place",), f"{_BACK} if it is put back",
        gone=True, taken_away=True,
    ),
    AilmentKind.RELAID: AilmentTraits(
        Course.WAIT, ("do nothing: its GPU has another MIG layout",), "if the slice returns, Autoclave tests it again",
        blameless=True, gone=True, taken_away=True, first_look=True,
    ),
    AilmentKind.FLAPPING: AilmentTraits(Course.PERSON, (f"{_REPLACE}, because it keeps failing", _REPLACED)),
    AilmentKind.OPERATOR: AilmentTraits(
        Course.PERSON, ("run `autoclave reinstate {gpu}` when your work on the GPU is done",), without_reset=True
    ),
}  # fmt: skip

AFTER_XID = {  # the remedy of an XID, where the catalogue asks for more than a reset
    RequiredAction.CONTACT_SUPPORT: Remedy(Course.PERSON, ("open a case with the vendor", _THEN)),
    RequiredAction.CHECK_MECHANICALS: Remedy(Course.RESET, ("check the seating, power leads and cables",), _BACK),
    RequiredAction.RESTART_VM_OR_NODE: Remedy(
        Course.RESET, (f"wait: {_BACK}, with a reset", f"if the test fails, {_REBOOT}"), f"{_BACK} after the reboot"
    ),
    RequiredAction.UPDATE_SOFTWARE: Remedy(Course.RESET, ("update the driver and the firmware",), _BACK),
}
