"""The kubelet's calls for claims, with the real scrub service. The test speaks for the API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from ground import paths
from plugin.cluster.report_choice import ReportChoice
from plugin.cluster.retry_loop import Failure, FailureKind
from plugin.devices import Device, MigStrategy, own_devices
from plugin.dra import dra_driver as dra
from plugin.dra.claim_devices import ClaimDevices
from plugin.dra.claim_pods import ClaimPods
from plugin.dra.config import DraConfig
from plugin.dra.dra_driver import DraDriver, OwnDevices
from plugin.dra.metrics import DraCounters
from plugin.kubelet_api import dra_pb2 as wire
from plugin.kubelet_api import dra_pb2_grpc, drahealth_pb2
from plugin.listing import Listing
from plugin.stopping import InFlight
from scrub_api import admin_client, client
from tests.patience import WITHIN
from tests.plugin.dra.live_driver import SOON, allocated, prepare, unprepare


class Cluster:
    """The API server's claims, and the kubelet's calls."""

    def __init__(self, listing: Listing, channel: grpc.aio.Channel) -> None:
        self.listing = listing
        self.channel = channel
        self.stub: Any = dra_pb2_grpc.DRAPluginStub(channel)
        self.claims: dict[str, dict[str, Any]] = {}

    async def claim(self, _namespace: str, name: str) -> dict[str, Any]:
        if name not in self.claims:
            raise Failure(FailureKind.MISSING, "cannot get resourceclaims, the object does not exist")
        return self.claims[name]

    def allocate(self, name: str, *indices: int, **more: Any) -> None:  # noqa: ANN401 - of the allocation
        """The scheduler has given these devices to a claim."""
        self.claims[name] = allocated(name, *(self.gpus()[index].uuid.lower() for index in indices), **more)

    async def prepare(self, name: str, within: float = WITHIN, uid: str = "") -> wire.NodePrepareResourceResponse:
        return await prepare(self.channel, name, within, uid)

    async def unprepare(self, name: str, within: float = WITHIN) -> str:
        return await unprepare(self.channel, name, within)

    async def owners(self, *wanted: str) -> None:
        """Wait until the devices have these owners."""
        async with asyncio.timeout(WITHIN):
            while [device.owner for device in self.gpus()] != list(wanted):
                await self.listing.until_differs(self.listing.current())

    def gpus(self) -> list[Device]:
        return sorted(self.listing.current() or (), key=lambda device: device.index)


@asynccontextmanager
async def serving(service, folder) -> AsyncIterator[Cluster]:
    """A driver on a socket, and a channel to it."""
    chosen = DraConfig(cluster=ReportChoice(node="node-1"))
    async with client.ScrubberClient(paths.scrubber_socket(service.run_dir)) as scrubber:
        listing = Listing(scrubber, own_devices("nvidia.com", MigStrategy.MIXED))
        following = asyncio.create_task(listing.follow())
        await listing.until_known()
        async with grpc.aio.insecure_channel(f"unix:{folder}/dra.sock") as channel:
            cluster = Cluster(listing, channel)
            server = grpc.aio.server()
            counters = DraCounters(CollectorRegistry())
            claim_devices = ClaimDevices(scrubber, listing)
            source: Any = cluster
            pods = ClaimPods(source, scrubber, listing)
            driver = DraDriver(chosen, listing, claim_devices, pods, InFlight(), OwnDevices(chosen), counters)
            server.add_generic_rpc_handlers(tuple(dra.handlers(driver)))
            server.add_insecure_port(f"unix:{folder}/dra.sock")
            await server.start()
            yield cluster
            await server.stop(None)
        following.cancel()


@pytest.fixture
async def cluster(service, short_tmp):
    async with serving(service, short_tmp) as cluster:
        yield cluster


async def test_a_claim_gets_clean_devices_and_gives_them_back_clean(cluster):
    cluster.allocate("a", 0, 1)
    answer = await cluster.prepare("a")
    assert answer.error == ""
    gpus = cluster.gpus()
    assert [list(device.cdi_device_ids) for device in answer.devices] == [[f"nvidia.com/gpu={it.uuid}"] for it in gpus]
    assert {(device.pool_name, *device.request_names) for device in answer.devices} == {("node-1", "gpus")}
    await cluster.owners("uid-a", "uid-a")
    assert await cluster.prepare("a") == answer  # the kubelet asks again
    assert await cluster.unprepare("a") == ""
    assert all(device.clean for device in cluster.listing.current())
    assert await cluster.unprepare("a") == ""


@pytest.mark.parametrize("wrong", [{"uid": ""}, {"uid": " "}, {"name": "../a"}, {"namespace": "default/x"}])
async def test_a_claim_that_cannot_be_takes_and_gives_back_nothing(cluster, service, wrong):
    """To the service, a free device and a device that was acquired for no owner have the owner ''."""
    cluster.allocate("a", 0, 1)
    async with client.ScrubberClient(paths.scrubber_socket(service.run_dir)) as scrubber:
        uuids = [device.uuid for device in cluster.gpus()]
        await scrubber.acquire(uuids, exclusive=True)
        claim = wire.Claim(**{"namespace": "default", "name": "a", "uid": "uid-a", **wrong})
        ended = await cluster.stub.NodeUnprepareResources(wire.NodeUnprepareResourcesRequest(claims=[claim]))
        assert "that no claim can have" in ended.claims[claim.uid].error
        assert await scrubber.release(uuids) == set(uuids)


async def test_the_end_of_a_short_claim_waits_for_its_scrub(cluster, service):
    """The list of the service may still show the device as clean, as it was before the claim."""
    async with admin_client.AdminClient(paths.admin_socket(service.run_dir)) as admin:
        for _ in range(5):
            cluster.allocate("a", 0, 1)
            await cluster.prepare("a")
            assert await cluster.unprepare("a") == ""
            assert {device.state for device in (await admin.status()).devices} == {"clean"}


async def test_without_the_service_no_claim_is_prepared_or_given_back(cluster, service):
    cluster.allocate("a", 0)
    await cluster.prepare("a")
    cluster.allocate("b", 1)
    await asyncio.to_thread(service.stop)
    cluster.listing.distrust()
    # And no path of the node.
    no_answer = "autoclave: the scrub service of this node does not answer; on its node, `autoclave doctor` says why"
    assert (await cluster.prepare("b", SOON)).error == no_answer
    assert await cluster.unprepare("a", SOON) == no_answer
    await asyncio.to_thread(service.start)


async def test_a_claim_of_the_same_name_is_another_claim(cluster):
    cluster.allocate("a", 0)
    assert "another UID" in (await cluster.prepare("a", uid="uid-of-an-older-claim")).error


@pytest.mark.parametrize(
    ("pods", "consumer", "more", "why"),
    [
        (["pod-1"], None, {"shareID": "0f5b4c5e"}, "the claim default/a shares {} with other claims"),
        (["pod-1"], "podgroups", {}, "the claim default/a is reserved for podgroups/all, whose pods are not known"),
        ([], None, {}, "the claim default/a is reserved for no pod"),
    ],
    ids=["shared with other claims", "for a group of pods", "for nobody"],
)
async def test_a_claim_whose_pods_are_unknown_is_refused(cluster, pods, consumer, more, why):
    cluster.allocate("a", 0, pods=pods, **more)
    if consumer is not None:
        reserved = {"apiGroup": "scheduling.k8s.io", "resource": consumer, "name": "all", "uid": "uid-all"}
        cluster.claims["a"]["status"]["reservedFor"].append(reserved)
    error = (await cluster.prepare("a")).error
    assert error.startswith(f"autoclave: {why.format(cluster.gpus()[0].uuid.lower())}")
    await cluster.owners("", "")


async def test_a_missing_claim_gets_no_device(cluster):
    assert (await cluster.prepare("missing", SOON)).error == (
        "autoclave: the DRA driver could not read the ResourceClaim default/missing, and the kubelet asks again after"
        " 60 to 90 s: cannot get resourceclaims, the object does not exist"
    )


async def test_admin_access_takes_no_device(cluster):
    cluster.allocate("a", 0)
    await cluster.prepare("a")
    cluster.allocate("admin", 0, adminAccess=True)
    answer = await cluster.prepare("admin")
    assert [list(device.cdi_device_ids) for device in answer.devices] == [[f"nvidia.com/gpu={cluster.gpus()[0].uuid}"]]
    assert await cluster.unprepare("admin") == ""
    await cluster.owners("uid-a", "")


async def test_an_older_kubelet_is_answered(cluster):
    call = cluster.channel.unary_unary(
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        wire.NodePrepareResourcesRequest.SerializeToString,
        wire.NodePrepareResourcesResponse.FromString,
    )
    assert await call(wire.NodePrepareResourcesRequest(), timeout=WITHIN) == wire.NodePrepareResourcesResponse()


@pytest.mark.parametrize("version", ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"])
async def test_the_kubelet_learns_the_health_of_each_device(cluster, version):
    watch = cluster.channel.unary_stream(
        f"/{version}/NodeWatchResources",
        drahealth_pb2.NodeWatchResourcesRequest.SerializeToString,
        drahealth_pb2.NodeWatchResourcesResponse.FromString,
    )
    stream = watch(drahealth_pb2.NodeWatchResourcesRequest())
    message = await stream.read()
    healths = {(it.device.pool_name, it.device.device_name): it.health for it in message.devices}
    names = {("node-1", device.uuid.lower()) for device in cluster.listing.current()}
    assert healths == dict.fromkeys(names, drahealth_pb2.HEALTHY)
    stream.cancel()
