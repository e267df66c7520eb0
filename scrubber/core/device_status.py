"""What is recorded of a device, as it is shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from policies.model import Policy
from scrubber.core import answers, presence, remedy, upkeep, verdict, views
from scrubber.core.model import Job, Moment, Path, Quarantine, Receipt, Record, State, Vitals

SHOWN = 900.0  # seconds for which what was taken away is shown all the same: who looks at it hears what became of it


def receipt_view(receipt: Receipt) -> views.ReceiptView:
    """A receipt as it is shown."""
    return views.ReceiptView(
        id=receipt.id,
        path=receipt.path.value,
        finished=receipt.finished.wall,
        policy=receipt.policy,
        policy_digest=receipt.policy_digest,
        digest=receipt.digest,
        previous=receipt.previous or "",
        driver=receipt.incarnation.driver,
        boot_id=receipt.incarnation.boot_id,
        steps=tuple(views.StepTime(step.value, seconds) for step, seconds in receipt.steps),
        **verdict.measured(receipt),
    )


def job_status(job: Job, done: int, total: int) -> views.JobStatus:
    """A job as it is shown, with the progress of its present step."""
    step = job.step.value if job.step else ""
    return views.JobStatus(job.id, job.path.value, job.trigger.value, step, job.started.wall, done, total)


def quarantine_status(quarantine: Quarantine, path: Path, now: Moment) -> views.QuarantineStatus:
    """A quarantine as it is shown. ``path`` is what is tried next, if anything is."""
    due = quarantine.next_probe
    return views.QuarantineStatus(
        reason=quarantine.ailment.kind.value,
        detail=quarantine.ailment.detail,
        since=quarantine.since.wall,
        by=quarantine.by,
        probes=quarantine.probes,
        sticky=due is None,
        next_probe_seconds=None if due is None else max(0.0, due - now.uptime),
        next_path="" if due is None else path.value,
        last_try=quarantine.last_try,
    )


def device_status(
    record: Record, advert: answers.Offer, rule: str, policy: Policy, now: Moment, progress: tuple[int, int]
) -> views.DeviceStatus:
    """A device as it is shown, under the policy of this rule."""
    device, out = record.device, record.quarantine
    return views.DeviceStatus(
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
        quarantine=quarantine_status(out, upkeep.trial(record, policy), now) if out else None,
        policy_rule=rule,
        setback=record.setback.detail if record.setback else "",
        slice=device.slice,
        driver=record.incarnation.driver,
        compute=device.compute or "",
        reset_domain=device.reset_domain or "",
    )


def is_somebodys(record: Record) -> bool:
    """Whether there may be a pod to name."""
    return record.owner is not None or record.state is State.GRANTED


def pod(record: Record, held: Mapping[str, Collection[str]], names: Mapping[str, str]) -> str:
    """Who has a device, as people call it; empty where that is not known.

    ``held``: the pods that the kubelet has written it down for, by UID, and their containers. Of an owner they tell the
    containers; who it is was settled when it started. Where nothing has started yet they are all that is known.
    ``names``: NAMESPACE/NAME by UID.
    """
    if record.owner is not None:
        uid = record.owner.container or ""
        return _called(uid, held, names) if uid in names else ""
    if record.state is State.GRANTED:
        return ", ".join(_called(uid, held, names) for uid in sorted(held))
    return ""


def _called(uid: str, held: Mapping[str, Collection[str]], names: Mapping[str, str]) -> str:
    if uid not in names:
        return uid
    return ", ".join(f"{names[uid]}/{container}" for container in sorted(held.get(uid, ()))) or names[uid]


def is_past(record: Record, vitals: Vitals | None, now: Moment) -> bool:
    """Whether it is only told of to who asks for it: it was taken away on purpose, and has not come back since."""
    if record.quarantine is None or not presence.taken_away(record) or (vitals is not None and not vitals.lost):
        return False
    return not 0 <= now.wall - record.quarantine.since.wall < SHOWN


def advice(record: Record, blocked: str = "") -> tuple[str, ...]:
    """What a person should do now; empty when nothing needs one. ``blocked`` says what keeps it from being scrubbed."""
    if record.quarantine is not None:
        asked = remedy.of(record.quarantine.ailment)
        if record.quarantine.next_probe is None and asked.course is not remedy.Course.PERSON:
            return ("it waits for a person: `autoclave reinstate` tries it again",)
        return (asked.advice,)
    if record.ailment is not None:
        return (f"drain it: {remedy.of(record.ailment).advice}",)
    if blocked or record.setback is not None:
        return ("mend what is in its way, as told above; the scrub is tried again by itself",)
    return ()
