"""Whoever cannot be ended is waited for, then takes the device out, and lets it back by going away."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core import next_action, stuck, verdict
from scrubber.core.answers import Blocked, Proceed, RecordFirst, StartProbation
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    Blame,
    Holder,
    Moment,
    Outcome,
    ScrubPath,
    Step,
    Stuck,
    Trigger,
    Vitals,
)
from scrubber.core.record import Record
from tests.core import lives
from tests.core.lives import ENDS_ALL, ENFORCE, FOREIGN, LEFTOVER, NOW, OF_A, facts, later, live, rows

STUCK, OTHER = replace(LEFTOVER, state="D"), replace(LEFTOVER, pid=99, state="D")
GIVE_UP = stuck.GIVEN_UP_AFTER
SICK = Ailment(AilmentKind.STUCK_PROCESS, "evict failed: still on the device: pid 43 (orphan)")


def trial(*stuck: Holder, before: Record = lives.DIRTY, at: Moment = NOW) -> Record:
    """A scrub whose evict found these told to end and still there, or failed for somebody else."""
    found = lives.result(Step.EVICT, outcome=Outcome.FAILED, holders=(LEFTOVER,), stuck=stuck)
    failed = replace(found, blame=Blame.TENANT, detail="x")
    return live(before, ev.ScrubStarted(lives.job()), ev.StepsRecorded("job-1", (failed,)), at=at)


def failed(record: Record, at: Moment) -> Record:
    return live(record, ev.ScrubFailed("job-1", "still on the device"), at=at)


SINCE = rows(
    ("the same one", (STUCK,), NOW),
    ("one of them has gone, another stays", (OTHER, STUCK), NOW),
    ("another one", (OTHER,), later(60)),
)


@pytest.mark.parametrize(("stuck", "since"), SINCE)
def test_the_wait_begins_anew_when_other_processes_are_stuck(stuck, since):
    assert trial(*stuck, before=failed(trial(STUCK), NOW), at=later(60)).scrubs.stuck == Stuck(stuck, since)


TWICE = trial(STUCK, before=failed(trial(STUCK), NOW))
GIVEN_UP = rows(
    ("just before the time", TWICE, GIVE_UP - 0.001, False),
    ("at the time", TWICE, GIVE_UP, True),
    ("nobody was told to end", trial(), 1e6, False),
)


@pytest.mark.parametrize(("record", "seconds", "given_up"), GIVEN_UP)
def test_a_stuck_process_is_given_up_after_ten_minutes(record, seconds, given_up):
    assert verdict.given_up(record, later(seconds)) is given_up


def test_the_ailment_repeats_what_evict_says_about_the_process():
    record = trial(STUCK)
    assert record.scrubs.job is not None
    judged = verdict.judge(record.scrubs.job, record.health.baseline, ENFORCE)
    assert isinstance(judged, verdict.Failed)
    assert (judged.blame, judged.ailment) == (Blame.TENANT, Ailment(AilmentKind.STUCK_PROCESS, "evict failed: x"))


# -- and back


def out(record: Record = lives.DIRTY, vitals: Vitals | None = None) -> Record:
    event = next_action.quarantine(record, SICK, "autoclave", vitals, ENFORCE, NOW, 0.0)
    return live(record, ev.ScrubStarted(lives.job()), event)


BACK = rows(
    ("nobody is on it any more", (), ENDS_ALL, StartProbation(ScrubPath.FAST)),
    ("it is still there", (STUCK,), ENFORCE, Proceed()),
    ("somebody else came", (FOREIGN,), ENFORCE, Proceed()),
    ("nobody can say", None, ENFORCE, Proceed()),
)


@pytest.mark.parametrize(("holders", "policy", "answer"), BACK)
def test_probation_starts_once_the_device_has_no_holder(holders, policy, answer):
    assert next_action.tend(out(), facts(holders), policy, later(90_000), 0.0) == answer


# -- while its pod counts as alive: a killed container's process stays in its control group

HANGS = replace(OF_A, state="D")
REPORTED = 'its processes hang in the kernel (state D): "train-a" (pid 41, pod-a)'


def hung(*holders: Holder, seconds: float = GIVE_UP, withheld: bool = False, given: Collection[str] | None = None):
    seen = facts(holders, alive=True, assigned_pods=given)
    return replace(seen, withheld=withheld, hung=Stuck(holders, later(1e4 - seconds)))


STUCK_IN_USE = RecordFirst(ev.AilmentFound(Ailment(AilmentKind.STUCK_PROCESS, REPORTED)))
SICK_BEFORE = live(lives.IN_USE, STUCK_IN_USE.event)
HELD = rows(
    ("the kubelet has taken it from its pod", lives.IN_USE, hung(HANGS, given=[]), STUCK_IN_USE),
    ("... and given it to another", lives.IN_USE, hung(HANGS, given=["pod-b"]), STUCK_IN_USE),
    ("not for long enough", lives.IN_USE, hung(HANGS, withheld=True, seconds=GIVE_UP - 0.01), Blocked(REPORTED)),
    ("it is its pod's still", lives.IN_USE, hung(HANGS, given=["pod-a"]), Proceed()),
    ("nobody can say whose it is", lives.IN_USE, hung(HANGS), Proceed()),
    ("one of them does not hang", lives.IN_USE, hung(HANGS, replace(OF_A, pid=9), withheld=True), Proceed()),
    ("that is on record", SICK_BEFORE, hung(HANGS, withheld=True), Proceed()),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "answer"), HELD)
def test_a_hung_process_of_a_lost_device_becomes_an_ailment(record, seen, answer):
    assert next_action.tend(record, seen, ENFORCE, later(1e4), 0.0) == answer


def test_a_return_after_a_stuck_process_is_no_flapping():
    tried = live(
        lives.but(out(), returns=(1.0,)), ev.ProbationStarted(lives.job(ScrubPath.FAST, Trigger.PROBATION), "autoclave")
    )
    assert live(tried, lives.passed(tried)).health.returns == (1.0,)
