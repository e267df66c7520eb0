"""A device as people see it, made from its record."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping

from policies.model import Policy
from scrubber.core import ailments, answers, ownership, pauses, presence, proof, verdict
from scrubber.core.model import AilmentKind, Job, Moment, Quarantine, Receipt, Record, ScrubPath, Sign, State, Vitals
from scrubber.words import views

SHOWN = 900.0  # seconds for which a device that was taken away is still listed, so that people see what happened


def receipt_view(receipt: Receipt) -> views.ReceiptView:
    """A receipt as people see it."""
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
        last_owner=receipt.last_owner,
        signed_by=receipt.signed_by,
        **verdict.measured(receipt),
    )


def job_status(
    job: Job, done: int, total: int, queue_place: int | None, usual: float | None, now: Moment
) -> views.JobStatus:
    """A job as people see it, with the progress of its present step. ``usual``: how long the fast path takes mostly."""
    step = job.step.value if job.step else ""
    ready = None
    if usual is not None and job.path is ScrubPath.FAST and queue_place is None:
        left = usual - (now.uptime - job.started.uptime)
        ready = left if left > 0 else None  # it takes longer than usual, so nothing is known
    about = job.id, job.path.value, job.trigger.value, step, job.started.wall, done, total
    return views.JobStatus(*about, queue_place, ready)


def quarantine_status(quarantine: Quarantine, path: ScrubPath | None, now: Moment) -> views.QuarantineStatus:
    """A quarantine as people see it. ``path`` is the path of its next probation; None if the policy forbids it."""
    due = None if path is None else quarantine.next_probe
    return views.QuarantineStatus(
        reason=quarantine.ailment.kind.value,
        detail=quarantine.ailment.detail,
        since=quarantine.since.wall,
        by=quarantine.by,
        probes=quarantine.probes,
        sticky=due is None,
        next_probe_seconds=None if due is None else max(0.0, due - now.uptime),
        next_path="" if path is None or due is None else path.value,
        last_try=quarantine.last_try,
    )


def device_status(
    record: Record,
    offer: answers.Offer,
    rule: str,
    policy: Policy,
    now: Moment,
    progress: tuple[int, int],
    queue_place: int | None,
) -> views.DeviceStatus:
    """A device as people see it, under the policy of this rule."""
    device, quarantine = record.device, record.quarantine
    path = None if proof.reset_forbidden(record, policy) else proof.next_path(record, policy)
    return views.DeviceStatus(
        device=device.uuid,
        index=device.index,
        model=device.model,
        state=record.state.value,
        since=record.since.wall,
        healthy=offer.healthy,
        why=offer.why,
        memory_bytes=device.memory_bytes,
        numa_node=device.numa_node,
        pci_address=device.pci_address or "",
        mig=device.mig,
        receipt=receipt_view(record.receipt) if record.receipt else None,
        owner=_owner(record),
        pod=record.owner.name if record.owner else "",
        job=job_status(record.job, *progress, queue_place, pauses.usual_seconds(record), now) if record.job else None,
        quarantine=quarantine_status(quarantine, path, now) if quarantine else None,
        policy_rule=rule,
        setback=record.setback.detail if record.setback else "",
        slice=device.slice,
        driver=record.incarnation.driver,
        compute=device.compute or "",
        reset_domain=device.reset_domain or "",
        ecc=device.ecc,
        resource=device.resource,
    )


def _owner(record: Record) -> str:
    """Who it was acquired for, or else the pod or container that has it."""
    if acquired := ownership.acquired_by(record):
        return acquired
    return (record.owner.container or "unknown") if record.owner else ""


def may_have_pod(record: Record) -> bool:
    """Whether there may be a pod to name."""
    return record.owner is not None or record.state is State.GRANTED


def pod(record: Record, assigned: Mapping[str, Collection[str]], names: Mapping[str, str]) -> str:
    """The pod of a device as people call it; empty where it is not known.

    ``assigned``: the pods in the kubelet's checkpoint, with their containers, by UID. ``names``: NAMESPACE/NAME by UID.
    If the record has an owner, only that pod is named. For a granted device without an owner, all pods of the
    checkpoint are named, but none for a job: there the checkpoint may name the pod in which the jobs of Slurm run.
    """
    if record.owner is not None:
        uid = record.owner.container or ""
        if record.owner.name:
            return record.owner.name
        return _called(uid, assigned, names) if uid in names else ""
    if record.state is State.GRANTED and not (record.grant and record.grant.owner):
        return ", ".join(_called(uid, assigned, names) for uid in sorted(assigned))
    return ""


def _called(uid: str, assigned: Mapping[str, Collection[str]], names: Mapping[str, str]) -> str:
    if uid not in names:
        return uid
    return ", ".join(f"{names[uid]}/{container}" for container in sorted(assigned.get(uid, ()))) or names[uid]


def is_past(record: Record, vitals: Vitals | None, now: Moment) -> bool:
    """Whether lists leave the device out: it was taken away on purpose a while ago and has not returned."""
    if record.quarantine is None or not presence.taken_away(record) or (vitals is not None and not vitals.lost):
        return False
    return not 0 <= now.wall - record.quarantine.since.wall < SHOWN


def advice(
    record: Record, blocked: str = "", *, reset_forbidden: bool = False, used_by: str = "", signs: Iterable[Sign] = ()
) -> tuple[str, ...]:
    """What a person should do now; empty when there is nothing.

    ``blocked`` says what blocks the device's scrub, ``used_by`` which processes have the device open. ``signs`` are
    those that the device reports.
    """
    gpu = presence.argument(record)
    if record.quarantine is not None:
        asked = ailments.remedy(record.quarantine.ailment)
        person = asked.course is ailments.Course.PERSON
        what = asked.advice
        if reset_forbidden and not person:
            what = f"{proof.RESET_FORBIDDEN}: {ailments.RESET_BY_PERSON}"
        elif record.quarantine.next_probe is None and not person:
            what = ailments.BY_PERSON
        endable = used_by if record.quarantine.ailment.kind is not AilmentKind.STUCK_PROCESS else ""
        first = (f"end {endable} first: no test can pass while a process has the GPU open",) if endable else ()
        return (*first, what.format(gpu=gpu))
    if record.ailment is not None and record.ailment.kind is AilmentKind.OPERATOR:
        return (f"wait for the end of its pod or job; `autoclave reinstate {gpu}` withdraws the quarantine",)
    if record.ailment is not None:
        return (f"let its pod or job end first; then {ailments.remedy(record.ailment).advice.format(gpu=gpu)}",)
    if blocked or record.setback is not None:
        return ("remove what blocks the scrub, as shown above; Autoclave then tries the scrub again automatically",)
    served = "the GPU stays in service, as the policy says (quarantine.signs)"
    remedies = ((sign.kind, ailments.remedy_of_sign(sign.kind).format(gpu=gpu)) for sign in signs)
    by_sign = tuple(f"{kind.value}: {remedy}; {served}" for kind, remedy in remedies)
    if acquired := ownership.acquired_by(record):
        who = shlex.quote(acquired)
        end = f"end {used_by}, then " if used_by else ""
        return (*by_sign, f"if its owner {who} has ended: {end}run `autoclave release {gpu} --owner {who}`")
    if record.owner is not None and not record.owner.seen and not used_by:  # its end cannot be noticed
        return (*by_sign, f"no process of its pod was seen; if the pod has ended: run `autoclave release {gpu}`")
    return by_sign
