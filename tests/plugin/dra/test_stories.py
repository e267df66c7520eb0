"""Pods with claims: the real driver and scrub service as processes, between stand-ins for kubelet and cluster.

Containers are processes that write the mark of their pod into the memory of their GPUs.
"""

import asyncio

import pytest

from demo.containers import ContainerRunner, mark
from demo.standins import http_api
from demo.standins.api_server import CLAIMS
from demo.standins.cluster import KUBELET, Cluster
from demo.standins.do_nothing_driver import NIC, DoNothingDriver, device_slice
from demo.standins.kubelet import Kubelet, NotRunning
from demo.standins.pods import Phase, Pod
from plugin.dra.config import DRIVER
from scrubber.devices.simulated import drills, layout
from tests.patience import WITHIN
from tests.plugin.dra.live_driver import NODE

GPUS = 2


class Node:
    """A kubelet whose pods get both GPUs by one claim."""

    def __init__(self, root, service, api) -> None:
        self.root, self.service, self.api = root, service, api
        (root / "registry").mkdir(exist_ok=True)
        self.uuids = [place.info().uuid for place in layout.places(service.simulated_dir)]
        self.containers = ContainerRunner(service.simulated_dir)
        self.cluster = Cluster(api, NODE)
        self.kubelet = Kubelet(root, self.containers, registry=root / "registry", cluster=self.cluster)

    async def ready(self):
        """The kubelet knows the driver, and the scheduler both GPUs."""
        await self.kubelet.driver_registered(DRIVER, WITHIN)
        await self.api.until(lambda: sum(self.cluster.offered(DRIVER).values()) == GPUS, WITHIN)

    def placed(self, name, claim=""):
        """A pod that the scheduler has placed."""
        claim = claim or name
        if self.api.find(CLAIMS, claim, "default") is None:
            self.cluster.claim(claim, driver=DRIVER, count=GPUS)
        pod = Pod.of(name, None, claim)
        assert self.cluster.place(pod) == ""
        return pod

    async def calling(self, method):
        """Wait until the kubelet waits for this call."""
        await self.kubelet.until(lambda: [call.method for call in self.kubelet.calls if not call.outcome] == [method])

    async def restart(self):
        """Kill the kubelet, and start it."""
        await self.kubelet.kill()
        await self.kubelet.start()
        await self.kubelet.driver_registered(DRIVER, WITHIN)

    def marks(self, pod):
        """How often the mark of a pod is in the memory of the GPUs."""
        simulated = self.service.simulated_dir
        return sum(drills.scan(simulated, gpu, mark(pod.uid).encode()) for gpu in self.uuids)

    def stall(self):
        for gpu in self.uuids:
            drills.stall_clears(self.service.simulated_dir, gpu)

    def heal(self):
        for gpu in self.uuids:
            drills.heal(self.service.simulated_dir, gpu)

    async def restart_service(self):
        """Kill the service, end the stalls, and start the service."""
        self.service.kill()
        self.heal()
        await asyncio.to_thread(self.service.start)


@pytest.fixture
async def node(short_tmp, service, api):
    node = Node(short_tmp, service, api)
    yield node
    await node.kubelet.kill()
    await node.containers.clear_away()


async def test_no_device_is_offered_before_the_kubelet_knows_the_driver(node, live_driver):
    """A pod that comes earlier would wait for more than a minute."""
    driver = await live_driver()
    await driver.hear("devices known")
    for _ in range(20):  # enough turns of the driver for a request to the API server
        status, why = await driver.ready()
        assert (status, "not registered" in why) == (503, True)
    assert [request.about for request in node.api.requests if request.agent != KUBELET] == []
    await node.kubelet.start()
    await node.ready()


async def test_a_claim_gets_its_devices_despite_kills(node, live_driver):
    """The end of the claim before was answered before its devices were clean: the next Prepare waits for them."""
    await live_driver("--clean-within", 0)
    await node.kubelet.start()
    await node.ready()
    await node.kubelet.run(first := node.placed("first"))
    left = node.marks(first)
    node.stall()
    assert await node.kubelet.delete(first)
    assert 0 < node.marks(first) <= left  # a clear that has begun stops in the middle
    second = node.placed("second")
    running = asyncio.create_task(node.kubelet.run(second))
    await node.calling("NodePrepareResources")
    await node.restart()
    with pytest.raises(NotRunning):
        await running
    running = asyncio.create_task(node.kubelet.sync(second))
    await node.calling("NodePrepareResources")
    await node.restart_service()
    assert await running, second.statuses["main"].message
    assert node.marks(first) == 0
    assert node.marks(second) > 0


async def test_d1_a_pod_keeps_its_claim_after_an_early_unprepare(node, live_driver):
    """Fault D1: another pod, with a new claim of the same name, was refused and is deleted."""
    driver = await live_driver()
    await node.kubelet.start()
    await node.ready()
    await node.kubelet.run(first := node.placed("first", "claim"))
    written = node.marks(first)
    await node.kubelet.force_delete(first)
    node.api.delete(CLAIMS, "claim", "default")
    await node.kubelet.run(second := node.placed("second", "claim"))
    assert "old ResourceClaim with same name" in second.statuses["main"].message
    deleting = asyncio.create_task(node.kubelet.delete(second))
    refused = await driver.hear("not free yet")
    assert (refused["reason"], node.marks(first)) == ("in-use", written)
    assert await node.kubelet.end_orphan(first)
    assert await deleting


async def test_an_error_of_another_driver_leaves_no_device_behind(node, live_driver):
    await live_driver()
    await node.kubelet.start()
    await node.ready()
    nic = await DoNothingDriver(NIC, node.root / "registry" / f"{NIC}-reg.sock").serve()
    await node.kubelet.driver_registered(NIC, WITHIN)
    node.api.create("resourceslices", device_slice(NIC, "nic-0"))
    nic.fail["Prepare"] = "no link"
    node.cluster.claim_requests("both", {"gpus": (DRIVER, GPUS, False), "nic": (NIC, 1, False)})
    await node.kubelet.run(pod := node.placed("pod", "both"))
    assert "no link" in pod.statuses["main"].message
    assert await node.kubelet.delete(pod)
    assert nic.calls("Unprepare") == [("both",)]
    await node.kubelet.run(following := node.placed("following"))
    assert following.phase is Phase.RUNNING
    await nic.stop()


async def test_only_the_prepare_of_a_claim_needs_the_api_server(node, live_driver):
    """The kubelet repeats a refused Prepare only after a minute: it waits until the API server shows the claim."""
    await live_driver()
    await node.kubelet.start()
    await node.ready()
    refusals = iter([http_api.status(code, "x") for code in (403, 404, 503)])
    read = http_api.on("GET resourceclaims", lambda _: next(refusals, None))
    node.api.fault = lambda request: None if request.agent == KUBELET else read(request)
    await node.kubelet.run(pod := node.placed("pod"))
    assert pod.status.phase is Phase.RUNNING, pod.statuses["main"].message
    assert next(refusals, None) is None
    await node.api.close()
    assert await node.kubelet.delete(pod)
    assert node.marks(pod) == 0
