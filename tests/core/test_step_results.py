"""What one step reports can end its path; nothing else of the core reads a fault out of a report."""

from dataclasses import replace

import pytest

from scrub_api.measurements import Uncovered
from scrubber.core import step_results
from scrubber.core.measured import Mismatch
from scrubber.core.model import NO_HOLDER, Blame, Outcome, Step
from tests.core import lives
from tests.core.lives import result

WRONG = Mismatch(0x1234, 0, 0x80, 3)
DIFFER = "3 bytes differ, the first at offset 0x1234"
MANY = {"covered_bytes": 900, "allocatable_bytes": 1000, "uncovered": (Uncovered("a", 101),)}
FAULTS = [
    (Step.CLEAR, {"mismatch": WRONG}, f"memory does not hold what is written to it: {DIFFER} (wrote 0x00, read 0x80)"),
    (Step.CLEAR, {"covered_bytes": 0}, "nothing was overwritten"),
    (Step.CLEAR, MANY, "it explains 100 uncovered bytes as 101 for a: it counts wrongly"),
    (Step.VERIFY, {"mismatch": WRONG}, f"memory does not hold the last pattern of the clear: {DIFFER}"),
    (Step.VERIFY, {"covered_bytes": 0}, "nothing was read back"),
    (Step.VERIFY, {"covered_bytes": 1001}, "it says that it covered 1001 of 1000 bytes: it counts wrongly"),
    (Step.SCRATCH, {"units_faulty": 2}, "memory on the chip does not hold what is written to it, on 2 units"),
    (Step.SCRATCH, {"units_reached": 131}, "memory on the chip was not overwritten everywhere: 131 of 132 units"),
    (Step.SCRATCH, {"units": 0, "units_reached": 0}, "memory on the chip was not overwritten everywhere: 0 of 0 units"),
    (Step.SELFTEST, {"mismatch": WRONG}, "memory failed its test: 3 bytes, the first at offset 0x1234"),
    (Step.SELFTEST, {"deviating": (2, 5)}, "these units compute other results than most: 2, 5"),
    (Step.SELFTEST, {"covered_bytes": 0, "units": 0}, "nothing was tested: no memory, and no unit"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "findings", "detail"), FAULTS)
def test_a_fault_in_a_report_is_the_devices(step, findings, detail):
    reported = result(step, **findings)
    assert step_results.judged(reported, lives.SCRUBBING) == replace(reported, outcome=Outcome.FAILED, detail=detail)


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("reported", [*lives.GOOD.values(), NO_HOLDER], ids=str)
def test_a_step_passes_with_findings_of_its_own_kind_only(step, reported):
    said = replace(result(step), findings=reported)
    judged = step_results.judged(said, lives.SCRUBBING)
    if reported == lives.GOOD[step]:
        assert judged == said
    else:
        why = "it did not report what it must find"
        assert judged == replace(said, outcome=Outcome.FAILED, detail=why, blame=Blame.SERVICE)


def test_a_self_test_out_of_time_is_no_device_fault():
    judged = step_results.judged(result(Step.SELFTEST, tests=()), lives.SCRUBBING)
    assert (judged.outcome, judged.blame) == (Outcome.FAILED, Blame.SERVICE)
    assert judged.detail == "no test came to its end: selftest.time in the policy may be too short"


@pytest.mark.parametrize("covered", [{"covered_bytes": 4096, "units": 0}, {"covered_bytes": 0, "units": 8}])
def test_a_self_test_of_one_kind_is_enough_by_itself(covered):
    tested = result(Step.SELFTEST, **covered)
    assert step_results.judged(tested, lives.SCRUBBING) == tested


@pytest.mark.parametrize("outcome", [it for it in Outcome if it is not Outcome.PASSED])
def test_a_step_that_did_not_pass_keeps_its_reason(outcome):
    refused = replace(result(Step.CLEAR, outcome=outcome, mismatch=WRONG), detail="a reason", blame=Blame.TENANT)
    assert step_results.judged(refused, lives.SCRUBBING) == refused


CUT_OFF = lives.but(lives.SCRUBBING, half_cleared=True)
LEFT = lives.but(lives.SCRUBBING, pattern_left=True)
OLD = result(Step.CLEAR, residue_bytes=7, residue_at=(64,))


@pytest.mark.parametrize("before", [CUT_OFF, LEFT], ids=["cut off", "left by a proof"])
def test_old_data_counts_unless_it_may_be_our_own_pattern(before):
    assert step_results.judged(OLD, lives.SCRUBBING) == OLD
    judged = step_results.judged(OLD, before)
    assert judged.detail == "7 bytes were not zero before, which may be the pattern of an earlier clear"
    assert judged.findings == result(Step.CLEAR, searched_bytes=0).findings
    failed = step_results.judged(replace(OLD, detail="it failed"), before)
    assert failed.detail == f"it failed; {judged.detail}"


def test_zeros_after_a_clear_without_a_proof_may_be_ours():
    """They tell nothing of the last owner. After a proof that left a pattern, they do."""
    zeros = result(Step.CLEAR, residue_bytes=0, searched_bytes=60)
    assert step_results.judged(zeros, LEFT) == zeros
    assert step_results.judged(zeros, CUT_OFF) == result(Step.CLEAR, residue_bytes=0, searched_bytes=0)
