"""What is told of the devices, from tables."""

import pytest

from plugin.cluster import judging
from plugin.cluster.judging import Code, Condition, Outlook, Status, Verdict
from plugin.devices import GONE, Device

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
        ((), "Unknown", "NoDevices", judging.NONE_KNOWN.message),
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
            "False", "SomeDevicesOut", "2 of 3 devices are out: MIG-0 of GPU 0 (quarantined: ecc), GPU 2 (gone)",
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


SOME, OTHER = Outlook(Status.FALSE, "A", "a"), Outlook(Status.FALSE, "B", "b")
FINE = Outlook(Status.TRUE, "C", "c")


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
