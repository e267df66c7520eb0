"""The words of a quarantine: which reason stands, and what is said beside it."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core import acquire, upkeep, verdict
from scrubber.core import events as ev
from scrubber.core.answers import Wait
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    Blame,
    Outcome,
    Quarantine,
    Record,
    ScrubPath,
    Step,
    Trigger,
    Vitals,
)
from scrubber.ground.errors import Reason
from tests.core import lives
from tests.core.lives import ENFORCE, NOW, facts, later, live

ROW = Ailment(AilmentKind.REMAP_FAILED, "a memory row could not be remapped", sticky=True)
HOT = Ailment(AilmentKind.HEAT, "hot")
PERSONS = Ailment(AilmentKind.OPERATOR, "it hums (asked by ann)", sticky=True)


def out(record: Record, ailment: Ailment) -> Quarantine:
    """Quarantined for it a minute later."""
    return upkeep.quarantine(record, ailment, "autoclave", None, ENFORCE, later(60), 0.0).quarantine


def test_an_operators_quarantine_does_not_replace_a_lasting_ailment():
    words = "it hums (asked by ann)"
    assert upkeep.operator_ailment(lives.IN_USE, words) == PERSONS
    assert upkeep.operator_ailment(replace(lives.IN_USE, ailment=HOT), words) == PERSONS
    reported = upkeep.operator_ailment(replace(lives.IN_USE, ailment=ROW), words)
    assert reported == replace(ROW, detail=f"{ROW.detail}; {words}")


def test_only_a_probation_sets_last_try():
    tried = out(lives.PROBED, HOT)
    assert tried.last_try == "hot"
    assert out(lives.QUARANTINED, HOT).last_try == ""
    assert out(lives.SCRUBBING, HOT).last_try == ""


def test_a_loss_in_quarantine_is_no_flapping():
    often = tuple(NOW.wall for _ in range(5))
    assert out(replace(lives.QUARANTINED, returns=often), lives.LOST).ailment == lives.LOST
    assert out(replace(lives.QUARANTINED, returns=often), HOT).ailment.kind is AilmentKind.FLAPPING
    assert out(replace(lives.DIRTY, returns=often), lives.LOST).ailment.kind is AilmentKind.FLAPPING


def test_a_step_that_lost_its_device_blames_the_device():
    lost = lives.result(Step.HEALTH, outcome=Outcome.FAILED, vitals=Vitals(lost=True))
    job = replace(lives.job(), results=(*lives.results()[:-1], replace(lost, blame=Blame.SERVICE)))
    judged = verdict.judge(job, lives.DIRTY.baseline, ENFORCE)
    assert isinstance(judged, verdict.Failed)
    assert (judged.blame, judged.ailment.kind) == (Blame.DEVICE, AilmentKind.LOST)


def test_a_request_during_the_reset_of_a_burn_in_waits():
    begun = live(lives.CLEAN, ev.ScrubStarted(lives.job(ScrubPath.SLOW, Trigger.BURN_IN)))
    resetting = live(begun, ev.Escalated("job-1", "clear failed", ScrubPath.RESET))
    asked = acquire.decide(resetting, facts(), ENFORCE, NOW)
    assert isinstance(asked, Wait)
    assert asked.reason is Reason.SCRUBBING
