"""A job proves what every one of its steps proved, and nothing more; the receipt says exactly that."""

import dataclasses
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.hardware import DeviceSign, QuarantinePolicy
from policies.policy_model import STEP_SECONDS, Clear, Policy
from policies.xids import PROGRAM_FAULTS, Treatment, Xids
from scrub_api.measurements import Measurements, Uncovered
from scrubber.core import ailments, plans, step_results, verdict
from scrubber.core import events as ev
from scrubber.core.measured import Mismatch
from scrubber.core.model import (
    NO_HOLDER,
    Ailment,
    AilmentKind,
    Baseline,
    Blame,
    Evicted,
    Holder,
    Incarnation,
    InTheWay,
    Moment,
    Outcome,
    Receipt,
    ScrubPath,
    Sign,
    Step,
    Vitals,
    Xid,
)
from scrubber.core.verdict import Consequence, Failed
from tests.core import lives
from tests.core.lives import ENFORCE, NOW, finished, result, results

FRESH = Baseline()
ORPHAN, OTHERS = Holder(7, 1.0, "x", None), Holder(8, 1.0, "y", "pod-y")
WRONG = Mismatch(offset=4096, expected=0, got=255, count=3)
PLANNED = [(path, step) for path, plan in plans.PLANS.items() for step in plan]
HALF = ENFORCE.model_copy(update={"clear": Clear(min_coverage=0.5)})


def judge(job, baseline=FRESH, policy=ENFORCE):
    return verdict.judge(lives.judged(job), baseline, policy)


def spoiled(path, step, **changes):
    """A job of which one result is different."""
    job = finished(path)
    return replace(job, results=tuple(replace(it, **changes) if it.step is step else it for it in job.results))


def test_each_path_has_its_steps_in_the_right_order():
    for path, plan in plans.PLANS.items():
        assert (plan[0], plan[-1]) == (Step.EVICT, Step.HEALTH)
        assert plan.index(Step.CLEAR) < plan.index(Step.VERIFY) < plan.index(Step.SETTINGS)
        assert plan.index(Step.VERIFY) < plan.index(Step.SCRATCH) < plan.index(Step.SETTINGS)
        assert (Step.RESET in plan) == (path is ScrubPath.RESET)
        assert (Step.SELFTEST in plan) == (path is not ScrubPath.FAST)
    slow, reset = plans.PLANS[ScrubPath.SLOW], plans.PLANS[ScrubPath.RESET]
    assert reset == (Step.EVICT, Step.RESET, *slow[1:])
    assert slow.index(Step.SCRATCH) < slow.index(Step.SELFTEST)
    assert slow.index(Step.SELFTEST) < slow.index(Step.HEALTH), "what the tests brought out is seen by the last look"


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.PASSED])
@pytest.mark.parametrize(("path", "step"), PLANNED)
def test_i6_one_step_that_did_not_pass_fails_the_job(path, step, outcome):
    judged = judge(spoiled(path, step, outcome=outcome, detail="so it was"))
    assert isinstance(judged, Failed)
    assert (judged.step, judged.detail) == (step, f"{step.value} {outcome.value}: so it was")


@pytest.mark.parametrize(("path", "step"), PLANNED)
def test_i6_one_missing_step_fails_the_job(path, step):
    job = finished(path)
    judged = judge(replace(job, results=tuple(it for it in job.results if it.step is not step)))
    assert isinstance(judged, Failed)
    assert (judged.step, judged.blame) == (step, Blame.DEVICE)


FAST = finished(ScrubPath.FAST)
NOT_THE_PLAN = lives.rows(
    *((f"{step.value} twice", replace(FAST, results=(*FAST.results, result(step)))) for step in Step),
    ("an extra step that failed", replace(FAST, results=(*FAST.results, result(Step.RESET, outcome=Outcome.FAILED)))),
    ("another order", replace(FAST, results=FAST.results[::-1])),
    ("no results", lives.job()),
    ("results of a shorter path", replace(FAST, path=ScrubPath.SLOW)),
)  # fmt: skip


@pytest.mark.parametrize("job", NOT_THE_PLAN)
def test_results_that_differ_from_the_plan_prove_nothing(job):
    assert isinstance(judge(job), Failed)


def test_a_failure_names_the_steps_that_ran():
    assert judge(lives.job()).detail.endswith("what ran is nothing")
    assert "what ran is health, settings, " in judge(replace(FAST, results=FAST.results[::-1])).detail


def escalated(*fast):
    """A job that failed on the fast path and passed on the one with a reset."""
    return replace(finished(ScrubPath.RESET), results=(*fast, *results(ScrubPath.RESET)))


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.DIED])
def test_the_job_passes_if_only_the_fast_path_failed(outcome):
    assert isinstance(judge(escalated(result(Step.EVICT), result(Step.CLEAR, outcome=outcome))), Measurements)


FAULTY = [
    (Step.CLEAR, {"mismatch": WRONG}, AilmentKind.MEMORY_FAULT),
    (Step.VERIFY, {"mismatch": WRONG}, AilmentKind.MEMORY_FAULT),
    (Step.SCRATCH, {"units_faulty": 1}, AilmentKind.MEMORY_FAULT),
    (Step.SELFTEST, {"mismatch": WRONG}, AilmentKind.MEMORY_FAULT),
    (Step.SELFTEST, {"deviating": (0,)}, AilmentKind.COMPUTE_FAULT),
    (Step.SELFTEST, {"deviating": (7,), "mismatch": WRONG}, AilmentKind.MEMORY_FAULT),
]


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize(("step", "findings", "kind"), FAULTY)
def test_a_measured_hardware_fault_fails_the_job_whatever_else_passes(step, findings, kind, outcome):
    once = result(step, ScrubPath.SLOW, outcome, **findings)
    fast = replace(once, path=ScrubPath.FAST)
    cut = replace(result(Step.EVICT, ScrubPath.RESET, Outcome.ABORTED), blame=Blame.TENANT)
    cut_off = replace(lives.job(ScrubPath.RESET), results=(fast, cut))
    for job in (spoiled(ScrubPath.SLOW, step, outcome=outcome, findings=once.findings), escalated(fast), cut_off):
        judged = judge(job)
        assert isinstance(judged, Failed)
        assert (judged.step, judged.blame, judged.ailment.kind) == (step, Blame.DEVICE, kind)


def test_a_compute_fault_repeats_the_words_of_its_step():
    found = replace(result(Step.SELFTEST, ScrubPath.SLOW, Outcome.FAILED, deviating=(3,)), detail="unit 3 deviates")
    judged = judge(replace(finished(ScrubPath.SLOW), results=(found,)))
    assert judged.ailment == Ailment(AilmentKind.COMPUTE_FAULT, "selftest failed: unit 3 deviates")


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("blame", Blame)
def test_a_failure_takes_its_blame_from_the_step(step, blame):
    judged = judge(spoiled(ScrubPath.RESET, step, outcome=Outcome.ABORTED, blame=blame))
    kind = AilmentKind.RESET_FAILED if (step, blame) == (Step.RESET, Blame.DEVICE) else AilmentKind.SCRUB_FAILED
    assert (judged.blame, judged.ailment) == (blame, Ailment(kind, f"{step.value} aborted"))


# -- health


def test_of_two_failures_that_of_the_earlier_step_counts():
    """The second worker may fail before the first one has ended, and then has its result in the ledger first."""
    died = replace(result(Step.SCRATCH, outcome=Outcome.DIED), blame=Blame.UNDECIDED)
    cut = replace(result(Step.SETTINGS, outcome=Outcome.ABORTED), blame=Blame.SERVICE)
    assert judge(replace(FAST, results=(*FAST.results[:-3], cut, died))).blame is Blame.UNDECIDED


def test_a_step_that_lost_its_device_blames_the_device():
    lost = lives.result(Step.HEALTH, outcome=Outcome.FAILED, vitals=Vitals(lost=True))
    job = replace(lives.job(), results=(*lives.results()[:-1], replace(lost, blame=Blame.SERVICE)))
    judged = judge(job)
    assert (judged.blame, judged.ailment.kind) == (Blame.DEVICE, AilmentKind.LOST)


def test_a_failure_names_who_was_left_on_the_device():
    evicted = Evicted((ORPHAN, OTHERS), (ORPHAN.pid,))
    refused = replace(result(Step.EVICT, outcome=Outcome.FAILED), blame=Blame.TENANT, findings=evicted)
    judged = judge(replace(lives.job(), results=(refused,)))
    assert judged.in_the_way == InTheWay((OTHERS,), unnamed=False)
    cut = InTheWay((ORPHAN,), unnamed=True)
    other = judge(replace(lives.job(), results=(replace(refused, findings=cut),)))
    assert (other.in_the_way, other) == (cut, judged), "it is the same failure, whoever is in the way"


@pytest.mark.parametrize(("path", "step"), PLANNED)
def test_without_the_findings_of_each_step_nothing_is_proven(path, step):
    """Also where the job has not asked ``step_results``."""
    for findings in (*lives.GOOD.values(), NO_HOLDER):
        judged = verdict.judge(spoiled(path, step, findings=findings), FRESH, ENFORCE)
        if findings == lives.GOOD[step]:
            assert isinstance(judged, Measurements)
        else:
            assert judged == verdict.failed(step, Blame.SERVICE, f"{step.value} did not report what it must find")


def test_memory_used_by_no_visible_process_fails_the_job():
    judged = judge(finished(health={"vitals": Vitals(leaked_bytes=1)}))
    assert judged == verdict.failed(Step.HEALTH, Blame.DEVICE, "1 byte is in use, but no visible process holds them")


KNOWN = Baseline(last_xid=5, ecc_uncorrectable=2)
DIAGNOSES = [
    ("lost", Vitals(lost=True), AilmentKind.LOST),
    ("a new fatal xid", Vitals(xids=(Xid(6, 79),)), AilmentKind.XID),
    ("a new xid that nobody knows", Vitals(xids=(Xid(6, 999),)), AilmentKind.XID),
    ("an announced recovery", Vitals(xids=(Xid(6, 154, action="reset_gpu"),)), AilmentKind.XID),
    ("a recovery that is over", Vitals(xids=(Xid(6, 154, action="none"),)), None),
    ("one remap too many", Vitals(xids=tuple(Xid(it, 63, at=9.0 * it) for it in range(2, 7))), AilmentKind.XID),
    ("an event log that has forgotten the newest", Vitals(xids=(Xid(1, 79),)), None),
    ("a new memory error", Vitals(ecc_uncorrectable=3), AilmentKind.ECC),
    ("an old memory error", Vitals(ecc_uncorrectable=2), None),
    ("a counter that was begun anew", Vitals(ecc_uncorrectable=1), AilmentKind.ECC),
    ("a failed remap", Vitals(remap_failed=True), AilmentKind.REMAP_FAILED),
    ("a pending remap", Vitals(remap_pending=True), AilmentKind.REMAP_PENDING),
    ("the worst first: lost", Vitals(lost=True, unresponsive=True, remap_failed=True), AilmentKind.LOST),
    ("the worst first: remap", Vitals(remap_failed=True, ecc_uncorrectable=3, remap_pending=True),
     AilmentKind.REMAP_FAILED),
    ("the worst first: memory", Vitals(ecc_uncorrectable=3, xids=(Xid(6, 79),)), AilmentKind.ECC),
]  # fmt: skip


@pytest.mark.parametrize(("vitals", "kind"), [row[1:] for row in DIAGNOSES], ids=[row[0] for row in DIAGNOSES])
def test_only_new_errors_lead_to_an_ailment(vitals, kind):
    found = ailments.diagnose(vitals, KNOWN, ENFORCE)
    assert (found.kind if found else None) is kind
    assert found is None or found.sticky is (kind is AilmentKind.REMAP_FAILED)
    judged = judge(finished(health={"vitals": vitals}), KNOWN)
    if found is None:
        assert isinstance(judged, Measurements)
    else:
        assert judged == Failed(Step.HEALTH, Blame.DEVICE, found.detail, found)


def test_a_diagnosis_counts_only_new_errors():
    errors = ailments.diagnose(Vitals(ecc_uncorrectable=5), KNOWN, ENFORCE)
    assert errors == Ailment(AilmentKind.ECC, "3 new uncorrectable memory errors")
    xids = ailments.diagnose(Vitals(xids=(Xid(6, 79), Xid(7, 48))), KNOWN, ENFORCE)
    fallen = "xid 79 (ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS) was reported"
    assert xids == Ailment(AilmentKind.XID, fallen, xid=79)


def test_errors_in_the_new_baseline_are_not_diagnosed_again():
    seen = Vitals(xids=(Xid(7, 13), Xid(6, 79)), ecc_uncorrectable=3)
    assert ailments.next_baseline(seen, KNOWN) == Baseline(7, 3)
    assert ailments.diagnose(seen, ailments.next_baseline(seen, KNOWN), ENFORCE) is None


def test_an_older_or_empty_event_log_forgets_no_error():
    assert ailments.next_baseline(Vitals(), KNOWN) == Baseline(5, 0)
    old = Vitals(xids=(Xid(1, 13),))
    assert ailments.next_baseline(old, KNOWN) == Baseline(5, 0), "an error diagnosed once is never new again"
    assert ailments.next_baseline(None, KNOWN) == KNOWN


@pytest.mark.parametrize("unread", [Vitals(lost=True), Vitals(unresponsive=True), Vitals(partial=True)])
def test_counters_that_were_not_read_keep_the_baseline(unread):
    assert ailments.next_baseline(unread, KNOWN) == KNOWN


ALL_SIGNS = Policy(quarantine=QuarantinePolicy(signs=tuple(DeviceSign)))
STRONGEST_FIRST = tuple(
    map(AilmentKind, ("sram", "links", "switch", "reboot-required", "fabric", "pcie", "heat", "ghost-load"))
)


def test_the_order_of_signs_names_each_of_them():
    assert {kind.value for kind in STRONGEST_FIRST} == {sign.value for sign in DeviceSign}


@pytest.mark.parametrize(("worse", "milder"), list(itertools.combinations(STRONGEST_FIRST, 2)))
def test_of_two_signs_the_worse_is_the_ailment(worse, milder):
    found = ailments.diagnose(Vitals(signs=(Sign(milder, "x"), Sign(worse, "y"))), KNOWN, ALL_SIGNS)
    assert found == Ailment(worse, "y")


@pytest.mark.parametrize("kind", STRONGEST_FIRST)
def test_the_policy_says_which_signs_are_an_ailment(kind):
    serious = kind not in (AilmentKind.PCIE, AilmentKind.HEAT, AilmentKind.GHOST_LOAD)
    found = ailments.diagnose(Vitals(signs=(Sign(kind, "x"),)), KNOWN, ENFORCE)
    assert found == (Ailment(kind, "x") if serious else None)


@pytest.mark.parametrize("mild", [AilmentKind.PCIE, AilmentKind.HEAT])
def test_an_ailment_that_makes_results_doubtful_is_worse(mild):
    doubtful = Ailment(AilmentKind.FABRIC, "x")
    assert ailments.worst((Ailment(mild, "y"), doubtful)) == doubtful


# -- consequences


ESCALATE, DIRTY, STAY, ENTER = Consequence
LOST, STUCK, TENANT = lives.LOST, Ailment(AilmentKind.STUCK_PROCESS, "x"), Blame.TENANT
NOT_THE_DEVICE = tuple(blame for blame in Blame if blame is not Blame.DEVICE)
# The ailment and the blame of a failure; its path; may it escalate, is it quarantined, was it waited for long enough.
CONSEQUENCES = [
    (LOST, Blame.DEVICE, ScrubPath.FAST, True, False, False, ESCALATE),
    (LOST, Blame.DEVICE, ScrubPath.FAST, True, True, False, ESCALATE),
    (LOST, Blame.DEVICE, ScrubPath.SLOW, True, False, False, ESCALATE),
    (LOST, Blame.DEVICE, ScrubPath.FAST, False, False, False, ENTER),
    (LOST, Blame.DEVICE, ScrubPath.RESET, True, False, False, ENTER),
    (LOST, Blame.DEVICE, ScrubPath.SLOW, False, True, False, ENTER),
    # Neither a logged error nor silence begins a reset.
    (Ailment(AilmentKind.XID, "x"), Blame.DEVICE, ScrubPath.FAST, True, False, False, ENTER),
    (Ailment(AilmentKind.UNRESPONSIVE, "x"), Blame.DEVICE, ScrubPath.FAST, True, False, False, ENTER),
    *((LOST, blame, path, True, False, True, DIRTY) for blame in NOT_THE_DEVICE for path in ScrubPath),
    *((LOST, blame, path, True, True, False, STAY) for blame in NOT_THE_DEVICE for path in ScrubPath),
    *((STUCK, TENANT, path, True, False, False, DIRTY) for path in ScrubPath),
    *((STUCK, TENANT, path, True, False, True, ENTER) for path in ScrubPath),
    *((STUCK, TENANT, path, True, True, True, STAY) for path in ScrubPath),
]


@pytest.mark.parametrize(("ailment", "blame", "path", "escalate", "quarantined", "given_up", "then"), CONSEQUENCES)
def test_what_follows_a_failure(ailment, blame, path, escalate, quarantined, given_up, then):
    failure = verdict.failed(Step.CLEAR, blame, "so it was", ailment)
    found = verdict.consequence(failure, path, escalate=escalate, quarantined=quarantined, given_up=given_up)
    assert found is then


# -- the receipt

TWIN = Holder(7, 2.0, "x", None)


def receipt_of(job, record=lives.FIRST_LOOK):
    judged = judge(job, policy=HALF)
    assert isinstance(judged, Measurements)
    return verdict.write_receipt(record, job, judged, ("rule-1", "digest-1"), NOW)


def test_a_receipt_says_what_was_measured():
    job = finished(
        ScrubPath.SLOW,
        evict={"holders": (ORPHAN, TWIN), "terminated": (7,)},
        clear={
            "covered_bytes": 990, "allocatable_bytes": 1000, "residue_bytes": 5, "residue_at": (64, 512),
            "uncovered": (Uncovered("own context", 7),), "patterns": ("random", "zero"),
        },
        verify={"covered_bytes": 980, "allocatable_bytes": 999},
        scratch={"shared_unreached_bytes": 99, "units_left": ("caches",)},
        settings={"unsupported": ("a lock",)},
        health={"vitals": Vitals(ecc_uncorrectable=0, xids=(Xid(3, 13),))},
    )  # fmt: skip
    cut = replace(result(Step.CLEAR, outcome=Outcome.ABORTED), findings=InTheWay((ORPHAN,), unnamed=False))
    said = receipt_of(replace(job, results=(cut, *job.results)))
    assert said == Receipt(
        id=said.digest[:16], device="GPU-1", job="job-1", path=ScrubPath.SLOW, incarnation=lives.HERE, policy="rule-1",
        policy_digest="digest-1", finished=NOW, steps=tuple((it.step, 0.25) for it in (cut, *job.results)),
        covered_bytes=980, allocatable_bytes=1000, residue_bytes=5, processes_found=2, processes_terminated=1,
        baseline=Baseline(3, 0), previous=None, digest=verdict.digest_of(said), residue_at=(64, 512),
        uncovered=(Uncovered("own context", 7), Uncovered("unexplained", 13)), patterns=("random", "zero"), units=132,
        units_reached=132, shared_unreached_bytes=99, units_left=("caches",), tests=("address", "arithmetic"),
        unsupported=("a lock",),
    )  # fmt: skip


def test_a_receipt_has_the_measurements_of_earlier_paths():
    fast = result(Step.EVICT, terminated=(8, 9)), result(Step.CLEAR, residue_bytes=70, residue_at=(8, 4))
    said = receipt_of(escalated(*fast))
    assert (said.residue_bytes, said.residue_at, said.processes_terminated, len(said.steps)) == (70, (4, 8), 2, 10)


CUT_OFF = lives.but(lives.SCRUBBING, half_cleared=True)
OLD = result(Step.CLEAR, residue_bytes=7, residue_at=(64,))


@pytest.mark.parametrize(
    ("searched", "said"), [(60, (70, 60)), (None, (70, 500))], ids=["a part was searched", "all that was covered"]
)
def test_a_receipt_credits_the_last_owner_with_the_first_search(searched, said):
    """The second path finds the pattern of the first one."""
    failed = result(
        Step.CLEAR, outcome=Outcome.FAILED, covered_bytes=500, residue_bytes=70, searched_bytes=searched
    )  # fmt: skip
    second = replace(step_results.judged(OLD, CUT_OFF), path=ScrubPath.RESET)
    job = escalated(failed)
    job = replace(job, results=tuple(second if it.step is Step.CLEAR and it != failed else it for it in job.results))
    receipt = receipt_of(job)
    assert (receipt.residue_bytes, receipt.searched_bytes) == said


def test_a_receipt_takes_the_larger_allocatable_size():
    clear: dict[str, object] = {"covered_bytes": 990, "allocatable_bytes": 990}
    said = receipt_of(finished(clear=clear, verify={**clear, "allocatable_bytes": 1000}))
    assert (said.covered_bytes, said.allocatable_bytes) == (990, 1000)


OTHER = {
    "device": "GPU-2", "job": "job-9", "path": ScrubPath.FAST, "incarnation": Incarnation("boot-1", "driver-9"),
    "policy": "rule-2", "policy_digest": "digest-2", "finished": Moment(NOW.wall, 1.0), "steps": (),
    "covered_bytes": 1, "allocatable_bytes": 1, "residue_bytes": 1, "processes_found": 1, "processes_terminated": 1,
    "baseline": Baseline(0, 1), "previous": "0000", "residue_at": (1,), "uncovered": (Uncovered("", 1),),
    "patterns": ("ones",), "units": 1, "units_reached": 1, "tests": ("none",), "searched_bytes": 1,
    "shared_unreached_bytes": 1, "units_left": ("caches",), "unsupported": ("a lock",), "last_owner": "4711",
    "witness": "none: off",
}  # fmt: skip
NAMED_BY_DIGEST = {"id", "digest", "envelope"}  # made from the digest, or naming it


@pytest.mark.parametrize("field", [it.name for it in dataclasses.fields(Receipt) if it.name not in NAMED_BY_DIGEST])
def test_changing_any_field_of_a_receipt_changes_its_digest(field):
    said = receipt_of(finished(ScrubPath.SLOW))
    forged = replace(said, **{field: OTHER[field]})
    assert forged != said
    assert verdict.digest_of(forged) != said.digest


def test_each_step_has_a_time_limit_in_the_policy():
    assert list(STEP_SECONDS) == [step.value for step in plans.STEPS]


def test_the_digest_of_a_receipt_never_changes_between_versions():
    ran = ("evict", "reset", "clear", "verify", "scratch", "selftest", "settings", "health")  # also after a new step
    steps = tuple((Step(step), 0.25) for step in ran)
    digest = verdict.digest_of(replace(receipt_of(finished(ScrubPath.SLOW)), patterns=(), steps=steps))
    assert digest == "0ee4b2028ff2a844d459c9e0fb1abe426e943b0959b00b7baed3bdc4507b54ac"


# -- any job


@given(
    st.lists(
        st.builds(result, st.sampled_from(Step), st.sampled_from(ScrubPath), st.sampled_from(Outcome)), max_size=14
    )
)
def test_i6_only_the_whole_plan_passes_with_any_results(found):
    for path in ScrubPath:
        if isinstance(judge(replace(lives.job(path), results=tuple(found))), Measurements):
            ran = [(it.step, it.outcome) for it in found if it.path is path]
            assert ran == [(step, Outcome.PASSED) for step in plans.PLANS[path]]


@pytest.mark.parametrize(("why", "reported"), [("", ""), ("GPU is stuck", ": GPU is stuck")])
def test_an_unresponsive_device_is_reported_with_the_drivers_reason(why, reported):
    ailment = ailments.diagnose(Vitals(unresponsive=True, why=why), FRESH, ENFORCE)
    assert ailment is not None
    assert ailment.detail == f"the driver does not answer for this device{reported}"


# -- beside what the service itself has observed

PASSED = verdict.judge(finished(ScrubPath.FAST), FRESH, ENFORCE)
SCRUB_FAILED = verdict.failed(Step.CLEAR, Blame.DEVICE, "so it was")


def test_a_failed_job_reports_a_worse_ailment_that_was_observed():
    reported = verdict.confirmed(SCRUB_FAILED, Vitals(remap_failed=True), lives.SCRUBBING, ENFORCE)
    assert isinstance(reported, Failed)
    assert (reported.ailment and reported.ailment.kind, reported.detail) == (AilmentKind.REMAP_FAILED, "so it was")


def test_a_failed_job_keeps_its_own_worse_ailment():
    row = verdict.failed(Step.RESET, Blame.DEVICE, "so it was", Ailment(AilmentKind.RESET_FAILED, "so it was"))
    assert verdict.confirmed(row, Vitals(remap_pending=True), lives.SCRUBBING, ENFORCE) == row


@pytest.mark.parametrize(
    ("judged", "vitals"),
    [(SCRUB_FAILED, None), (SCRUB_FAILED, lives.WELL), (replace(SCRUB_FAILED, blame=Blame.TENANT), Vitals(lost=True))],
    ids=["nobody could ask", "nothing was seen", "it was not the device"],
)
def test_other_observations_leave_a_failure_unchanged(judged, vitals):
    assert verdict.confirmed(judged, vitals, lives.SCRUBBING, ENFORCE) is judged


@pytest.mark.parametrize(
    ("vitals", "blame"),
    [
        pytest.param(None, Blame.SERVICE, id="nobody could ask"),
        pytest.param(replace(lives.WELL, partial=True), Blame.SERVICE, id="it answered in part"),
        pytest.param(replace(lives.WELL, remap_failed=True), Blame.DEVICE, id="it is sick"),
        pytest.param(replace(lives.WELL, remap_failed=True, partial=True), Blame.DEVICE, id="sick and half silent"),
    ],
)
def test_a_pass_needs_a_healthy_observation_by_the_service(vitals, blame):
    reported = verdict.confirmed(PASSED, vitals, lives.SCRUBBING, ENFORCE)
    assert isinstance(reported, Failed)
    assert (reported.step, reported.blame) == (Step.HEALTH, blame)


def test_a_pass_stands_if_the_service_sees_a_healthy_device():
    assert verdict.confirmed(PASSED, lives.WELL, lives.SCRUBBING, ENFORCE) is PASSED


FAILED_KERNEL = replace(result(Step.CLEAR, outcome=Outcome.FAILED), blame=Blame.UNDECIDED)
UNDECIDED = verdict.failed(Step.CLEAR, Blame.UNDECIDED, "a kernel failed")
OWN, ANOTHER = 7, 8  # pids of our worker and of a process that is none
JUDGED = Policy(
    quarantine=QuarantinePolicy(xids=Xids(codes=dict.fromkeys((*PROGRAM_FAULTS, 94), Treatment.QUARANTINE)))
)


def in_job(record, *failures):
    """The record while a job runs in which these results failed."""
    return lives.live(record, ev.ScrubStarted(lives.job()), ev.StepsRecorded("job-1", failures))


FIRST = in_job(lives.DIRTY, FAILED_KERNEL)
SET_BACK = lives.live(FIRST, ev.ScrubFailed("job-1", "a kernel failed"))
AGAIN = in_job(SET_BACK, FAILED_KERNEL)
EVICTED = replace(result(Step.EVICT, outcome=Outcome.FAILED, stuck=(ORPHAN,)), blame=Blame.TENANT)
HELD = lives.live(in_job(SET_BACK, EVICTED), ev.ScrubFailed("job-1", "a process is on it"))
ESCALATED = lives.live(FIRST, ev.Escalated("job-1", "so it was", ScrubPath.RESET))


@pytest.mark.parametrize(
    ("record", "vitals", "kind"),
    lives.rows(
        ("the second in a row", AGAIN, lives.WELL, AilmentKind.SCRUB_FAILED),
        ("nobody could ask", AGAIN, None, AilmentKind.SCRUB_FAILED),
        ("another failure between", in_job(HELD, FAILED_KERNEL), lives.WELL, AilmentKind.SCRUB_FAILED),
        ("after another path of the job", ESCALATED, lives.WELL, AilmentKind.SCRUB_FAILED),
        ("an error of the hardware", FIRST, Vitals(xids=(Xid(1, 48, pid=OWN),)), AilmentKind.XID),
        ("a memory error", FIRST, Vitals(ecc_uncorrectable=1), AilmentKind.ECC),
        ("a row to remap", FIRST, Vitals(remap_pending=True), AilmentKind.REMAP_PENDING),
        ("it is lost", FIRST, Vitals(lost=True), AilmentKind.LOST),
    ),
)
def test_a_failed_kernel_blames_the_device_with_a_second_sign(record, vitals, kind):
    reported = verdict.confirmed(UNDECIDED, vitals, record, ENFORCE, (OWN,))
    assert isinstance(reported, Failed)
    assert (reported.blame, reported.ailment.kind) == (Blame.DEVICE, kind)


@pytest.mark.parametrize("vitals", [None, lives.WELL], ids=["nobody could ask", "nothing was seen"])
def test_one_failed_kernel_blames_no_device(vitals):
    assert verdict.confirmed(UNDECIDED, vitals, FIRST, ENFORCE) == UNDECIDED


UNSTARTED = verdict.failed(Step.CLEAR, Blame.NODE_OR_DEVICE, "CUDA does not start")
NO_START = replace(result(Step.CLEAR, outcome=Outcome.FAILED), blame=Blame.NODE_OR_DEVICE)
UNSTARTED_ONCE = lives.live(in_job(lives.DIRTY, NO_START), ev.ScrubFailed("job-1", "no"))
STILL_NO_START = in_job(UNSTARTED_ONCE, NO_START)
NOT_RESET = replace(result(Step.RESET, outcome=Outcome.FAILED), blame=Blame.TENANT)
HELD_UP = lives.live(in_job(UNSTARTED_ONCE, NOT_RESET), ev.ScrubFailed("job-1", "not reset"), at=lives.later(2))
INTERRUPTED = in_job(HELD_UP, NO_START)


def other(finished, *, incarnation=lives.CLEAN.incarnation):
    """Another device, proven clean at this uptime."""
    assert lives.CLEAN.scrubs.receipt is not None
    receipt = replace(lives.CLEAN.scrubs.receipt, finished=Moment(0.0, finished), incarnation=incarnation)
    device = replace(lives.CLEAN.device, uuid="GPU-other")
    return lives.but(lives.CLEAN, device=device, receipt=receipt, incarnation=incarnation)


BEGAN = NOW.uptime  # of the setback


@pytest.mark.parametrize(
    ("record", "others", "blame"),
    lives.rows(
        ("no device since", STILL_NO_START, (other(BEGAN), lives.DIRTY), Blame.NODE_OR_DEVICE),
        ("itself alone", STILL_NO_START, (lives.but(STILL_NO_START, receipt=other(BEGAN + 1).scrubs.receipt),),
         Blame.NODE_OR_DEVICE),
        ("for the first time", in_job(lives.DIRTY, NO_START), (other(BEGAN + 1),), Blame.NODE_OR_DEVICE),
        ("after another failure", AGAIN, (other(BEGAN + 9),), Blame.NODE_OR_DEVICE),
        ("another driver", STILL_NO_START, (other(BEGAN + 1, incarnation=Incarnation("b", "d")),),
         Blame.NODE_OR_DEVICE),
        ("another device since", STILL_NO_START, (lives.DIRTY, other(BEGAN + 1)), Blame.DEVICE),
        ("another device, and then another failure", INTERRUPTED, (other(BEGAN + 1),), Blame.DEVICE),
    ),
)  # fmt: skip
def test_cuda_must_start_elsewhere_before_a_device_is_blamed(record, others, blame):
    """What the node lacks, no device of it has: then CUDA starts nowhere."""
    reported = verdict.confirmed(UNSTARTED, lives.WELL, record, ENFORCE, (), others)
    assert reported == replace(UNSTARTED, blame=blame)


def test_a_sick_device_is_blamed_although_the_node_may_be():
    reported = verdict.confirmed(UNSTARTED, Vitals(ecc_uncorrectable=1), in_job(lives.DIRTY, NO_START), ENFORCE)
    assert isinstance(reported, Failed)
    assert (reported.blame, reported.ailment.kind) == (Blame.DEVICE, AilmentKind.ECC)


@pytest.mark.parametrize(("code", "pid", "blame"), [
    *((code, OWN, Blame.UNDECIDED) for code in sorted(PROGRAM_FAULTS)),
    *((code, pid, Blame.DEVICE) for code in sorted(PROGRAM_FAULTS) for pid in (ANOTHER, None)),
    (94, OWN, Blame.DEVICE),
])  # fmt: skip
def test_the_error_of_a_failed_kernel_is_no_second_sign(code, pid, blame):
    reported = verdict.confirmed(UNDECIDED, Vitals(xids=(Xid(1, code, pid=pid),)), FIRST, JUDGED, (OWN,))
    assert isinstance(reported, Failed)
    assert reported.blame is blame


def test_errors_of_a_worker_fail_a_job_that_passed():
    reported = verdict.confirmed(PASSED, Vitals(xids=(Xid(1, 13, pid=OWN),)), FIRST, JUDGED, (OWN,))
    assert isinstance(reported, Failed)
    assert reported.blame is Blame.DEVICE


def test_a_reinstatement_and_a_reboot_forget_a_failed_kernel():
    assert SET_BACK.scrubs.undecided
    assert not lives.live(SET_BACK, ev.Quarantined(lives.quarantine()), ev.Reinstated("ann: well")).scrubs.undecided
    assert not lives.live(SET_BACK, ev.Distrusted("rebooted", lives.REBOOTED)).scrubs.undecided
