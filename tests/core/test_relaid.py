"""What is gone because its GPU has another layout is not lost; nor is it clean, and it is met anew if it returns."""

from dataclasses import replace

import pytest
from hypothesis import given

from policies.policy_model import Paths
from scrubber.core import answers, next_action, offering, states
from scrubber.core import events as ev
from scrubber.core.answers import Proceed, RecordFirst, StartProbation
from scrubber.core.model import Ailment, AilmentKind, ScrubPath, State, Trigger, Vitals
from scrubber.core.record import Record
from scrubber.observe.driver_calls import slice_vitals
from scrubber.words import device_status
from tests.core import lives
from tests.core.lives import ENFORCE, RELAID, facts, later, live, noted, rows

LATE = later(10_000)
BRISK = ENFORCE.model_copy(update={"paths": Paths(first_look=ScrubPath.FAST)})
FREE = [lives.UNKNOWN, lives.CLEAN, lives.DIRTY, lives.SOILED, lives.SET_BACK]
LOST = Vitals(lost=True)


def slice_of(record):
    return replace(record, device=replace(record.device, parent="GPU-7", mig=True))


def tend(record, vitals, at=LATE, policy=ENFORCE):
    return next_action.tend(record, facts(vitals=vitals), policy, at, 0.0)


def after(record, vitals, at=LATE):
    """The record after what is noted of it."""
    return noted(record, tend(record, vitals, at), at)


def reason(record: Record) -> AilmentKind:
    assert record.health.quarantine is not None
    return record.health.quarantine.ailment.kind


def gone(record=lives.CLEAN, at=LATE):
    """After its GPU was laid out anew."""
    return after(slice_of(record), RELAID, at)


PARENTS = rows(
    ("it is cut into others", LOST, RELAID, RELAID),
    ("it is whole again", LOST, Vitals(), RELAID),
    ("it does not answer", LOST, Vitals(unresponsive=True), LOST),
    ("it wants a reset, so that it may say anything", LOST, Vitals(reset_required=True), LOST),
)


@pytest.mark.parametrize(("reported", "parent", "found"), PARENTS)
def test_a_lost_slice_counts_as_replaced_if_its_gpu_answers(reported, parent, found):
    assert slice_vitals(reported, parent) == found


@pytest.mark.parametrize("record", FREE)
@pytest.mark.parametrize("whole", [False, True])
def test_a_relaid_free_device_is_quarantined_and_gets_no_probation(record, whole):
    out = after(record if whole else slice_of(record), RELAID)
    assert (out.state, reason(out)) == (State.QUARANTINED, AilmentKind.RELAID)
    assert not offering.offer(out, ENFORCE, LATE).healthy
    assert tend(out, RELAID, later(900_000)) == Proceed(), "told once, and never tried"
    assert device_status.advice(out)[0].startswith("do nothing: ")


@pytest.mark.parametrize("record", [lives.GRANTED, lives.IN_USE, lives.USED_BY_HOST])
def test_a_relaid_device_in_use_counts_as_lost(record):
    sick = after(slice_of(record), RELAID)
    assert (sick.state, sick.health.ailment) == (record.state, lives.LOST)


def test_a_lost_slice_counts_as_replaced_after_its_release():
    left = live(slice_of(lives.SICK_IN_USE), ev.Released("its pod is gone"))
    lost = after(left, RELAID)
    assert reason(lost) is AilmentKind.LOST, "as it was told before"
    assert reason(after(lost, RELAID)) is AilmentKind.RELAID


@pytest.mark.parametrize("kind", [it for it in AilmentKind if it is not AilmentKind.RELAID])
def test_relaid_replaces_every_other_reason_of_a_quarantine(kind):
    first = Ailment(kind, "so it is")
    record = slice_of(
        live(lives.CLEAN, next_action.quarantine(lives.CLEAN, first, "me", None, ENFORCE, lives.NOW, 0.0))
    )
    out = after(record, RELAID).health.quarantine
    assert out.ailment.kind is AilmentKind.RELAID
    assert record.health.quarantine is not None
    waited = record.health.quarantine.next_probe is None
    assert (out.next_probe is None) == waited, "who waits for a person still does"
    assert ("it was quarantined before: so it is" in out.ailment.detail) == waited
    assert out.since == LATE


def test_a_missing_slice_means_nothing_during_a_reset():
    record = slice_of(lives.QUARANTINED)
    away = replace(facts(vitals=RELAID), domain_resetting=True)
    assert next_action.tend(record, away, ENFORCE, LATE, 0.0) == Proceed()


def test_a_loss_changes_relaid_gpus_but_not_relaid_slices():
    assert tend(gone(), LOST, later(20_000)) == Proceed()
    assert reason(after(after(lives.CLEAN, RELAID), LOST, later(20_000))) is AilmentKind.LOST


RETURNS = rows(
    ("as policy has it", ENFORCE, ScrubPath.SLOW),
    ("never less than at a first look", lives.STRICT, ScrubPath.SLOW),
)


@pytest.mark.parametrize(("policy", "path"), RETURNS)
def test_a_returned_slice_is_probed_like_a_new_device(policy, path):
    out = gone()
    assert out.scrubs.receipt is None
    assert not offering.offer(out, policy, later(20_000)).healthy
    assert tend(out, lives.WELL, later(20_000), policy) == StartProbation(path)


def test_changes_of_the_mig_layout_are_no_flapping():
    record = slice_of(lives.CLEAN)
    for turn in range(1, 20):
        at = later(turn * 100.0)
        out = after(record, RELAID, at)
        assert reason(out) is AilmentKind.RELAID
        tried = live(out, ev.ProbationStarted(lives.job(ScrubPath.SLOW, Trigger.PROBATION), "autoclave"), at=at)
        record = live(tried, lives.passed(tried, at), at=at)
    assert (record.state, record.health.returns) == (State.CLEAN, ())


def test_lists_leave_out_a_relaid_device_after_a_while():
    out = gone()
    soon, past = later(10_000 + device_status.SHOWN - 1), later(10_000 + device_status.SHOWN)
    assert not device_status.is_past(out, RELAID, soon)
    assert device_status.is_past(out, RELAID, past)
    assert device_status.is_past(out, None, past), "as after a restart of the service"
    assert not device_status.is_past(out, Vitals(), past)


def test_lists_leave_out_only_devices_taken_away_on_purpose():
    for kind, past in ((AilmentKind.REPLACED, True), (AilmentKind.LOST, False), (AilmentKind.HEAT, False)):
        out = live(lives.CLEAN, ev.Quarantined(lives.quarantine(Ailment(kind, "x"))))
        assert device_status.is_past(out, LOST, LATE) == past
    waits = live(lives.CLEAN, ev.Quarantined(lives.quarantine(Ailment(AilmentKind.RELAID, "x"), None)))
    assert not device_status.is_past(waits, RELAID, LATE)
    assert device_status.is_past(slice_of(waits), RELAID, LATE), "nobody could do anything about it any more"
    assert not device_status.is_past(lives.CLEAN, RELAID, LATE)


@given(record=lives.records(), policy=lives.policies(), at=lives.moments())
def test_a_relaid_device_is_never_scrubbed_or_clean(record, policy, at):
    found = tend(record, RELAID, at, policy)
    assert not isinstance(found, answers.StartProbation | answers.Scrub)
    if isinstance(found, RecordFirst):
        then = states.apply(record, ev.LedgerEntry(0, lives.DEVICE.uuid, at, "op", found.event))
        assert then.state is not State.CLEAN
