"""What is shown of a device. The same values leave the service and arrive at the command line, whatever lies between.

Field names are those of ``scrub.proto`` and of ``-o json``: a stable contract.
"""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core import answers
from scrubber.core.model import Ailment, Job, Moment, Quarantine, Receipt, Record, named

ADVICE = {
    Ailment.LOST: "check power and seating; a reboot may bring it back; if it is lost again, replace it",
    Ailment.UNRESPONSIVE: "look for a hung driver in the kernel log; a driver reload or a reboot may be needed",
    Ailment.XID: "look the xid up in the driver's catalogue and in the kernel log",
    Ailment.ECC: "watch it: repeated uncorrectable errors are a reason to replace it",
    Ailment.RESET_REQUIRED: "probation resets it; nothing to do unless it comes back",
    Ailment.REMAP_PENDING: "a reset applies the remap; nothing to do unless it comes back",
    Ailment.REMAP_FAILED: "replace it: its memory has run out of spare rows",
    Ailment.MEMORY_FAULT: "replace it if probation fails again: its memory does not hold what is written",
    Ailment.RESET_FAILED: "look for processes that hold the driver; a reboot may be needed",
    Ailment.SCRUB_FAILED: "read the failed step above; try `autoclave scrub --path slow` after mending the cause",
    Ailment.FLAPPING: "it keeps coming back sick: test it outside production before `autoclave reinstate`",
    Ailment.OPERATOR: "a person took it out: `autoclave reinstate` brings it back through the slow path",
}


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step and how long it took."""

    step: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ReceiptView:
    """A receipt."""

    id: str
    path: str
    finished: float
    covered_bytes: int
    allocatable_bytes: int
    residue_bytes: int
    processes_found: int
    processes_terminated: int
    policy: str
    policy_digest: str
    digest: str
    previous: str
    driver: str
    boot_id: str
    steps: tuple[StepTime, ...]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job and how far its present step is."""

    id: str
    path: str
    trigger: str
    step: str
    started: float
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """Why a device is out, and when it will be tried again."""

    reason: str
    detail: str
    since: float
    by: str
    probes: int
    sticky: bool
    next_probe_seconds: float | None


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
    owner: str
    job: JobStatus | None
    quarantine: QuarantineStatus | None
    policy_rule: str
    setback: str
    slice: int | None = None
    driver: str = ""
    compute: str = ""
    reset_domain: str = ""

    @property
    def name(self) -> str:
        """How people call it."""
        return named(self.index, self.slice)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The service itself."""

    version: str
    backend: str
    policy: str
    simulated_dir: str
    state_dir: str
    ledger_rows: int
    ledger_head: str
    ledger_fault: str
    policy_fault: str
    started: float
    set_aside: tuple[str, ...] = ()
    concessions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """Everything ``autoclave status`` shows."""

    devices: tuple[DeviceStatus, ...]
    service: ServiceStatus


@dataclass(frozen=True, slots=True)
class Granted:
    """A yes for one device. ``receipt`` is empty only under policy ``observe``."""

    device: str
    grant: str
    receipt: str


@dataclass(frozen=True, slots=True)
class Advert:
    """What the kubelet may be told of a device."""

    device: str
    healthy: bool
    clean: bool
    numa_node: int | None
    resource: str
    index: int = 0
    mig: bool = False
    island: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Adverts:
    """All devices, and how long this may be believed once the service has fallen silent."""

    devices: tuple[Advert, ...]
    silence_seconds: float


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """How a scrub ended for one device."""

    clean: bool
    state: str
    why: str = ""
    reason: str = ""
    receipt: ReceiptView | None = None
    running: bool = False


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How far a job is; ``result`` is set on a device's last message."""

    device: str
    job: str
    step: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    result: ScrubResult | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One row of the ledger, with its sentence."""

    seq: int
    device: str
    index: int
    at: float
    op: str
    kind: str
    text: str
    body: str
    slice: int | None = None

    @property
    def name(self) -> str:
        """How people call its device."""
        return named(self.index, self.slice)


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a device came to be where it is, and what a person should do."""

    device: DeviceStatus
    entries: tuple[HistoryEntry, ...]
    advice: tuple[str, ...]
    policy_why: str


def receipt_view(receipt: Receipt) -> ReceiptView:
    """A receipt as it is shown."""
    return ReceiptView(
        id=receipt.id,
        path=receipt.path.value,
        finished=receipt.finished.wall,
        covered_bytes=receipt.covered_bytes,
        allocatable_bytes=receipt.allocatable_bytes,
        residue_bytes=receipt.residue_bytes,
        processes_found=receipt.processes_found,
        processes_terminated=receipt.processes_terminated,
        policy=receipt.policy,
        policy_digest=receipt.policy_digest,
        digest=receipt.digest,
        previous=receipt.previous or "",
        driver=receipt.incarnation.driver,
        boot_id=receipt.incarnation.boot_id,
        steps=tuple(StepTime(step.value, seconds) for step, seconds in receipt.steps),
    )


def job_status(job: Job, done: int, total: int) -> JobStatus:
    """A job as it is shown, with the progress of its present step."""
    step = job.step.value if job.step else ""
    return JobStatus(job.id, job.path.value, job.trigger.value, step, job.started.wall, done, total)


def quarantine_status(quarantine: Quarantine, now: Moment) -> QuarantineStatus:
    """A quarantine as it is shown."""
    due = quarantine.next_probe
    return QuarantineStatus(
        reason=quarantine.sickness.ailment.value,
        detail=quarantine.sickness.detail,
        since=quarantine.since.wall,
        by=quarantine.by,
        probes=quarantine.probes,
        sticky=due is None,
        next_probe_seconds=None if due is None else max(0.0, due - now.uptime),
    )


def device_status(
    record: Record, advert: answers.Advert, rule: str, now: Moment, progress: tuple[int, int]
) -> DeviceStatus:
    """A device as it is shown."""
    device = record.device
    return DeviceStatus(
        device=device.uuid,
        index=device.index,
        model=device.model,
        state=record.state.value,
        since=record.since.wall,
        healthy=advert.healthy,
        why=advert.why,
        memory_bytes=device.memory_bytes,
        numa_node=device.numa_node,
        pci_address=device.pci_address or "",
        mig=device.mig,
        receipt=receipt_view(record.receipt) if record.receipt else None,
        owner=(record.owner.container or "unknown") if record.owner else "",
        job=job_status(record.job, *progress) if record.job else None,
        quarantine=quarantine_status(record.quarantine, now) if record.quarantine else None,
        policy_rule=rule,
        setback=record.setback.detail if record.setback else "",
        slice=device.slice,
        driver=record.incarnation.driver,
        compute=device.compute or "",
        reset_domain=device.reset_domain or "",
    )


def advice(record: Record, blocked: str = "") -> tuple[str, ...]:
    """What a person should do now; empty when nothing needs one. ``blocked`` says what keeps it from being scrubbed."""
    if record.quarantine is not None:
        return (ADVICE[record.quarantine.sickness.ailment],)
    if record.sickness is not None:
        return (f"drain it: {ADVICE[record.sickness.ailment]}",)
    if blocked or record.setback is not None:
        return ("mend what is in its way, as told above; the scrub is tried again by itself",)
    return ()
