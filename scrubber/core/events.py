"""What happened to a device or to the node, in the past tense. The ledger stores these events and nothing else.

Fields are a stored format: a new one needs a default. A class may be renamed, because ``ledger.ledger_rows`` gives each
event a fixed kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core.guarded import EndedTenancy, Guarded
from scrubber.core.model import (
    Ailment,
    Blame,
    DeviceInfo,
    Grant,
    Holder,
    Incarnation,
    Job,
    Moment,
    Opener,
    Owner,
    Quarantine,
    Receipt,
    ScrubPath,
    Step,
    StepResult,
)
from scrubber.core.use_counter import FenceReading


class IllegalEventError(Exception):
    """An event that must not happen to a device in this state: a bug in the service, or an edited ledger."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The device was seen for the first time, or for the first time since the ledger was lost."""

    device: DeviceInfo
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Described:
    """The index, model name, size or place of a known device has changed."""

    device: DeviceInfo


@dataclass(frozen=True, slots=True)
class Distrusted:
    """What was known about its memory no longer holds.

    The cause is another boot or driver instance, an older ledger, or another program that calls the device unhealthy.
    """

    why: str
    incarnation: Incarnation
    older_ledger: bool = False  # the ledger may be an older copy: it may lack allocations
    fence: FenceReading | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """The device was handed out, proven clean by a receipt."""

    grant: Grant
    fence: FenceReading | None = None


@dataclass(frozen=True, slots=True)
class GrantedUnproven:
    """The device was handed out without a proof, under policy ``observe`` only."""

    grant: Grant
    why: str
    fence: FenceReading | None = None


@dataclass(frozen=True, slots=True)
class LetIn:
    """The claim that has the device is reserved for these pods now: the fence lets only them in."""

    pods: tuple[str, ...]  # their UIDs


@dataclass(frozen=True, slots=True)
class Deferred:
    """Allocate gave the device to a pod whose containers wait until it is proven clean. A grant follows at a start."""


@dataclass(frozen=True, slots=True)
class PutInUse:
    """The device has an owner, or what is known about its owner has changed."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class Released:
    """The owner of the device has ended. The memory holds what the owner left."""

    why: str
    restart: bool = False  # a container of the same owner is about to start, once the device is scrubbed
    fence: FenceReading | None = None


@dataclass(frozen=True, slots=True)
class Soiled:
    """The proof of a clean device ended: it was or may have been used without a grant, or a leak was found."""

    why: str
    holders: tuple[Holder, ...] = ()
    times: int = 1  # how often it was no longer clean, whatever the reason, since its last tenancy or its discovery
    unnamed: bool = False  # by a process that had left before it could be named


@dataclass(frozen=True, slots=True)
class OpenAttempted:
    """Somebody at one place tried to open the device, which was not given to him.

    This changes nothing. There is one row when the attempts begin in a period of the device (``open_attempts``), and
    one when he is let through after a refusal. If he tried again after that, there is another row when the period or
    the service ends, with ``ended`` and all his attempts of the period. Openers for whom there is no room have a row
    together (``model.OTHERS``).
    """

    opener: Opener
    tenancy: int  # ``Tenancy.number`` then
    held: bool  # whether the device was granted or in use
    ended: bool = False


@dataclass(frozen=True, slots=True)
class FenceMissed:
    """For a while up to now, the fence did not count an opener, or may not have counted it. This changes nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class ScrubStarted:
    """A scrub began."""

    job: Job


@dataclass(frozen=True, slots=True)
class ProbationStarted:
    """A job began on a quarantined device, which stays quarantined until the job passes."""

    job: Job
    by: str


@dataclass(frozen=True, slots=True)
class StepsRecorded:
    """What must survive a kill: the results since the last row, and that a reset or a clear is about to begin."""

    job: str
    results: tuple[StepResult, ...]
    begins: Step | None = None


@dataclass(frozen=True, slots=True)
class Escalated:
    """A path failed; the job goes on with a more thorough one."""

    job: str
    why: str
    path: ScrubPath


@dataclass(frozen=True, slots=True)
class ScrubPassed:
    """Every step of the path passed, with this receipt."""

    job: str
    receipt: Receipt
    fence: FenceReading | None = None


@dataclass(frozen=True, slots=True)
class TenancyClosed:
    """The device is proven clean after this tenancy. A signed document says who else tried to open it until then."""

    ended: EndedTenancy
    receipt: str  # the id of the receipt of its wipe
    until_wiped: Guarded  # from its end on
    envelope: str = ""  # the signed document; empty: not signed


@dataclass(frozen=True, slots=True)
class ScrubFailed:
    """The job ended without a proof, through no fault of the device."""

    job: str
    why: str
    blame: Blame | None = None  # None: not recorded
    holders: tuple[Holder, ...] = ()  # who was in its way ...
    unnamed: bool = False  # ... or a process that had left before it could be named
    times: int = 1  # how many scrubs have failed, with this one, since the last proof, reinstatement or boot


@dataclass(frozen=True, slots=True)
class ScrubInterrupted:
    """The job was cancelled or did not survive a crash. Nothing was proven."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class AilmentFound:
    """An ailment was found while the device was granted or in use. It is quarantined after its release."""

    ailment: Ailment


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The device is kept out until a scrub passes or a person decides."""

    quarantine: Quarantine


@dataclass(frozen=True, slots=True)
class ErrorsNoted:
    """The driver reported errors that lead to no ailment: the device is new or quarantined, or a program failed."""

    codes: tuple[tuple[int, int], ...]  # code and count
    last: int  # number of the newest error
    grave: bool = False  # not judged, because it is from before an observation or a decision: a reset is due


@dataclass(frozen=True, slots=True)
class Reinstated:
    """A person ended a quarantine without a proof. The device is scrubbed as after a tenant."""

    by: str  # the person, with the reason


@dataclass(frozen=True, slots=True)
class QuarantineWithdrawn:
    """A person withdrew a quarantine that waited for the end of a use. The device was never quarantined for it."""

    by: str  # the person, with the reason


@dataclass(frozen=True, slots=True)
class ServiceStarted:
    """The service began to look after this node."""

    version: str
    cut_off: bool = False  # its last run did not end with ``ServiceStopped``: a kill, a power cut, an error


@dataclass(frozen=True, slots=True)
class ServiceStopped:
    """The service was stopped. From here on it observes nothing."""


@dataclass(frozen=True, slots=True)
class StoodStill:
    """The service did not run for a while, although it had not ended: it observed nothing and answered nobody."""

    since: Moment  # the beginning of the first time
    seconds: float  # of all times together
    times: int = 1
    suspended: float = 0.0  # seconds for which the whole machine was suspended


@dataclass(frozen=True, slots=True)
class WritesFailed:
    """The ledger could not be written for a while. During that time no device was handed out."""

    since: Moment  # the first write that failed
    until: Moment
    why: str  # of the first one


@dataclass(frozen=True, slots=True)
class ClockMoved:
    """The wall clock was set: the times of the rows before and after this one do not fit together."""

    seconds: float  # negative: back


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """Another policy is in force from here on."""

    name: str
    digest: str  # of the whole policy


Event = (
    Discovered
    | Described
    | Distrusted
    | Granted
    | GrantedUnproven
    | LetIn
    | Deferred
    | PutInUse
    | Released
    | Soiled
    | OpenAttempted
    | FenceMissed
    | ScrubStarted
    | ProbationStarted
    | StepsRecorded
    | Escalated
    | ScrubPassed
    | TenancyClosed
    | ScrubFailed
    | ScrubInterrupted
    | AilmentFound
    | Quarantined
    | ErrorsNoted
    | Reinstated
    | QuarantineWithdrawn
    | ServiceStarted
    | ServiceStopped
    | StoodStill
    | WritesFailed
    | ClockMoved
    | PolicyInForce
)


NODE = ""
"""The device of an entry that concerns the whole node."""
NodeEvent = ServiceStarted | ServiceStopped | StoodStill | WritesFailed | ClockMoved | PolicyInForce
OF_NODE = (ServiceStarted, ServiceStopped, StoodStill, WritesFailed, ClockMoved, PolicyInForce)
"""The events of the node: they change no record."""

READS_FENCE = (Distrusted, Granted, GrantedUnproven, Released, ScrubPassed)
"""The events that have the reading of the fence with which the look began that they rest on."""

ON_NO_USE = (Granted, ScrubPassed)
"""Those of them that are only written if nobody has used the device since that reading."""


WARNINGS = (
    Distrusted, GrantedUnproven, Soiled, Escalated, ScrubFailed, AilmentFound, Quarantined, Reinstated,
    PutInUse, ServiceStarted, StoodStill, WritesFailed, ClockMoved, OpenAttempted, FenceMissed,
)  # fmt: skip
"""The events that may be warnings."""


STEPS = (ScrubStarted, StepsRecorded)
"""The events that only tell how a scrub went. All others are evidence: they are kept much longer."""


def is_warning(event: Event) -> bool:
    """Whether this is a fault, a failed scrub, unauthorised use, a bypass of a hook, or a lost or missing proof."""
    match event:
        case PutInUse(owner):
            return owner.crowded
        case OpenAttempted(opener):
            return not opener.exempt
        case ServiceStarted(cut_off=cut_off):
            return cut_off
        case _:
            return isinstance(event, WARNINGS)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One event with its number, device, time and operation. Number 0: not in the ledger yet."""

    seq: int
    device: str
    at: Moment
    op: str
    event: Event
