"""Pods with claims: what the kubelet does before their first container and after their last one."""

import asyncio
import json

import pytest

from demo.standins.api_server import ApiServer
from demo.standins.cluster import Cluster
from demo.standins.do_nothing_driver import NIC, POOL, DoNothingDriver, device_slice
from demo.standins.dra_plugins import Health
from demo.standins.http_api import on, status
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod
from demo.standins.timing import Timing
from plugin.kubelet_api import drahealth_pb2

QUICK = Timing(slices_kept=0.01, slices_retry=0.01, health_retry=0.01, registry_retry=0.01)


class Node:
    """A kubelet, a driver with two devices, and their cluster."""

    def __init__(self, directory, **options) -> None:
        (directory / "r").mkdir()
        self.directory = directory
        self.server = ApiServer(directory, POOL)
        self.cluster = Cluster(self.server, POOL)
        self.kubelet = Kubelet(
            directory, registry=directory / "r", cluster=self.cluster, **{"timing": QUICK, **options}
        )
        self.drivers: list[DoNothingDriver] = []

    async def driver(self, name=NIC, socket=""):
        """Another driver, with a slice, as soon as the kubelet knows it."""
        self.drivers.append(await DoNothingDriver(name, self.directory / "r" / (socket or f"{name}-reg.sock")).serve())
        await self.kubelet.driver_registered(name)
        if self.server.find("resourceslices", f"{POOL}-{name}") is None:
            self.server.create("resourceslices", device_slice(name, "nic-0", "nic-1"))
        return self.drivers[-1]

    def pod(self, name, *claims):
        """A pod that the scheduler has placed; its claims exist from now on."""
        for claim in claims:
            if self.server.find("resourceclaims", claim, "default") is None:
                self.cluster.claim(claim, driver=NIC)
        pod = Pod.of(name, None, *claims)
        assert self.cluster.place(pod) == ""
        return pod

    def why(self, pod):
        """Why the container of a pod waits."""
        return pod.statuses["main"].message.removeprefix(
            "Failed to prepare dynamic resources: prepare dynamic resources: "
        )

    def saved(self):
        """The claims in the checkpoint."""
        content = json.loads((self.directory / "dra_manager_state").read_text())
        return json.loads(content["Data"])["ClaimInfoStateList"]


@pytest.fixture
async def make(directory):
    made: list[Node] = []

    async def make(**options: object) -> Node:
        made.append(Node(directory, **options))
        await made[-1].server.open()
        await made[-1].kubelet.start()
        return made[-1]

    yield make
    for node in made:
        await node.kubelet.kill()
        for driver in node.drivers:
            await driver.stop()
        await node.server.leave()


@pytest.fixture
async def node(make):
    return await make()


async def test_a_claim_is_prepared_before_and_unprepared_after_its_container(node):
    driver = await node.driver()
    pod = node.pod("p", "a")
    assert (await node.kubelet.run(pod)).phase is Phase.RUNNING
    assert node.kubelet.starts[-1].devices == {"claim:a": ("example.com/nic=a",)}
    assert (node.kubelet.calls[-1].method, node.kubelet.calls[-1].deadline) == ("NodePrepareResources", 45.0)
    await node.kubelet.restart_container(pod, "main")
    assert driver.asked == [("Prepare", ("a",))]  # once for the sandbox
    assert await node.kubelet.delete(pod)
    assert driver.asked[1:] == [("Unprepare", ("a",))]
    assert (node.kubelet.claims(), node.saved(), node.cluster.devices("a")) == ({}, [], [])


async def test_a_claim_is_written_down_before_the_driver_is_called(node):
    driver = await node.driver()
    driver.hold["Prepare"] = asyncio.Event()
    pod = node.pod("p", "a")
    running = asyncio.create_task(node.kubelet.run(pod))
    await node.kubelet.until(lambda: node.kubelet.calls[-1].method == "NodePrepareResources")
    (saved,) = node.saved()
    assert (saved["ClaimName"], list(saved["PodUIDs"])) == ("a", [pod.uid])
    assert saved["DriverState"] == {NIC: {"Devices": None}}
    driver.hold["Prepare"].set()
    await running
    assert node.saved()[0]["DriverState"][NIC]["Devices"][0]["CDIDeviceIDs"] == ["example.com/nic=a"]


async def test_a_failed_prepare_is_repeated_by_the_next_sync(node):
    driver = await node.driver()
    driver.fail["Prepare"] = "not yet"
    pod = node.pod("p", "a")
    await node.kubelet.run(pod)
    assert pod.statuses["main"].reason == "FailedPrepareDynamicResources"
    assert node.why(pod) == "NodePrepareResources failed for ResourceClaim a: not yet"

    async def repaired(_seconds: float) -> None:
        driver.fail.clear()

    await node.kubelet.keep_trying(pod, repaired)
    assert pod.phase is Phase.RUNNING
    assert driver.calls("Prepare") == [("a",)] * 3


async def test_a_failed_unprepare_keeps_the_claim(node):
    driver = await node.driver()
    pod = node.pod("p", "a")
    await node.kubelet.run(pod)
    driver.fail["Unprepare"] = "still in use"
    assert not await node.kubelet.delete(pod)
    assert pod.message.endswith("NodeUnprepareResources failed for ResourceClaim a: still in use")
    assert node.cluster.devices("a") == ["nic-0"]
    assert list(node.kubelet.claims()) == ["default/a"]
    driver.fail.clear()
    assert await node.kubelet.delete(pod)


async def test_the_last_pod_of_a_claim_ends_it(node):
    driver = await node.driver()
    pods = [node.pod(name, "a") for name in ("p", "q")]
    for pod in pods:
        await node.kubelet.run(pod)
    for pod in pods:
        assert driver.asked == [("Prepare", ("a",))]
        await node.kubelet.delete(pod)
    assert driver.calls("Unprepare") == [("a",)]


async def test_a_restarted_kubelet_has_forgotten_what_is_prepared(node):
    """It prepares a claim again for the next pod only: the sandbox of the first one still runs."""
    driver = await node.driver()
    await node.kubelet.run(first := node.pod("p", "a"))
    await node.kubelet.kill()
    await node.kubelet.start()
    await node.kubelet.driver_registered(NIC)
    assert list(node.kubelet.claims()) == ["default/a"]
    await node.kubelet.restart_container(first, "main")
    assert driver.calls("Prepare") == [("a",)]
    node.server.create("resourceslices", device_slice(NIC, "nic-0"))  # the start has deleted it
    await node.kubelet.run(node.pod("q", "a"))
    assert driver.calls("Prepare") == [("a",), ("a",)]
    assert len(node.saved()[0]["DriverState"][NIC]["Devices"]) == 2  # the kubelet appends


async def test_a_force_deleted_pod_frees_its_claim_while_it_runs(node):
    """The next Prepare comes before the last Unprepare."""
    driver = await node.driver()
    node.pod("other", "b")
    await node.kubelet.run(first := node.pod("p", "a"))
    await node.kubelet.force_delete(first)
    assert node.cluster.devices("a") == []
    await node.kubelet.run(node.pod("q", "c"))
    assert node.cluster.devices("c") == ["nic-1"]
    assert await node.kubelet.end_orphan(first)
    assert [method for method, _ in driver.asked] == ["Prepare", "Prepare", "Unprepare"]


async def test_a_claim_of_the_same_name_waits_for_the_old(node):
    driver = await node.driver()
    await node.kubelet.run(first := node.pod("p", "a"))
    uid = node.kubelet.claims()["default/a"]
    await node.kubelet.force_delete(first)
    node.server.delete("resourceclaims", "a", "default")
    await node.kubelet.run(second := node.pod("p", "a"))
    assert node.why(second) == (
        f"old ResourceClaim with same name a and different UID {uid} still exists (previous pod force-deleted?!)"
    )
    await node.kubelet.end_orphan(first)
    assert await node.kubelet.sync(second)
    assert [method for method, _ in driver.asked] == ["Prepare", "Unprepare", "Prepare"]


async def test_a_restarted_kubelet_gives_back_the_claims_of_vanished_pods(node):
    driver = await node.driver()
    await node.kubelet.run(pod := node.pod("p", "a"))
    assert await node.kubelet.reconcile() == []
    await node.kubelet.force_delete(pod)
    await node.kubelet.reboot()
    await node.kubelet.start()
    await node.kubelet.driver_registered(NIC)
    driver.fail["Unprepare"] = "not yet"
    assert len(await node.kubelet.reconcile()) == 1
    driver.fail.clear()
    assert await node.kubelet.reconcile() == []
    assert driver.calls("Unprepare") == [("a",), ("a",)]
    assert node.kubelet.claims() == {}


async def test_the_driver_decides_which_version_is_used(node):
    driver = DoNothingDriver("old.example.com", node.directory / "r/old-reg.sock")
    driver.versions = ["v2.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"]
    node.drivers.append(await driver.serve())
    await node.kubelet.until(lambda: driver.notified)
    assert driver.notified == [(True, "")]
    assert node.kubelet._life.claims.plugins.plugin("old.example.com").service == "v1beta1.DRAPlugin"
    other = DoNothingDriver("new.example.com", node.directory / "r/new-reg.sock")
    other.versions = ["v2.DRAPlugin"]
    node.drivers.append(await other.serve())
    await node.kubelet.until(lambda: other.notified)
    assert other.notified[0][0] is False
    assert other.notified[0][1].endswith(
        'none of services supported by the plugin (["v2.DRAPlugin"]) are supported by the kubelet'
        ' (["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
    )


async def test_the_newest_connected_instance_is_called(node):
    def endpoint() -> str:
        return str(node.kubelet._life.claims.plugins.plugin(NIC).endpoint)

    old = await node.driver()
    await node.kubelet.until(lambda: old.notified and endpoint() == str(old.sockets[0]))
    new = await node.driver(socket="new-reg.sock")
    await node.kubelet.until(lambda: endpoint() == str(new.sockets[0]))
    await node.kubelet.run(node.pod("p", "a"))
    assert (old.asked, new.asked) == ([], [("Prepare", ("a",))])
    await new.stop()
    await node.kubelet.until(lambda: endpoint() == str(old.sockets[0]))
    await node.kubelet.run(node.pod("q", "b"))
    assert old.asked == [("Prepare", ("b",))]


async def test_the_slices_of_a_lost_driver_are_deleted_once(make):
    node = await make(timing=Timing(slices_kept=0.05, slices_retry=0.01))
    driver = await node.driver()
    await driver.stop()
    await node.kubelet.until(lambda: not node.server.objects("resourceslices"))
    node.server.create("resourceslices", device_slice(NIC, "nic-0"))
    node.server.create("resourceslices", device_slice("other.example.com", "other-0"))
    await node.driver()
    assert len(node.server.objects("resourceslices")) == 2


async def test_a_starting_kubelet_deletes_all_slices_of_its_node(make):
    node = await make()
    await node.kubelet.kill()
    node.server.create("resourceslices", device_slice(NIC, "nic-0"))
    node.server.create("resourceslices", device_slice(NIC, "nic-0", node="node-2"))
    node.server.fault = on("DELETE resourceslices", lambda _: status(503, "ServiceUnavailable"), times=2)
    await node.kubelet.start()
    await node.server.until(lambda: len(node.server.objects("resourceslices")) == 1)
    assert node.server.objects("resourceslices")[0]["spec"]["nodeName"] == "node-2"


async def test_the_pods_status_shows_the_health_of_its_devices(node):
    driver = await node.driver()
    await node.kubelet.run(pod := node.pod("p", "a"))
    assert node.kubelet.device_health(pod) == {"example.com/nic=a": Health("Unknown")}
    device = drahealth_pb2.DeviceIdentifier(pool_name=POOL, device_name="nic-0")
    said = drahealth_pb2.DeviceHealth(device=device, health=drahealth_pb2.UNHEALTHY, message="too hot")
    driver.health.put_nowait([said])
    wanted = {"example.com/nic=a": Health("Unhealthy", "too hot")}
    await node.kubelet.until(lambda: node.kubelet.device_health(pod) == wanted)
    await driver.stop()
    await node.kubelet.until(lambda: node.kubelet.device_health(pod) == {"example.com/nic=a": Health("Unknown")})
