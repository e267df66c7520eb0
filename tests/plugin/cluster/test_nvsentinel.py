"""What NVSentinel hears of the devices, through a stand-in of its platform connector."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from demo.standins.pods import Phase, Pod
from plugin.cluster import nvsentinel
from plugin.cluster import nvsentinel_pb2 as wire
from plugin.cluster.nvsentinel import ACTIONS, HealthEvents, health_event
from plugin.listing import Listing
from scrubber.core.model import AilmentKind
from tests.patience import WITHIN
from tests.plugin.cluster.conftest import QUICK
from tests.plugin.cluster.devices import lines, out
from tests.plugin.cluster.platform_connector import PlatformConnector
from tests.plugin.scrub_server import gpu

NODE = "node-1"
SCRUBBED = gpu(0, healthy=False, clean=False)  # between two pods


@pytest.fixture
async def connector(short_tmp):
    """Open, and well."""
    (short_tmp / "nvsentinel").mkdir()  # the kubelet removes sockets from its own directory
    connector = PlatformConnector(short_tmp / "nvsentinel" / "nvsentinel.sock")
    await connector.open()
    yield connector
    await connector.close()


@pytest.fixture
def reporting(connector, followed):
    """What reports to the connector, with its listing, as long as the context lasts."""

    @asynccontextmanager
    async def reporting(*, remediate=False) -> AsyncIterator[Listing]:
        reports = HealthEvents(connector.socket, NODE, remediate=remediate, pace=QUICK)
        async with followed() as listing:
            task = asyncio.create_task(reports.run(listing))
            try:
                yield listing
            finally:
                task.cancel()
                await asyncio.wait({task})
            assert task.cancelled()

    return reporting


def event(device, *, remediate=False):
    found = health_event(device, NODE, remediate=remediate)
    assert found is not None
    return found


def test_the_numbers_on_the_wire_are_those_of_nvsentinel():
    """As read in data-models/protobufs/health_event.proto."""
    numbers = {field.name: field.number for field in wire.HealthEvent.DESCRIPTOR.fields}
    assert numbers == {
        "version": 1, "agent": 2, "componentClass": 3, "checkName": 4, "isFatal": 5, "isHealthy": 6, "message": 7,
        "recommendedAction": 8, "errorCode": 9, "entitiesImpacted": 10, "generatedTimestamp": 12, "nodeName": 13,
        "processingStrategy": 16,
    }  # fmt: skip
    assert wire.ProcessingStrategy.items() == [("UNSPECIFIED", 0), ("EXECUTE_REMEDIATION", 1), ("STORE_ONLY", 2)]
    assert (wire.NONE, wire.COMPONENT_RESET, wire.CONTACT_SUPPORT, wire.RESTART_VM) == (0, 2, 5, 15)
    [service] = wire.DESCRIPTOR.services_by_name.values()
    assert (service.full_name, [it.name for it in service.methods]) == (
        "datamodels.PlatformConnector",
        ["HealthEventOccurredV1"],
    )


def test_a_quarantine_names_the_uuid_and_cordons_no_node():
    said = event(out(3, "ecc"))
    assert [(it.entityType, it.entityValue) for it in said.entitiesImpacted] == [("GPU_UUID", "GPU-0003")]
    assert (said.agent, said.componentClass, said.checkName) == ("autoclave", "GPU", "AutoclaveQuarantine")
    assert (said.nodeName, list(said.errorCode), said.recommendedAction) == (NODE, ["ecc"], wire.COMPONENT_RESET)
    assert (said.isHealthy, said.isFatal, said.processingStrategy) == (False, False, wire.STORE_ONLY)
    assert said.message == ("GPU 3 (GPU-0003) is out of service: ecc; run `autoclave explain GPU-0003` on the node")


@pytest.mark.parametrize("kind", AilmentKind)
def test_nvsentinel_may_act_only_where_its_action_helps(kind):
    said = event(out(0, kind.value), remediate=True)
    assert said.processingStrategy == wire.EXECUTE_REMEDIATION
    assert said.isFatal is (kind.value in ACTIONS)
    assert said.recommendedAction == ACTIONS.get(kind.value, wire.NONE)


def test_every_reason_with_an_action_is_one_of_the_service():
    assert set(ACTIONS) <= {kind.value for kind in AilmentKind}


def test_a_slice_asks_for_no_reset_of_its_gpu():
    said = event(replace(out(0, "xid"), mig=True, uuid="MIG-1"), remediate=True)
    assert [(it.entityType, it.entityValue) for it in said.entitiesImpacted] == [("MIG_UUID", "MIG-1")]
    assert (said.isFatal, said.recommendedAction) == (False, wire.NONE)


@pytest.mark.parametrize("remediate", [True, False])
def test_a_recovery_names_what_the_fault_has_named(remediate):
    fault, recovery = event(out(0), remediate=remediate), event(gpu(0), remediate=remediate)
    assert recovery.entitiesImpacted == fault.entitiesImpacted
    assert recovery.processingStrategy == fault.processingStrategy
    assert (recovery.isHealthy, recovery.isFatal, recovery.recommendedAction) == (True, False, wire.NONE)


def test_a_replaced_gpu_does_not_keep_its_node_out():
    said = event(replace(out(0, "replaced"), replaced=True), remediate=True)
    assert (said.isHealthy, said.message) == (True, "GPU 0 (GPU-0000) is no longer in this node")


def test_a_gpu_between_two_pods_has_no_event():
    assert health_event(SCRUBBED, NODE, remediate=True) is None


async def test_a_quarantine_and_its_end_are_sent_once(connector, door, reporting):
    door.say(gpu(0), gpu(1))
    async with reporting():
        await connector.until(lambda: len(connector.events) == 2)
        for devices in [(SCRUBBED, gpu(1)), (out(0), gpu(1)), (SCRUBBED, gpu(1)), (gpu(0, clean=False), gpu(1))]:
            door.say(*devices)
            if devices[0].reason or devices[0].healthy:
                before = len(connector.events)
                await connector.until(lambda before=before: len(connector.events) > before)
    healthy = [("GPU-0000", "healthy"), ("GPU-0001", "healthy")]
    assert connector.reported() == [*healthy, ("GPU-0000", "xid"), ("GPU-0000", "healthy")]
    assert all(it.generatedTimestamp.seconds for it in connector.events)


async def test_a_connector_that_comes_back_hears_the_present_state(connector, door, reporting):
    door.say(out(0), out(1, "heat"))
    async with reporting():
        await connector.until(lambda: len(connector.events) == 2)
        await connector.close()
        connector.events.clear()
        door.say(gpu(0), out(1, "heat"))
        await connector.open()
        await connector.until(lambda: connector.states() == {"GPU-0000": "healthy", "GPU-0001": "heat"})


async def test_a_plugin_that_comes_back_says_the_present_state(connector, door, reporting):
    """Also of a device that has recovered while no plugin ran."""
    door.say(out(0), out(1))
    async with reporting():
        await connector.until(lambda: len(connector.events) == 2)
    door.say(gpu(0), out(1))
    connector.events.clear()
    async with reporting():
        await connector.until(lambda: len(connector.events) == 2)
    assert connector.reported() == [("GPU-0000", "healthy"), ("GPU-0001", "xid")]


async def test_nothing_is_sent_while_the_service_is_silent(connector, door, reporting):
    door.say(out(0))
    door.silence = 0.0
    async with reporting() as listing:
        await connector.until(lambda: connector.events)
        await door.close()
        await listing.until(lambda: listing.current() is None)
        await connector.close()
        connector.events.clear()
        await connector.open()
        door.say(SCRUBBED, gpu(1))
        await door.open()
        await connector.until(lambda: connector.events)
    assert connector.reported() == [("GPU-0001", "healthy")]


async def test_a_connector_that_starts_later_is_found(connector, door, reporting):
    await connector.close()
    door.say(out(0))
    logged = {event: asyncio.Event() for event in ("cannot send", "sending again")}

    def hear(_logger: object, _level: str, line: EventDict) -> EventDict:
        if line["event"] in logged:
            logged[line["event"]].set()
        return line

    with capture_logs([hear]) as logs:
        async with reporting():
            await asyncio.wait_for(logged["cannot send"].wait(), WITHIN)
            await connector.open()
            await asyncio.wait_for(logged["sending again"].wait(), WITHIN)
    assert connector.reported() == [("GPU-0000", "xid")]
    assert {line["log_level"] for line in lines(logs, "cannot send")} == {"warning"}


@pytest.mark.parametrize("code", [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT])
async def test_a_refusal_is_one_error_and_is_tried_again(connector, door, reporting, code):
    connector.refusal = code
    door.say(out(0))
    with capture_logs() as logs:
        async with reporting():
            await connector.until(lambda: connector.calls == 3)
            connector.refusal = None
            await connector.until(lambda: connector.events)
    [line] = lines(logs, "cannot send")
    assert (line["log_level"], line["about"]) == ("error", "health events to NVSentinel")
    assert line["error"] == f"{code.name.lower()}: no"


async def test_a_call_that_hangs_is_given_up(connector, door, reporting, monkeypatch):
    monkeypatch.setattr(nvsentinel, "CALL_WITHIN", 0.05)
    connector.hangs = True
    door.say(out(0))
    async with reporting():
        await connector.until(lambda: connector.calls == 2)


@pytest.mark.parametrize("way", ["missing", "refuses"])
async def test_no_answer_of_nvsentinel_changes_the_node(connector, scrub_server, kubelet, plugin, way):
    """The real plugin: a pod gets a GPU whatever becomes of the reports."""
    if way == "missing":
        await connector.close()
    connector.refusal = grpc.StatusCode.PERMISSION_DENIED
    it = await plugin("--nvsentinel-socket", connector.socket, "--node-name", NODE)
    await it.hear("cannot send")
    scrub_server.say(gpu(0), out(1))
    await kubelet.until(lambda: kubelet.allocatable == {"nvidia.com/gpu": 1})
    pod = Pod.of("train", {"nvidia.com/gpu": 1})
    await kubelet.run(pod)
    assert (pod.phase, pod.message) == (Phase.RUNNING, "")
    assert await it.stop() == 0
    assert it.said == ""


async def test_the_plugin_lets_nvsentinel_act_by_choice(connector, scrub_server, kubelet, plugin):  # noqa: ARG001 - it answers
    scrub_server.say(out(0, "lost"))
    await plugin(
        "--nvsentinel-socket", connector.socket, "--nvsentinel-action", "remediate", "--node-name", NODE
    )  # fmt: skip
    await connector.until(lambda: connector.events)
    [said] = connector.events
    assert (said.isFatal, said.recommendedAction) == (True, wire.RESTART_VM)
