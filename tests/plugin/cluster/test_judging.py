"""What is told of the devices, from tables."""

from dataclasses import replace

import pytest

from plugin.cluster import judging
from plugin.cluster.judging import Code, Condition, ConditionStatus, Outlook, Verdict
from plugin.devices import GONE, Device
from plugin.devices import LEFT as TAKEN_AWAY
from scrubber.core import presence

LATER = judging.NOT_READY_AFTER


def device(index, *, healthy=True, reason="", quarantined=False, mig=False, resource="nvidia.com/gpu"):
    name = f"MIG-{index}" if mig else f"GPU-{index}"
    return Device(name, resource, healthy, healthy, index, mig, None, "", (), reason, quarantined)


def after(*looks):
    """The verdicts after several looks at one device, ``(seconds, device)`` each."""
    verdicts: dict[str, Verdict] = {}
    for now, seen in looks:
        verdicts = judging.judge(verdicts, [seen], now)
    return next((verdict.out, verdict.ailment) for verdict in verdicts.values())


GOOD, IDLE = device(0), device(0, healthy=False)
SICK = device(0, healthy=False, reason="xid")
OUT = device(0, healthy=False, reason="ecc", quarantined=True)
LEFT = device(0, healthy=False, reason=GONE)


@pytest.mark.parametrize(
    ("looks", "verdict"),
    [
        ([(0, GOOD)], (None, "")),
        ([(0, SICK)], (Code.SICK, "xid")),
        ([(0, OUT)], (Code.QUARANTINED, "ecc")),
        ([(0, LEFT)], (Code.GONE, "")),
        ([(0, device(0, reason="xid"))], (Code.SICK, "xid")),  # whatever the kubelet may be told
        ([(0, device(0, quarantined=True))], (Code.QUARANTINED, "")),
        ([(0, IDLE)], (None, "")),
        ([(0, IDLE), (LATER - 1, IDLE)], (None, "")),
        ([(0, IDLE), (LATER, IDLE)], (Code.NOT_READY, "")),
        ([(0, IDLE), (LATER - 1, GOOD), (LATER, IDLE)], (None, "")),  # the count begins anew
        ([(0, IDLE), (LATER, IDLE), (LATER + 1, GOOD)], (None, "")),
        ([(0, IDLE), (LATER, IDLE), (LATER + 1, IDLE)], (Code.NOT_READY, "")),
        ([(0, OUT), (1, IDLE)], (Code.QUARANTINED, "ecc")),  # on its way back, and not there yet
        ([(0, OUT), (1, IDLE), (LATER + 2, IDLE)], (Code.QUARANTINED, "ecc")),
        ([(0, OUT), (1, IDLE), (2, GOOD)], (None, "")),
        ([(0, LEFT), (1, GOOD)], (None, "")),
        ([(0, SICK), (1, OUT)], (Code.QUARANTINED, "ecc")),
    ],
)
def test_a_device_is_out_by_its_ailment_or_after_a_long_while(looks, verdict):
    assert after(*looks) == verdict


@pytest.mark.parametrize(
    ("looks", "proven"),
    [
        ([GOOD], True), ([IDLE], False), ([GOOD, IDLE], True), ([OUT], False), ([GOOD, OUT], False),
        ([GOOD, OUT, IDLE], False), ([GOOD, OUT, GOOD], True), ([IDLE, GOOD, IDLE], True),
    ],
)  # fmt: skip
def test_a_device_is_proven_by_having_been_offered_since_it_was_last_out(looks, proven):
    verdicts: dict[str, Verdict] = {}
    for now, seen in enumerate(looks):
        verdicts = judging.judge(verdicts, [seen], now)
    assert [verdict.proven for verdict in verdicts.values()] == [proven]


def test_a_device_that_changed_its_resource_is_judged_once_by_what_it_is_now():
    old, new = device(1, healthy=False, reason=GONE, mig=True), device(1, mig=True, resource="nvidia.com/mig-1g.10gb")
    for order in [(old, new), (new, old)]:
        assert [verdict.out for verdict in judging.judge({}, order, 0).values()] == [None]


LOST = device(0, healthy=False, reason="lost", quarantined=True)
SWAPPED = device(0, healthy=False, reason="replaced", quarantined=True)
NEW, OTHER_GPU = replace(GOOD, uuid="GPU-new"), device(1)
SLICE = replace(NEW, mig=True)
MOVED_UP = replace(OTHER_GPU, index=0)


@pytest.mark.parametrize(
    ("looks", "counts"),
    [
        ([[LOST, OTHER_GPU]], True),
        ([[LOST, NEW]], True),  # the service alone says what was replaced
        ([[SWAPPED, NEW]], False),
        ([[LOST], [SWAPPED, NEW]], False),
        ([[SWAPPED, NEW], [LEFT, NEW]], False),
        ([[SWAPPED, NEW], [IDLE, NEW]], True),  # put back, and not there yet
        ([[GOOD, OTHER_GPU], [LEFT, OTHER_GPU]], True),
        ([[GOOD, OTHER_GPU], [LEFT, MOVED_UP]], True),
        ([[GOOD], [LEFT, SLICE]], True),
        ([[GOOD], [LEFT, NEW]], False),
        ([[GOOD], [LEFT], [LEFT, NEW]], False),
        ([[GOOD], [LEFT, NEW], [LEFT, NEW]], False),
        ([[GOOD], [LEFT, NEW], [IDLE, NEW]], True),
        ([[GOOD], [LEFT, NEW], [IDLE, NEW], [LEFT, NEW]], True),
        ([[LOST], [LEFT]], True),
        ([[LEFT, NEW]], True),  # who came first, nobody knows
    ],
)
def test_what_is_not_there_counts_until_another_one_is_in_its_place(looks, counts):
    verdicts: dict[str, Verdict] = {}
    for now, seen in enumerate(looks):
        verdicts = judging.judge(verdicts, seen, now)
    old = verdicts[GOOD.uuid]
    assert old.out is not None
    assert (judging.outlook(verdicts).status is ConditionStatus.FALSE) is counts
    assert judging.tainted({GOOD.uuid: old, "GPU-9": verdict(9, Code.SICK)}, present=False)
    assert judging.tainted({GOOD.uuid: old}, present=False) is counts  # of those that count, there is none
    assert judging.tainted({GOOD.uuid: old, "GPU-9": verdict(9)}, present=True) is False


def test_what_was_replaced_is_told_by_an_event_and_in_the_message_by_its_uuid():
    before, now = judging.judge({}, [LOST], 0), judging.judge({}, [SWAPPED, NEW], 1)
    (event,) = judging.happenings(before, now)
    hint = "; `autoclave explain GPU-0` on the node says more"
    assert (event.code, event.note) == (Code.QUARANTINED, f"GPU-0 is quarantined: replaced{hint}")
    told = judging.outlook(now)
    assert told.reason == "AllDevicesHealthy"
    assert told.message == "no device of 1 is out; not counted, as others are in their place: GPU-0"
    assert judging.outlook(judging.judge({}, [SWAPPED], 1)) == judging.NONE_OFFERED


def test_the_words_for_what_has_left_are_those_of_the_service():
    assert {ailment.value for ailment in presence.TAKEN_AWAY} == TAKEN_AWAY


def test_what_an_operator_laid_out_anew_counts_neither_for_the_condition_nor_for_the_taint():
    slices = [replace(SLICE, uuid=f"MIG-{number}") for number in range(2)]
    before = judging.judge({}, slices, 0)
    gone = [replace(it, healthy=False, reason="relaid", quarantined=True) for it in slices]
    now = judging.judge(before, [*gone, NEW], 1)
    assert judging.outlook(now).reason == "AllDevicesHealthy"
    assert not judging.tainted(now, present=False)
    assert {it.code for it in judging.happenings(before, now)} == {Code.QUARANTINED}


def test_a_device_that_is_gone_is_named_by_its_uuid_and_nobody_is_asked_to_explain_it():
    (event,) = judging.happenings(by_name(verdict()), by_name(verdict(code=Code.GONE)))
    assert event.note == "GPU-0 is gone"


def test_a_while_in_which_nobody_looked_proves_nothing_and_counts_for_nothing():
    verdicts = judging.unseen(judging.judge({}, [OUT, OTHER_GPU, device(2, healthy=False)], 0))
    assert judging.next_look(verdicts, LATER) is None
    verdicts = judging.judge(verdicts, [device(index, healthy=False) for index in range(3)], LATER)
    assert [(each.out, each.proven) for each in verdicts.values()] == [
        (Code.QUARANTINED, False), (None, False), (None, False),
    ]  # fmt: skip
    assert judging.next_look(verdicts, LATER) == LATER


def test_the_next_look_is_when_the_first_device_has_been_idle_for_too_long():
    assert judging.next_look(judging.judge({}, [GOOD, device(1, healthy=False, reason="xid")], 5), 5) is None
    verdicts = judging.judge({}, [device(0, healthy=False)], 0)
    verdicts = judging.judge(verdicts, [device(0, healthy=False), device(1, healthy=False)], 100)
    assert judging.next_look(verdicts, 100) == LATER - 100
    assert judging.next_look(verdicts, LATER + 100) == 0
    assert judging.next_look(judging.judge(verdicts, [device(0, healthy=False)], LATER), LATER) is None


def verdict(index=0, code=None, ailment="", *, mig=False, proven=True):
    return Verdict(f"MIG-{index}" if mig else f"GPU-{index}", index, mig, code, ailment, proven=proven and code is None)


def by_name(*verdicts):
    return {verdict.uuid: verdict for verdict in verdicts}


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (None, verdict(), None),
        (None, verdict(code=Code.QUARANTINED, ailment="xid"), (Code.QUARANTINED, "xid")),
        (verdict(), verdict(), None),
        (verdict(), verdict(code=Code.SICK, ailment="xid"), (Code.SICK, "xid")),
        (verdict(code=Code.SICK, ailment="xid"), verdict(code=Code.SICK, ailment="xid"), None),
        (verdict(code=Code.SICK, ailment="xid"), verdict(code=Code.SICK, ailment="ecc"), (Code.SICK, "ecc")),
        (verdict(code=Code.SICK, ailment="a"), verdict(code=Code.QUARANTINED, ailment="a"), (Code.QUARANTINED, "a")),
        (verdict(code=Code.QUARANTINED, ailment="xid"), verdict(), (Code.RECOVERED, "xid")),
        (verdict(code=Code.GONE), verdict(), (Code.RECOVERED, "")),
        (verdict(), verdict(code=Code.GONE), (Code.GONE, "")),
        (verdict(), verdict(code=Code.NOT_READY), (Code.NOT_READY, "")),
    ],
)
def test_an_event_is_a_change_of_verdict(before, now, told):
    happened = judging.happenings(by_name(before) if before else {}, by_name(now))
    assert [(each.code, each.ailment) for each in happened] == ([told] if told else [])


GPU1 = verdict(1, Code.SICK, "xid")


@pytest.mark.parametrize(
    ("verdicts", "status", "reason", "message"),
    [
        (None, "Unknown", "ScrubServiceSilent", judging.SILENT.message),
        ((), "Unknown", "NoDevices", judging.NONE_OFFERED.message),
        ((verdict(), verdict(1)), "True", "AllDevicesHealthy", "no device of 2 is out"),
        (
            (verdict(), verdict(1, proven=False)),
            "Unknown", "DevicesNotReady", "1 of 2 devices were not found healthy yet: GPU 1",
        ),
        ((verdict(0, proven=False), GPU1), "False", "SomeDevicesOut", "1 of 2 devices are out: GPU 1 (sick: xid)"),
        ((verdict(), GPU1), "False", "SomeDevicesOut", "1 of 2 devices are out: GPU 1 (sick: xid)"),
        ((GPU1,), "False", "AllDevicesOut", "1 of 1 devices are out: GPU 1 (sick: xid)"),
        (
            (verdict(0, Code.QUARANTINED, "ecc", mig=True), verdict(2, Code.GONE), verdict(3)),
            "False", "SomeDevicesOut", "2 of 3 devices are out: MIG-0 of GPU 0 (quarantined: ecc), GPU-2 (gone)",
        ),
    ],
)  # fmt: skip
def test_the_condition_names_what_is_out(verdicts, status, reason, message):
    outlook = judging.outlook(None if verdicts is None else by_name(*verdicts))
    assert (outlook.status.value, outlook.reason, outlook.message) == (status, reason, message)


def test_a_message_stays_within_bounds_and_counts_the_rest():
    out = [Verdict(f"MIG-{index:036}", index, True, Code.QUARANTINED, "x" * 200) for index in range(100)]
    message = judging.outlook(by_name(*out)).message
    assert len(message) == judging.LONGEST_MESSAGE
    assert message.endswith(" ...")
    short = judging.outlook(by_name(*(verdict(index, Code.SICK, "xid") for index in range(100)))).message
    assert short.endswith("GPU 15 (sick: xid), and 84 more")


SOME, OTHER = Outlook(ConditionStatus.FALSE, "A", "a"), Outlook(ConditionStatus.FALSE, "B", "b")
FINE = Outlook(ConditionStatus.TRUE, "C", "c")


@pytest.mark.parametrize(
    ("present", "outlook", "transition"),
    [
        (None, SOME, 50), (Condition(SOME, 10, 5), SOME, 5), (Condition(SOME, 10, 5), OTHER, 5),
        (Condition(SOME, 10, 5), FINE, 50),
    ],
)  # fmt: skip
def test_the_time_of_transition_is_kept_while_the_status_is_the_same(present, outlook, transition):
    assert judging.condition(present, outlook, since=50, now=60) == Condition(outlook, 60, transition)


@pytest.mark.parametrize(
    ("present", "outlook", "now", "left"),
    [
        (None, SOME, 0, 0), (Condition(SOME, 10, 5), OTHER, 10, 0), (Condition(SOME, 10, 5), SOME, 10, 300),
        (Condition(SOME, 10, 5), SOME, 110, 200), (Condition(SOME, 10, 5), SOME, 310, 0),
        (Condition(SOME, 10, 5), SOME, 9, 0),
    ],
)  # fmt: skip
def test_a_condition_is_due_when_it_changed_or_is_old_or_from_the_future(present, outlook, now, left):
    assert judging.due(present, outlook, now, 300) == left


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize(
    ("verdicts", "wanted"),
    [
        (None, None), ((), None), ((verdict(),), False), ((verdict(), GPU1), False), ((GPU1,), True),
        ((verdict(proven=False),), None), ((verdict(proven=False), GPU1), None),
        ((verdict(proven=False), verdict(1)), False),
    ],
)  # fmt: skip
def test_the_taint_needs_all_out_and_stays_as_it_is_until_one_is_found_healthy(present, verdicts, wanted):
    found = judging.tainted(None if verdicts is None else by_name(*verdicts), present)
    assert found is (present if wanted is None else wanted)
