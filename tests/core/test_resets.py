"""A device is reset where the evidence or the policy asks for it, and nowhere else."""

import pytest
from hypothesis import given

from ground.errors import Reason
from policies.hardware import Reset, WhenReset
from policies.policy_model import Policy
from scrubber.core import acquire, answers, next_action, next_scrub, plans
from scrubber.core import events as ev
from scrubber.core.acquire import ForPod
from scrubber.core.ailment_traits import AILMENTS, Course
from scrubber.core.model import Ailment, AilmentKind, ScrubPath, State, Step, Trigger
from scrubber.words import device_status
from tests.core import lives
from tests.core.lives import ENFORCE, live

PLAIN = [AilmentKind.OPERATOR, *(kind for kind, it in AILMENTS.items() if it.course is Course.WAIT)]


def resets(record, policy=ENFORCE):
    """Whether the next scrub resets the device."""
    return Step.RESET in plans.PLANS[next_scrub.next_path(record, policy)]


def scrubbed(record, path):
    """The record after a scrub or probation on this path has passed."""
    job = lives.job(path, Trigger.PROBATION)
    event = ev.ProbationStarted(job, "ann") if record.state is State.QUARANTINED else ev.ScrubStarted(job)
    begun = live(record, event)
    return live(begun, lives.passed(begun))


def found_on(record, kind):
    """The record of a free device after this ailment was found."""
    return live(record, ev.Quarantined(lives.quarantine(Ailment(kind, "x"))))


@pytest.mark.parametrize("kind", [it for it in AilmentKind if it not in PLAIN])
@pytest.mark.parametrize("record", [lives.CLEAN, lives.DIRTY, lives.SCRUBBING])
def test_a_doubtful_ailment_ends_with_a_reset_only(record, kind):
    out = found_on(record, kind)
    assert resets(out)
    for path in (ScrubPath.FAST, ScrubPath.SLOW):
        with pytest.raises(ev.IllegalEventError, match="needs a reset"):
            scrubbed(out, path)
    assert scrubbed(out, ScrubPath.RESET).scrubs.due_path is None


def test_the_decision_of_an_operator_hides_no_doubtful_ailment():
    """Found in use, then put away by a person: the reason of the quarantine no longer names the fault."""
    sick = live(lives.SICK_IN_USE, ev.AilmentFound(Ailment(AilmentKind.OPERATOR, "suspect", sticky=True)))
    out = live(sick, ev.Released("its pod is gone"), ev.Quarantined(lives.quarantine(lives.PULLED, None)))
    assert resets(out)


def test_a_reboot_replaces_the_reset_but_a_new_driver_cannot():
    """The only reset of a Tesla T4 or a vGPU."""
    out = found_on(lives.CLEAN, AilmentKind.XID)
    assert resets(live(out, ev.Distrusted("x", lives.RELOADED)))
    rebooted = live(out, ev.Distrusted("x", lives.REBOOTED))
    assert next_scrub.next_path(rebooted, ENFORCE) is ScrubPath.SLOW
    assert scrubbed(rebooted, ScrubPath.SLOW).state is State.CLEAN


@given(lives.walks())
def test_no_life_makes_a_device_clean_that_needs_a_reset(steps):
    for before, event, after in steps:
        if isinstance(event, ev.ScrubPassed) and before.scrubs.due_path is ScrubPath.RESET:
            assert after.scrubs.receipt is not None
            assert Step.RESET in [step for step, _ in after.scrubs.receipt.steps]


NO_RESETS = Policy(reset=Reset(when=WhenReset.NEVER))
NEEDS_ONE = live(lives.UNKNOWN, ev.ErrorsNoted(((48, 1),), 1, grave=True))


@pytest.mark.parametrize("record", [NEEDS_ONE, live(lives.SCRUBBING, ev.Escalated("job-1", "x", ScrubPath.RESET),
                                                    ev.ScrubFailed("job-1", "x"))])  # fmt: skip
def test_a_device_that_needs_a_forbidden_reset_is_quarantined(record):
    seen, late = lives.facts(), lives.later(lives.NOW.uptime)
    answer = next_action.tend(record, seen, NO_RESETS, late, 0.0)
    out = lives.noted(record, answer)
    assert out.health.quarantine.ailment == Ailment(AilmentKind.RESET_REQUIRED, next_scrub.RESET_FORBIDDEN)
    assert next_action.tend(out, seen, NO_RESETS, late, 0.0) == answers.Proceed()
    assert next_action.tend(out, seen, ENFORCE, lives.later(1e6), 0.0) == answers.StartProbation(ScrubPath.RESET)
    shown = device_status.quarantine_status(out.health.quarantine, None, late)
    assert (shown.next_path, shown.sticky, shown.next_probe_seconds) == ("", True, None)
    assert "reboot the node" in device_status.advice(out, reset_forbidden=True)[0]
    rebooted = live(out, ev.Distrusted("x", lives.REBOOTED))
    assert next_action.probation(rebooted, NO_RESETS, lives.later(1e6)) == answers.StartProbation(ScrubPath.SLOW)
    by_person = live(out, ev.Reinstated("ann: reset by hand"))
    assert not next_scrub.reset_forbidden(by_person, NO_RESETS)


def test_a_request_is_refused_while_its_reset_is_forbidden():
    refused = acquire.decide(NEEDS_ONE, lives.facts(), NO_RESETS, lives.NOW, ForPod())
    assert refused == answers.Refuse(Reason.SICK, f"cannot hand out GPU-1: {next_scrub.RESET_FORBIDDEN}", lives.BACK)
    assert acquire.decide(lives.DIRTY, lives.facts(), NO_RESETS, lives.NOW, ForPod()) == answers.Scrub(
        ScrubPath.FAST, Trigger.ACQUIRE
    )
