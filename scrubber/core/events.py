"""What happened to a device, in the past tense. The ledger stores these and nothing else.

Names and fields are a stored format: ``ledger.codec`` gives each a fixed kind, so a class may be renamed but a field
may only be added with a default.
"""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core.model import (
    Ailment,
    DeviceInfo,
    Grant,
    Holder,
    Incarnation,
    Job,
    Moment,
    Owner,
    Path,
    Quarantine,
    Receipt,
    Step,
    StepResult,
)


@dataclass(frozen=True, slots=True)
class Discovered:
    """Seen for the first time, or for the first time since the ledger was lost."""

    device: DeviceInfo
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Described:
    """The same device under another index, model name or size."""

    device: DeviceInfo


@dataclass(frozen=True, slots=True)
class Distrusted:
    """What was known of its memory no longer holds: another boot, another driver instance."""

    why: str
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Granted:
    """Handed out, on the strength of a receipt."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class GrantedUnproven:
    """Handed out although nothing was proven, because policy ``observe`` says so in writing."""

    grant: Grant
    why: str


@dataclass(frozen=True, slots=True)
class PutInUse:
    """Something runs on it."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class Released:
    """Nobody runs on it any more; its memory is what the tenant left."""

    why: str


@dataclass(frozen=True, slots=True)
class Soiled:
    """A proof ended: somebody used a clean device without asking, or the proof grew too old."""

    why: str
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class ScrubStarted:
    """A job began."""

    job: Job


@dataclass(frozen=True, slots=True)
class ProbationStarted:
    """A job began on a quarantined device, which stays quarantined unless the job ends clean."""

    job: Job
    by: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step of a job is about to run."""

    job: str
    step: Step
    path: Path


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step ended, one way or another."""

    job: str
    result: StepResult


@dataclass(frozen=True, slots=True)
class Escalated:
    """A path failed; the job goes on with a more thorough one."""

    job: str
    why: str
    path: Path


@dataclass(frozen=True, slots=True)
class ScrubPassed:
    """Every wanted step passed: here is the receipt."""

    job: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class ScrubFailed:
    """The job ended without a proof, and the device is not to blame."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class ScrubInterrupted:
    """The job was cut off: a stop, a kill, a crash. Nothing was proven."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class AilmentFound:
    """Found sick while in use: reported, left alone until it is released."""

    ailment: Ailment


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Kept out until evidence, or a person, brings it back."""

    quarantine: Quarantine


@dataclass(frozen=True, slots=True)
class ErrorsNoted:
    """Errors were reported that do not make it sick now: an application's own, or it is out already, or it is new."""

    codes: tuple[tuple[int, int], ...]  # each code, and how often
    last: int  # number of the newest
    grave: bool = False  # they are from before its first look, and would have taken it out: it owes the slow path


@dataclass(frozen=True, slots=True)
class Reinstated:
    """A person ended a quarantine without evidence. What its memory holds is proven all the same, as after a tenant."""

    by: str  # who, and in which words


Event = (
    Discovered
    | Described
    | Distrusted
    | Granted
    | GrantedUnproven
    | PutInUse
    | Released
    | Soiled
    | ScrubStarted
    | ProbationStarted
    | StepStarted
    | StepFinished
    | Escalated
    | ScrubPassed
    | ScrubFailed
    | ScrubInterrupted
    | AilmentFound
    | Quarantined
    | ErrorsNoted
    | Reinstated
)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One event in its place: which device, when, in which operation."""

    seq: int
    device: str
    at: Moment
    op: str
    event: Event
