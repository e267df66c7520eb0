"""The create gate is in force on what was seen, and no longer than that."""

from dataclasses import replace

import pytest

from scrubber.core import acquire, answers, gate_in_force, next_action
from scrubber.core import events as ev
from scrubber.core.model import Owner, Passage
from tests.core import lives
from tests.core.lives import NOW, OF_A, OF_B, A, B, facts, later, live

GPU = lives.DEVICE.uuid
LATE = NOW.uptime + 5
LET_A = {GPU: Passage(A, NOW.uptime)}
AGAIN = live(lives.SCRUBBING, lives.passed(lives.SCRUBBING))  # its last owner is A


@pytest.mark.parametrize(
    ("passages", "past", "now", "holds"),
    [
        ({}, None, LATE, False),
        (LET_A, None, LATE, True),
        ({"GPU-2": Passage(A, NOW.uptime)}, None, LATE, True),
        ({"GPU-2": Passage(A, LATE)}, Passage(B, NOW.uptime), LATE, False),
        ({GPU: Passage(A, NOW.uptime, counts=False)}, None, LATE, False),
        (LET_A, Passage(B, NOW.uptime - 1), LATE, True),
        (LET_A, Passage(B, NOW.uptime), LATE, False),
        (LET_A, None, NOW.uptime + gate_in_force.LASTS + 1, False),
        (LET_A | {"GPU-2": Passage(B, LATE)}, None, NOW.uptime + gate_in_force.LASTS + 1, True),
    ],
    ids=["none was let through", "one was", "on another device", "on another device, after one came past",
         "before a change", "after one came past",
         "before one came past", "a day ago", "a day ago, and another since"],
)  # fmt: skip
def test_the_gate_is_in_force_where_the_runtime_asked(passages, past, now, holds):
    others = [lives.DIRTY, lives.but(lives.CLEAN, last=past)]
    assert gate_in_force.in_force(GPU, passages, others, now) is holds


BYPASS = [
    ("the pod that was let through", lives.IN_USE, (OF_A,), LET_A, None, None),
    ("a pod that was admitted and did not ask", lives.IN_USE_BY_B, (OF_B,), LET_A, {A}, ev.PastGate(B)),
    ("the same on a device on which none was let through so far", lives.IN_USE_BY_B, (OF_B,),
     {"GPU-2": Passage(A, NOW.uptime)}, None, ev.PastGate(B)),
    ("a pod from before the gate", lives.IN_USE_BY_B, (OF_B,), {"GPU-2": Passage(A, LATE)}, None, None),
    ("where the runtime never asked", lives.IN_USE_BY_B, (OF_B,), {}, None, None),
    ("a monitor beside the owner", lives.IN_USE, (OF_A, OF_B), LET_A, {A}, None),
    ("another pod that was given it, beside the owner", lives.IN_USE, (OF_A, OF_B), LET_A, {A, B},
     ev.PastGate(B, "another pod had used it")),
    ("nobody knows to whom it was given", lives.IN_USE, (OF_A, OF_B), LET_A, None,
     ev.PastGate(B, "another pod had used it")),
    ("the deferred pod during the scrub", lives.SCRUBBING, (OF_B,), LET_A, {B}, ev.PastGate(B, "it was scrubbing")),
    ("the deferred pod before the scrub", lives.DIRTY, (OF_B,), LET_A, {B}, ev.PastGate(B, "it was dirty")),
    ("the deferred pod after the scrub", lives.CLEAN, (OF_B,), LET_A, {B}, ev.PastGate(B)),
    ("the deferred pod on a device of which nothing is known", lives.UNKNOWN, (OF_B,), LET_A, {B},
     ev.PastGate(B, "it was unknown")),
    ("the deferred pod on a device that was quarantined meanwhile", lives.QUARANTINED, (OF_B,), LET_A, {B},
     ev.PastGate(B, "it was quarantined")),
    ("a pod under a grant without a proof", lives.UNPROVEN, (OF_B,), LET_A, {B},
     ev.PastGate(B, "it was handed out without a proof")),
    ("an intruder during the scrub", lives.SCRUBBING, (OF_B,), LET_A, {A}, None),
    ("a process outside containers", lives.DIRTY, (lives.FOREIGN,), LET_A, {B}, None),
    ("the last owner does not leave", lives.DIRTY, (OF_A,), {GPU: Passage("pod-c", LATE)}, {A}, None),
    ("it is on record", live(lives.DIRTY, ev.PastGate(B)), (OF_B,), LET_A, {B}, None),
    ("its question was forgotten, and its name was written",
     lives.but(lives.IN_USE_BY_B, owner=Owner(B, NOW, seen=True, name="team/b/main")), (OF_B,), LET_A, None, None),
    ("a pod that was let through before the last proof", lives.CLEAN, (OF_B,), {GPU: Passage(B, NOW.uptime - 1)}, {B},
     ev.PastGate(B)),
    ("the owner from before the last proof", AGAIN, (OF_A,), {GPU: Passage("pod-c", LATE)}, {A}, ev.PastGate(A)),
    ("a pod on a device whose driver was reloaded", replace(lives.CLEAN, incarnation=lives.RELOADED), (OF_B,), LET_A,
     {B}, ev.PastGate(B, "the driver was reloaded")),
    ("what is on record is of another boot", replace(lives.CLEAN, incarnation=lives.REBOOTED), (OF_B,), LET_A,
     {B}, None),
    ("a job that keeps the device until its release", lives.KEPT, (OF_B,), LET_A, None, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "holders", "passages", "assigned", "event"), [row[1:] for row in BYPASS], ids=[row[0] for row in BYPASS]
)
def test_only_the_devices_own_pod_can_come_past_the_gate(record, holders, passages, assigned, event):
    seen = facts(holders, alive=True, assigned_pods=assigned)
    seen = replace(seen, unasked=gate_in_force.unasked(record, seen, passages))
    assert gate_in_force.past_gate(record, seen) == event
    unread = gate_in_force.past_gate(record, replace(seen, assigned_pods=None))
    empty = gate_in_force.past_gate(record, replace(seen, assigned_pods=frozenset()))
    assert gate_in_force.needs_assignment(record, seen) is (unread != empty)
    tended = next_action.tend(record, seen, lives.ENFORCE, later(1), 0.0)
    assert (tended == answers.RecordFirst(event)) is (event is not None)
    lenient = next_action.tend(record, seen, lives.OBSERVE, later(1), 0.0)  # it lets two pods share a device
    assert not (isinstance(lenient, answers.RecordFirst) and isinstance(lenient.event, ev.PastGate))
    if event is not None:  # who asks for it at this moment waits for its proof
        answer = acquire.decide(record, seen, lives.ENFORCE, later(1), announced=True, gated=True)
        assert not isinstance(answer, answers.Defer)


def test_each_pod_past_the_gate_is_recorded_once_per_proof():
    record, events = lives.CLEAN, []
    for _ in range(3):
        seen = facts((OF_A, OF_B), assigned_pods={A, B})
        seen = replace(seen, unasked=gate_in_force.unasked(record, seen, {GPU: Passage("pod-c", NOW.uptime)}))
        answer = next_action.tend(record, seen, lives.ENFORCE, later(1), 0.0)
        assert isinstance(answer, answers.RecordFirst)
        events.append(answer.event)
        record = lives.noted(record, answer)
    assert events == [ev.PastGate(A), ev.PastGate(B), ev.Soiled("it was used without a grant", (OF_A, OF_B))]
    scrub = live(record, ev.ScrubStarted(lives.job()))
    assert (scrub.bypasses.pods, live(scrub, lives.passed(scrub)).bypasses.pods) == ((A, B), ())


def test_a_reboot_ends_what_came_past():
    past = live(live(lives.CLEAN, ev.PastGate(A, "it was dirty")), ev.PastGate(B), at=later(5))
    assert (past.bypasses.last, past.bypasses.unproven) == (Passage(B, LATE), NOW.uptime)
    reloaded = live(past, ev.Distrusted("the driver was reloaded", lives.RELOADED))
    assert reloaded == lives.but(
        reloaded, last=past.bypasses.last, unproven=NOW.uptime, pods=(A, B), proven_at=NOW.uptime
    )
    rebooted = live(past, ev.Distrusted("the node was rebooted", lives.REBOOTED))
    assert rebooted == lives.but(rebooted, last=None, unproven=0.0, pods=(), proven_at=0.0)
