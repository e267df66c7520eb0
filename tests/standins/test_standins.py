"""Each stand-in works once, and the faults of the released kubelet that no story of ``tests/flows`` meets."""

import asyncio
import base64
import json

import grpc
import pytest

from demo.standins import checkpoint
from demo.standins.allocation import KubeletPanic
from demo.standins.api_server import ApiServer
from demo.standins.checksum import DeviceEntry, checksum
from demo.standins.cluster import Cluster
from demo.standins.do_nothing_driver import NIC, POOL, DoNothingDriver, device_slice
from demo.standins.do_nothing_plugin import RESOURCE as GPU
from demo.standins.http_api import Request
from demo.standins.kubelet import Kubelet, NotRunning
from demo.standins.pods import Container, ContainerKind, ContainerState, Phase, Pod
from demo.standins.timing import Timing
from plugin.cluster import apiserver
from plugin.kubelet_api import deviceplugin_pb2
from tests.patience import WITHIN
from tests.standins.conftest import during

TEGRA = DeviceEntry(
    PodUID="bf52b2cd-b611-4e79-86b1-280b283185c3",
    ContainerName="check",
    ResourceName="nvidia.com/gpu",
    DeviceIDs={"-1": ["tegra"]},
    AllocResp="Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh",
)


@pytest.mark.parametrize(
    ("entries", "device", "published"),
    [(None, "GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0", 3952659280), ([TEGRA], "tegra", 3660592824)],
    ids=["without pods", "with a pod"],
)
def test_the_checksum_is_that_of_a_real_kubelets_file(entries, device, published):
    assert checksum(entries, {"nvidia.com/gpu": [device]}) == published


async def test_a_pod_runs_and_stands_in_the_checkpoint(kubelet, directory):
    pod = Pod.of("p", {GPU: 2})
    assert (await kubelet.run(pod)).phase is Phase.RUNNING
    assert [call.method for call in kubelet.calls] == [
        "GetDevicePluginOptions",
        "ListAndWatch",
        "GetPreferredAllocation",
        "Allocate",
        "PreStartContainer",
    ]
    data = json.loads((directory / checkpoint.NAME).read_text())["Data"]
    (entry,) = data["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (pod.uid, "main", GPU)
    assert entry["DeviceIDs"] == {"-1": ["0", "1"]}
    answer = deviceplugin_pb2.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    assert answer.envs == {"ANSWER": "yes"}
    assert data["RegisteredDevices"] == {GPU: ["0", "1", "2", "3"]}


async def test_x34_a_socket_of_the_registry_is_connected_and_notified(node, directory):
    registry = directory / "r"
    registry.mkdir()
    async with node.kubelet(registry=registry) as kubelet:
        plugin = node.plugin()
        await plugin.serve(registry / "plugin-reg.sock")
        await kubelet.registered(GPU)
        await kubelet.until(lambda: kubelet.calls[-1].outcome)
        methods = [call.method for call in kubelet.calls]
        assert methods == ["GetInfo", "GetDevicePluginOptions", "ListAndWatch", "NotifyRegistrationStatus"]
        assert plugin.notified == [(True, "")]
        assert (await kubelet.run(Pod.of("p", {GPU: 1}))).phase is Phase.RUNNING


async def test_r5_a_completed_init_container_prevents_another_admission(kubelet):
    pod = Pod("p", (Container("i", {GPU: 1}, ContainerKind.INIT), Container("a", {GPU: 1})))
    await kubelet.run(pod)
    await kubelet.kill()
    await kubelet.start()
    assert await kubelet.readmit() == [pod]
    assert "no healthy devices present" in pod.message
    assert pod.statuses["a"].state is ContainerState.TERMINATED


async def test_r6_a_device_removed_during_its_allocate_panics_the_kubelet(kubelet, plugin):
    plugin.hold["Allocate"] = asyncio.Event()
    admitting = asyncio.create_task(kubelet.admit(Pod.of("p", {GPU: 1})))
    await during(kubelet, "Allocate")
    plugin.show(g0=None)
    await kubelet.until(lambda: kubelet.capacity == {GPU: 3})
    plugin.hold["Allocate"].set()
    with pytest.raises(KubeletPanic, match="0 left the list"):
        await asyncio.wait_for(admitting, WITHIN)
    with pytest.raises(NotRunning):
        await kubelet.admit(Pod.of("next", {GPU: 1}))
    await kubelet.start()


async def test_r10_x28_after_a_failed_register_dead_devices_stay(node):
    async with node.ready(timing=Timing(dial=0.2)) as (kubelet, plugin):
        with pytest.raises(grpc.aio.AioRpcError):
            await plugin.register(endpoint="nobody.sock")
        await plugin.stop()
        await kubelet.until(lambda: kubelet.calls[1].outcome)
        assert kubelet.allocatable == {GPU: 4}
        pod = Pod.of("haunted", {GPU: 1})
        assert (await kubelet.admit(pod)).phase is Phase.FAILED
        assert "code = Unavailable" in pod.message


@pytest.fixture
async def server(directory):
    server = ApiServer(directory, POOL)
    await server.open()
    yield server
    await server.leave()


async def test_a_slice_is_applied_watched_and_deleted(server):
    client = apiserver.ApiServer(server.kubeconfig, POOL, WITHIN)
    watch = client.slices(f"{POOL}-{NIC}")
    assert await anext(watch) is None
    wanted = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **device_slice(NIC, "nic-0")}
    applied = await client.apply_slice(wanted)
    watched = await anext(watch)
    assert watched is not None
    assert watched["spec"] == wanted["spec"]
    assert (await client.apply_slice(wanted))["metadata"] == applied["metadata"]  # nothing has changed
    query = {"fieldSelector": f"spec.driver={NIC}"}
    assert server.ask(Request("DELETE", "/apis/resource.k8s.io/v1/resourceslices", query=query)).code == 200
    assert await anext(watch) is None
    await client.close()


async def test_a_placed_claim_is_prepared_and_given_back(server, directory):
    registry = directory / "r"
    registry.mkdir()
    cluster = Cluster(server, POOL)
    driver = await DoNothingDriver(NIC, registry / f"{NIC}-reg.sock").serve()
    async with Kubelet(directory, registry=registry, cluster=cluster) as kubelet:
        await kubelet.driver_registered(NIC)
        server.create("resourceslices", device_slice(NIC, "nic-0", "nic-1"))
        cluster.claim("a", driver=NIC)
        pod = Pod.of("p", None, "a")
        assert cluster.place(pod) == ""
        assert cluster.devices("a") == ["nic-0"]
        assert (await kubelet.run(pod)).phase is Phase.RUNNING
        assert kubelet.starts[-1].devices == {"claim:a": ("example.com/nic=a",)}
        assert await kubelet.delete(pod)
        assert driver.asked == [("Prepare", ("a",)), ("Unprepare", ("a",))]
        assert (kubelet.claims(), cluster.devices("a")) == ({}, [])
    await driver.stop()
