"""What a worker's word is worth beside what the service itself has seen of the device."""

from dataclasses import replace

import pytest

from scrubber.core import verdict
from scrubber.core.model import Ailment, AilmentKind, Baseline, Blame, ScrubPath, Step, Vitals
from scrubber.core.verdict import Failed
from tests.core import lives
from tests.core.lives import ENFORCE, finished

FRESH = Baseline()
PASSED = verdict.judge(finished(ScrubPath.FAST), FRESH, ENFORCE)
SCRUB_FAILED = verdict.failed(Step.CLEAR, Blame.DEVICE, "so it was")


def test_a_failed_job_reports_a_worse_ailment_that_was_observed():
    reported = verdict.confirmed(SCRUB_FAILED, Vitals(remap_failed=True), FRESH, ENFORCE)
    assert isinstance(reported, Failed)
    assert (reported.ailment and reported.ailment.kind, reported.detail) == (AilmentKind.REMAP_FAILED, "so it was")


def test_a_failed_job_keeps_its_own_worse_ailment():
    row = verdict.failed(Step.RESET, Blame.DEVICE, "so it was", Ailment(AilmentKind.RESET_FAILED, "so it was"))
    assert verdict.confirmed(row, Vitals(remap_pending=True), FRESH, ENFORCE) == row


@pytest.mark.parametrize(
    ("judged", "vitals"),
    [(SCRUB_FAILED, None), (SCRUB_FAILED, lives.WELL), (replace(SCRUB_FAILED, blame=Blame.TENANT), Vitals(lost=True))],
    ids=["nobody could ask", "nothing was seen", "it was not the device"],
)
def test_other_observations_leave_a_failure_unchanged(judged, vitals):
    assert verdict.confirmed(judged, vitals, FRESH, ENFORCE) is judged


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
    reported = verdict.confirmed(PASSED, vitals, FRESH, ENFORCE)
    assert isinstance(reported, Failed)
    assert (reported.step, reported.blame) == (Step.HEALTH, blame)


def test_a_pass_stands_if_the_service_sees_a_healthy_device():
    assert verdict.confirmed(PASSED, lives.WELL, FRESH, ENFORCE) is PASSED
