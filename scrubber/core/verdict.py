"""What a job proved, if anything.

Rule 1: clean means that every step of the path was run, finished, and passed; a missing result is a failure.
Rule 2: memory that did not hold what was written is a failure of the whole job, whatever a later result says.
Rule 3: coverage is measured or it is zero, and what the clear could reach the verify must have read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from enum import Enum

from policies.model import Policy
from scrubber.core.model import (
    Ailment,
    Baseline,
    Blame,
    Job,
    Moment,
    Outcome,
    Path,
    Receipt,
    Record,
    Sickness,
    Step,
    StepResult,
    Vitals,
)

PLANS: dict[Path, tuple[Step, ...]] = {
    Path.FAST: (Step.EVICT, Step.CLEAR, Step.VERIFY, Step.SETTINGS, Step.HEALTH),
    Path.SLOW: (Step.EVICT, Step.RESET, Step.CLEAR, Step.VERIFY, Step.SETTINGS, Step.HEALTH),
}
MEASURED = (Step.CLEAR, Step.VERIFY)


@dataclass(frozen=True, slots=True)
class Passed:
    """Every wanted step passed; these are the figures of the receipt."""

    steps: tuple[tuple[Step, float], ...]
    covered_bytes: int
    allocatable_bytes: int
    residue_bytes: int
    processes_found: int
    processes_terminated: int
    baseline: Baseline


@dataclass(frozen=True, slots=True)
class Failed:
    """No proof, and why. ``sickness`` is what a quarantine would say."""

    step: Step
    blame: Blame
    detail: str
    sickness: Sickness


Verdict = Passed | Failed


@dataclass(frozen=True, slots=True)
class Escalate:
    """Try the more thorough path in the same job."""

    path: Path


@dataclass(frozen=True, slots=True)
class LeaveDirty:
    """Not the device's fault: leave it dirty, try again later."""


@dataclass(frozen=True, slots=True)
class StayConfined:
    """Its probation did not come to an end: it stays in quarantine for the reason that it was there for."""


@dataclass(frozen=True, slots=True)
class Confine:
    """The device is sick: quarantine it."""

    sickness: Sickness


Consequence = Escalate | LeaveDirty | StayConfined | Confine


def judge(job: Job, baseline: Baseline, policy: Policy) -> Verdict:
    """Whether the results of a job's present path, and all before it, prove the device clean and healthy."""
    ran = tuple(result for result in job.results if result.path is job.path)
    fault = _faulty_memory(job.results) or _not_passed(ran) or _not_the_plan(ran, PLANS[job.path])
    if fault is not None:
        return fault
    done = {result.step: result for result in ran}
    return (
        _too_little(done, policy)
        or _unwell(done, baseline, policy)
        or _figures(job, done, known(done[Step.HEALTH].findings.vitals, baseline))
    )


def consequence(failure: Failed, path: Path, *, escalate: bool, confined: bool) -> Consequence:
    """What follows a failed path. ``confined`` is a device on probation: whatever fails, it stays in quarantine."""
    if failure.blame is Blame.DEVICE and path is Path.FAST and escalate:
        return Escalate(Path.SLOW)
    if failure.blame is Blame.DEVICE:
        return Confine(failure.sickness)
    return StayConfined() if confined else LeaveDirty()


def diagnose(vitals: Vitals, baseline: Baseline, policy: Policy) -> Sickness | None:
    """What is newly wrong with a device, worst first."""
    # A log or a counter that went back was begun anew by a reset: all of it is news.
    newest = max((xid.number for xid in vitals.xids), default=baseline.last_xid)
    heard = baseline.last_xid if newest >= baseline.last_xid else 0
    counted = baseline.ecc_uncorrectable if vitals.ecc_uncorrectable >= baseline.ecc_uncorrectable else 0
    fatal = [xid for xid in vitals.xids if xid.number > heard and xid.code in policy.quarantine.xids]
    if vitals.lost:
        return Sickness(Ailment.LOST, "the device has fallen off its bus")
    if vitals.unresponsive:
        told = f": {vitals.why}" if vitals.why else ""
        return Sickness(Ailment.UNRESPONSIVE, f"the driver does not answer for this device{told}")
    if vitals.remap_failed:
        return Sickness(Ailment.REMAP_FAILED, "a memory row could not be remapped", sticky=True)
    if vitals.ecc_uncorrectable > counted:
        new = vitals.ecc_uncorrectable - counted
        return Sickness(Ailment.ECC, f"{new} new uncorrectable memory error(s)")
    if fatal:
        return Sickness(Ailment.XID, f"xid {fatal[-1].code} was reported")
    if vitals.reset_required:
        return Sickness(Ailment.RESET_REQUIRED, "the driver asks for a reset")
    if vitals.remap_pending:
        return Sickness(Ailment.REMAP_PENDING, "a memory row waits to be remapped: needs a reset")
    return None


def known(vitals: Vitals | None, before: Baseline) -> Baseline:
    """The baseline after these vitals were judged: what they show is no news next time."""
    if vitals is None:
        return before
    last = max((xid.number for xid in vitals.xids), default=before.last_xid)
    return Baseline(last_xid=last, ecc_uncorrectable=vitals.ecc_uncorrectable)


def write_receipt(record: Record, job: Job, passed: Passed, policy: tuple[str, str], now: Moment) -> Receipt:
    """The receipt of a job that passed. ``policy`` is its name with the rule, and its proof digest."""
    name, policy_digest = policy
    draft = Receipt(
        id="",
        device=record.device.uuid,
        job=job.id,
        path=job.path,
        incarnation=record.incarnation,
        policy=name,
        policy_digest=policy_digest,
        finished=now,
        steps=passed.steps,
        covered_bytes=passed.covered_bytes,
        allocatable_bytes=passed.allocatable_bytes,
        residue_bytes=passed.residue_bytes,
        processes_found=passed.processes_found,
        processes_terminated=passed.processes_terminated,
        baseline=passed.baseline,
        previous=record.last_receipt,
        digest="",
    )
    digest = digest_of(draft)
    return replace(draft, id=digest[:16], digest=digest)


def digest_of(receipt: Receipt) -> str:
    """The digest over everything a receipt says, its own id and digest excepted."""
    fields = {name: value for name, value in asdict(receipt).items() if name not in {"id", "digest"}}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=_word)
    return hashlib.sha256(text.encode()).hexdigest()


def _word(value: Enum) -> str:
    return str(value.value)


def failed(step: Step, blame: Blame, detail: str, sickness: Sickness | None = None) -> Failed:
    """A failure; without a diagnosis of its own it is that the scrub failed."""
    return Failed(step, blame, detail, sickness or Sickness(Ailment.SCRUB_FAILED, detail))


def _from_result(result: StepResult) -> Failed:
    """A step that did not pass, in the words of a quarantine."""
    detail = f"{result.step.value} {result.outcome.value}" + (f": {result.detail}" if result.detail else "")
    if result.findings.mismatch is not None:
        return failed(result.step, Blame.DEVICE, detail, Sickness(Ailment.MEMORY_FAULT, detail))
    if result.step is Step.RESET and result.blame is Blame.DEVICE:
        return failed(result.step, Blame.DEVICE, detail, Sickness(Ailment.RESET_FAILED, detail))
    return failed(result.step, result.blame, detail)


def _faulty_memory(results: tuple[StepResult, ...]) -> Failed | None:
    for result in results:
        if result.findings.mismatch is not None:
            return _from_result(result)
    return None


def _not_passed(ran: tuple[StepResult, ...]) -> Failed | None:
    for result in ran:
        if result.outcome is not Outcome.PASSED:
            return _from_result(result)
    return None


def _not_the_plan(ran: tuple[StepResult, ...], plan: tuple[Step, ...]) -> Failed | None:
    """Each step once, in the order of the plan: a verify before its clear has proved nothing."""
    steps = tuple(result.step for result in ran)
    if steps == plan:
        return None
    wrong = next((step for step in plan if steps.count(step) != 1), plan[-1])
    names = ", ".join(step.value for step in steps) or "nothing"
    wanted = ", ".join(step.value for step in plan)
    return failed(wrong, Blame.DEVICE, f"the path is {wanted}; what ran is {names}")


def _too_little(done: dict[Step, StepResult], policy: Policy) -> Failed | None:
    """Coverage of clear and verify, each against the most that either could have covered."""
    allocatable = max(done[step].findings.allocatable_bytes or 0 for step in MEASURED)
    for step in MEASURED:
        covered, own = done[step].findings.covered_bytes, done[step].findings.allocatable_bytes
        if not covered or not own:
            return failed(step, Blame.DEVICE, f"{step.value} did not say how much memory it covered")
        if covered > own:
            return failed(
                step, Blame.DEVICE, f"{step.value} says it covered {covered} of {own} bytes: it counts wrongly"
            )
        if covered < policy.clear.min_coverage * allocatable:
            wanted = f"{policy.clear.min_coverage:.2%}"
            return failed(
                step, Blame.DEVICE, f"{step.value} covered {covered / allocatable:.2%}, the policy wants {wanted}"
            )
    return None


def _unwell(done: dict[Step, StepResult], baseline: Baseline, policy: Policy) -> Failed | None:
    vitals = done[Step.HEALTH].findings.vitals
    if vitals is None:
        return failed(Step.HEALTH, Blame.DEVICE, "the device did not report its health")
    if vitals.leaked_bytes:
        return failed(Step.HEALTH, Blame.DEVICE, f"{vitals.leaked_bytes} bytes are held by no visible process")
    sickness = diagnose(vitals, baseline, policy)
    return failed(Step.HEALTH, Blame.DEVICE, sickness.detail, sickness) if sickness else None


def _figures(job: Job, done: dict[Step, StepResult], baseline: Baseline) -> Passed:
    """What the receipt says, when all steps passed: the smaller coverage counts."""
    clear, verify = done[Step.CLEAR].findings, done[Step.VERIFY].findings
    holders = {(holder.pid, holder.started) for result in job.results for holder in result.findings.holders}
    return Passed(
        steps=tuple((result.step, result.seconds) for result in job.results),
        covered_bytes=min(clear.covered_bytes or 0, verify.covered_bytes or 0),
        allocatable_bytes=max(clear.allocatable_bytes or 0, verify.allocatable_bytes or 0),
        residue_bytes=sum(result.findings.residue_bytes or 0 for result in job.results),
        processes_found=len(holders),
        processes_terminated=sum(len(result.findings.terminated) for result in job.results),
        baseline=baseline,
    )
