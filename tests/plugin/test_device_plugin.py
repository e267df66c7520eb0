"""The five questions over a real socket, as the kubelet asks them."""

import asyncio
from itertools import chain

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from ground.errors import NotReady, Reason, Refused
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.response import Strategy, Style
from plugin.stopping import InFlight
from tests.patience import WITHIN
from tests.plugin.live_plugin import serving
from tests.plugin.scrub_server import gpu, hang, no

GPU = "nvidia.com/gpu"
A, B, C = "GPU-0000", "GPU-0001", "GPU-0002"
IN_USE = Refused(Reason.IN_USE, "cannot hand out GPU-0000: a process is still on it")


@pytest.fixture
async def listing(door, followed):
    """Three devices: clean, clean but without a known node, and one that still has to be scrubbed."""
    door.say(gpu(0, clean=False), gpu(1), gpu(2, numa_node=None))
    async with followed() as listing:
        async with asyncio.timeout(WITHIN):
            await listing.until_known()
        yield listing


@pytest.fixture
def registry():
    """What was counted."""
    return CollectorRegistry()


@pytest.fixture
def in_flight():
    """The calls that are being answered."""
    return InFlight()


@pytest.fixture
async def kubelet(short_tmp, listing, registry, in_flight):
    """The kubelet's end of the socket."""
    style = Style(strategies=(Strategy.ENVVAR,), pass_device_specs=True, dev_root=str(short_tmp))
    async with serving(listing, listing._scrubber, short_tmp / "plugin.sock", style, registry, in_flight) as stub:
        yield stub


async def allocate(kubelet, *groups):
    requests = [wire.ContainerAllocateRequest(devices_ids=group) for group in groups]
    answer = await kubelet.Allocate(wire.AllocateRequest(container_requests=requests), timeout=WITHIN)
    return list(answer.container_responses)


async def start(kubelet, *ids, timeout=WITHIN):  # noqa: ASYNC109 - gRPC's argument
    return await kubelet.PreStartContainer(wire.PreStartContainerRequest(devices_ids=ids), timeout=timeout)


async def prefer(kubelet, available, size, must=()):
    request = wire.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    asked = wire.PreferredAllocationRequest(container_requests=[request])
    answer = await kubelet.GetPreferredAllocation(asked, timeout=WITHIN)
    return [list(each.deviceIDs) for each in answer.container_responses]


async def read(stream):
    async with asyncio.timeout(WITHIN):
        message = await stream.read()
    return {device.ID: device.health for device in message.devices}


def counted(registry):
    """How often each hook ended in each way, and with which no; only what happened at all."""
    ends = ("autoclave_hook_duration_seconds_count", "autoclave_hook_refusals_total")
    return {
        (it.labels["hook"], it.labels.get("outcome") or it.labels["reason"]): it.value
        for family in registry.collect()
        for it in family.samples
        if it.name in ends and it.value
    }


STATE = "/var/lib/autoclave/receipts/"


def receipts(responses):
    """The directories with receipts that each container gets, and its variable."""
    assert all(mount.read_only for response in responses for mount in response.mounts)
    return [
        ({mount.container_path: mount.host_path for mount in it.mounts}, it.envs.get("AUTOCLAVE_RECEIPTS"))
        for it in responses
    ]


async def test_each_container_gets_the_receipts_of_its_devices(kubelet, door):
    """The service says where they are: its list may still name the directory of the last tenant."""
    door.say(gpu(0, receipts=f"{STATE}of-the-last-tenant"), gpu(1), gpu(2, numa_node=None))
    door.receipts = {A: f"{STATE}a", B: f"{STATE}b"}
    at = "/run/autoclave/receipts"
    assert receipts(await allocate(kubelet, [A, B], [C])) == [
        ({f"{at}/a": f"{STATE}a", f"{at}/b": f"{STATE}b"}, at),
        ({}, None),
    ]


async def test_a_container_that_waits_gets_the_directory_of_the_list(kubelet, door, listing):
    door.silence = 60.0
    door.say(gpu(0, waits=True, receipts=f"{STATE}a"), gpu(1, waits=True), gpu(2, numa_node=None))
    await listing.until(lambda: listing.shown(GPU)[0].receipts != "")
    await door.close()
    [(mounts, _)] = receipts(await allocate(kubelet, [A]))
    assert mounts == {"/run/autoclave/receipts/a": f"{STATE}a"}


async def test_the_list_has_the_numa_node_if_known(kubelet):
    message = await kubelet.ListAndWatch(wire.Empty()).read()
    assert {it.ID: [node.ID for node in it.topology.nodes] for it in message.devices} == {A: [0], B: [0], C: []}
    assert [it.HasField("topology") for it in message.devices] == [True, True, False]


async def test_a_clean_device_is_preferred(kubelet):
    assert await prefer(kubelet, [A, B, C], 1) == [[B]]
    assert await prefer(kubelet, [A, B, C], 2, must=[A]) == [[A, B]]


async def test_a_fault_in_the_preference_does_not_fail_the_pod(kubelet, registry, monkeypatch):
    monkeypatch.setattr("plugin.preferred.prefer", lambda *_: 1 / 0)
    with capture_logs() as lines:
        assert await prefer(kubelet, [A], 1) == [[]]
    assert [(line["hook"], line["outcome"]) for line in lines] == [("GetPreferredAllocation", "fault")]
    assert counted(registry) == {("GetPreferredAllocation", "fault"): 1}  # and is no refusal


async def test_a_stop_waits_for_a_preference(kubelet, in_flight, monkeypatch):
    monkeypatch.setattr("plugin.preferred.prefer", lambda *_: [str(in_flight.calls)])
    assert await prefer(kubelet, [A], 1) == [["1"]]


async def test_a_preference_makes_no_request(kubelet, door):
    await door.close()
    assert await prefer(kubelet, [A, B], 1) == [[B]]
    assert door.asked == []


async def test_one_call_gives_each_container_its_own_devices(kubelet, door):
    answers = await allocate(kubelet, [B], [C, A])
    assert [dict(it.envs) for it in answers] == [
        {"NVIDIA_VISIBLE_DEVICES": B},
        {"NVIDIA_VISIBLE_DEVICES": f"{C},{A}"},
    ]
    assert door.asked == [("acquire", (B, C, A))]


async def test_the_drivers_nodes_are_looked_for_each_time(kubelet, short_tmp):
    assert not (await allocate(kubelet, [A]))[0].devices
    (short_tmp / "dev").mkdir()
    (short_tmp / "dev/nvidiactl").touch()
    assert [it.container_path for it in (await allocate(kubelet, [A]))[0].devices] == ["/dev/nvidiactl"]


@pytest.mark.parametrize("groups", [[], [["GPU-0009"]]])
async def test_an_invalid_call_is_refused_without_a_request(kubelet, door, groups):
    for asked in (allocate(kubelet, *groups), start(kubelet, *chain(*groups))):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asked
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert door.asked == []


@pytest.mark.parametrize(
    ("error", "allocation", "starting"),
    [
        (IN_USE, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE),
        (NotReady(Reason.SCRUBBING, "cannot: x"), grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
        (Refused(Reason.QUARANTINED, "cannot: x"), grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_a_refusal_has_the_code_that_the_kubelet_needs(kubelet, door, error, allocation, starting):
    door.answer = no(error)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await allocate(kubelet, [A])
    assert (refused.value.code(), refused.value.details()) == (allocation, error.message)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await start(kubelet, A)
    assert (refused.value.code(), refused.value.details()) == (starting, error.message)


async def test_an_absent_service_refuses_without_details_for_tenants(kubelet, door, short_tmp):
    await door.close()
    for asked in (allocate(kubelet, [A]), start(kubelet, A)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asked
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert str(short_tmp) not in (refused.value.details() or "")


async def test_without_a_deadline_a_start_is_answered_too(kubelet, door):
    await start(kubelet, A, timeout=None)
    assert 28 < door.left[0] < 29.5  # gRPC adds a little


async def test_a_start_that_the_kubelet_cancels_is_cancelled_and_logged(kubelet, door, registry):
    door.answer = hang
    with capture_logs() as lines:
        asking = asyncio.create_task(start(kubelet, A))
        await door.until(lambda door: door.asked)
        asking.cancel()
        await asyncio.wait({asking})
        async with asyncio.timeout(WITHIN):
            while not lines:  # noqa: ASYNC110 - the log has no event
                await asyncio.sleep(0.01)
    assert [(line["hook"], line["outcome"]) for line in lines] == [("PreStartContainer", "cancelled")]
    assert counted(registry) == {("PreStartContainer", "cancelled"): 1}  # it is no refusal


async def test_a_fault_is_internal_with_its_traceback_in_the_log(kubelet, door, registry, monkeypatch):
    monkeypatch.setattr("plugin.response.respond", lambda *_: 1 / 0)
    with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError) as failed:
        await allocate(kubelet, [A])
    assert (failed.value.code(), failed.value.details()) == (
        grpc.StatusCode.INTERNAL,
        "a fault inside the device plugin",
    )
    assert [(line["outcome"], line["exc_info"]) for line in lines] == [("fault", True)]
    assert counted(registry) == {("Allocate", "fault"): 1, ("Allocate", "internal"): 1}
    assert door.asked == []  # what cannot be answered is not acquired


async def test_each_call_is_logged_and_measured_once(kubelet, door, registry):
    with capture_logs() as lines:
        await allocate(kubelet, [B], [C])
        await start(kubelet, B)
        door.answer = no(IN_USE)
        with pytest.raises(grpc.aio.AioRpcError):
            await allocate(kubelet, [A])
    logged = [
        {name: line[name] for name in ("hook", "resource", "devices", "outcome", "reason", "log_level")}
        for line in lines
    ]
    assert logged == [
        {"hook": hook, "resource": GPU, "devices": ids, "outcome": outcome, "reason": reason, "log_level": level}
        for hook, ids, outcome, reason, level in [
            ("Allocate", [B, C], "ok", "", "info"),
            ("PreStartContainer", [B], "ok", "", "info"),
            ("Allocate", [A], "refused", "in-use", "warning"),
        ]
    ]
    assert all(0 <= line["seconds"] < WITHIN for line in lines)
    assert counted(registry) == {
        ("Allocate", "ok"): 1, ("PreStartContainer", "ok"): 1, ("Allocate", "refused"): 1, ("Allocate", "in-use"): 1,
    }  # fmt: skip


async def test_a_receipt_too_long_for_an_exemplar_is_left_out(kubelet, door, registry):
    door.receipt = "r" * 200
    await allocate(kubelet, [B])
    assert counted(registry) == {("Allocate", "ok"): 1}
