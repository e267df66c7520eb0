"""Whether a job may continue with its next step, and whether it proved its device clean.

Rule 1: a job passes when every step of its path ran, ended and passed. A missing result is a failure.
Rule 2: memory that did not hold what was written, or a unit that computed wrongly, fails the whole job, no matter what
a later result says.
Rule 3: coverage that was not measured is zero. Clear and verify must each cover what the policy orders.
Rule 4: the result of a step that passed must have the findings of that step (``plans.STEPS``), and say how much memory
or how many units it covered (``step_results``, for the job).
Rule 5: the patterns must be those that the policy orders, verify must have read back the last one, and the self-test
must cover all that the policy orders. If the worker did less, nothing is proven. That is a fault of the service, not of
the device, so the device stays dirty.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from typing import Any

from ground.documents.units import format_size
from ground.quantities import quantity
from policies.policy_model import Policy
from scrub_api.measurements import Measurements, Uncovered
from scrubber.core import answers, ownership, plans, proof, step_results, stuck
from scrubber.core.ailment_traits import AILMENTS, Lasts
from scrubber.core.ailments import diagnose, next_baseline, without_programs, worst
from scrubber.core.measured import (
    Cleared,
    Mismatch,
    Restored,
    Scratched,
    Tested,
    Verified,
    forgiven_memory,
    own_memory,
)
from scrubber.core.model import (
    NO_HOLDER,
    Ailment,
    AilmentKind,
    Baseline,
    Blame,
    Evicted,
    Facts,
    Findings,
    HealthRead,
    InTheWay,
    Job,
    Moment,
    Outcome,
    Receipt,
    ScrubPath,
    State,
    Step,
    StepResult,
    Vitals,
)
from scrubber.core.record import Record

UNEXPLAINED = "unexplained"  # uncovered bytes without a cause: the parts of a receipt always add up
ARITHMETIC = "arithmetic"  # the test that every self-test must complete; the others run while there is time


@dataclass(frozen=True, slots=True)
class Done:
    """What the steps of a path found, all of which have passed."""

    clear: Cleared
    verify: Verified
    settings: Restored
    health: HealthRead
    scratch: Scratched | None  # None: the path is without this step
    selftest: Tested | None  # the same

    @property
    def covered(self) -> int:
        """The bytes that were overwritten and read back: of two coverages the smaller one counts."""
        return min(self.clear.covered_bytes, self.verify.covered_bytes)

    @property
    def allocatable(self) -> int:
        """The bytes that any process could have: of two sizes the larger one counts."""
        return max(self.clear.allocatable_bytes, self.verify.allocatable_bytes)


@dataclass(frozen=True, slots=True)
class Failed:
    """The reason why there is no proof. ``ailment`` is the reason for a quarantine, if the device is to blame."""

    step: Step
    blame: Blame
    detail: str
    ailment: Ailment
    in_the_way: InTheWay = field(default=NO_HOLDER, compare=False)


Verdict = Measurements | Failed  # what a job measured that passed, or why there is no proof


class Consequence(Enum):
    """What follows a failed path."""

    ESCALATE = "the same job takes the path reset"
    LEAVE_DIRTY = "no proven fault of the device: it is tried again later"
    STAY_IN_QUARANTINE = "the probation could not be completed: the reason of the quarantine stays"
    ENTER_QUARANTINE = "a fault of the device: its ailment is the reason"


def veto(
    record: Record, job: str, step: Step, facts: Facts, clear_began: float = math.inf
) -> answers.Veto | None:  # fmt: skip
    """Why a job must not run this step, or None. The job asks again immediately before each step.

    The job may have outlived its caller, and the device may have a new holder by now. ``clear_began``: the uptime at
    which the path began to write. The bytes that another process has written since then may remain.
    """
    if record.state is not State.SCRUBBING or record.scrubs.job is None or record.scrubs.job.id != job:
        return answers.Veto(Blame.SERVICE, "the device no longer belongs to this job")
    if facts.incarnation != record.incarnation:
        return answers.Veto(Blame.SERVICE, "the node or the driver was restarted during the job")
    if facts.domain_resetting:
        return answers.Veto(Blame.SERVICE, "a device of the same reset domain is being reset")
    if facts.holders is None:
        blame = Blame.SERVICE if facts.shortage else Blame.TENANT
        return answers.Veto(blame, answers.why_unknown_for_operators(facts))
    if facts.holders:
        names, holders = facts.who, InTheWay(facts.holders, unnamed=False)
        if ownership.live_container(facts.holders) is not None:
            return answers.Veto(Blame.TENANT, f"a live container uses the device ({names})", holders)
        if step is not Step.EVICT:
            return answers.Veto(Blame.TENANT, f"the device is used by {names}", holders)
    if facts.observed_since > clear_began:
        after = facts.observed_since - clear_began
        why = f"{after:.1f} s after its clear began, the service noticed: {facts.unobserved}"
        return answers.Veto(Blame.SERVICE, why)
    if facts.used_at > clear_began and facts.use_unsure:
        why = f"it is not known whether another process has used the device since its clear began: {facts.use_unsure}"
        return answers.Veto(Blame.SERVICE, why)
    if facts.used_at > clear_began:
        why = "another process has used the device since its clear began, and has left"
        return answers.Veto(Blame.TENANT, why, InTheWay((), unnamed=True))
    if step is Step.RESET and facts.siblings_busy is not False:
        return answers.Veto(Blame.TENANT, "a device of the same reset domain is in use")
    return None


def judge(job: Job, baseline: Baseline, policy: Policy) -> Verdict:
    """Whether a job's present path proves the device clean and healthy. Hardware faults of earlier paths count too."""
    ran = tuple(result for result in job.results if result.path is job.path)
    plan = plans.PLANS[job.path]
    fault = _faulty_hardware(job.results) or _not_passed(ran) or _not_the_plan(ran, plan) or _not_reported(ran)
    if fault is not None:
        return fault
    done = _done(ran)
    checks = (
        _too_little(done, policy),
        _not_as_ordered(done, policy),
        _not_tested(done),
        _unwell(done, baseline, policy),
    )
    faults = [fault for fault in checks if fault is not None]
    if faults:  # a fault of the device counts first
        return min(faults, key=lambda fault: fault.blame is not Blame.DEVICE)
    return _measurements(job, done)


def confirmed(
    judged: Verdict,
    vitals: Vitals | None,
    record: Record,
    policy: Policy,
    workers: Collection[int] = (),
    others: Collection[Record] = (),
) -> Verdict:
    """The verdict together with what the service itself observed: the worker does not read the error log.

    A program of ours that failed on the device blames the device only with a second sign. Errors that the driver
    logged of that program do not count: they are the same event. ``workers``: the pids of the job's workers.

    If the node lacks something, all of its devices lack it. So a failure that the node may have caused blames the
    device only if it happened twice and the scrub of another device passed in between, or if the device reports an
    ailment. ``others``: the records of all devices of the node.
    """
    undecided = isinstance(judged, Failed) and judged.blame is Blame.UNDECIDED
    ailment = diagnose(without_programs(vitals, workers) if undecided else vitals, record.health.baseline, policy)
    if isinstance(judged, Failed):
        unsure = undecided or judged.blame is Blame.NODE_OR_DEVICE
        again = _has_failed(record) if undecided else _passed_elsewhere(record, others)
        if unsure and (ailment is not None or again):
            judged = replace(judged, blame=Blame.DEVICE, ailment=ailment or judged.ailment)
        if ailment is None or judged.blame is not Blame.DEVICE:
            return judged
        return replace(judged, ailment=worst((judged.ailment, ailment)) or ailment)
    if ailment is not None:
        return failed(Step.HEALTH, Blame.DEVICE, ailment.detail, ailment)
    if vitals is None or vitals.partial:
        return failed(Step.HEALTH, Blame.SERVICE, "its health could not be read at the end")
    return judged


def _has_failed(record: Record) -> bool:
    """Whether an earlier path of this job, or an earlier scrub since the last proof, has failed in this way."""
    job = record.scrubs.job
    escalated = job is not None and any(result.path is not job.path for result in job.results)
    return escalated or record.scrubs.undecided


def _passed_elsewhere(record: Record, others: Collection[Record]) -> bool:
    """Whether the scrub of another device has passed since a scrub of this device first failed in this way.

    The first failure counts, because on a quiet node no other device is scrubbed before the next attempt at this one.
    """
    first = record.scrubs.node_or_device
    failed_at = first.uptime if first is not None else math.inf
    receipts = (other.scrubs.receipt for other in others if other.device.uuid != record.device.uuid)
    return any(
        receipt is not None and receipt.incarnation == record.incarnation and receipt.finished.uptime > failed_at
        for receipt in receipts
    )


def proven_fault(job: Job) -> Ailment | None:
    """The hardware fault that a step of this job has proven, even if the job was cancelled."""
    failure = _faulty_hardware(job.results)
    return failure.ailment if failure is not None else None


def consequence(
    failure: Failed, path: ScrubPath, *, escalate: bool, quarantined: bool, given_up: bool
) -> Consequence:  # fmt: skip
    """What follows a failed path. ``quarantined``: the device is on probation, so it stays in quarantine.

    ``given_up``: the service has waited long enough for a process that does not end.
    """
    traits = AILMENTS[failure.ailment.kind]
    if failure.blame is Blame.DEVICE and path is not ScrubPath.RESET and escalate and traits.escalates:
        return Consequence.ESCALATE
    if failure.blame is Blame.DEVICE:
        return Consequence.ENTER_QUARANTINE
    if quarantined:
        return Consequence.STAY_IN_QUARANTINE
    stays = traits.lasts is Lasts.HELD and given_up
    return Consequence.ENTER_QUARANTINE if stays else Consequence.LEAVE_DIRTY


def write_receipt(record: Record, job: Job, found: Measurements, policy: tuple[str, str], now: Moment) -> Receipt:
    """The receipt of a job that passed. ``policy``: its name with the rule, and its proof digest."""
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
        steps=tuple((result.step, result.seconds) for result in job.results),
        baseline=next_baseline(_read_last(job), record.health.baseline),
        previous=record.scrubs.last_receipt,
        digest="",
        last_owner=record.tenancy.left_by,
        **measured(found),
    )
    digest = digest_of(draft)
    return replace(draft, id=digest[:16], digest=digest)


def measured(measurements: Measurements) -> dict[str, Any]:
    """The measurements by field name, to build a receipt or a view of it."""
    return {measurement.name: getattr(measurements, measurement.name) for measurement in fields(Measurements)}


def digest_of(receipt: Receipt) -> str:
    """The digest over all fields of a receipt except its id, the digest, and the envelope, which names the digest."""
    return _digest(asdict(receipt))


def digest_as_stored(passed: str) -> str:
    """The same, of the receipt in a stored event. It holds for each version, whichever fields a receipt had then."""
    return _digest(json.loads(passed)["receipt"])


def _digest(receipt: Mapping[str, Any]) -> str:
    content = {name: value for name, value in receipt.items() if name not in {"id", "digest", "envelope"}}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=lambda word: str(word.value))
    return hashlib.sha256(text.encode()).hexdigest()


def failed(step: Step, blame: Blame, detail: str, ailment: Ailment | None = None) -> Failed:
    """A failure. Without an ailment of its own it counts as ``scrub-failed``."""
    return Failed(step, blame, detail, ailment or Ailment(AilmentKind.SCRUB_FAILED, detail))


def _from_result(result: StepResult) -> Failed:
    """The failure of a step that did not pass."""
    return replace(_kind_of_failure(result), in_the_way=_in_the_way(result.findings))


def _in_the_way(findings: Findings | None) -> InTheWay:
    """The processes that prevented a step, and were not ended."""
    match findings:
        case InTheWay():
            return findings
        case Evicted(holders, terminated):
            return InTheWay(tuple(holder for holder in holders if holder.pid not in terminated), unnamed=False)
        case _:
            return NO_HOLDER


def _kind_of_failure(result: StepResult) -> Failed:
    detail = f"{result.step.value} {result.outcome.value}" + (f": {result.detail}" if result.detail else "")
    kind = _hardware_fault(result.findings)
    if kind is not None:
        return failed(result.step, Blame.DEVICE, detail, Ailment(kind, detail))
    if isinstance(result.findings, HealthRead) and result.findings.vitals.lost:
        return failed(result.step, Blame.DEVICE, detail, Ailment(AilmentKind.LOST, detail))
    if result.step is Step.RESET and result.blame is Blame.DEVICE:
        return failed(result.step, Blame.DEVICE, detail, Ailment(AilmentKind.RESET_FAILED, detail))
    if result.blame is Blame.TENANT and isinstance(result.findings, Evicted) and result.findings.stuck:
        return failed(result.step, result.blame, detail, Ailment(AilmentKind.STUCK_PROCESS, detail))
    return failed(result.step, result.blame, detail)


def _faulty_hardware(results: tuple[StepResult, ...]) -> Failed | None:
    for result in results:
        if _hardware_fault(result.findings) is not None:
            return _from_result(result)
    return None


def _hardware_fault(findings: Findings | None) -> AilmentKind | None:
    """The hardware fault that these findings show, no matter how the step ended."""
    match findings:
        case Cleared(mismatch=Mismatch()) | Verified(mismatch=Mismatch()) | Tested(mismatch=Mismatch()):
            return AilmentKind.MEMORY_FAULT
        case Scratched(units_faulty=units) if units:
            return AilmentKind.MEMORY_FAULT
        case Tested(deviating=units) if units:
            return AilmentKind.COMPUTE_FAULT
        case _:
            return None


def _not_passed(ran: tuple[StepResult, ...]) -> Failed | None:
    """The first failure in the order of the steps: a step of the second worker may fail before the first one ends."""
    failed = [result for result in ran if result.outcome is not Outcome.PASSED]
    return _from_result(min(failed, key=lambda result: [*Step].index(result.step))) if failed else None


def _not_the_plan(ran: tuple[StepResult, ...], plan: tuple[Step, ...]) -> Failed | None:
    """Each step must run once, in the order of the plan: a verify before its clear proves nothing."""
    steps = tuple(result.step for result in ran)
    if steps == plan:
        return None
    wrong = next((step for step in plan if steps.count(step) != 1), plan[-1])
    names = ", ".join(step.value for step in steps) or "nothing"
    wanted = ", ".join(step.value for step in plan)
    return failed(wrong, Blame.DEVICE, f"the path is {wanted}; what ran is {names}")


def _not_reported(ran: tuple[StepResult, ...]) -> Failed | None:
    """Each result must have the findings of its own step. Otherwise nothing is proven."""
    silent = step_results.unreported(ran)
    why = "did not report what it must find"
    return failed(silent, Blame.SERVICE, f"{silent.value} {why}") if silent is not None else None


def _done(ran: tuple[StepResult, ...]) -> Done:
    found: dict[Step, Any] = {result.step: result.findings for result in ran}  # each of the type of its step
    clear, verify, settings, health = (
        found[step] for step in (Step.CLEAR, Step.VERIFY, Step.SETTINGS, Step.HEALTH)
    )  # fmt: skip
    return Done(clear, verify, settings, health, found.get(Step.SCRATCH), found.get(Step.SELFTEST))


def _too_little(done: Done, policy: Policy) -> Failed | None:
    """Clear and verify must each cover the share that the policy orders, of the larger memory size.

    ``forgiven_memory``, a part of the scrub's own memory, counts as covered. Only clear reports it: verify reads the
    memory that clear wrote.
    """
    allocatable, least = done.allocatable, policy.clear.min_coverage
    uncovered = done.clear.uncovered
    own = own_memory(uncovered)
    allowed = forgiven_memory(uncovered)
    for step, covered in ((Step.CLEAR, done.clear.covered_bytes), (Step.VERIFY, done.verify.covered_bytes)):
        if covered + allowed >= least * allocatable:
            continue
        percent = f"{covered * 10_000 // allocatable / 100:.2f}%"  # rounded down: too little never reads as enough
        short = f"{step.value} covered {percent}, the policy wants {least:.2%}"
        if allowed:
            short += f" with {format_size(allowed)} of its own memory"
        if step is not Step.CLEAR or covered + own < least * allocatable:
            return failed(step, Blame.DEVICE, short)
        parts = _listed(tuple(f"{format_size(part.bytes)} {part.cause}" for part in uncovered))
        # One byte less, so that rounding never asks for more.
        reached = (covered + allowed - 1) * 10_000 // allocatable / 10_000
        remedy = f"give it a rule with clear.min_coverage {reached}"
        return failed(step, Blame.SERVICE, f"{short}; not covered: {parts}; no fault of the device: {remedy}")
    return None


def _not_as_ordered(done: Done, policy: Policy) -> Failed | None:
    """The patterns must be those that the policy orders: clear writes all of them, verify reads the last one back."""
    ordered = policy.clear.passes.patterns
    for step, did, patterns, wanted in (
        (Step.CLEAR, "wrote", done.clear.patterns, ordered),
        (Step.VERIFY, "read back", done.verify.patterns, ordered[-1:]),
    ):
        if patterns != wanted:
            detail = f"{step.value} {did} {_listed(patterns)}; the policy orders {_listed(wanted)}"
            return failed(step, Blame.SERVICE, detail)
    return None


def _not_tested(done: Done) -> Failed | None:
    """The self-test must cover the proven memory and the overwritten units, on a path that has this step."""
    if (tested := done.selftest) is None:
        return None
    covered, units = tested.covered_bytes, done.scratch.units if done.scratch else 0
    why = None
    if ARITHMETIC not in tested.tests:
        why = f"ran {_listed(tested.tests)}, but not {ARITHMETIC}: selftest.time in the policy may be too short"
    elif not done.covered <= covered <= done.allocatable:
        why = f"says it covered {covered} bytes, but {done.covered} of {done.allocatable} were read back before"
    elif tested.units != units:
        why = f"says that {quantity(tested.units, 'unit')} computed; scratch overwrote {units}"
    return failed(Step.SELFTEST, Blame.SERVICE, f"selftest {why}") if why else None


def _unwell(done: Done, baseline: Baseline, policy: Policy) -> Failed | None:
    vitals = done.health.vitals
    if vitals.leaked_bytes:
        return failed(Step.HEALTH, Blame.DEVICE, proof.leak(vitals.leaked_bytes))
    ailment = diagnose(vitals, baseline, policy)
    return failed(Step.HEALTH, Blame.DEVICE, ailment.detail, ailment) if ailment else None


def _measurements(job: Job, done: Done) -> Measurements:
    """The measurements of a job that passed. The smaller of two coverages counts."""
    found = [result.findings for result in job.results]
    clears = [result for result in found if isinstance(result, Cleared)]
    named = (result.holders for result in found if isinstance(result, Evicted | InTheWay))
    holders = {(holder.pid, holder.started) for several in named for holder in several}
    uncovered = tuple(part for part in done.clear.uncovered if part.bytes)
    unexplained = done.allocatable - done.covered - sum(part.bytes for part in uncovered)
    if unexplained:
        uncovered = (*uncovered, Uncovered(UNEXPLAINED, unexplained))
    return Measurements(
        covered_bytes=done.covered,
        allocatable_bytes=done.allocatable,
        residue_bytes=sum(clear.residue_bytes for clear in clears),
        processes_found=len(holders),
        processes_terminated=sum(len(result.terminated) for result in found if isinstance(result, Evicted)),
        residue_at=tuple(sorted({at for clear in clears for at in clear.residue_at})),
        uncovered=uncovered,
        patterns=done.clear.patterns,
        units=done.scratch.units if done.scratch else None,
        units_reached=done.scratch.units_reached if done.scratch else None,
        shared_unreached_bytes=done.scratch.shared_unreached_bytes if done.scratch else None,
        units_left=done.scratch.units_left if done.scratch else (),
        tests=done.selftest.tests if done.selftest else (),
        searched_bytes=_searched(clears),
        unsupported=done.settings.unsupported,
    )


def _searched(clears: list[Cleared]) -> int | None:
    """How much memory was searched for data of the last owner; None if it was all covered memory.

    If the last clear may have found the pattern of an earlier clear, an earlier path of the job may have searched.
    """
    if clears[-1].searched_bytes != 0:
        return clears[-1].searched_bytes
    return max(clear.covered_bytes if clear.searched_bytes is None else clear.searched_bytes for clear in clears)


def _read_last(job: Job) -> Vitals | None:
    """The health that the last step read: every path ends with that step."""
    last = job.results[-1].findings
    return last.vitals if isinstance(last, HealthRead) else None


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def given_up(record: Record, now: Moment) -> bool:
    """Whether processes that do not end have held this device for too long."""
    return stuck.held_for(record.scrubs.stuck, now) >= stuck.GIVEN_UP_AFTER
