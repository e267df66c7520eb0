"""What follows from the verdict about a path: a receipt, a path with a reset, quarantine, or a later retry."""

from __future__ import annotations

from dataclasses import replace

from policies.policy_model import Policy
from scrub_api.measurements import Measurements
from scrubber.core import closing, next_action, scrub_paths, verdict
from scrubber.core import events as ev
from scrubber.core.model import Blame, Job, ScrubPath, Vitals
from scrubber.core.record import Record
from scrubber.jobs.job_context import JobContext
from scrubber.policy import DevicePolicy


def events(
    context: JobContext, device_policy: DevicePolicy, record: Record, job: Job, judged: verdict.Verdict,
    vitals: Vitals | None,
) -> list[ev.Event]:  # fmt: skip
    """What is to be recorded; the first event ends the path. ``record`` has all results of the job.

    After ``ScrubPassed`` the device is CLEAN (``core.states``).
    """
    if isinstance(judged, Measurements):
        return _proven(context, device_policy, record, job, judged)
    event = _failed(context, device_policy.policy, record, job, judged, vitals)
    undecided = isinstance(event, ev.ScrubFailed) and judged.blame is Blame.UNDECIDED
    # The monitor must not count these errors again.
    noted = next_action.errors_to_note(record.health.baseline, vitals) if undecided else None
    return [event] if noted is None else [event, noted]


def _proven(
    context: JobContext, device_policy: DevicePolicy, record: Record, job: Job, found: Measurements
) -> list[ev.Event]:
    """The receipt, and the end of the tenancy before it: both are signed."""
    policy, signer, ended = device_policy.policy, context.signer, record.fence.ended
    receipt = verdict.write_receipt(record, job, found, (device_policy.rule, policy.proof_digest), context.now())
    if not policy.serial_in_receipts:
        record = replace(record, device=replace(record.device, serial=None))
    reading = context.observer.fence_reading(record.device.uuid)
    if signer is not None:
        receipt = signer.seal(record, receipt, closing.since_proof(record, reading))
    passed = ev.ScrubPassed(job.id, receipt, reading)
    if ended is None:
        return [passed]
    until_wiped = closing.until_wiped(ended, reading)
    signed = signer.close(record, ended, receipt, until_wiped) if signer is not None else ""
    return [passed, ev.TenancyClosed(ended, receipt.id, until_wiped, signed)]


def _failed(
    context: JobContext, policy: Policy, record: Record, job: Job, judged: verdict.Failed, vitals: Vitals | None
) -> ev.Event:
    now, escalate = context.now(), not scrub_paths.forbids(policy, ScrubPath.RESET)
    quarantined, given_up = record.health.quarantine is not None, verdict.given_up(record, now)
    match verdict.consequence(judged, job.path, escalate=escalate, quarantined=quarantined, given_up=given_up):
        case verdict.Consequence.ESCALATE:
            return ev.Escalated(job.id, judged.detail, ScrubPath.RESET)
        case verdict.Consequence.ENTER_QUARANTINE:
            chance = int(context.token(2), 16) / 2**16
            return next_action.quarantine(record, judged.ailment, "autoclave", vitals, policy, now, chance)
        case verdict.Consequence.STAY_IN_QUARANTINE:
            return next_action.interruption(record, judged.detail, now)
        case verdict.Consequence.LEAVE_DIRTY:
            return next_action.failure(record, judged.detail, judged.blame, judged.in_the_way)
