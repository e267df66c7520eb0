"""What the service shows people: status, receipts, jobs, quarantine, holders, history, explanations.

The socket for operators carries these views as JSON. Field names are those of ``-o json``: a stable contract. Times are
seconds since 1970.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ground import pod_groups, process_names
from ground.errors import Reason
from scrub_api.device_messages import device_name
from scrub_api.measurements import Measurements

HANDED_OUT = frozenset({"granted", "in_use"})
"""The states of a device that belongs to somebody."""

GONE = frozenset({"lost", "replaced", "relaid"})
"""The reasons of a quarantine that say that the device is not there, as the table ``AILMENTS`` has them."""


WATCHES_ONLY = "only watch"
OPEN_TO_ALL = "open to all"
"""What a fence does that should keep others off, and cannot: their control groups are of version 1."""


_STEPS = {"evict": "ending processes (evict)", "scratch": "memory on the chip (scratch)"}  # those that say too little


def step_words(step: str) -> str:
    """What people call a step."""
    return _STEPS.get(step, step)


STALLED = 15.0
"""Seconds without progress after which something is wrong. The self-test itself pauses for 10 s (``selftest``)."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step and how long it took."""

    step: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptView(Measurements):
    """A receipt."""

    id: str
    path: str
    finished: float
    policy: str
    policy_digest: str
    digest: str
    previous: str
    driver: str
    boot_id: str
    steps: tuple[StepTime, ...]
    last_owner: str = ""  # who the device was last acquired for before this scrub; empty after a pod
    signed_by: str = ""  # the id of the key that signed it; empty: not signed


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job and the progress of its present step."""

    id: str
    path: str
    trigger: str
    step: str
    started: float
    done_bytes: int
    total_bytes: int
    queue_place: int | None = None  # while it waits for a slot: 1 if no other job has waited for longer
    ready_seconds: float | None = None  # about how long until it ends, of a fast path that was measured before
    step_seconds: float | None = None  # for how long the present step runs; None before it runs
    step_limit: float | None = None  # after how long the step is ended
    still_seconds: float | None = None  # for how long the step has done no further byte; None if it counts none

    @property
    def stalled(self) -> bool:
        """Whether the step does not get on."""
        return self.still_seconds is not None and self.still_seconds >= STALLED


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """Why a device is quarantined, and when its probation is due."""

    reason: str
    detail: str
    since: float
    by: str
    probes: int
    sticky: bool
    next_probe_seconds: float | None
    next_path: str = ""  # the path of the next probation; empty when it waits for a person
    last_try: str = ""  # result of the last probation


@dataclass(frozen=True, slots=True)
class HolderView:
    """A process that has a device open."""

    pid: int
    user: str  # a name, or a number without one; empty: it has ended
    command: str
    container: str  # the UID of its pod, or container:ID; empty: it is in no container
    pod: str = ""  # NAMESPACE/NAME, if it is known; only Status and Explanation have it, and the next two
    foreign: bool = False  # the device was not given to it, as far as that is known
    exempt: bool = False  # the policy lets it open the device at any time, and it is no bystander
    place: str = ""  # of an exempt process in no container: the path of its control group

    def __str__(self) -> str:
        """As people read it."""
        user = f"user {self.user}, " if self.user else ""
        return process_names.describe(self.command, self.pid, user + (self.pod or self.container or "no container"))


SESSIONS = "user.slice"
# What to do about a program that may go on. The plan and doctor say the same.
UNIT_OF_ITS_OWN = f"run it in a unit of its own, and exempt that: an exempt {SESSIONS} lets in all who can log in"


@dataclass(frozen=True, slots=True)
class OpenerView:
    """A program that asked for a device that was not given to it, in the last days."""

    command: str
    pid: int  # of the process that asked last
    place: str  # the UID of its pod, container:ID, the path of its unit or control group; empty: it has ended
    pod: str  # NAMESPACE/NAME, if it is known; only Status and Explanation have it
    first: float
    last: float
    times: int  # that it asked: one opening asks two or three times
    refused: int  # of them
    exempt: bool = False  # its unit or namespace may open the device at any time
    ignored: bool = False  # it is a bystander: what it opens is no use
    opened: float = 0.0  # when it was last let through; 0: not since the service started

    @property
    def in_pod(self) -> bool:
        """Whether its place is a pod, also one whose name is not known, or of which only the groups above are left."""
        if pod_groups.holds_pods(self.place):
            return True
        is_no_pod = self.place.startswith(("/", "container:")) or " " in self.place
        return bool(self.pod) or (bool(self.place) and not is_no_pod)

    @property
    def in_session(self) -> bool:
        """Whether somebody who has logged in started it."""
        return self.place.startswith(f"/{SESSIONS}/")

    @property
    def where(self) -> str:
        """Its place as people read it."""
        place = pod_groups.GONE if pod_groups.holds_pods(self.place) else self.place
        return self.pod or place or "it has ended"

    def is_settled(self, policy_since: float) -> bool:
        """Whether the policy in force lets it in, and it has made no attempt that counts since then."""
        return self.exempt and (self.ignored or self.last < policy_since)

    @property
    def refused_in_part(self) -> bool:
        """Whether some attempts were refused and some were not: nobody knows which of them its last process made."""
        return 0 < self.refused < self.times

    def __str__(self) -> str:
        """As people read it."""
        return process_names.describe(self.command, self.pid, self.where)


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One device, for operators."""

    device: str
    index: int
    model: str
    state: str
    since: float
    healthy: bool
    why: str
    memory_bytes: int
    numa_node: int | None
    pci_address: str
    mig: bool
    receipt: ReceiptView | None
    owner: str  # what the caller of Acquire named, the UID of the pod, container:ID, or unknown; empty: nobody has it
    job: JobStatus | None
    quarantine: QuarantineStatus | None
    policy_rule: str
    setback: str
    slice: int | None = None  # the number of a MIG slice on its GPU, whose index it has
    driver: str = ""
    compute: str = ""
    reset_domain: str = ""
    pod: str = ""  # the owner, or who is to get it, as NAMESPACE/NAME/CONTAINER, ...; only in Status and Explanation
    ecc: bool | None = None  # whether its memory corrects errors now; None: not known
    resource: str = ""  # the name by the hardware
    holders: tuple[HolderView, ...] = ()  # of an explanation: or else a process of its owner
    use_counter: str = ""  # who notices short uses of it now, or why nobody does; empty: not asked yet
    fence: str = ""  # hold, refuse, watch, WATCHES_ONLY or OPEN_TO_ALL, while the kernel is asked about it; else empty
    openers: tuple[OpenerView, ...] = ()  # who asked for it and was not given it, the latest last
    was_shared: bool = False  # a container was on it that it was not given to, since its owner has it
    use_counter_kind: str = (
        ""  # the same as ``use_counter`` for a program: fence, files, none, unknown; empty: not asked yet
    )
    policy_mode: str = ""  # enforce, or observe, under which the service scrubs nothing by itself

    @property
    def name(self) -> str:
        """The name that people use, such as ``0`` or ``0:1``."""
        return device_name(self.index, self.slice)

    @property
    def was_opened_idle(self) -> bool:
        """Whether the pod on it was not given it, such as a monitor that has opened an idle GPU."""
        return any(it.container == self.owner != "" and (it.foreign or it.exempt) for it in self.holders)

    @property
    def exempt_holders(self) -> tuple[OpenerView, ...]:
        """The exempt programs that have it open now, as openers: they may have opened it before anybody counted."""
        return tuple(
            OpenerView(it.command, it.pid, it.container or it.place, it.pod, math.inf, math.inf, 0, 0, exempt=True)
            for it in self.holders
            if it.exempt
        )

    @property
    def argument(self) -> str:
        """What names the device in a command. The index of a device that is gone may be that of another one."""
        return self.device if self.quarantine is not None and self.quarantine.reason in GONE else self.name


@dataclass(frozen=True, slots=True)
class UnlistedProgram:
    """A program of NVIDIA that had a device open in a namespace that the policy does not name."""

    program: str  # the path of the executable
    namespace: str  # of its pod
    remedy: str


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The service itself."""

    version: str
    backend: str
    policy: str = ""
    simulated_dir: str = ""  # of the simulated devices; empty for real ones
    state_dir: str = ""
    ledger_rows: int = 0
    ledger_head: str = ""
    ledger_fault: str = ""  # empty while the ledger can be written
    policy_fault: str = ""  # empty while the newest policy file is in force
    started: float = 0.0
    set_aside: tuple[str, ...] = ()  # damaged ledgers beside the present one: what they say is not in force
    concessions: tuple[str, ...] = ()  # the promises that the policy gives up, a sentence each
    cupy: str = ""  # the version that workers use; empty while it is not loaded, and where it is not needed
    lacks: str = ""  # why CuPy could not be loaded; empty before the first try
    policy_source: str = ""  # the name of a shipped policy, or the file
    unlisted: tuple[UnlistedProgram, ...] = ()  # those of the last hour
    history_since: float = 0.0  # from when on the ledger has events; 0 while none has gone
    steps_since: float = 0.0  # the same of the steps of scrubs
    fence_lacks: str = ""  # why the kernel is asked about no device, though the policy wants it
    ledger_remedies: tuple[str, ...] = ()  # for ledger_fault
    fence_below: str = ""  # the control group outside of which the fence counts nobody, for trials
    pods_share_groups: bool = False  # pods are in control groups of version 1, so the fence can keep nobody off
    policy_since: float = 0.0  # from when on the same programs are exempt and bystanders; 0: it is not known
    exempt_namespaces: tuple[str, ...] = ()  # by flags of the service, beside those of the policy
    exempt_units: tuple[str, ...] = ()  # the same


@dataclass(frozen=True, slots=True)
class Status:
    """Everything ``autoclave status`` shows."""

    devices: tuple[DeviceStatus, ...]
    service: ServiceStatus


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """How a scrub ended for one device."""

    clean: bool
    state: str  # of the device now
    why: str = ""  # it is not clean
    reason: str = ""  # the same for programs: a word of ``Reason``
    receipt: ReceiptView | None = None
    running: bool = False  # the caller did not want to wait: the job goes on
    withdrawn: bool = False  # a quarantine that waited for the end of a use was withdrawn; there was no scrub
    remedies: tuple[str, ...] = ()  # of a refusal

    @property
    def left_alone(self) -> bool:
        """Whether nothing was done, because the device is handed out or needs nothing. It may well be clean."""
        return self.reason == Reason.NOT_QUARANTINED.value or (
            self.reason == Reason.IN_USE.value and self.state in HANDED_OUT
        )


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of a job. ``result`` is set in a device's last message."""

    device: str
    job: str
    step: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    result: ScrubResult | None = None
    queue_place: int | None = None  # as in JobStatus


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One row of the ledger, with its event as a sentence."""

    seq: int
    device: str  # empty: the row is about the service, not about a device
    index: int
    at: float
    op: str
    kind: str
    text: str
    body: str  # the event as it is stored, JSON
    slice: int | None = None
    simulated: bool = False  # whether its device is

    @property
    def name(self) -> str:
        """The name of its device, such as ``0`` or ``0:1``; empty for a row of the whole node."""
        return device_name(self.index, self.slice) if self.device else ""


@dataclass(frozen=True, slots=True)
class History:
    """Rows of the ledger. ``partial``: older ones may be missing, because the disk did not answer."""

    entries: tuple[HistoryEntry, ...]
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a device got into its state, and what a person should do."""

    device: DeviceStatus
    entries: tuple[HistoryEntry, ...]
    advice: tuple[str, ...]  # what to know or do now: sentences, each with one command at most
    policy_why: str
    before_release: str = ""  # what to do before the device can be taken back; empty if nothing is in the way
