"""The values of a device that many decisions share: its state, ailments, step results, receipt, grant, owner, job.

``None`` means that a value could not be read or is not known. It never counts as a yes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from ground import pod_groups, process_names
from policies.values import ScrubPath as ScrubPath  # noqa: PLC0414 - exported for packages that must not import policies
from policies.values import Xid as Xid  # noqa: PLC0414 - the same
from policies.values import most_thorough as most_thorough  # noqa: PLC0414 - the same
from scrub_api.device_messages import device_name, state_words
from scrub_api.measurements import Measurements
from scrubber.core.measured import Cleared, Restored, Scratched, Tested, Verified
from scrubber.core.moments import Moment as Moment  # noqa: PLC0414 - one of the values of a device, too
from scrubber.core.use_counter import UseReading


class State(Enum):
    """Where a device is in its life. ``states.TABLE`` has the legal moves."""

    UNKNOWN = "unknown"
    DIRTY = "dirty"
    SCRUBBING = "scrubbing"
    CLEAN = "clean"
    GRANTED = "granted"
    IN_USE = "in_use"
    QUARANTINED = "quarantined"

    @property
    def words(self) -> str:
        """The state as a sentence has it, such as ``in use``."""
        return state_words(self.value)


class Availability(Enum):
    """What a device is to people who want a GPU. Each device is in exactly one of these groups."""

    AVAILABLE = "available"
    IN_USE = "in_use"
    PREPARING = "preparing"
    BLOCKED = "blocked"
    QUARANTINED = "quarantined"


class Step(Enum):
    """One part of a scrub."""

    EVICT = "evict"
    RESET = "reset"
    CLEAR = "clear"
    VERIFY = "verify"
    SCRATCH = "scratch"
    SELFTEST = "selftest"
    SETTINGS = "settings"
    HEALTH = "health"


class Trigger(Enum):
    """Why a scrub was started."""

    ACQUIRE = "acquire"
    START = "start"
    RELEASE = "release"
    FIRST_LOOK = "first-look"
    FOREIGN_USE = "foreign-use"
    PROOF_EXPIRED = "proof-expired"
    RETRY = "retry"
    REQUEST = "request"
    PROBATION = "probation"
    REINSTATE = "reinstate"


class Outcome(Enum):
    """How a step ended. Only PASSED is a yes."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    DIED = "died"
    ABORTED = "aborted"


class Blame(Enum):
    """Whose fault a failure is. It decides what happens next."""

    DEVICE = "device"  # escalate, then quarantine
    TENANT = "tenant"  # a process holds the device: leave it alone, try again later
    SERVICE = "service"  # the service was stopped, lacks something, or did less than ordered: try again later
    NODE_OR_DEVICE = "node-or-device"  # try again; the device is to blame if scrubs of other devices pass meanwhile
    UNDECIDED = "undecided"  # our own program failed on the device: try again, a second sign blames the device


class AilmentKind(Enum):
    """What is wrong with a device: the reason of its quarantine."""

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
    GHOST_LOAD = "ghost-load"
    REBOOT_REQUIRED = "reboot-required"
    REPLACED = "replaced"
    RELAID = "relaid"
    STUCK_PROCESS = "stuck-process"
    FLAPPING = "flapping"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """What a proof is bound to. In another boot, or under another driver instance, the memory may have been used."""

    boot_id: str
    driver: str


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is. The ledger knows it by ``uuid`` only: the index may change at any boot."""

    uuid: str
    index: int
    model: str
    memory_bytes: int
    mig: bool = False
    resource: str = "nvidia.com/gpu"
    numa_node: int | None = None
    pci_address: str | None = None
    reset_domain: str | None = None  # the same for all devices that go down together when one of them is reset
    island: str | None = None  # devices that are connected by fast links
    nodes: tuple[str, ...] = ()  # device files of this device alone, under /dev
    minor: int | None = None  # N in /dev/nvidiaN; not the index
    compute: str | None = None  # compute capability, such as "9.0"
    ecc: bool | None = None  # whether its memory corrects errors now; None: not known
    serial: str | None = None  # of the board
    parent: str | None = None  # a MIG slice: the UUID of its GPU, whose index it has ...
    slice: int | None = None  # ... and its number on that GPU
    simulated: bool = False  # a file in the place of a GPU: what is said of it says nothing about hardware

    @property
    def name(self) -> str:
        """The name that people use, such as ``0`` or ``0:1``."""
        return device_name(self.index, self.slice)


class NodeKind(Enum):
    """What a device node leads to, with the number that the kernel has for it."""

    BLOCK = 1
    CHARACTER = 2


@dataclass(frozen=True, slots=True)
class DeviceNumber:
    """The number of a device node. It is the same in each container, whatever the name of the node is."""

    kind: NodeKind
    major: int
    minor: int


CONTAINER = "container:"  # prefix for the id of a container that is in no pod


NO_CONTAINER = "no container"
NOWHERE = ("", NO_CONTAINER)  # places of an ``Opener`` that say nothing of him; empty: he had ended
OTHER_CONTAINERS = "other containers"  # the place of an ``Opener`` that stands for several without a row of their own
OTHER_PROGRAMS = "other programs of the node"  # the same, of those in no container
OTHERS = (OTHER_CONTAINERS, OTHER_PROGRAMS)


def is_pod(name: str) -> bool:
    """Whether this name of an owner is the UID of a pod."""
    return not name.startswith(CONTAINER)


def place_words(place: str, pod: str = "") -> str:
    """A place of an ``Opener``, as operators read it, such as ``pod UID``; empty if nothing is known of it.

    ``pod``: NAMESPACE/POD, if it is known.
    """
    if pod:
        return f"pod {pod} ({place})"
    if pod_groups.holds_pods(place):
        return pod_groups.GONE
    if place in (*NOWHERE, *OTHERS) or place.startswith("/"):
        return place
    return f"pod {place}" if is_pod(place) else f"container {place.removeprefix(CONTAINER)}"


def is_contained(place: str) -> bool:
    """Whether a place of an ``Opener`` is a pod or another container."""
    is_no_container = place.startswith("/") or place in (*NOWHERE, OTHER_PROGRAMS)
    return not is_no_container or pod_groups.holds_pods(place)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a device open or mapped.

    ``container`` (a stored name) is the UID of the pod. Outside any pod it is ``container:`` and the container's id.
    For a process in no container it is None.
    """

    pid: int
    started: float  # seconds since boot; with the pid it identifies one process
    command: str
    container: str | None
    state: str = "S"  # of /proc/PID/stat: D does not react to signals, Z has ended


def holder_names(holders: tuple[Holder, ...], pods: Mapping[str, str] = MappingProxyType({})) -> str:
    """The holders as operators read them. ``pods``: NAMESPACE/POD by UID; another pod is named by its UID."""
    places = (pods.get(each.container or "") or each.container or "no container" for each in holders)
    return ", ".join(
        process_names.describe(each.command, each.pid, place) for each, place in zip(holders, places, strict=True)
    )


class Who(NamedTuple):
    """What tells an ``Opener`` from others."""

    place: str
    command: str
    exempt: bool


@dataclass(frozen=True, slots=True)
class Opener:
    """Who tried to open a device that was not given to him, from one place. His process is the one that asked last.

    A place that the policy exempts is another opener than the same place before: the policy changes no past attempt.
    """

    place: str  # the UID of his pod, container:ID, the path of his control group; one of ``NOWHERE`` or ``OTHERS``
    pod: str  # NAMESPACE/POD; empty: it is no pod, or its name is not known
    command: str  # of one of ``OTHERS``: how many they are
    pid: int  # the same: 0
    exempt: bool  # the policy let him open the device at any time when he asked
    times: int  # that he asked the kernel: an opening that is let through asks up to three times
    refused: int  # of them
    first: float  # wall time
    last: float

    @property
    def who(self) -> Who:
        """The place, and whether it is exempt. Where processes of all kinds run, also the command."""
        return Who(self.place, self.command if self.place in NOWHERE else "", self.exempt)

    @property
    def was_let_through(self) -> bool:
        """Whether he has opened the device without being named in the policy."""
        return self.times > self.refused and not self.exempt

    @property
    def is_contained(self) -> bool:
        """Whether he is in a pod or another container."""
        return is_contained(self.place)


@dataclass(frozen=True, slots=True)
class Sign:
    """Something wrong that a device reports about itself. It lasts for as long as the device reports it."""

    kind: AilmentKind
    detail: str


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a device reports about its own health. Counters only grow, until a reset or a reboot."""

    lost: bool = False
    unresponsive: bool = False
    xids: tuple[Xid, ...] = ()
    ecc_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    leaked_bytes: int = 0
    reset_required: bool = False  # the driver asks for a reset
    why: str = ""  # the reason for ``unresponsive``
    signs: tuple[Sign, ...] = ()
    partial: bool = False  # only logged errors were read; the device itself was not asked
    relaid: bool = False  # the device is gone and its GPU answers: the MIG layout has changed


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was known about a device's health at the last diagnosis. Only newer errors lead to an ailment."""

    last_xid: int = 0
    ecc_uncorrectable: int = 0


@dataclass(frozen=True, slots=True)
class Ailment:
    """A diagnosis. A sticky one waits for a person."""

    kind: AilmentKind
    detail: str
    sticky: bool = False
    xid: int | None = None  # the reported code, for the kind XID
    before_asked: str = ""  # the detail before an operator asked for the quarantine, too; empty if none has asked


class MemoryManager(Enum):
    """Who manages the memory of a GPU, by the files of the driver."""

    DRIVER = "driver"  # also the memory of a coherent GPU
    LINUX = "linux"  # it is a NUMA node of the host: Linux gives its pages to any process
    UNKNOWN = "unknown"  # the files do not say


@dataclass(frozen=True, slots=True)
class Evicted:
    """Who had the device open when a scrub began."""

    holders: tuple[Holder, ...]
    terminated: tuple[int, ...]  # the pids of those that were ended
    stuck: tuple[Holder, ...] = ()  # those that were told to end and did not


@dataclass(frozen=True, slots=True)
class HealthRead:
    """What the device says about its health to the step ``health``, or to any step that finds the device lost."""

    vitals: Vitals


@dataclass(frozen=True, slots=True)
class InTheWay:
    """Who keeps a scrub from its next step, or from its proof."""

    holders: tuple[Holder, ...]
    unnamed: bool  # another process has used the device, and left before it could be named


NO_HOLDER = InTheWay((), unnamed=False)

Findings = Evicted | Cleared | Verified | Scratched | Tested | Restored | HealthRead | InTheWay
"""What a step found: ``plans.STEPS`` says which type a step has that passes. A veto leaves who is in the way.

Stored and sent without a name of the type: no two types may have the same fields.
"""


@dataclass(frozen=True, slots=True)
class StepResult:
    """How one step ended. ``detail`` is for operators and may name processes."""

    step: Step
    path: ScrubPath
    outcome: Outcome
    seconds: float
    detail: str = ""
    blame: Blame = Blame.DEVICE
    findings: Findings | None = None  # None: a reset, which measures nothing, or the step did not come to its end


def signer_of(envelope: str) -> str:
    """The id of the key that signed a document, as the document says it; empty: it is not signed."""
    return next((str(each["keyid"]) for each in json.loads(envelope)["signatures"]), "") if envelope else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Measurements):
    """The proof that a device is clean: what was done, what was measured, and what it is bound to."""

    id: str
    device: str
    job: str
    path: ScrubPath
    incarnation: Incarnation
    policy: str
    policy_digest: str
    finished: Moment
    steps: tuple[tuple[Step, float], ...]
    baseline: Baseline
    previous: str | None  # digest of this device's previous receipt
    digest: str
    last_owner: str = ""  # ``Grant.owner`` of the last tenancy before the scrub
    envelope: str = ""  # the signed document of this receipt, as others check it; empty: not signed

    @property
    def signed_by(self) -> str:
        """The id of the key that signed the envelope."""
        return signer_of(self.envelope)


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission for a new tenant. It can happen that the tenant never uses the device and never says so."""

    id: str
    at: Moment
    epoch: str  # the run of the kubelet in which it was given
    announced: bool  # the caller will call Start before a container uses the device
    receipt: str | None  # None under policy ``observe`` only
    until_release: bool = False  # the monitor does not infer its end: it waits for a release
    at_start: bool = False  # given by a start, for the container that starts: the kubelet sent no Allocate for it
    owner: str = ""  # who it was acquired for, as the caller wrote it: a job id, not verified
    group: int = 0  # the control group that may open it until its release, by its id in this boot; 0: none is named


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a device was given to. ``container`` has the values of ``Holder.container``; None: the owner is not known."""

    container: str | None
    since: Moment
    seen: bool = False  # whether the owner was ever seen running
    crowded: bool = False  # whether another pod's container was ever seen on the device as well
    unannounced: bool = False  # seen on the device without an admitted start, and not named by the checkpoint
    name: str = ""  # in rows of an older version: NAMESPACE/POD/CONTAINER of the last creation; decides nothing
    pod: str = ""  # NAMESPACE/POD, as the kubelet calls its log directory, if there is no name; decides nothing

    @property
    def called(self) -> str:
        """What people call the owner; empty if the name was never known."""
        return self.name or self.pod


@dataclass(frozen=True, slots=True)
class Job:
    """A running scrub."""

    id: str
    path: ScrubPath
    trigger: Trigger
    started: Moment
    begun: Step | None = None  # the reset or the clear that has begun after these results
    results: tuple[StepResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a device is quarantined, and what must happen before it returns."""

    ailment: Ailment
    since: Moment
    by: str  # "autoclave", or the person who asked
    baseline: Baseline = field(default_factory=Baseline)  # errors known by now: probation judges newer ones
    probes: int = 0  # number of probations so far
    next_probe: float | None = None  # uptime seconds; None waits for an operator
    last_try: str = ""  # result of the last probation
    errors: tuple[tuple[int, int], ...] = ()  # driver errors judged together with the ailment: code and count


@dataclass(frozen=True, slots=True)
class Setback:
    """The last failed scrub, kept until a scrub passes."""

    detail: str
    at: Moment
    count: int = 1


@dataclass(frozen=True, slots=True)
class Stuck:
    """Processes that do not end, and since when they, or others before them without a gap, hold the device."""

    holders: tuple[Holder, ...]
    since: Moment


@dataclass(frozen=True, slots=True)
class KubeletAssignment:
    """What the kubelet's checkpoint says about one device."""

    pods: frozenset[str] = frozenset()
    containers: int = 0  # how many containers it names
    written: float = 0.0  # wall; when the kubelet wrote it


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the driver and /proc show of a device at one moment."""

    incarnation: Incarnation
    holders: tuple[Holder, ...] | None  # None when they could not be determined
    owner_alive: bool | None = None  # None when there is no owner, or when that could not be determined
    starting_pod_alive: bool | None = None  # the same for the pod that is about to start
    siblings_busy: bool | None = None  # whether another device of the reset domain has a holder or an owner
    vitals: Vitals | None = None
    shortage: str = ""  # what the service or its node lacks, if the holders are unknown for that reason
    held_up: str = ""  # which process or file cannot be read, or not in time, if the holders are unknown for that
    bystander_pods: frozenset[str] = frozenset()  # those in which a search found bystanders that have it open
    use_reading: UseReading | None = None  # the use counter, before all this was asked; None: it was not asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was observed just now, fresh for one decision. Never stored.

    No field has a default, because an unanswered question must not read as an answer. ``observe.observed_since`` makes
    all facts, and callers add the answers to further questions.
    """

    incarnation: Incarnation
    holders: tuple[Holder, ...] | None  # this and what follows, up to ``bystander_pods``, as in ``Sighting``
    pods: Mapping[str, str]  # NAMESPACE/POD of pods of holders, by UID, as far as the fence knows them
    owner_alive: bool | None
    starting_pod_alive: bool | None
    siblings_busy: bool | None
    vitals: Vitals | None
    shortage: str
    held_up: str
    bystander_pods: frozenset[str]
    domain_resetting: bool  # a sibling is being reset, which takes this device down as well
    observed_since: float  # uptime: since then the service would have noticed any holder
    unobserved: str  # for operators: what happened at ``observed_since``, unless the service began to observe then
    used_at: float  # uptime: a process last had it open, and may have left before it could be recorded; -inf: none
    used_by: str  # who has used it then, as the fence saw it; empty: that is not known
    users_exempt: bool  # the policy exempts all who have used it since its proof, also its holders
    use_unsure: str  # for operators: why it is not known whether one had it open then; empty: one had
    use_reading: UseReading | None  # the use counter, as the look began; None: not asked
    owner_left: bool  # the control group to which the fence was opened for the owner was removed
    successor: str | None  # the GPU that is now at the PCI address of this device
    withheld: bool  # a request for the device was refused: the kubelet believes that the device is free
    epoch: str  # the run of the kubelet, read for a decision about a device that is granted
    assigned_pods: frozenset[str] | None  # the pods in the kubelet's checkpoint; None: not known
    hung: Stuck | None  # all holders hang in the kernel, and since when at every observation that saw them
    # When they were observed: the moment of the decision that rests on them. Observations are compared without it.
    at: Moment = field(compare=False)

    @property
    def who(self) -> str:
        """The holders, as operators read them."""
        return holder_names(self.holders or (), self.pods)
