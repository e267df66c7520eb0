"""The law of the table, one line a law; and what each event changes besides the state."""

import typing
from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core.changes import MANY_ALLOCATIONS
from scrubber.core.events import IllegalEventError
from scrubber.core.model import Baseline, Moment, Owner, ScrubPath, Setback, State, Step
from scrubber.core.states import TABLE, late, replay, to_record_later
from tests.core import lives
from tests.core.lives import LIVES, NOW, events_about, later, live

EVENTS = set(typing.get_args(ev.Event)) - set(ev.OF_NODE)  # those of a device
IN_USE = {State.GRANTED, State.IN_USE}
JOBLESS = set(State) - {State.SCRUBBING}
IN_A_JOB = {State.SCRUBBING: State.SCRUBBING}
LAW: dict[type[ev.Event], dict[State, State]] = {
    ev.Described: {it: it for it in State},
    ev.ErrorsNoted: {it: it for it in JOBLESS},
    ev.Distrusted: {**dict.fromkeys(JOBLESS, State.UNKNOWN), State.QUARANTINED: State.QUARANTINED},
    ev.ScrubStarted: dict.fromkeys((State.UNKNOWN, State.DIRTY, State.CLEAN), State.SCRUBBING),
    ev.ProbationStarted: {State.QUARANTINED: State.SCRUBBING},
    ev.StepsRecorded: IN_A_JOB,
    ev.Escalated: IN_A_JOB,
    ev.ScrubPassed: {State.SCRUBBING: State.CLEAN},  # no other event makes a device clean
    ev.TenancyClosed: {State.CLEAN: State.CLEAN},
    ev.ScrubFailed: {State.SCRUBBING: State.DIRTY},
    ev.ScrubInterrupted: {State.SCRUBBING: State.DIRTY},
    ev.Soiled: {State.CLEAN: State.DIRTY},
    ev.LetIn: {it: it for it in set(State) - {State.UNKNOWN}},  # a claim has the device, or it is kept for one
    ev.Deferred: {it: it for it in State},
    ev.OpenAttempted: {it: it for it in State},  # it changes nothing
    ev.FenceMissed: {it: it for it in State},
    ev.Granted: dict.fromkeys((State.CLEAN, State.GRANTED), State.GRANTED),  # with proof, from a clean device only
    ev.GrantedUnproven: dict.fromkeys(JOBLESS - {State.QUARANTINED}, State.GRANTED),
    ev.PutInUse: dict.fromkeys((State.UNKNOWN, *IN_USE), State.IN_USE),
    ev.Released: {
        **dict.fromkeys(IN_USE, State.DIRTY),
        **{it: it for it in set(State) - IN_USE - {State.UNKNOWN}},  # a claim that the device is kept for
    },
    ev.AilmentFound: {it: it for it in IN_USE},
    ev.Quarantined: dict.fromkeys(set(State) - IN_USE, State.QUARANTINED),  # never while a tenant has the device
    ev.Reinstated: {State.QUARANTINED: State.DIRTY},  # nothing was proven
    ev.QuarantineWithdrawn: {it: it for it in (State.UNKNOWN, State.DIRTY, *IN_USE)},  # where an ailment waits
}
MOVES = {(state, kind, to) for kind, row in LAW.items() for state, to in row.items() if to is not state}


def test_the_table_allows_exactly_the_legal_moves():
    assert set(TABLE) == set(State)
    assert set(LAW) == EVENTS - {ev.Discovered}
    assert {kind: {state: row[kind] for state, row in TABLE.items() if kind in row} for kind in LAW} == LAW


# -- the law, applied


def test_the_sample_records_cover_every_state():
    assert {record.state for record in LIVES.values()} == set(State)


@pytest.mark.parametrize("name", LIVES)
def test_an_illegal_event_raises_and_changes_nothing(name):
    record = LIVES[name]
    untouched = replace(record)
    for kind, event in events_about(record).items():
        if kind in TABLE[record.state]:
            continue
        with pytest.raises(IllegalEventError, match=r"cannot happen to a device that is|was discovered twice"):
            live(record, event)
    assert record == untouched


@pytest.mark.parametrize(
    ("state", "kind", "to"), sorted(MOVES, key=str), ids=lambda it: getattr(it, "__name__", str(it))
)
def test_every_move_of_the_table_is_possible(state, kind, to):
    record = next(record for record in LIVES.values() if record.state is state)
    moved = live(record, events_about(record)[kind], at=later(5))
    assert (moved.state, moved.since) == (to, later(5))


def test_an_event_without_a_move_keeps_the_states_start_time():
    assert live(lives.CLEAN, ev.Described(lives.DEVICE), at=later(5)).since == NOW


@pytest.mark.parametrize("kind", sorted(EVENTS - {ev.Discovered}, key=str), ids=lambda kind: kind.__name__)
def test_an_undiscovered_device_accepts_no_other_event(kind):
    with pytest.raises(IllegalEventError, match="never discovered"):
        live(None, events_about(lives.UNKNOWN)[kind])


def test_events_of_the_node_change_no_record():
    entry = ev.LedgerEntry(7, ev.NODE, NOW, "", ev.ServiceStarted("0.1.0"))
    assert replay(tuple(LIVES.values())[:1], [entry]) == tuple(LIVES.values())[:1]


# -- the guards


PASSED = lives.passed(lives.SCRUBBING)
OTHER_JOB = (
    ev.StepsRecorded("job-9", (lives.result(Step.CLEAR),)),
    ev.Escalated("job-9", "clear failed", ScrubPath.SLOW),
    replace(PASSED, job="job-9"),
    ev.ScrubFailed("job-9", "x"),
    ev.ScrubInterrupted("job-9", "x"),
)
OTHER_RECEIPT = (
    ({"device": "GPU-2"}, "for another device"),
    ({"incarnation": lives.REBOOTED}, "another boot or driver"),
    ({"incarnation": lives.RELOADED}, "another boot or driver"),
    ({"previous": None}, "does not follow"),
    ({"previous": "0000"}, "does not follow"),
)
GUARDS = [
    *((lives.SCRUBBING, event, "another job") for event in OTHER_JOB),
    *((lives.SCRUBBING, replace(PASSED, receipt=replace(PASSED.receipt, **it)), why) for it, why in OTHER_RECEIPT),
    (lives.PROBED, ev.ScrubFailed("job-1", "x"), "ends clean or in quarantine"),
    (lives.PROBED, ev.ScrubInterrupted("job-1", "x"), "ends clean or in quarantine"),
    (lives.SICK_DIRTY, ev.ScrubStarted(lives.job()), "has an ailment"),
    (lives.SICK_GRANTED, ev.Granted(lives.grant(lives.SICK_GRANTED)), "has an ailment"),
    (lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), receipt=None)), "another receipt"),
    (lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), receipt="0000")), "another receipt"),
    (lives.UNPROVEN, ev.Granted(lives.grant(lives.UNPROVEN)), "another receipt"),
    (lives.CLEAN, ev.Described(replace(lives.DEVICE, uuid="GPU-2")), "describes another device"),
    (lives.GRANTED, ev.LetIn((lives.A,)), "nobody has acquired"),
    (lives.DIRTY, ev.LetIn((lives.A,)), "nobody has acquired"),
    (None, ev.Discovered(replace(lives.DEVICE, uuid="GPU-2"), lives.HERE), "cannot be discovered as GPU-2"),
]


@pytest.mark.parametrize(("record", "event", "complaint"), GUARDS)
def test_s16_an_event_that_does_not_fit_is_refused(record, event, complaint):
    with pytest.raises(IllegalEventError, match=complaint):
        live(record, event)


# -- what an event changes besides the state

AT = Moment(NOW.wall + 7, NOW.uptime + 7)
SEEN = Owner(lives.B, later(3))
ASKS = lives.grant(lives.DIRTY)
AT_START = replace(lives.grant(lives.CLEAN), at_start=True)
RESTARTS = live(lives.IN_USE, ev.Released("again", restart=True), ev.ScrubStarted(lives.job()))
RESTARTS = live(RESTARTS, lives.passed(RESTARTS))
RESTARTS = lives.but(RESTARTS, receipt=replace(lives.proof(RESTARTS), envelope=lives.ENVELOPE))
RESTARTED = replace(lives.grant(RESTARTS), at_start=True)
SCRUBBED_AT_START = live(RESTARTS, ev.Granted(RESTARTED))
UNANNOUNCED_AGAIN = lives.grant(lives.UNANNOUNCED, announced=False, epoch="epoch-2")
MARKED = Baseline(last_xid=9, ecc_uncorrectable=2)
REBOOT = {"incarnation": lives.REBOOTED, "proven_at": 0.0}
KEPT_NAMED = live(lives.KEPT_FOR_CLAIM, ev.LetIn((lives.A,)))
CHANGES = [
    ("the end of a claim ends its list of pods", KEPT_NAMED, ev.Released("it was given back"),
     {"number": KEPT_NAMED.tenancy.number + 1, "kept_for": "", "claim_pods": None}),
    ("a description is replaced, S16", lives.CLEAN, ev.Described(replace(lives.DEVICE, index=3)),
     {"device": replace(lives.DEVICE, index=3)}),
    ("a grant begins a tenancy", lives.CLEAN, ev.Granted(lives.grant(lives.CLEAN)),
     {"grant": lives.grant(lives.CLEAN), "began": AT.uptime, "allocations": 1}),
    ("a grant by a start is no installation of Allocate", lives.CLEAN, ev.Granted(AT_START),
     {"grant": AT_START, "began": AT.uptime}),
    ("an unproven grant ends the proof", lives.CLEAN, ev.GrantedUnproven(lives.grant(lives.CLEAN, proven=False), "x"),
     {"grant": lives.grant(lives.CLEAN, proven=False), "began": AT.uptime, "receipt": None, "allocations": 1}),
    ("an unproven grant on a used device forgets the owner and keeps its leftovers in view", lives.IN_USE,
     ev.GrantedUnproven(lives.grant(lives.IN_USE), "x"),
     {"grant": lives.grant(lives.IN_USE), "owner": None, "ended": AT.uptime, "allocations": 2,
      "number": lives.IN_USE.tenancy.number + 1}),
    ("an unproven grant on a device that was left keeps when that was", lives.DIRTY,
     ev.GrantedUnproven(lives.grant(lives.DIRTY), "x"), {"grant": lives.grant(lives.DIRTY), "allocations": 1}),
    ("the same, given back", live(lives.DIRTY, ev.GrantedUnproven(ASKS, "x")), ev.Released("x"),
     {"grant": None}),
    ("the next hand-over has another id after a job that announces no start",
     lives.OF_CLAIM, ev.Released("x"),
     {"grant": None, "receipt": None, "ended": AT.uptime, "left_by": "claim 7",
      "number": lives.CLEAN.tenancy.number + 1}),
    ("the next grant goes on with a tenancy that announces no start", lives.UNANNOUNCED, ev.Granted(UNANNOUNCED_AGAIN),
     {"grant": UNANNOUNCED_AGAIN}),
    ("a start of another pod ends a tenancy, as policy observe allows", lives.IN_USE, ev.PutInUse(SEEN),
     {"owner": SEEN, "number": lives.IN_USE.tenancy.number + 1}),
    ("a user ends the proof", lives.GRANTED, ev.PutInUse(SEEN), {"owner": SEEN, "receipt": None}),
    ("a release ends grant and ownership, not the tenancy: its leftovers are still there", lives.IN_USE,
     ev.Released("gone"),
     {"grant": None, "owner": None, "ended": AT.uptime, "allocations": 0, "last_owner": lives.A,
      "number": lives.IN_USE.tenancy.number + 1}),
    ("a release for a restart keeps what the kubelet was handed", lives.IN_USE, ev.Released("again", restart=True),
     {"grant": None, "owner": None, "ended": AT.uptime, "awaits": lives.A}),
    ("another pod's grant ends the tenancy that waits for a restart", RESTARTS, ev.Granted(lives.grant(RESTARTS)),
     {"grant": lives.grant(RESTARTS), "began": AT.uptime, "allocations": 2, "awaits": "",
      "last_owner": lives.A, "number": RESTARTS.tenancy.number + 1,
      "receipt": replace(lives.proof(RESTARTS), envelope="")}),
    ("a start of its next container goes on with it, and its receipt names the same hand-over",
     lives.but(RESTARTS, held_from=1), ev.Granted(RESTARTED), {"grant": RESTARTED, "began": AT.uptime}),
    ("another pod's start ends it as well", SCRUBBED_AT_START, ev.PutInUse(SEEN),
     {"owner": SEEN, "receipt": None, "awaits": "", "last_owner": lives.A, "number": RESTARTS.tenancy.number + 1}),
    ("the start of the pod itself goes on with it", SCRUBBED_AT_START, ev.PutInUse(replace(SEEN, container=lives.A)),
     {"owner": replace(SEEN, container=lives.A), "receipt": None, "awaits": ""}),
    ("a visit does not end it", SCRUBBED_AT_START, ev.PutInUse(replace(SEEN, unannounced=True)),
     {"owner": replace(SEEN, unannounced=True), "receipt": None}),
    ("a reboot ends it, and its container may have its mount", RESTARTS, ev.Distrusted("x", lives.REBOOTED),
     {**REBOOT, "receipt": None, "awaits": "", "number": RESTARTS.tenancy.number + 1,
      "held_from": RESTARTS.tenancy.number}),
    ("the end of a visit is the end of nobody's tenancy", lives.but(lives.USED_BY_B, held_from=1), ev.Released("gone"),
     {"grant": None, "owner": None}),
    ("a job ends the proof and owes its path", lives.CLEAN, ev.ScrubStarted(lives.job(name="job-2")),
     {"job": lives.job(name="job-2"), "receipt": None, "due_path": ScrubPath.FAST}),
    ("a clear begins after the results before it", lives.SCRUBBING,
     ev.StepsRecorded("job-1", (lives.result(Step.EVICT),), Step.CLEAR),
     {"job": replace(lives.job(), begun=Step.CLEAR, results=(lives.result(Step.EVICT),))}),
    ("steps that end leave their results", live(lives.SCRUBBING, ev.StepsRecorded("job-1", (), Step.CLEAR)),
     ev.StepsRecorded("job-1", (lives.result(Step.CLEAR), lives.result(Step.VERIFY))),
     {"job": replace(lives.job(), results=(lives.result(Step.CLEAR), lives.result(Step.VERIFY)))}),
    ("a fast job does not pay the debt of a slow one that was cut off", lives.but(lives.DIRTY, due_path=ScrubPath.SLOW),
     ev.ScrubStarted(lives.job()), {"job": lives.job(), "due_path": ScrubPath.SLOW}),
    ("an escalated job owes its new path", lives.SCRUBBING, ev.Escalated("job-1", "x", ScrubPath.RESET),
     {"job": replace(lives.job(), path=ScrubPath.RESET), "due_path": ScrubPath.RESET}),
    ("a failed job is remembered", lives.SCRUBBING, ev.ScrubFailed("job-1", "busy"),
     {"job": None, "setback": Setback("busy", AT, 1)}),
    ("a job that fails again is counted", live(lives.SET_BACK, ev.ScrubStarted(lives.job())),
     ev.ScrubFailed("job-1", "still busy"), {"job": None, "setback": Setback("still busy", AT, 2)}),
    ("an interrupted job is no setback", lives.SCRUBBING, ev.ScrubInterrupted("job-1", "x"), {"job": None}),
    ("errors that were heard are no news", lives.CLEAN, ev.ErrorsNoted(((13, 2),), 7),
     {"baseline": replace(lives.CLEAN.health.baseline, last_xid=7), "errors_noted": AT.uptime}),
    ("who is brought back by a person's word owes nothing and starts anew",
     lives.but(lives.QUARANTINED, due_path=ScrubPath.SLOW, returns=(1.0,)), ev.Reinstated("ann"),
     {"quarantine": None, "due_path": None, "returns": ()}),
    ("a sickness waits", lives.IN_USE, ev.AilmentFound(lives.LOST),
     {"ailment": lives.LOST, "due_path": ScrubPath.RESET}),
    ("a quarantine that is withdrawn leaves no path due",
     live(lives.IN_USE, ev.AilmentFound(lives.PULLED)), ev.QuarantineWithdrawn("ann"),
     {"ailment": None, "due_path": None}),
    ("a quarantine that is withdrawn leaves the reset due that a fault asked for",
     live(lives.IN_USE, ev.AilmentFound(lives.LOST), ev.AilmentFound(lives.PULLED)), ev.QuarantineWithdrawn("ann"),
     {"ailment": None, "due_path": ScrubPath.RESET}),
    ("a quarantine takes the sickness over, and what is known of the health", lives.SICK_DIRTY,
     ev.Quarantined(replace(lives.quarantine(), baseline=MARKED)),
     {"ailment": None, "quarantine": replace(lives.quarantine(), baseline=MARKED), "baseline": MARKED}),
    ("a quarantine ends the job", lives.SCRUBBING, ev.Quarantined(lives.quarantine()),
     {"job": None, "quarantine": lives.quarantine(), "due_path": ScrubPath.RESET}),
    ("distrust ends everything but the quarantine", lives.IN_USE, ev.Distrusted("x", lives.RELOADED),
     {"incarnation": lives.RELOADED, "grant": None, "owner": None, "began": None, "allocations": 0,
      "number": lives.IN_USE.tenancy.number + 1, "held_from": lives.IN_USE.tenancy.number}),
    ("distrust keeps the handouts that no tenant has used", lives.GRANTED, ev.Distrusted("x", lives.REBOOTED),
     {**REBOOT, "grant": None, "receipt": None, "began": None}),
    ("distrust of an older ledger repeats no id of a hand-over", lives.CLEAN,
     ev.Distrusted("x", lives.HERE, older_ledger=True),
     {"receipt": None, "number": int(AT.wall * 1000), "allocations": MANY_ALLOCATIONS}),
    ("distrust forgets a setback: its time was told by another clock", lives.SET_BACK,
     ev.Distrusted("x", lives.REBOOTED),
     {**REBOOT, "began": None, "ended": None, "setback": None}),
    ("distrust tells the next probe by the new clock", lives.QUARANTINED, ev.Distrusted("x", lives.REBOOTED),
     {**REBOOT, "quarantine": lives.quarantine(next_probe=AT.uptime + 60), "due_path": ScrubPath.SLOW}),
    ("a reboot counts as the reset that was due", lives.but(lives.DIRTY, due_path=ScrubPath.RESET),
     ev.Distrusted("x", lives.REBOOTED),
     {**REBOOT, "began": None, "ended": None, "due_path": ScrubPath.SLOW}),
    ("distrust leaves a sticky quarantine to a person", lives.STICKY, ev.Distrusted("x", lives.REBOOTED),
     {**REBOOT, "due_path": ScrubPath.SLOW}),
    ("a reboot begins what a quarantine knows anew as well",
     live(lives.DIRTY, ev.Quarantined(replace(lives.quarantine(), baseline=MARKED))),
     ev.Distrusted("x", lives.REBOOTED),
     {**REBOOT, "baseline": Baseline(), "due_path": ScrubPath.SLOW, "began": None,
      "ended": None, "quarantine": lives.quarantine(next_probe=AT.uptime + 60)}),
    ("a grave error that is not judged is owed a reset", lives.UNKNOWN, ev.ErrorsNoted(((79, 1),), 7, grave=True),
     {"baseline": Baseline(7), "errors_noted": AT.uptime, "due_path": ScrubPath.RESET}),
    ("a reboot begins the counters anew", lives.but(lives.DIRTY, baseline=MARKED), ev.Distrusted("x", lives.REBOOTED),
     {**REBOOT, "began": None, "ended": None, "baseline": Baseline()}),
    ("a driver reload does not begin the event log anew", lives.but(lives.DIRTY, baseline=MARKED),
     ev.Distrusted("x", lives.RELOADED),
     {"incarnation": lives.RELOADED, "began": None, "ended": None}),
]  # fmt: skip


@pytest.mark.parametrize(("before", "event", "changed"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_each_event_changes_only_its_own_fields(before, event, changed):
    after = live(before, event, at=AT)
    own = replace(after, state=before.state, since=before.since, fence=before.fence)  # test_closing has the fence
    assert own == lives.but(before, **changed)


@pytest.mark.parametrize("end", [ev.Released("gone"), ev.Distrusted("x", lives.REBOOTED)], ids=["release", "reboot"])
def test_receipts_after_a_tenancy_name_its_owner(end):
    """Every receipt until the next tenancy has ended: nobody can tell which of them a person reads."""
    held = live(lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), owner="4711")), ev.PutInUse(SEEN))
    again = live(held, end, ev.ScrubStarted(lives.job()), ev.ScrubFailed("job-1", "busy"), ev.ScrubStarted(lives.job()))
    clean = live(again, lives.passed(again))
    assert lives.proof(clean).last_owner == "4711"
    anew = live(clean, ev.ScrubStarted(lives.job(name="job-2")))
    assert lives.proof(live(anew, lives.passed(anew))).last_owner == "4711"
    pod = live(clean, ev.Granted(lives.grant(clean)), ev.Released("gone"), ev.ScrubStarted(lives.job(name="job-3")))
    assert lives.proof(live(pod, lives.passed(pod))).last_owner == ""


def test_a_passed_scrub_ends_tenancy_setback_and_due_path():
    again = live(lives.SET_BACK, ev.ScrubStarted(lives.job()))
    event = lives.passed(again, AT)
    event = replace(event, receipt=replace(event.receipt, baseline=MARKED))
    assert live(again, event, at=AT) == lives.but(
        again, state=State.CLEAN, since=AT, job=None, receipt=event.receipt, last_receipt=event.receipt.digest,
        baseline=MARKED, began=None, ended=None, setback=None, due_path=None, fast_seconds=(7.0,),
        proven_at=AT.uptime,
    )  # fmt: skip


def test_the_durations_of_the_last_five_fast_scrubs_are_kept():
    began = live(lives.DIRTY, ev.ScrubStarted(lives.job()))
    before = lives.but(began, fast_seconds=(1.0, 2.0, 3.0, 4.0, 5.0))
    assert live(before, lives.passed(before), at=AT).scrubs.fast_seconds == (2.0, 3.0, 4.0, 5.0, 7.0)
    slow = live(lives.DIRTY, ev.ScrubStarted(lives.job(ScrubPath.SLOW)))
    assert live(slow, lives.passed(slow), at=AT).scrubs.fast_seconds == ()


def test_the_newest_ten_returns_are_kept():
    before = lives.but(lives.PROBED, returns=tuple(map(float, range(10))))
    assert live(before, lives.passed(before), at=AT).health.returns == (*map(float, range(1, 10)), AT.wall)


def test_a_running_probation_keeps_the_quarantine_and_is_counted():
    assert (lives.PROBED.state, lives.PROBED.health.quarantine) == (
        State.SCRUBBING,
        replace(lives.quarantine(), probes=1),
    )


def test_a_reinstatement_clears_the_returns_and_a_probation_adds_one():
    flapped = lives.but(lives.PROBED, returns=(1.0, 2.0))
    assert live(flapped, lives.passed(flapped)).health.returns == (1.0, 2.0, NOW.wall)
    reinstated = lives.but(lives.REINSTATED, returns=(1.0, 2.0))
    assert live(reinstated, lives.passed(reinstated)).health.returns == ()


def test_a_clear_without_proof_counts_until_the_next_tenant():
    """What a scrub then finds in memory may be the pattern of the one before."""
    clearing = live(lives.DIRTY, ev.ScrubStarted(lives.job()), ev.StepsRecorded("job-1", (), Step.CLEAR))
    assert not clearing.scrubs.half_cleared
    assert live(clearing, ev.Escalated("job-1", "it failed", ScrubPath.RESET)).scrubs.half_cleared
    half = live(clearing, ev.ScrubInterrupted("job-1", "the service was stopped"))
    assert half.scrubs.half_cleared
    again = live(half, ev.ScrubStarted(lives.job(name="job-2")))
    assert live(again, ev.ScrubInterrupted("job-2", "the service was stopped")).scrubs.half_cleared
    assert not live(again, lives.passed(again)).scrubs.half_cleared
    unknown = live(half, ev.Distrusted("the driver was reloaded", lives.RELOADED))
    assert not live(unknown, ev.PutInUse(Owner("pod", NOW))).scrubs.half_cleared
    assert not live(half, ev.GrantedUnproven(lives.grant(half, proven=False), "observe")).scrubs.half_cleared
    untouched = live(lives.DIRTY, ev.ScrubStarted(lives.job()), ev.ScrubInterrupted("job-1", "it was cancelled"))
    assert not untouched.scrubs.half_cleared


def test_a_left_pattern_counts_until_a_proof_leaves_zeros():
    """A tenant overwrites only what it uses."""
    assert not lives.UNKNOWN.scrubs.pattern_left
    scrubbing = live(lives.DIRTY, ev.ScrubStarted(lives.job()))
    zeros = lives.passed(scrubbing)
    left = live(scrubbing, replace(zeros, receipt=replace(zeros.receipt, patterns=("random",))))
    used = live(live(left, ev.Granted(lives.grant(left))), ev.PutInUse(Owner("pod", NOW)))
    again = live(used, ev.Released("it ended"), ev.ScrubStarted(lives.job(name="job-2")))
    assert all(it.scrubs.pattern_left for it in (left, used, again))
    assert not live(again, lives.passed(again)).scrubs.pattern_left


# -- what was seen while the ledger could not be written

SEEN = Owner(lives.A, NOW, seen=True)
BY_OWNER, NAMED = ev.PutInUse(SEEN), ev.PutInUse(replace(SEEN, name="main"))
CROWDED, UNANNOUNCED = ev.PutInUse(replace(SEEN, crowded=True)), ev.PutInUse(replace(SEEN, unannounced=True))
SOILED, REBOOTED = ev.Soiled("it was used without a grant"), ev.Distrusted("a reboot", lives.REBOOTED)
RELEASED = ev.Released("its pod is gone")


@pytest.mark.parametrize(
    ("earlier", "event", "kept"),
    [
        (None, BY_OWNER, BY_OWNER), (BY_OWNER, NAMED, NAMED), (BY_OWNER, SOILED, SOILED), (SOILED, REBOOTED, REBOOTED),
        (CROWDED, BY_OWNER, CROWDED), (UNANNOUNCED, BY_OWNER, UNANNOUNCED), (SOILED, BY_OWNER, SOILED),
        (BY_OWNER, CROWDED, CROWDED), (BY_OWNER, UNANNOUNCED, UNANNOUNCED),
        (SOILED, RELEASED, SOILED), (None, RELEASED, None),
    ],
)  # fmt: skip
def test_the_newest_sighting_of_others_is_recorded_later(earlier, event, kept):
    assert to_record_later(earlier, event) == kept


@pytest.mark.parametrize(
    ("record", "sighting", "recorded"),
    [
        (None, SOILED, None),
        (lives.CLEAN, SOILED, SOILED),
        (lives.DIRTY, SOILED, None),
        (lives.GRANTED, BY_OWNER, BY_OWNER),
        (lives.IN_USE, BY_OWNER, None),
        (lives.DIRTY, BY_OWNER, None),
    ],
)
def test_a_late_sighting_is_recorded_if_legal_and_new(record, sighting, recorded):
    assert late(record, sighting) == recorded
