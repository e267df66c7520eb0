"""What is told of the devices, from tables."""

from dataclasses import replace
from itertools import count

import pytest

from plugin.cluster import node_report
from plugin.cluster.node_report import (
    Condition,
    ConditionContent,
    ConditionStatus,
    DeviceReport,
    EventReason,
    NodeEvent,
    Outbox,
)
from plugin.cluster.node_report import EventReason as Why
from plugin.devices import Device

LATER = node_report.NOT_READY_AFTER


def device(index, *, healthy=True, reason="", mig=False, resource="nvidia.com/gpu", **flags):
    name = f"MIG-{index}" if mig else f"GPU-{index}"
    return Device(name, healthy, healthy, None, resource, index, mig, reason=reason, **{"waits": True} | flags)


def after(*looks):
    """The reports after several looks at one device, ``(seconds, device)`` each."""
    reports: dict[str, DeviceReport] = {}
    for now, seen in looks:
        reports = node_report.report(reports, [seen], now)
    return next((report.failure, report.ailment) for report in reports.values())


GOOD, IDLE = device(0), device(0, healthy=False)
SICK = device(0, healthy=False, reason="xid", sick=True)
OUT = device(0, healthy=False, reason="ecc", quarantined=True)
LEFT = device(0, healthy=False, gone=True)


@pytest.mark.parametrize(
    ("looks", "report"),
    [
        ([(0, GOOD)], (None, "")),
        ([(0, SICK)], (Why.SICK, "xid")),
        ([(0, OUT)], (Why.QUARANTINED, "ecc")),
        ([(0, LEFT)], (Why.GONE, "")),
        ([(0, device(0, reason="xid", sick=True))], (Why.SICK, "xid")),  # whatever the kubelet may be told
        ([(0, device(0, quarantined=True))], (Why.QUARANTINED, "")),
        ([(0, IDLE)], (None, "")),
        ([(0, IDLE), (LATER - 1, IDLE)], (None, "")),
        ([(0, IDLE), (LATER, IDLE)], (Why.NOT_READY, "")),
        ([(0, IDLE), (LATER - 1, GOOD), (LATER, IDLE)], (None, "")),  # the count begins anew
        ([(0, IDLE), (LATER, IDLE), (LATER + 1, GOOD)], (None, "")),
        ([(0, IDLE), (LATER, IDLE), (LATER + 1, IDLE)], (Why.NOT_READY, "")),
        ([(0, OUT), (1, IDLE)], (Why.QUARANTINED, "ecc")),  # on its way back, and not there yet
        ([(0, OUT), (1, IDLE), (LATER + 2, IDLE)], (Why.QUARANTINED, "ecc")),
        ([(0, OUT), (1, IDLE), (2, GOOD)], (None, "")),
        ([(0, LEFT), (1, GOOD)], (None, "")),
        ([(0, SICK), (1, OUT)], (Why.QUARANTINED, "ecc")),
    ],
)
def test_a_device_fails_by_its_ailment_or_after_long_idleness(looks, report):
    assert after(*looks) == report


@pytest.mark.parametrize(
    ("looks", "found_healthy"),
    [
        ([GOOD], True), ([IDLE], False), ([GOOD, IDLE], True), ([OUT], False), ([GOOD, OUT], False),
        ([GOOD, OUT, IDLE], False), ([GOOD, OUT, GOOD], True), ([IDLE, GOOD, IDLE], True),
    ],
)  # fmt: skip
def test_a_device_is_healthy_if_it_was_since_its_failure(looks, found_healthy):
    reports: dict[str, DeviceReport] = {}
    for now, seen in enumerate(looks):
        reports = node_report.report(reports, [seen], now)
    assert [report.found_healthy for report in reports.values()] == [found_healthy]


def test_a_device_with_a_new_resource_is_reported_once():
    old, new = device(1, healthy=False, gone=True, mig=True), device(1, mig=True, resource="nvidia.com/mig-1g.10gb")
    for order in [(old, new), (new, old)]:
        assert [report.failure for report in node_report.report({}, order, 0).values()] == [None]


LOST = device(0, healthy=False, reason="lost", quarantined=True)
SWAPPED = device(0, healthy=False, reason="replaced", quarantined=True, replaced=True)
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
        ([[LEFT, NEW]], True),  # the order is unknown
    ],
)
def test_an_absent_device_counts_until_it_is_replaced(looks, counts):
    reports: dict[str, DeviceReport] = {}
    for now, seen in enumerate(looks):
        reports = node_report.report(reports, seen, now)
    old = reports[GOOD.uuid]
    assert old.failure is not None
    assert (node_report.condition_content(reports).status is ConditionStatus.FALSE) is counts


OPEN = "; the kernel keeps no pod off "


@pytest.mark.parametrize(
    ("open_", "message"),
    [((), ""), ((1,), f"{OPEN}GPU 1"), ((0, 1), f"{OPEN}these devices")],
)
def test_the_condition_says_whether_pods_are_kept_off(open_, message):
    reports = node_report.report({}, [device(index, waits=index not in open_) for index in (0, 1)], 0)
    content = node_report.condition_content(reports)
    assert (content.reason, content.message) == ("AllDevicesHealthy", f"no device of 2 is out{message}")


def test_a_replaced_device_has_an_event_with_its_uuid():
    before, now = node_report.report({}, [LOST], 0), node_report.report({}, [SWAPPED, NEW], 1)
    (event,) = node_report.node_events(before, now)
    hint = "; run `autoclave explain GPU-0` on the node for details"
    assert (event.reason, event.note) == (Why.QUARANTINED, f"GPU-0 is quarantined: replaced{hint}")
    expected = node_report.condition_content(now)
    assert expected.reason == "AllDevicesHealthy"
    assert expected.message == "no device of 1 is out; not counted, because they were replaced: GPU-0"
    assert node_report.condition_content(node_report.report({}, [SWAPPED], 1)) == node_report.NONE_OFFERED


def test_devices_of_an_old_mig_layout_do_not_count():
    slices = [replace(SLICE, uuid=f"MIG-{number}") for number in range(2)]
    before = node_report.report({}, slices, 0)
    gone = [replace(it, healthy=False, reason="relaid", quarantined=True, replaced=True) for it in slices]
    now = node_report.report(before, [*gone, NEW], 1)
    assert node_report.condition_content(now).reason == "AllDevicesHealthy"
    assert {it.reason for it in node_report.node_events(before, now)} == {Why.QUARANTINED}


def test_a_gone_device_is_named_by_uuid_without_a_hint():
    (event,) = node_report.node_events(by_name(report()), by_name(report(code=Why.GONE)))
    assert event.note == "GPU-0 is gone"


def test_a_time_without_observations_proves_nothing():
    reports = node_report.after_silence(node_report.report({}, [OUT, OTHER_GPU, device(2, healthy=False)], 0))
    assert node_report.next_change(reports, LATER) is None
    reports = node_report.report(reports, [device(index, healthy=False) for index in range(3)], LATER)
    assert [(each.failure, each.found_healthy) for each in reports.values()] == [
        (Why.QUARANTINED, False), (None, False), (None, False),
    ]  # fmt: skip
    assert node_report.next_change(reports, LATER) == LATER


def test_the_next_change_is_the_end_of_idleness():
    assert (
        node_report.next_change(node_report.report({}, [GOOD, device(1, healthy=False, reason="xid", sick=True)], 5), 5)
        is None
    )
    reports = node_report.report({}, [device(0, healthy=False)], 0)
    reports = node_report.report(reports, [device(0, healthy=False), device(1, healthy=False)], 100)
    assert node_report.next_change(reports, 100) == LATER - 100
    assert node_report.next_change(reports, LATER + 100) == 0
    assert node_report.next_change(node_report.report(reports, [device(0, healthy=False)], LATER), LATER) is None


def report(index=0, code=None, ailment="", *, mig=False, found_healthy=True):
    uuid = f"MIG-{index}" if mig else f"GPU-{index}"
    return DeviceReport(uuid, index, mig, code, ailment, found_healthy=found_healthy and code is None)


def by_name(*reports):
    return {report.uuid: report for report in reports}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, report(), None),
        (None, report(code=Why.QUARANTINED, ailment="xid"), (Why.QUARANTINED, "xid")),
        (report(), report(), None),
        (report(), report(code=Why.SICK, ailment="xid"), (Why.SICK, "xid")),
        (report(code=Why.SICK, ailment="xid"), report(code=Why.SICK, ailment="xid"), None),
        (
            report(code=Why.SICK, ailment="xid"),
            report(code=Why.SICK, ailment="ecc"),
            (Why.SICK, "ecc"),
        ),
        (
            report(code=Why.SICK, ailment="a"),
            report(code=Why.QUARANTINED, ailment="a"),
            (Why.QUARANTINED, "a"),
        ),
        (report(code=Why.QUARANTINED, ailment="xid"), report(), (Why.RECOVERED, "xid")),
        (report(code=Why.GONE), report(), (Why.RECOVERED, "")),
        (report(), report(code=Why.GONE), (Why.GONE, "")),
        (report(), report(code=Why.NOT_READY), (Why.NOT_READY, "")),
    ],
)
def test_an_event_is_a_change_of_report(before, now, expected):
    happened = node_report.node_events(by_name(before) if before else {}, by_name(now))
    assert [(each.reason, each.ailment) for each in happened] == ([expected] if expected else [])


GPU1 = report(1, Why.SICK, "xid")


@pytest.mark.parametrize(
    ("reports", "status", "reason", "message"),
    [
        (None, "Unknown", "ScrubServiceSilent", node_report.SILENT.message),
        ((), "Unknown", "NoDevices", node_report.NONE_OFFERED.message),
        ((report(), report(1)), "True", "AllDevicesHealthy", "no device of 2 is out"),
        (
            (report(), report(1, found_healthy=False)),
            "Unknown", "DevicesNotReady", "1 of 2 devices was not found healthy yet: GPU 1",
        ),
        ((report(found_healthy=False), GPU1), "False", "SomeDevicesOut", "1 of 2 devices is out: GPU 1 (sick: xid)"),
        ((report(), GPU1), "False", "SomeDevicesOut", "1 of 2 devices is out: GPU 1 (sick: xid)"),
        ((GPU1,), "False", "AllDevicesOut", "1 of 1 device is out: GPU 1 (sick: xid)"),
        (
            (report(0, Why.QUARANTINED, "ecc", mig=True), report(2, Why.GONE), report(3)),
            "False", "SomeDevicesOut", "2 of 3 devices are out: MIG-0 of GPU 0 (quarantined: ecc), GPU-2 (gone)",
        ),
    ],
)  # fmt: skip
def test_the_condition_names_what_is_out(reports, status, reason, message):
    content = node_report.condition_content(None if reports is None else by_name(*reports))
    assert (content.status.value, content.reason, content.message) == (status, reason, message)


def test_a_message_stays_within_bounds_and_counts_the_rest():
    out = [DeviceReport(f"MIG-{index:036}", index, True, Why.QUARANTINED, "x" * 200) for index in range(100)]
    message = node_report.condition_content(by_name(*out)).message
    assert len(message) == node_report.LONGEST_MESSAGE
    assert message.endswith(" ...")
    short = node_report.condition_content(by_name(*(report(index, Why.SICK, "xid") for index in range(100)))).message
    assert short.endswith("GPU 15 (sick: xid), and 84 more")


SOME, OTHER = ConditionContent(ConditionStatus.FALSE, "A", "a"), ConditionContent(ConditionStatus.FALSE, "B", "b")
FINE = ConditionContent(ConditionStatus.TRUE, "C", "c")


@pytest.mark.parametrize(
    ("present", "content", "transition"),
    [
        (None, SOME, 50), (Condition(SOME, 10, 5), SOME, 5), (Condition(SOME, 10, 5), OTHER, 5),
        (Condition(SOME, 10, 5), FINE, 50),
    ],
)  # fmt: skip
def test_the_transition_time_changes_only_with_the_status(present, content, transition):
    assert node_report.condition(present, content, since=50, now=60) == Condition(content, 60, transition)


@pytest.mark.parametrize(
    ("present", "content", "now", "left"),
    [
        (None, SOME, 0, 0), (Condition(SOME, 10, 5), OTHER, 10, 0), (Condition(SOME, 10, 5), SOME, 10, 300),
        (Condition(SOME, 10, 5), SOME, 110, 200), (Condition(SOME, 10, 5), SOME, 310, 0),
        (Condition(SOME, 10, 5), SOME, 9, 0),
    ],
)  # fmt: skip
def test_a_condition_is_sent_when_changed_or_old(present, content, now, left):
    assert node_report.due(present, content, now, 300) == left


def change(device="GPU-0", reason=EventReason.SICK, ailment="xid", note="x"):
    return NodeEvent(device, reason, ailment, note)


@pytest.fixture
def outbox():
    numbers = count(1)
    return Outbox(lambda: f"n.{next(numbers)}", most=3)


def waiting(outbox):
    """Take all events out, in order."""
    found = []
    while (pending := outbox.first()) is not None:
        found.append(pending)
        outbox.sent(pending)
    return found


def test_a_repeated_event_waits_once_with_the_newest_note(outbox):
    outbox.put(change(note="old"), 1)
    outbox.put(change(note="new"), 2)
    assert [(it.at, it.event.note) for it in waiting(outbox)] == [(2, "new")]


@pytest.mark.parametrize("other", [{"device": "GPU-1"}, {"reason": EventReason.QUARANTINED}, {"ailment": "ecc"}])
def test_another_device_reason_or_ailment_is_another_event(outbox, other):
    outbox.put(change(), 0)
    outbox.put(change(**other), 0)
    assert outbox.waiting() == 2


def test_a_repetition_during_a_send_is_still_to_send(outbox):
    outbox.put(change(), 0)
    sending = outbox.first()
    outbox.put(change(), 1)
    outbox.sent(sending)
    assert outbox.first().at == 1


def test_a_full_outbox_drops_and_counts_the_oldest(outbox):
    for device in "abcd":
        outbox.put(change(device), 0)
    assert (outbox.dropped, [it.event.device for it in waiting(outbox)]) == (1, list("bcd"))


def test_one_device_that_flaps_displaces_no_other(outbox):
    outbox.put(change("a"), 0)
    for moment in range(10):
        outbox.put(change("b", EventReason.SICK), moment)
        outbox.put(change("b", EventReason.RECOVERED), moment)
    assert (outbox.dropped, outbox.first().event.device) == (0, "a")
