"""The words of the house: values that decisions are made from.

Frozen, and compared by value. Hardware is described as it was seen: what could not be read is ``None``, never a yes.
Over 400 lines, because all words stand in one place, and each is a line with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from policies.path import Path as Path  # noqa: PLC0414 - for rooms that must not import policies
from scrubber.core.measurements import Measurements, Mismatch, Uncovered
from scrubber.core.names import named


class State(Enum):
    """Where a device is in its life. The legal moves stand in ``states.TABLE``."""

    UNKNOWN = "unknown"
    DIRTY = "dirty"
    SCRUBBING = "scrubbing"
    CLEAN = "clean"
    GRANTED = "granted"
    IN_USE = "in_use"
    QUARANTINED = "quarantined"


class Step(Enum):
    """The deeds a path is made of."""

    EVICT = "evict"
    RESET = "reset"
    CLEAR = "clear"
    VERIFY = "verify"
    SCRATCH = "scratch"
    SELFTEST = "selftest"
    SETTINGS = "settings"
    HEALTH = "health"


class Trigger(Enum):
    """What made a scrub start."""

    ACQUIRE = "acquire"
    START = "start"
    RELEASE = "release"
    FIRST_LOOK = "first-look"
    FOREIGN_USE = "foreign-use"
    PROOF_EXPIRED = "proof-expired"
    RETRY = "retry"
    REQUEST = "request"
    PROBATION = "probation"
    BURN_IN = "burn-in"
    REINSTATE = "reinstate"


class Outcome(Enum):
    """How a step ended. Only PASSED is a yes."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    DIED = "died"
    ABORTED = "aborted"


class Blame(Enum):
    """Whose fault a failure is: it decides what comes next."""

    DEVICE = "device"  # escalate, then quarantine
    TENANT = "tenant"  # somebody is on the device: leave it alone, try again later
    SERVICE = "service"  # we were told to stop, or cannot do what is wanted, or did less: try again later


class AilmentKind(Enum):
    """Why a device is quarantined."""

    LOST = "lost"
    UNRESPONSIVE = "unresponsive"
    XID = "xid"
    ECC = "ecc"
    REMAP_PENDING = "remap-pending"
    REMAP_FAILED = "remap-failed"
    RESET_REQUIRED = "reset-required"
    MEMORY_FAULT = "memory-fault"
    COMPUTE_FAULT = "compute-fault"
    RESET_FAILED = "reset-failed"
    SCRUB_FAILED = "scrub-failed"
    SRAM = "sram"
    LINKS = "links"
    PCIE = "pcie"
    HEAT = "heat"
    FABRIC = "fabric"
    SWITCH = "switch"
    REBOOT_REQUIRED = "reboot-required"
    REPLACED = "replaced"
    RELAID = "relaid"
    STUCK_PROCESS = "stuck-process"
    FLAPPING = "flapping"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time on two clocks: the wall's for people, the time since boot for arithmetic (it never jumps)."""

    wall: float
    uptime: float


@dataclass(frozen=True, slots=True)
class Incarnation:
    """What a proof is bound to: another boot or another driver instance may have used the memory meanwhile."""

    boot_id: str
    driver: str


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is. ``uuid`` is its only name in the ledger; the index may change at any boot."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    mig: bool = False
    resource: str = "nvidia.com/gpu"
    numa_node: int | None = None
    pci_address: str | None = None
    reset_domain: str | None = None  # devices that a reset of one takes down together
    island: str | None = None  # devices that are joined by fast links
    nodes: tuple[str, ...] = ()  # what a container must have under /dev to use it, beside what all devices share
    minor: int | None = None  # the number in /dev/nvidiaN; it is not the index
    compute: str | None = None  # compute capability, such as "9.0"
    parent: str | None = None  # a MIG slice: the GPU that it is a part of, whose index it bears ...
    slice: int | None = None  # ... and its number there

    @property
    def name(self) -> str:
        """How people call it."""
        return named(self.index, self.slice)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses a device. ``container`` is None when it belongs to none."""

    pid: int
    started: float  # seconds since boot; with the pid it names one process for good
    command: str
    container: str | None
    state: str = "S"  # the letter of /proc/PID/stat: D cannot be killed, Z is already dead


@dataclass(frozen=True, slots=True)
class Xid:
    """One driver error event, numbered in the order of the device's event log."""

    number: int
    code: int
    at: float = 0.0  # uptime in seconds
    action: str = ""  # what the message of XID 154 asks for, in the words of ``policies.xids.Action``


@dataclass(frozen=True, slots=True)
class Sign:
    """Something that is wrong with a device for as long as it is told."""

    kind: AilmentKind
    detail: str


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a device says of its own health. Counters only ever grow until a reset or a reboot."""

    lost: bool = False
    unresponsive: bool = False
    xids: tuple[Xid, ...] = ()
    ecc_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    leaked_bytes: int = 0
    reset_required: bool = False  # the driver asks for a reset
    why: str = ""  # it is unresponsive
    signs: tuple[Sign, ...] = ()
    partial: bool = False  # only what was reported was read, and nothing of the device itself
    relaid: bool = False  # it is lost, and its GPU answers: cut into slices, or into others, or whole again


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was already known of a device's health when it was last judged: only what is new makes it sick again."""

    last_xid: int = 0
    ecc_uncorrectable: int = 0


@dataclass(frozen=True, slots=True)
class Ailment:
    """A diagnosis. Sticky ones wait for a person."""

    kind: AilmentKind
    detail: str
    sticky: bool = False
    xid: int | None = None  # the code that was reported


@dataclass(frozen=True, slots=True)
class Findings:
    """What a step saw and measured. None means not measured."""

    covered_bytes: int | None = None
    allocatable_bytes: int | None = None
    residue_bytes: int | None = None
    mismatch: Mismatch | None = None
    holders: tuple[Holder, ...] = ()
    terminated: tuple[int, ...] = ()
    drift: tuple[str, ...] = ()
    vitals: Vitals | None = None
    residue_at: tuple[int, ...] = ()  # where the first bytes of the last user were, never what they were
    uncovered: tuple[Uncovered, ...] = ()  # what was not covered, by cause
    patterns: tuple[str, ...] = ()  # what was written and read back, in order
    units: int | None = None  # multiprocessors that the device has, or that computed
    units_reached: int | None = None  # ... and those whose memory was overwritten
    units_faulty: int | None = None  # ... and those whose memory did not hold what was written
    tests: tuple[str, ...] = ()  # of the self-test, those that came to their end
    deviating: tuple[int, ...] = ()  # units that did not compute what the others did
    stuck: tuple[Holder, ...] = ()  # told to end, and still there


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step's end. ``detail`` is for operators and may name processes."""

    step: Step
    path: Path
    outcome: Outcome
    seconds: float
    detail: str = ""
    blame: Blame = Blame.DEVICE
    findings: Findings = field(default_factory=Findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Measurements):
    """The proof that a device is clean: what was done, what was measured, and what it is bound to."""

    id: str
    device: str
    job: str
    path: Path
    incarnation: Incarnation
    policy: str
    policy_digest: str
    finished: Moment
    steps: tuple[tuple[Step, float], ...]
    baseline: Baseline
    previous: str | None  # digest of this device's previous receipt
    digest: str


@dataclass(frozen=True, slots=True)
class Grant:
    """A yes. Not a reservation: it may be abandoned without a word."""

    id: str
    at: Moment
    epoch: str  # which kubelet life it was given in
    announced: bool  # the caller will say Start before anything runs on the device
    receipt: str | None  # None only under policy ``observe``
    until_release: bool = False  # until it is given back: only who has it knows when he has it no more


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a device was exposed to. ``container`` names what runs on it; None when it was never learnt."""

    container: str | None
    since: Moment
    seen: bool = False  # whether anything of it was ever seen to run
    crowded: bool = False  # whether somebody else's container was ever seen on the device as well
    unannounced: bool = False  # met on the device, and neither let start on it nor known to have been given it


@dataclass(frozen=True, slots=True)
class Job:
    """A scrub that is under way."""

    id: str
    path: Path
    trigger: Trigger
    started: Moment
    step: Step | None = None
    results: tuple[StepResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a device is kept out, and what must happen before it may come back."""

    ailment: Ailment
    since: Moment
    by: str  # "autoclave", or who asked and in which words
    baseline: Baseline = field(default_factory=Baseline)  # what is known of its health by now: probation looks for more
    probes: int = 0  # how often probation was tried
    next_probe: float | None = None  # uptime seconds; None waits for an operator
    last_try: str = ""  # what became of it
    errors: tuple[tuple[int, int], ...] = ()  # the errors that were judged with it, by code and count


@dataclass(frozen=True, slots=True)
class Setback:
    """The last scrub that did not end clean, kept until one does."""

    detail: str
    at: Moment
    count: int = 1
    stuck: tuple[Holder, ...] = ()  # who was told to end by it and did not ...
    stuck_since: Moment | None = None  # ... and when a scrub first found that


@dataclass(frozen=True, slots=True)
class Record:
    """Everything the ledger knows of one device: the fold of its events."""

    device: DeviceInfo
    incarnation: Incarnation
    state: State
    since: Moment
    baseline: Baseline = field(default_factory=Baseline)
    receipt: Receipt | None = None  # only while it stands
    last_receipt: str | None = None  # digest of the newest receipt ever given
    grant: Grant | None = None
    owner: Owner | None = None
    tenancy_began: float | None = None  # uptime; from the grant until the next proof
    tenancy_ended: float | None = None  # uptime; when it was released by the last tenant that was let start
    job: Job | None = None
    quarantine: Quarantine | None = None
    ailment: Ailment | None = None  # sick while in use: quarantined as soon as it is released
    setback: Setback | None = None
    due_path: Path | None = None  # the path a scrub took that did not end clean: the next one takes no lesser
    returns: tuple[float, ...] = ()  # wall times of returns from quarantine, for the flap counter
    errors_noted: float | None = None  # uptime; when errors that make nobody sick were last written down
    fast_seconds: tuple[float, ...] = ()  # seconds of its last fast paths that ended clean
    tested: float | None = None  # wall; when the slow path was last passed, or the first proof was given
    burn_in_begun: float | None = None  # wall; when it was last tested for want of a user, whatever became of that


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen just now, fresh for this one decision.

    ``holders`` is None when it could not be proven who uses the device; ``owner_alive`` is None when nobody owns it or
    it could not be told, and ``starting_pod_alive`` says the same of the pod that asks to start. ``siblings_busy`` is
    about its reset domain. ``observed_since`` is the uptime from which on the service would have noticed a holder,
    ``hung_since`` the uptime from which on every holder was found to hang in the kernel at each observation.
    """

    incarnation: Incarnation
    epoch: str
    holders: tuple[Holder, ...] | None
    observed_since: float = 0.0
    owner_alive: bool | None = None
    starting_pod_alive: bool | None = None
    siblings_busy: bool | None = None
    vitals: Vitals | None = None
    domain_resetting: bool = False  # a reset of a sibling is under way, which takes this device down as well
    successor: str | None = None  # another device that is in its place now
    wanted: bool = False  # it was asked for in vain: whoever hands it out believes it free
    assigned_pods: frozenset[str] | None = None  # the pods that the kubelet has written it down for; None: not known
    hung_since: float | None = None
