"""What is reported of the devices to an API server that works or fails, without delays elsewhere."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from plugin.cluster import node_report
from plugin.cluster.node_report import MOST_WAITING
from tests.plugin.cluster.api_server import CONDITION, EVENTS, Answer, Request, drip, on, silence, status
from tests.plugin.cluster.conftest import QUICK
from tests.plugin.cluster.devices import lines, out
from tests.plugin.scrub_server import gpu

OPEN = "; the kernel keeps no pod off these devices"  # as its list says


def sick(index, reason="xid"):
    return gpu(index, healthy=False, clean=False, reason=reason, sick=True)


async def test_a_healthy_node_says_so_once_and_no_more(api, door, reporting):
    door.say(gpu(0), gpu(1))
    async with reporting():
        await api.until(lambda: api.says("True", "AllDevicesHealthy"))
        door.say(gpu(0, clean=False), gpu(1))
        door.say(gpu(0), gpu(1, healthy=False, clean=False))  # between two pods
        door.say(out(0), gpu(1))
        await api.until(lambda: api.says("False"))
    assert [body["status"]["conditions"][0]["status"] for body in api.bodies(CONDITION)] == [
        "True",
        "False",
        "Unknown",
    ]
    assert [each["type"] for each in api.node["status"]["conditions"]] == ["Ready", "AutoclaveDevicesHealthy"]


@pytest.mark.parametrize("annotates", [True, False])
async def test_a_checkpoint_goes_with_the_condition_by_choice(api, door, reporting, annotates):
    door.checkpoint = "autoclave/node-1\n7\n"
    door.say(gpu(0))
    async with reporting(annotates=annotates):
        await api.until(lambda: api.says("True"))
    wanted = {"annotations": {"autoclave.internal/checkpoint": "autoclave/node-1\n7\n"}} if annotates else None
    assert [body.get("metadata") for body in api.bodies(CONDITION)] == [wanted, wanted]


async def test_a_failure_and_its_recovery_are_events(api, door, reporting):
    door.say(gpu(0), gpu(1))
    async with reporting():
        await api.until(lambda: api.says("True"))
        door.say(gpu(0), sick(1))
        await api.until(lambda: api.says("False", "SomeDevicesOut") and api.events)
        assert api.condition()["message"] == f"1 of 2 devices is out: GPU 1 (sick: xid){OPEN}"
        door.say(gpu(0), out(1))
        await api.until(lambda: len(api.events) == 2)
        door.say(gpu(0), gpu(1))
        await api.until(lambda: api.says("True") and len(api.events) == 3)
    reported = [(event["type"], event["reason"], event["message"]) for event in api.events.values()]
    hint = "; run `autoclave explain GPU-0001` on the node for details"
    assert reported == [
        ("Warning", "DeviceSick", f"GPU 1 (GPU-0001) is sick: xid{hint}"),
        ("Warning", "DeviceQuarantined", f"GPU 1 (GPU-0001) is quarantined: xid{hint}"),
        ("Normal", "DeviceRecovered", "GPU 1 (GPU-0001) is healthy again; it was quarantined: xid"),
    ]
    event = next(iter(api.events.values()))
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-1"}
    assert (event["reportingComponent"], event["metadata"]["namespace"], event["count"]) == ("autoclave", "default", 1)


async def test_a_service_that_never_answers_is_reported(api, door, reporting):
    door.mute = True
    async with reporting(pace=replace(QUICK, first_list_within=0.01)):
        await api.until(lambda: api.says("Unknown", "ScrubServiceSilent"))


async def test_an_api_server_gets_state_and_events_after_its_outage(api, door, reporting, read):
    await api.close()
    with capture_logs() as logs:
        async with reporting() as listing:
            door.say(gpu(0), gpu(1))
            await listing.until_known()
            reader = read(listing)
            for devices in [(out(0), gpu(1)), (gpu(0), gpu(1)), (out(0), gpu(1)), (gpu(0), out(1))]:
                door.say(*devices)
                await reader.until(lambda shown, devices=devices: shown == {d.uuid: d.healthy for d in devices})
                reader.forget()
            await api.open()
            await api.until(lambda: api.says("False") and len(api.events) == 3)
    (first, *_) = api.bodies(CONDITION)
    assert first["status"]["conditions"][0]["message"].endswith(f"GPU 1 (quarantined: xid){OPEN}")
    # Of what repeated while the API server was away, the newest.
    order = [("DeviceQuarantined", "GPU 0"), ("DeviceRecovered", "GPU 0"), ("DeviceQuarantined", "GPU 1")]
    assert list(api.counts().items()) == [(change, 1) for change in order]
    reported = lines(logs, "cannot send")
    assert {line["log_level"] for line in reported} == {"warning"}
    assert len(reported) <= 4  # for each strand, when it found out and when the words changed; not for each try
    assert lines(logs, "sending again")


@pytest.mark.parametrize("hang", [silence, drip])
async def test_a_call_that_hangs_is_given_up(api, door, reporting, hang):
    api.fault = on("GET nodes", hang, times=1)
    door.say(gpu(0))
    async with reporting(within=0.1):
        await api.until(lambda: api.says("True"))
    assert len(api.bodies("GET nodes")) == 2


async def test_a_late_answer_makes_no_second_event(api, door, reporting):
    api.after = on(EVENTS, silence, times=1)
    door.say(out(0))
    async with reporting(within=0.2):
        await api.until(lambda: len(api.bodies(EVENTS)) == 2)
    assert len(api.events) == 1
    assert api.counts() == {("DeviceQuarantined", "GPU 0"): 1}


async def test_a_missing_right_is_one_error(api, door, reporting):
    api.fault = on(EVENTS, lambda _request: status(403, "Forbidden", 'cannot create resource "events"'))
    door.say(out(0))
    with capture_logs() as logs:
        async with reporting():
            await api.until(lambda: len(api.bodies(EVENTS)) >= 4 and api.says("False"))
    (reported,) = lines(logs, "cannot send")
    assert (reported["log_level"], reported["about"], reported["reason"]) == ("error", "Events", "forbidden")
    assert reported["error"].startswith("the right to create events is missing: ")


GARBAGE = [
    Answer(200, raw=b"<html>log in</html>"),
    Answer(200, raw=b'{"kind": "Node", "metadata": 7}'),
    Answer(302, headers={"Location": "http://example.com/"}),
    Answer(403, raw=b"no", headers={"Content-Type": "text/html"}),
]


@pytest.mark.parametrize("answer", GARBAGE, ids=lambda answer: f"{answer.code} {answer.raw or answer.body}")
async def test_an_invalid_answer_is_retried(api, door, reporting, answer: Answer):
    left = dict.fromkeys(["GET nodes", CONDITION, EVENTS], 2)

    def fault(request: Request) -> Answer | None:
        if left.get(request.about, 0) == 0:
            return None
        left[request.about] -= 1
        return answer

    api.fault = fault
    door.say(out(0))
    with capture_logs() as logs:
        async with reporting():
            await api.until(lambda: api.says("False", "AllDevicesOut") and api.events)
    assert not lines(logs, "a fault inside what is sent")
    assert set(left.values()) == {0}
    assert len(api.events) == 1


async def test_an_event_that_is_refused_holds_up_no_other(api, door, reporting):
    api.fault = on(EVENTS, lambda _request: status(422, "Invalid", "too long"), times=1)
    door.say(out(0), out(1))
    with capture_logs() as logs:
        async with reporting():
            await api.until(lambda: len(api.events) == 1)
    assert len(lines(logs, "an Event is dropped: the API server refuses it")) == 1


async def test_too_many_waiting_events_drop_the_oldest(api, door, reporting):
    many, dropped = MOST_WAITING + 5, "Events were dropped while the API server was away"
    await api.close()
    early: list[object] = []
    with capture_logs() as logs:
        api.fault = lambda _request: early.extend(lines(logs, dropped))
        async with reporting() as listing:
            door.say(*(out(index) for index in range(many)))
            await listing.until_known()
            await asyncio.sleep(0)
            await api.open()
            await api.until(lambda: api.says("False") and len(api.events) == MOST_WAITING)
    assert api.bodies(EVENTS)[0]["message"].startswith("GPU 5 ")
    assert len(lines(logs, "Events are dropped, the oldest first: too many wait for the API server")) == 1
    assert [line["dropped"] for line in lines(logs, dropped)] == [5]
    assert early == []  # while others waited


async def test_an_internal_fault_does_not_end_reporting(api, door, reporting, monkeypatch):
    door.say(gpu(0))
    monkeypatch.setattr(node_report, "event_object", None)
    with capture_logs() as logs:
        async with reporting():
            await api.until(lambda: api.says("True"))
            door.say(out(0))
            await api.until(lambda: api.says("False"))
            monkeypatch.undo()
            await api.until(lambda: api.events)
    assert {line["log_level"] for line in lines(logs, "a fault inside what is sent")} <= {"error"}
