"""What is done about a device that nobody asked for just now: tables of cases."""

from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core import next_action, ownership, pauses
from scrubber.core.answers import Blocked, Proceed, RecordFirst, Scrub, StartProbation
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    Baseline,
    Blame,
    InTheWay,
    Owner,
    Quarantine,
    ScrubPath,
    Setback,
    Trigger,
    Vitals,
)
from tests.core import lives
from tests.core.lives import (
    AWAY,
    ENDS_ALL,
    ENFORCE,
    FOREIGN,
    LEFTOVER,
    LOST,
    NOW,
    OBSERVE,
    OF_A,
    OF_B,
    PULLED,
    XID_79,
    A,
    B,
    facts,
    job,
    later,
    live,
    rows,
)

XID = Ailment(AilmentKind.XID, "xid 79 (ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS) was reported", xid=79)
LEAK = Vitals(leaked_bytes=7)
AT = later(1)
CROWD = RecordFirst(ev.PutInUse(Owner(A, NOW, seen=True, crowded=True)))
UNSEEN = lives.live(lives.GRANTED, ev.PutInUse(Owner(A, NOW)))
AFTER_REBOOT = lives.live(lives.CLEAN, ev.Distrusted("the node was rebooted", lives.REBOOTED))
CUT_OFF = lives.live(lives.FIRST_LOOK, ev.ScrubInterrupted("job-1", "x"))
DUE = later(60)
USED = replace(facts(), used_at=AT.uptime)


UNSEEABLE = "it cannot be proven that no process uses it"


def leave(holder):
    where = holder.container or "no container"
    return Blocked(f'waiting for "{holder.command}" (pid {holder.pid}, {where}) to end')


def waiting(count):
    return lives.but(lives.SET_BACK, setback=Setback("busy", NOW, count))


def quarantined(ailment, baseline=Baseline(), counted=()):
    return RecordFirst(
        ev.Quarantined(Quarantine(ailment, AT, "autoclave", baseline, 0, AT.uptime + 48.0, errors=counted))
    )


TEND = rows(
    ("S6 a reboot is noted", lives.CLEAN, facts(incarnation=lives.REBOOTED), ENFORCE,
     RecordFirst(ev.Distrusted("the node was rebooted", lives.REBOOTED))),
    ("a reboot under a job is for its next veto", lives.SCRUBBING, facts(incarnation=lives.REBOOTED), ENFORCE,
     Proceed()),
    # clean
    ("a clean device is left alone", lives.CLEAN, facts(), ENFORCE, Proceed()),
    ("S10 a clean device that is used is soiled", lives.CLEAN, facts((FOREIGN,)), ENFORCE,
     RecordFirst(ev.Soiled("it was used without a grant", (FOREIGN,)))),
    ("S10 under observe, too", lives.CLEAN, facts((FOREIGN,)), OBSERVE,
     RecordFirst(ev.Soiled("it was used without a grant", (FOREIGN,)))),
    ("S11 memory that nobody holds is not free", lives.CLEAN, facts(vitals=LEAK), ENFORCE,
     RecordFirst(ev.Soiled("7 bytes are in use, but no visible process holds them"))),
    ("a short use by nobody that can be named", lives.CLEAN, USED, ENFORCE,
     RecordFirst(ev.Soiled("it was used without a grant, by a process that cannot be named", unnamed=True))),
    ("a short use by somebody in a place that is known", lives.CLEAN, replace(USED, used_by="pod pod-b"), ENFORCE,
     RecordFirst(ev.Soiled("it was used without a grant, by a process of pod pod-b", unnamed=True))),
    ("perhaps a short use", lives.CLEAN, replace(USED, use_unsure="raise its limit"), ENFORCE,
     RecordFirst(ev.Soiled("it is not known whether it was used: raise its limit"))),
    ("a use by somebody who is known, beside a gap", lives.CLEAN,
     replace(USED, use_unsure="raise its limit", used_by="pod pod-b"), ENFORCE,
     RecordFirst(ev.Soiled("it was used without a grant, by a process of pod pod-b", unnamed=True))),
    ("a short use by a program that is exempt pages nobody", lives.CLEAN,
     replace(USED, used_by="pod ops/tel (pod-b)", users_exempt=True), ENFORCE,
     RecordFirst(ev.Soiled("it was used by a process of pod ops/tel (pod-b), which the policy exempted"))),
    ("a use that is seen by a program that is exempt pages nobody", lives.CLEAN,
     replace(facts((OF_B,)), used_by="pod ops/tel (pod-b)", users_exempt=True), ENFORCE,
     RecordFirst(ev.Soiled('it was used by "train-b" (pid 42, pod-b), which the policy exempted'))),
    ("a use by a program that is exempt, beside a gap", lives.CLEAN,
     replace(USED, use_unsure="raise its limit", used_by="pod pod-b", users_exempt=True), ENFORCE,
     RecordFirst(ev.Soiled("it is not known whether it was used: raise its limit"))),
    ("health that was not asked for is no news", lives.CLEAN, facts(vitals=None), ENFORCE, Proceed()),
    ("an old proof is renewed", lives.CLEAN, facts(since=AWAY), ENFORCE, Scrub(ScrubPath.FAST, Trigger.PROOF_EXPIRED)),
    ("W16 an old proof is not renewed without a look", lives.CLEAN, facts(None, since=AWAY), ENFORCE,
     Blocked(UNSEEABLE)),
    ("observe renews no proof", lives.CLEAN, facts(since=AWAY), OBSERVE, Proceed()),
    ("a clean device that is sick is taken out", lives.CLEAN, facts(vitals=XID_79), ENFORCE,
     quarantined(XID, baseline=Baseline(1, 0), counted=((79, 1),))),
    # dirty
    ("a released device is scrubbed ahead of need", lives.DIRTY, facts((LEFTOVER,)), ENFORCE,
     Scrub(ScrubPath.FAST, Trigger.RELEASE)),
    ("a soiled device is scrubbed once it is free", lives.SOILED, facts(), ENFORCE,
     Scrub(ScrubPath.FAST, Trigger.FOREIGN_USE)),
    ("W10 a soiled device that is in use waits", lives.SOILED, facts((FOREIGN,)), ENFORCE, leave(FOREIGN)),
    ("W9 a container on a dirty device is left alone", lives.DIRTY, facts((OF_B,)), ENDS_ALL, leave(OF_B)),
    ("W16 a dirty device is not scrubbed without a look", lives.DIRTY, facts(None), ENFORCE, Blocked(UNSEEABLE)),
    ("a first look that was cut off stays a slow one", CUT_OFF, facts(), ENFORCE,
     Scrub(ScrubPath.SLOW, Trigger.RETRY)),
    ("a released device that fell sick in use is taken out", lives.SICK_DIRTY, facts(), ENFORCE, quarantined(LOST)),
    # unknown
    ("W14 lost ledger: a container on it is its user", lives.UNKNOWN, facts((OF_A,)), ENDS_ALL,
     RecordFirst(ev.PutInUse(Owner(A, AT, seen=True, unannounced=True)))),
    ("a host process on an unknown device is waited for", lives.UNKNOWN, facts((FOREIGN,)), ENFORCE, leave(FOREIGN)),
    ("W16 an unknown device is not scrubbed without a look", lives.UNKNOWN, facts(None), ENFORCE, Blocked(UNSEEABLE)),
    ("a device that was proven is tested after a reboot", AFTER_REBOOT, facts(incarnation=lives.REBOOTED), ENFORCE,
     Scrub(ScrubPath.SLOW, Trigger.FIRST_LOOK)),
    # in use
    ("a grant that nobody uses yet is left alone", lives.GRANTED, facts(), ENFORCE, Proceed()),
    ("R11 a container on a grant whose start was not announced", lives.GRANTED, facts((OF_A,)), ENFORCE,
     RecordFirst(ev.PutInUse(Owner(A, AT, seen=True, unannounced=True)))),
    ("W15 a process of no container on a grant", lives.GRANTED, facts((FOREIGN,)), ENFORCE,
     RecordFirst(ev.PutInUse(Owner(None, AT, unannounced=True)))),
    ("a nameless user gets its name", lives.USED_BY_HOST, facts((FOREIGN, OF_A)), ENFORCE,
     RecordFirst(ev.PutInUse(Owner(A, AT, seen=True, unannounced=True)))),
    ("a nameless user that stays so", lives.USED_BY_HOST, facts((FOREIGN,)), ENFORCE, Proceed()),
    ("W16 no sight of processes: an owner is not taken for gone", lives.IN_USE, facts(None, alive=False), ENFORCE,
     Blocked(UNSEEABLE)),
    ("an owner that is seen for the first time", UNSEEN, facts(alive=True), ENFORCE,
     RecordFirst(ev.PutInUse(Owner(A, NOW, seen=True)))),
    ("an owner that is seen again", lives.IN_USE, facts(alive=True), ENFORCE, Proceed()),
    ("W21 an owner that has not come yet has not gone", UNSEEN, facts(alive=False), ENFORCE, Proceed()),
    ("an owner that nobody has seen, and whose control group was removed", UNSEEN,
     replace(facts(alive=False), owner_left=True), ENFORCE, RecordFirst(ev.Released("its owner is gone"))),
    ("the same, while nobody can say whether it lives", UNSEEN, replace(facts(), owner_left=True), ENFORCE, Proceed()),
    ("its owner is gone", lives.IN_USE, facts((LEFTOVER,), alive=False), ENFORCE,
     RecordFirst(ev.Released("its owner is gone"))),
    ("W13 nobody can say whether its owner lives", lives.IN_USE, facts(), ENFORCE, Proceed()),
    ("W20 its owner is gone, a stranger has it open", lives.IN_USE, facts((OF_B,), alive=False), ENFORCE, CROWD),
    ("W20 the same, once that is written down", lives.CROWDED, facts((OF_B,), alive=False), ENFORCE, Proceed()),
    ("W20 the kubelet has given the device to nobody", lives.CROWDED, facts((OF_B,), alive=False, assigned_pods=()),
     ENFORCE, RecordFirst(ev.Released("its owner is gone"))),
    ("W20 the kubelet has given it to him", lives.CROWDED, facts((OF_B,), alive=False, assigned_pods={B}), ENFORCE,
     Proceed()),
    ("W20 then he is waited for", lives.DIRTY, facts((OF_B,)), ENFORCE, leave(OF_B)),
    ("a grant that was asked for in vain and abandoned", lives.GRANTED, replace(facts(), withheld=True), ENFORCE,
     RecordFirst(ev.Released("a request for it was refused before a container started on it"))),
    ("a device in use that falls sick is left alone", lives.IN_USE, facts((OF_A,), alive=True, vitals=XID_79), ENFORCE,
     RecordFirst(ev.AilmentFound(XID))),
    ("a sick device in use stays with its user", lives.SICK_IN_USE, facts((OF_A,), alive=True, vitals=XID_79), ENFORCE,
     Proceed()),
    ("a sick device whose user is gone is released first", lives.SICK_IN_USE, facts(alive=False), ENFORCE,
     RecordFirst(ev.Released("its owner is gone"))),
    ("the same, and the driver no longer says who uses it", lives.SICK_IN_USE, facts(None, alive=False), ENFORCE,
     RecordFirst(ev.Released("its owner is gone"))),
    ("a grant that fell sick is called back: it would wait for ever", lives.SICK_GRANTED, facts(), ENFORCE,
     RecordFirst(ev.Released("it became sick before a container started on it"))),
    ("not when it may be in use without a word", lives.live(lives.UNANNOUNCED, ev.AilmentFound(LOST)), facts(), ENFORCE,
     Proceed()),
    # scrubbing and quarantine
    ("a job judges for itself", lives.SCRUBBING, facts(vitals=XID_79), ENFORCE, Proceed()),
    ("probation waits for its time", lives.QUARANTINED, facts(), ENFORCE, Proceed()),
    ("a sick device in quarantine is where it should be", lives.QUARANTINED, facts(vitals=XID_79), ENFORCE, Proceed()),
)  # fmt: skip
TEND_DUE = rows(
    ("probation begins", lives.QUARANTINED, facts(), ENFORCE, StartProbation(ScrubPath.RESET)),
    ("what is not there is not tried", lives.QUARANTINED, facts(vitals=Vitals(lost=True)), ENFORCE, Proceed()),
    ("W16 probation does not begin without a look", lives.QUARANTINED, facts(None), ENFORCE, Proceed()),
    ("probation waits for whoever is on it", lives.QUARANTINED, facts((OF_A,)), ENDS_ALL, Proceed()),
    ("an orphan does not keep a device in quarantine for ever",
     lives.live(lives.DIRTY, ev.Quarantined(lives.quarantine())), facts((LEFTOVER,)), ENFORCE,
     StartProbation(ScrubPath.RESET)),
    ("a sticky quarantine waits for a person", lives.STICKY, facts(), ENFORCE, Proceed()),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "policy", "answer"), TEND)
def test_upkeep_chooses_the_action_for_each_state(record, seen, policy, answer):
    assert next_action.tend(record, seen, policy, AT, 0.0) == answer


@pytest.mark.parametrize(("record", "seen", "policy", "answer"), TEND_DUE)
def test_tend_when_probation_is_due(record, seen, policy, answer):
    assert next_action.tend(record, seen, policy, DUE, 0.0) == answer


@pytest.mark.parametrize(("count", "pause"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (8, 60), (5000, 60)], ids=str)
def test_the_pause_after_failed_scrubs_doubles_up_to_a_minute(count, pause):
    assert next_action.tend(waiting(count), facts(), ENFORCE, later(pause - 0.001), 0.0) == Proceed()
    again = Scrub(ScrubPath.FAST, Trigger.RETRY)
    assert next_action.tend(waiting(count), facts(), ENFORCE, later(pause), 0.0) == again


# -- quarantine

WEEK = 7 * 86400.0


def confine(record, ailment=LOST, *, vitals=None, chance=1.0, policy=ENFORCE):
    return next_action.quarantine(record, ailment, "autoclave", vitals, policy, AT, chance).quarantine


def tried(probes):
    return lives.but(lives.QUARANTINED, quarantine=replace(lives.quarantine(), probes=probes))


@pytest.mark.parametrize(("probes", "pause"), [(0, 60), (1, 120), (5, 1920), (6, 3600), (100_000, 3600)])
def test_pauses_grow_up_to_the_longest_whatever_the_count(probes, pause):
    again = confine(tried(probes))
    assert (again.probes, again.next_probe, again.since) == (probes, AT.uptime + pause, NOW)


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 48), (0.5, 54), (1.0, 60)])
def test_chance_shortens_the_pause_before_a_probation(chance, pause):
    assert confine(lives.CLEAN, chance=chance).next_probe == pytest.approx(AT.uptime + pause)


def test_a_reinstatement_that_failed_does_not_start_probation_by_itself():
    assert confine(lives.REINSTATED, LOST).next_probe is None


@pytest.mark.parametrize(
    ("ages", "flapping"),
    [((), False), ((1, 2), False), ((1, 2, WEEK), True), ((1, 2, WEEK + 0.5), False), ((1, 2, 3, 4), True)],
    ids=str,
)
def test_a_device_that_keeps_coming_back_waits_for_a_person(ages, flapping):
    record = lives.but(lives.CLEAN, returns=tuple(AT.wall - age for age in ages))
    found = confine(record)
    assert (found.next_probe is None) is flapping
    assert (found.ailment.kind is AilmentKind.FLAPPING) is flapping
    assert found.ailment.sticky is flapping


def test_a_flapping_ailment_keeps_the_detail_of_the_cause():
    record = lives.but(lives.CLEAN, returns=(AT.wall,) * 3)
    words = "it returned from quarantine 3 times within a week"
    assert confine(record).ailment.detail == f"{LOST.detail}; {words}"


FLAPPED = Ailment(AilmentKind.FLAPPING, "it keeps coming back", sticky=True)


@pytest.mark.parametrize(("before", "kept"), [(FLAPPED, True), (PULLED, False), (LOST, False)], ids=str)
def test_an_operator_replaces_no_reason_that_needs_a_person(before, kept):
    asked = replace(PULLED, detail="hums")
    record = lives.but(lives.QUARANTINED, quarantine=lives.quarantine(before))
    assert confine(record, asked).ailment == (before if kept else asked)


def test_a_failed_job_names_who_is_left_in_its_way():
    seen = InTheWay((FOREIGN,), unnamed=True)
    failed = next_action.failure(live(lives.SET_BACK, ev.ScrubStarted(job())), "busy", Blame.TENANT, seen)
    assert failed == ev.ScrubFailed("job-1", "busy", Blame.TENANT, (FOREIGN,), unnamed=True, times=2)


def test_an_interrupted_job_is_interrupted():
    assert next_action.interruption(lives.SCRUBBING, "killed", AT) == ev.ScrubInterrupted("job-1", "killed")


@pytest.mark.parametrize(
    ("record", "probes", "pause"),
    [(lives.PROBED, 1, 120), (lives.PROBED, 3, 480), (lives.PROBED, 20, 3600), (lives.REINSTATED, 1, None)],
)
def test_an_interrupted_probation_rests_for_a_growing_time(record, probes, pause):
    before = replace(record.health.quarantine, probes=probes)
    expected = replace(before, next_probe=pause and AT.uptime + pause, last_try="killed")
    assert next_action.interruption(lives.but(record, quarantine=before), "killed", AT) == ev.Quarantined(expected)


def test_nothing_is_interrupted_without_a_job():
    with pytest.raises(ValueError, match="no job"):
        next_action.interruption(lives.CLEAN, "killed", AT)
    with pytest.raises(ValueError, match="no job"):
        next_action.failure(lives.CLEAN, "busy", Blame.TENANT)


def test_a_sick_device_without_a_seen_owner_is_released():
    nameless = lives.but(lives.USED_BY_HOST, ailment=LOST)
    unseen = lives.but(lives.IN_USE, ailment=LOST, owner=Owner("pod-a", AT, seen=False))
    late = later(1 + ownership.STARTS_WITHIN)
    deserted = RecordFirst(ev.Released("it is sick and no process uses it"))
    assert next_action.tend(nameless, facts(), ENFORCE, late, 0.0) == deserted
    assert next_action.tend(unseen, facts(alive=False), ENFORCE, late, 0.0) == deserted
    assert next_action.tend(unseen, facts(alive=False), ENFORCE, AT, 0.0) == Proceed()
    held = lives.but(unseen, owner=Owner("pod-a", AT, seen=True))
    assert next_action.tend(held, facts((OF_A,), alive=True), ENFORCE, late, 0.0) == Proceed()


def test_a_quarantine_requested_during_use_names_an_operator():
    record = lives.but(lives.DIRTY, ailment=Ailment(AilmentKind.OPERATOR, "hums (asked by user ann)", sticky=True))
    answer = next_action.tend(record, facts(), ENFORCE, AT, 0.0)
    assert lives.noted(record, answer).health.quarantine.by == "an operator"


def test_a_sick_unannounced_grant_keeps_its_start_budget():
    assert lives.SICK_GRANTED.tenancy.grant is not None
    grant = replace(lives.SICK_GRANTED.tenancy.grant, announced=False, at=AT)
    record = lives.but(lives.SICK_GRANTED, grant=grant)
    back = RecordFirst(ev.Released("it became sick before a container started on it"))
    assert next_action.tend(record, facts(), ENFORCE, later(1 + pauses.START_WITHIN), 0.0) == Proceed()
    assert next_action.tend(record, facts(), ENFORCE, later(1.1 + pauses.START_WITHIN), 0.0) == back


@pytest.mark.parametrize("record", [lives.DIRTY, lives.UNKNOWN, lives.CLEAN])
def test_no_scrub_begins_during_a_reset_of_a_sibling(record):
    seen = replace(facts(since=AWAY), domain_resetting=True)
    assert next_action.tend(record, seen, ENFORCE, AT, 0.0) == Proceed()


WAITS = later(ownership.STARTS_WITHIN + 1)
TAKEN = RecordFirst(ev.Released("it was not used, and the kubelet has taken it from its owner"))
ASSIGNED = rows(
    ("the checkpoint names nobody", UNSEEN, facts(alive=False, assigned_pods=()), WAITS, TAKEN),
    ("the checkpoint still names the owner", UNSEEN, facts(alive=False, assigned_pods=(A,)), WAITS, Proceed()),
    ("the checkpoint cannot be read", UNSEEN, facts(alive=False), WAITS, Proceed()),
    ("the owner may still start", UNSEEN, facts(alive=False, assigned_pods=()), AT, Proceed()),
    ("it is not known whether the owner runs", UNSEEN, facts(assigned_pods=()), WAITS, Proceed()),
    ("the holders are not known", UNSEEN, facts(None, alive=False, assigned_pods=()), WAITS, Proceed()),
    ("a process holds it", UNSEEN, facts((LEFTOVER,), alive=False, assigned_pods=()), WAITS, Proceed()),
    ("the owner has no name", lives.USED_BY_HOST, facts(assigned_pods=()), WAITS, Proceed()),
)  # fmt: skip


@pytest.mark.parametrize(("record", "seen", "at", "answer"), ASSIGNED)
def test_an_unseen_owner_is_released_when_the_kubelet_says_so(record, seen, at, answer):
    assert next_action.tend(record, seen, ENFORCE, at, 0.0) == answer
