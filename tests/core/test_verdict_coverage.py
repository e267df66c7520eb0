"""What was not reached is not proven: bytes of the memory, units of the chip, tests that did not run."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.policy_model import Clear, Passes
from scrub_api.measurements import Measurements, Uncovered
from scrubber.core import verdict
from scrubber.core.measured import OWN_CONTEXT, OWN_LISTED
from scrubber.core.model import AilmentKind, Baseline, Blame, ScrubPath, Step, Vitals
from scrubber.core.verdict import Consequence, Failed
from tests.core import lives
from tests.core.lives import ENFORCE, finished, results

HALF = ENFORCE.model_copy(update={"clear": Clear(min_coverage=0.5)})
FULL = ENFORCE.model_copy(update={"clear": Clear(min_coverage=1.0)})


def judge(job, policy=ENFORCE):
    return verdict.judge(lives.judged(job), Baseline(), policy)


def measured(clear, verify, **more):
    """A job with these (covered, allocatable) bytes."""
    return finished(
        clear={"covered_bytes": clear[0], "allocatable_bytes": clear[1], **more},
        verify={"covered_bytes": verify[0], "allocatable_bytes": verify[1]},
    )


ALL = (1000, 1000)


@pytest.mark.parametrize(
    ("covered", "policy", "enough"),
    [(994, ENFORCE, False), (995, ENFORCE, True), (1000, ENFORCE, True), (499, HALF, False), (500, HALF, True),
     (999, FULL, False), (1000, FULL, True)],
)  # fmt: skip
@pytest.mark.parametrize("step", [Step.CLEAR, Step.VERIFY])
def test_s15_less_coverage_than_the_policy_orders_fails_the_job(step, covered, policy, enough):
    part = (covered, 1000)
    job = measured(part, ALL) if step is Step.CLEAR else measured(ALL, part)
    judged = judge(job, policy=policy)
    if enough:
        assert isinstance(judged, Measurements)
    else:
        assert isinstance(judged, Failed)
        assert (judged.step, judged.blame) == (step, Blame.DEVICE)
        assert judged.detail.startswith(f"{step.value} covered {covered / 1000:.2%}, the policy wants ")


DONE = {Step.CLEAR: "overwritten", Step.VERIFY: "read back"}


@pytest.mark.parametrize("measured_bytes", [(0, 1000), (0, 0), (1000, 0)])
@pytest.mark.parametrize("step", [Step.CLEAR, Step.VERIFY])
def test_coverage_that_was_not_measured_fails_the_job(step, measured_bytes):
    judged = judge(measured(measured_bytes, ALL) if step is Step.CLEAR else measured(ALL, measured_bytes))
    assert judged == verdict.failed(step, Blame.DEVICE, f"{step.value} failed: nothing was {DONE[step]}")


@pytest.mark.parametrize("measured_bytes", [(2000, 1000), (1001, 1000), (1, -1)])
@pytest.mark.parametrize("step", [Step.CLEAR, Step.VERIFY])
def test_more_coverage_than_memory_fails_the_job(step, measured_bytes):
    judged = judge(measured(measured_bytes, ALL) if step is Step.CLEAR else measured(ALL, measured_bytes), policy=HALF)
    said = f"it says that it covered {measured_bytes[0]} of {measured_bytes[1]} bytes: it counts wrongly"
    assert judged == verdict.failed(step, Blame.DEVICE, f"{step.value} failed: {said}")


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("clear", "verify", "short"),
    [
        (ALL, (600, 600), "verify covered 60.00%"),
        ((600, 600), ALL, "clear covered 60.00%"),
        ((994_999, MILLION), (MILLION, MILLION), "clear covered 99.49%"),  # rounded down
    ],
)
def test_memory_that_one_step_did_not_reach_is_not_covered(clear, verify, short):
    assert judge(measured(clear, verify)).detail == f"{short}, the policy wants 99.50%"


UNIT = 20 * 2**20  # 32 of them are the 640 MiB that a scrub may take for itself


def without(own, others=0, least=0.995, verified=None):
    """What is judged of a clear that left so much out of 1000 units, its own part and that of others."""
    part = {"covered_bytes": (1000 - own - others) * UNIT, "allocatable_bytes": 1000 * UNIT}
    causes = (Uncovered(OWN_CONTEXT, own * UNIT), Uncovered("in use before the scrub", others * UNIT))
    policy = ENFORCE.model_copy(update={"clear": Clear(min_coverage=least)})
    return judge(finished(clear={**part, "uncovered": causes}, verify={**part, **(verified or {})}), policy)


def test_the_scrubs_own_memory_is_no_fault_of_the_device():
    judged = without(own=38)
    assert judged == verdict.failed(
        Step.CLEAR,
        Blame.SERVICE,
        "clear covered 96.20%, the policy wants 99.50% with 640MiB of its own memory; not covered: 760MiB the context "
        "of the scrub itself, 0B in use before the scrub; no fault of the device: give it a rule with "
        "clear.min_coverage 0.9939",
    )
    assert (
        verdict.consequence(judged, ScrubPath.SLOW, escalate=True, quarantined=False, given_up=False)
        == Consequence.LEAVE_DIRTY
    )
    assert isinstance(without(own=38, least=0.9939), Measurements), "what it says is enough"


@pytest.mark.parametrize(
    ("own", "others", "blame"),
    [(32, 5, None), (1, 5, None), (37, 0, None), (32, 6, Blame.DEVICE), (33, 5, Blame.SERVICE)],
)
def test_only_our_own_memory_in_full_explains_a_gap(own, others, blame):
    judged = without(own, others)
    assert getattr(judged, "blame", None) is blame
    if isinstance(judged, Measurements):
        parts = {part.cause: part.bytes for part in judged.uncovered}
        assert (parts[OWN_CONTEXT], judged.covered_bytes) == (own * UNIT, (1000 - own - others) * UNIT)


@pytest.mark.parametrize(("listed", "passes"), [(60, False), (68, True)])
def test_the_scrubs_own_memory_by_the_driver_has_no_limit(listed, passes):
    part: dict[str, object] = {"covered_bytes": 900 * UNIT, "allocatable_bytes": 1000 * UNIT}
    causes = (Uncovered(OWN_LISTED, listed * UNIT), Uncovered(OWN_CONTEXT, (100 - listed) * UNIT))
    judged = judge(finished(clear={**part, "uncovered": causes}, verify=part))
    assert isinstance(judged, Measurements) is passes


def test_what_clear_may_leave_out_verify_may_not():
    judged = without(own=32, verified={"covered_bytes": 962 * UNIT})
    assert (judged.step, judged.blame) == (Step.VERIFY, Blame.DEVICE)
    assert judged.detail == "verify covered 96.20%, the policy wants 99.50% with 640MiB of its own memory"


@pytest.mark.parametrize(
    ("own", "others", "blame"),
    [
        (38, 0, Blame.SERVICE),
        (990, 5, Blame.SERVICE),
        (33, 6, Blame.DEVICE),
        (6, 6, Blame.DEVICE),
        (0, 6, Blame.DEVICE),
    ],
)
def test_too_much_memory_used_by_others_blames_the_device(own, others, blame):
    judged = without(own, others)
    assert (judged.step, judged.blame) == (Step.CLEAR, blame)


# -- what the policy orders


@pytest.mark.parametrize("passes", Passes)
@pytest.mark.parametrize("said", [(), ("zero",), ("random",), ("zero", "random"), ("random", "zero", "zero")])
@pytest.mark.parametrize(("step", "did"), [(Step.CLEAR, "wrote"), (Step.VERIFY, "read back")])
def test_other_patterns_than_ordered_are_the_services_fault(step, did, passes, said):
    ordered = {Step.CLEAR: passes.patterns, Step.VERIFY: passes.patterns[-1:]}
    judged = judge(with_patterns(ordered | {step: said}), ordering(passes))
    if said == ordered[step]:
        assert isinstance(judged, Measurements)
        return
    assert isinstance(judged, Failed)
    assert (judged.step, judged.blame) == (step, Blame.SERVICE)
    words = ", ".join(said) or "nothing"
    assert judged.detail == f"{step.value} {did} {words}; the policy orders {', '.join(ordered[step])}"


def with_patterns(patterns, path=ScrubPath.FAST):
    """A job whose steps wrote and read back these patterns."""
    findings: dict[str, dict[str, object]] = {step.value: {"patterns": names} for step, names in patterns.items()}
    return replace(finished(path), results=results(path, **findings))


def ordering(passes):
    """A policy with these passes."""
    return ENFORCE.model_copy(update={"clear": Clear(passes=passes)})


@pytest.mark.parametrize("passes", Passes)
def test_only_random_leaves_its_pattern_unless_a_self_test_follows(passes):
    done = {Step.CLEAR: passes.patterns, Step.VERIFY: passes.patterns[-1:]}
    fast = judge(with_patterns(done), ordering(passes))
    slow = judge(with_patterns(done, ScrubPath.SLOW), ordering(passes))
    assert (fast.leaves, slow.leaves) == ("random" if passes is Passes.RANDOM else "zero", "zero")


@pytest.mark.parametrize("health", [Vitals(lost=True), Vitals(leaked_bytes=7)])
def test_a_fault_of_the_service_does_not_hide_an_ailment(health):
    judged = judge(finished(clear={"patterns": ()}, health={"vitals": health}))
    assert (judged.step, judged.blame) == (Step.HEALTH, Blame.DEVICE)
    lost = judge(finished(clear={"patterns": ()}, health={"vitals": Vitals(lost=True)}))
    assert lost.ailment.kind is AilmentKind.LOST


def uncovered(*parts, rest=100):
    """A job whose clear left so much out, and gave these causes."""
    part = {"covered_bytes": 1000 - rest, "allocatable_bytes": 1000}
    causes = tuple(Uncovered(f"cause {number}", size) for number, size in enumerate(parts))
    return finished(clear={**part, "uncovered": causes}, verify=part)


@pytest.mark.parametrize("parts", [(101,), (60, 41), (-1,), (101, -1), (1000, 1000)])
def test_the_job_fails_if_uncovered_parts_contradict_the_coverage(parts):
    judged = judge(uncovered(*parts), policy=HALF)
    assert isinstance(judged, Failed)
    assert (judged.step, judged.blame) == (Step.CLEAR, Blame.DEVICE)
    reported = ", ".join(f"{size} for cause {number}" for number, size in enumerate(parts))
    assert judged.detail == f"clear failed: it explains 100 uncovered bytes as {reported}: it counts wrongly"


@pytest.mark.parametrize("parts", [(), (100,), (60, 40), (60,), (0,)])
def test_uncovered_bytes_without_a_cause_are_reported_as_unexplained(parts):
    judged = judge(uncovered(*parts), policy=HALF)
    assert isinstance(judged, Measurements)
    left = 100 - sum(parts)
    uncovered_parts = judged.uncovered
    assert [part.bytes for part in uncovered_parts if part.cause == verdict.UNEXPLAINED] == ([left] if left else [])


@given(st.lists(st.integers(0, 400), max_size=4), st.integers(0, 400), st.integers(0, 400))
def test_covered_and_uncovered_bytes_add_up_to_the_allocatable_memory(parts, rest, unread):
    job = uncovered(*parts, rest=rest)
    read = lives.result(Step.VERIFY, covered_bytes=1000 - unread)
    job = replace(job, results=tuple(read if it.step is Step.VERIFY else it for it in job.results))
    judged = judge(job, policy=HALF)
    assert isinstance(judged, Measurements) is (sum(parts) <= rest)
    if isinstance(judged, Measurements):
        assert judged.covered_bytes + sum(part.bytes for part in judged.uncovered) == judged.allocatable_bytes
        assert all(part.bytes > 0 for part in judged.uncovered)


# -- the chip


@pytest.mark.parametrize(
    ("reached", "units"),
    [(0, 132), (0, 0), (132, 0), (131, 132), (133, 132), (-1, 132), (1, -1), (-1, -1)],
)
def test_one_unit_that_was_not_overwritten_fails_the_job(reached, units):
    judged = judge(finished(ScrubPath.SLOW, scratch={"units_reached": reached, "units": units}))
    assert isinstance(judged, Failed)
    assert (judged.step, judged.blame) == (Step.SCRATCH, Blame.DEVICE)
    assert judged.detail.startswith("scratch failed: memory on the chip was not overwritten everywhere: ")


UNTESTED = [
    ({"tests": ()}, "failed: no test came to its end: selftest.time in the policy may be too short"),
    ({"covered_bytes": 0}, "says it covered 0 bytes, but 1000 of 1000 were read back before"),
    ({"units": 133}, "says that 133 units computed; scratch overwrote 132"),
    ({"units": 0}, "says that 0 units computed; scratch overwrote 132"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "why"), UNTESTED)
def test_an_incomplete_self_test_is_the_services_fault(said, why):
    judged = judge(finished(ScrubPath.SLOW, selftest=said))
    assert judged == verdict.failed(Step.SELFTEST, Blame.SERVICE, f"selftest {why}")


@pytest.mark.parametrize(("tested", "enough"), [(989, False), (990, True), (995, True), (1000, True)])
def test_a_self_test_must_cover_the_bytes_of_the_receipt(tested, enough):
    clear: dict[str, object] = {"covered_bytes": 995, "allocatable_bytes": 1000}
    verify = {**clear, "covered_bytes": 990}
    job = finished(ScrubPath.SLOW, clear=clear, verify=verify, selftest={"covered_bytes": tested})
    assert isinstance(judge(job, HALF), Measurements) is enough
