"""What is tried of a quarantined device follows from the reason, and what makes nobody sick is written down."""

from dataclasses import replace

import pytest

from policies.policy_model import Paths
from policies.xids import RequiredAction, required_action
from scrubber.core import absence, ailments, next_action, next_scrub
from scrubber.core import events as ev
from scrubber.core.ailment_traits import AILMENTS, Course
from scrubber.core.answers import Proceed, RecordFirst, StartProbation
from scrubber.core.measured import Mismatch
from scrubber.core.model import Ailment, AilmentKind, Baseline, Outcome, ScrubPath, Sign, Step, Trigger, Vitals, Xid
from tests.core import lives
from tests.core.lives import ENFORCE, facts, later, live, noted, rows

LATE = later(10_000)
COUNTED = Vitals(xids=(Xid(1, 13), Xid(2, 43), Xid(3, 13)))


def out(kind, **more):
    """A device in quarantine for this, as the service takes it out."""
    taken = next_action.quarantine(lives.DIRTY, Ailment(kind, "so it is"), "autoclave", None, ENFORCE, lives.NOW, 0.0)
    return lives.but(live(lives.DIRTY, taken), **more)


def tend(record, vitals=lives.WELL, at=LATE):
    return next_action.tend(record, facts(vitals=vitals), ENFORCE, at, 0.0)


FIRST = {AilmentKind.RELAID: StartProbation(ScrubPath.SLOW)}  # as of one that was never seen
TRIED = {Course.WAIT: StartProbation(ScrubPath.FAST), Course.RESET: StartProbation(ScrubPath.RESET)}


@pytest.mark.parametrize("kind", AilmentKind)
def test_the_reason_of_a_quarantine_decides_its_probation(kind):
    course = AILMENTS[kind].course
    assert tend(out(kind)) == FIRST.get(kind, TRIED.get(course, Proceed()))
    assert (out(kind).health.quarantine.next_probe is None) == (course is Course.PERSON)


@pytest.mark.parametrize("fault", ["memory-fault", "compute-fault", "remap-failed", "sram", "flapping"])
def test_proven_hardware_faults_get_no_probation(fault):
    assert out(AilmentKind(fault)).health.quarantine.next_probe is None


@pytest.mark.parametrize(("before", "left"), [(None, None), (ScrubPath.FAST, None), (ScrubPath.SLOW, ScrubPath.SLOW)])
def test_a_passed_fast_path_leaves_a_due_slow_path_due(before, left):
    passing = lives.but(lives.SCRUBBING, due_path=before)
    assert live(passing, ev.ScrubPassed("job-1", lives.passed(passing).receipt)).scrubs.due_path is left


def test_a_probation_takes_the_slow_path_that_is_due():
    assert tend(out(AilmentKind.HEAT, due_path=ScrubPath.SLOW)) == StartProbation(ScrubPath.SLOW)


STILL = rows(
    ("it is not there", AilmentKind.LOST, Vitals(lost=True)),
    ("another GPU is in its place", AilmentKind.REPLACED, Vitals(lost=True)),
    ("its GPU has another layout", AilmentKind.RELAID, lives.RELAID),
    ("it does not answer", AilmentKind.UNRESPONSIVE, Vitals(unresponsive=True)),
    ("it is hot", AilmentKind.HEAT, Vitals(signs=(Sign(AilmentKind.HEAT, "it is slowed down"),))),
    ("its switch has an error", AilmentKind.SWITCH, Vitals(signs=(Sign(AilmentKind.SWITCH, "so"),))),
    ("its slot is too narrow", AilmentKind.PCIE, Vitals(signs=(Sign(AilmentKind.PCIE, "x8 of x16"),))),
    ("its fabric is not ready", AilmentKind.FABRIC, Vitals(signs=(Sign(AilmentKind.FABRIC, "not ready"),))),
    ("the node was not started anew", AilmentKind.REBOOT_REQUIRED,
     Vitals(signs=(Sign(AilmentKind.REBOOT_REQUIRED, "so"),))),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "vitals"), STILL)
def test_probation_waits_until_the_ailment_is_no_longer_reported(kind, vitals):
    assert tend(out(kind), vitals) == Proceed()
    assert isinstance(tend(out(kind)), StartProbation)


@pytest.mark.parametrize(
    ("kind", "sign", "path"),
    [(AilmentKind.HEAT, AilmentKind.PCIE, ScrubPath.FAST), (AilmentKind.LINKS, AilmentKind.LINKS, ScrubPath.RESET)],
    ids=["an unrelated sign", "links that are down"],
)
def test_signs_that_do_not_matter_delay_no_probation(kind, sign, path):
    assert tend(out(kind), Vitals(signs=(Sign(sign, "so"),))) == StartProbation(path)


def there(uuid, place="0000:3b:00.0", record=lives.CLEAN, **more):
    return replace(record, device=replace(record.device, uuid=uuid, pci_address=place, **more))


LOST_THERE = there("GPU-1", record=out(AilmentKind.LOST))
SUCCESSORS = rows(
    ("another GPU in its slot", LOST_THERE, [there("GPU-2")], "GPU-2"),
    ("one in another slot", LOST_THERE, [there("GPU-2", "0000:5e:00.0")], None),
    ("one that is out itself", LOST_THERE, [there("GPU-2", record=out(AilmentKind.LOST))], None),
    ("a slice of what sits there", LOST_THERE, [there("MIG-2", parent="GPU-2")], None),
    ("a lost slice has no slot", there("MIG-1", record=out(AilmentKind.LOST), parent="GPU-2"), [there("GPU-2")], None),
    ("nobody knows where it sat", there("GPU-1", None, out(AilmentKind.LOST)), [there("GPU-2", None)], None),
)


@pytest.mark.parametrize(("record", "others", "wanted"), SUCCESSORS)
def test_the_successor_is_the_healthy_gpu_in_the_same_slot(record, others, wanted):
    assert absence.successor(record, [record, *others]) == wanted


def test_a_replaced_gpu_that_is_put_back_gets_a_probation():
    seen = replace(facts(vitals=Vitals(lost=True)), successor="GPU-2")
    gone = noted(LOST_THERE, next_action.tend(LOST_THERE, seen, ENFORCE, LATE, 0.0))
    assert gone.health.quarantine.ailment == Ailment(AilmentKind.REPLACED, "GPU-2 is in its place")
    assert tend(gone, Vitals(lost=True), later(100_000)) == Proceed()
    assert tend(gone, at=later(100_000)) == StartProbation(ScrubPath.RESET)


@pytest.mark.parametrize("record", [lives.CLEAN, lives.DIRTY, lives.UNKNOWN, lives.IN_USE, lives.GRANTED])
def test_harmless_errors_are_recorded_once_by_code_and_count(record):
    counted = ev.ErrorsNoted(((13, 2), (43, 1)), 3)
    assert tend(record, COUNTED, lives.NOW) == RecordFirst(counted)
    assert not isinstance(tend(live(record, counted), COUNTED, later(100)), RecordFirst)


def test_harmless_errors_are_recorded_at_most_once_a_minute():
    record = live(lives.CLEAN, ev.ErrorsNoted(((13, 1),), 1), at=lives.NOW)
    soon, late = later(next_action.NOTE_EVERY - 1), later(next_action.NOTE_EVERY)
    assert tend(record, COUNTED, soon) == Proceed()
    assert tend(record, COUNTED, late) == RecordFirst(ev.ErrorsNoted(((13, 1), (43, 1)), 3))


def test_errors_during_a_scrub_are_left_to_its_verdict():
    assert tend(lives.SCRUBBING, COUNTED, lives.NOW) == Proceed()


def test_a_probation_judges_only_errors_after_its_start():
    """Errors come in bursts: what came after the quarantine and before the trial is what the trial is for."""
    burst = Vitals(xids=(Xid(1, 48), Xid(2, 95)))
    record = out(AilmentKind.XID)
    assert tend(record, burst, lives.NOW) == Proceed()
    counted = tend(record, burst)
    assert counted == RecordFirst(ev.ErrorsNoted(((48, 1), (95, 1)), 2))
    assert tend(noted(record, counted), burst) == StartProbation(ScrubPath.RESET)


def test_a_worse_ailment_in_quarantine_can_require_a_person():
    support = 123
    assert required_action(support) is RequiredAction.CONTACT_SUPPORT
    hot = out(AilmentKind.HEAT)
    after = noted(hot, tend(hot, Vitals(xids=(Xid(1, support),)), lives.NOW)).health.quarantine
    assert (after.ailment.kind, after.next_probe) == (AilmentKind.XID, None)


SILENT = rows(
    ("its driver logs an error", Vitals(unresponsive=True, xids=(Xid(1, 79),)), AilmentKind.XID, ScrubPath.RESET),
    ("its driver asks for a reset", Vitals(reset_required=True), AilmentKind.RESET_REQUIRED, ScrubPath.RESET),
)


@pytest.mark.parametrize(("vitals", "kind", "path"), SILENT)
def test_a_silent_device_is_reset_only_with_a_second_sign(vitals, kind, path):
    record = out(AilmentKind.UNRESPONSIVE)
    found = tend(record, vitals)
    if isinstance(found, RecordFirst):
        record = noted(record, found)
        found = tend(record, at=later(100_000))
    assert (record.health.quarantine.ailment.kind, found) == (kind, StartProbation(path))


@pytest.mark.parametrize("kind", [it for it in AilmentKind if not AILMENTS[it].gone])
def test_a_quarantined_device_that_is_lost_gets_the_reason_lost(kind):
    record = out(kind)
    after = noted(record, tend(record, Vitals(lost=True)))
    assert after.health.quarantine.ailment.kind is AilmentKind.LOST
    assert "it was quarantined before: so it is" in after.health.quarantine.ailment.detail
    assert (after.health.quarantine.next_probe is None) == (record.health.quarantine.next_probe is None), (
        "who waits goes on waiting"
    )
    assert tend(after, Vitals(lost=True)) == Proceed(), "told once"


def test_a_lost_slice_in_quarantine_keeps_its_reason():
    record = out(AilmentKind.HEAT)
    cut = replace(record, device=replace(record.device, parent="GPU-7"))
    assert tend(cut, Vitals(lost=True)) == Proceed()


@pytest.mark.parametrize("kind", [it for it in AilmentKind if it is not AilmentKind.REPLACED])
def test_a_quarantined_gpu_becomes_replaced_when_it_has_a_successor(kind):
    record = out(kind)
    seen = replace(facts(vitals=Vitals(lost=True)), successor="GPU-2")
    after = noted(record, next_action.tend(record, seen, ENFORCE, LATE, 0.0)).health.quarantine
    assert after.ailment.kind is AilmentKind.REPLACED
    assert (after.next_probe is None) == (record.health.quarantine.next_probe is None), (
        "what waited for a person still does"
    )


STRICT = ENFORCE.model_copy(update={"paths": Paths(new_tenant=ScrubPath.SLOW)})


def test_a_probation_is_as_thorough_as_the_next_scrub():
    assert next_scrub.next_path(out(AilmentKind.HEAT), ENFORCE) is ScrubPath.FAST
    assert next_scrub.next_path(out(AilmentKind.HEAT), STRICT) is ScrubPath.SLOW
    rebooted = live(out(AilmentKind.HEAT), ev.Distrusted("x", lives.REBOOTED))
    assert next_scrub.next_path(rebooted, ENFORCE) is ScrubPath.SLOW


CUT = rows(
    ("memory", Step.CLEAR, {"mismatch": Mismatch(0, 0, 1, 1)}, AilmentKind.MEMORY_FAULT),
    ("arithmetic", Step.SELFTEST, {"deviating": (7,)}, AilmentKind.COMPUTE_FAULT),
)


@pytest.mark.parametrize(("step", "findings", "kind"), CUT)
@pytest.mark.parametrize("before", [lives.CLEAN, lives.DIRTY])
def test_a_proven_hardware_fault_outlives_a_cancelled_job(before, step, findings, kind):
    result = lives.result(step, outcome=Outcome.FAILED, **findings)
    record = live(live(before, ev.ScrubStarted(lives.job())), ev.StepsRecorded("job-1", (result,)))
    after = live(record, next_action.interruption(record, "killed", LATE))
    assert after.health.quarantine is not None
    assert (after.health.quarantine.ailment.kind, after.health.quarantine.next_probe) == (kind, None)


def test_a_reason_that_needs_a_person_outlives_a_failed_reinstatement():
    proven = out(AilmentKind.MEMORY_FAULT)
    trial = live(proven, ev.ProbationStarted(lives.job(ScrubPath.RESET, Trigger.REINSTATE), "ann"))
    for ailment in (Ailment(AilmentKind.RESET_FAILED, "refused"), PERSONS):
        after = next_action.quarantine(trial, ailment, "ann", None, ENFORCE, LATE, 0.0).quarantine
        assert (after.ailment, after.last_try) == (proven.health.quarantine.ailment, ailment.detail)


def test_a_quarantine_says_which_errors_were_judged_with_it():
    shown = Vitals(lost=True, xids=(Xid(7, 13), Xid(8, 79), Xid(9, 13)))
    found = next_action.quarantine(lives.CLEAN, lives.LOST, "autoclave", shown, ENFORCE, lives.NOW, 0.0)
    assert found.quarantine.errors == ((13, 2), (79, 1))
    again = next_action.quarantine(live(lives.CLEAN, found), lives.LOST, "me", shown, ENFORCE, LATE, 0.0)
    assert again.quarantine.errors == ()


def test_an_operators_quarantine_judges_no_errors():
    shown = Vitals(xids=(Xid(9, 79),))
    word = next_action.quarantine(lives.CLEAN, PERSONS, "ann", shown, ENFORCE, LATE, 0.0)
    assert word.quarantine.baseline == lives.CLEAN.health.baseline


def test_a_worse_ailment_of_a_used_device_is_recorded_once():
    hot = live(lives.IN_USE, ev.AilmentFound(Ailment(AilmentKind.HEAT, "it is slowed down")))
    seen = replace(facts((lives.OF_A,), alive=True), vitals=Vitals(xids=(Xid(9, 79),)))
    worse = noted(hot, next_action.tend(hot, seen, ENFORCE, LATE, 0.0))
    assert worse.health.ailment.kind is AilmentKind.XID
    assert next_action.tend(worse, seen, ENFORCE, LATE, 0.0) == Proceed()


FLAPS = rows(
    ("a free device falls sick again", lives.DIRTY, AilmentKind.HEAT, True),
    ("a quarantined device falls sick again", lives.QUARANTINED, AilmentKind.HEAT, True),
    ("a free device is lost", lives.DIRTY, AilmentKind.LOST, True),
    ("a quarantined device is lost: it has not returned", lives.QUARANTINED, AilmentKind.LOST, False),
    ("a proven fault of the hardware is worse", lives.CLEAN, AilmentKind.MEMORY_FAULT, False),
    ("a process that does not end is no fault of the device", lives.DIRTY, AilmentKind.STUCK_PROCESS, False),
)


@pytest.mark.parametrize(("record", "kind", "flaps"), FLAPS)
def test_a_device_that_returns_too_often_counts_as_flapping(record, kind, flaps):
    often = lives.but(record, returns=(lives.NOW.wall,) * 5)
    assert entered(often, Ailment(kind, "x")).ailment.kind is (AilmentKind.FLAPPING if flaps else kind)


def test_a_clock_that_was_wrong_makes_no_device_flap():
    record = lives.but(lives.DIRTY, returns=(later(1e9).wall,) * 5)
    assert entered(record, HOT).ailment == HOT


def test_after_the_first_proof_only_slow_scrubs_count_as_tests():
    fast = live(lives.UNKNOWN, ev.ScrubStarted(lives.job(ScrubPath.FAST)))
    assert live(fast, lives.passed(fast), at=later(1)).scrubs.tested == later(1).wall
    known = lives.but(fast, tested=lives.NOW.wall)
    assert live(known, lives.passed(known), at=later(1)).scrubs.tested == lives.NOW.wall
    slow = lives.but(lives.FIRST_LOOK, tested=lives.NOW.wall)
    assert live(slow, lives.passed(slow), at=later(1)).scrubs.tested == later(1).wall


def test_a_grave_error_without_a_verdict_needs_a_reset():
    new, fell_off = Baseline(), Vitals(xids=(Xid(7, 79),))
    assert next_action.earlier_errors(new, None, ENFORCE) is None
    assert next_action.earlier_errors(new, lives.WELL, ENFORCE) is None
    assert next_action.earlier_errors(new, COUNTED, ENFORCE) == ev.ErrorsNoted(((13, 2), (43, 1)), 3)
    assert next_action.earlier_errors(new, fell_off, ENFORCE) == ev.ErrorsNoted(((79, 1),), 7, grave=True)
    assert next_action.earlier_errors(Baseline(last_xid=7), fell_off, ENFORCE) is None


ROW = Ailment(AilmentKind.REMAP_FAILED, "a memory row could not be remapped", sticky=True)
HOT = Ailment(AilmentKind.HEAT, "hot")
PERSONS = Ailment(AilmentKind.OPERATOR, "it hums (asked by ann)", sticky=True)


def entered(record, ailment):
    """The quarantine for this ailment a minute later."""
    return next_action.quarantine(record, ailment, "autoclave", None, ENFORCE, later(60), 0.0).quarantine


def test_an_operators_quarantine_does_not_replace_an_ailment():
    words = "it hums (asked by ann)"
    assert next_action.operator_ailment(lives.IN_USE, words) == PERSONS
    hot = next_action.operator_ailment(lives.but(lives.IN_USE, ailment=HOT), words)
    asked = f"hot; an operator has asked for its quarantine: {words}"
    assert hot == Ailment(AilmentKind.HEAT, asked, sticky=True, before_asked="hot")
    assert entered(lives.but(lives.SICK_DIRTY, ailment=hot), hot).next_probe is None  # a person decides
    assert ailments.remedy(hot).doubtful  # no container may start again on it, as after any operator's quarantine
    assert next_action.operator_ailment(lives.but(lives.IN_USE, ailment=PERSONS), words) == PERSONS
    reported = next_action.operator_ailment(lives.but(lives.IN_USE, ailment=ROW), "it smells (asked by bob)")
    again = next_action.operator_ailment(lives.but(lives.IN_USE, ailment=reported), words)
    asked = f"{ROW.detail}; an operator has asked for its quarantine: {words}"
    assert again == replace(ROW, detail=asked, before_asked=ROW.detail)


def test_only_a_probation_sets_last_try():
    tried = entered(lives.PROBED, HOT)
    assert tried.last_try == "hot"
    assert entered(lives.QUARANTINED, HOT).last_try == ""
    assert entered(lives.SCRUBBING, HOT).last_try == ""
