"""In front of a vendor's driver, with the real scrub service. The test speaks for kubelet, API server and vendor."""

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from ground import paths
from ground.errors import VENDOR_LOG
from plugin.cluster.report_choice import ReportChoice
from plugin.cluster.retry_loop import Failure, FailureKind
from plugin.dra import dra_driver, driver_process
from plugin.dra.config import VENDOR_DRIVER, DraConfig
from plugin.dra.vendor import vendor_devices as vendor
from plugin.kubelet_api import drahealth_pb2, drahealth_pb2_grpc, pluginregistration_pb2_grpc
from plugin.kubelet_api import pluginregistration_pb2 as registration
from plugin.registration import sockets
from plugin.registration.sockets import FileWatch
from plugin.stopping import InFlight
from scrub_api import admin_client
from tests.patience import WITHIN
from tests.plugin.dra.live_driver import allocated, prepare, unprepare
from tests.plugin.dra.vendor_driver import UNKNOWN_FIELD, VendorDriver

SOON = dra_driver.MARGIN + vendor.VendorDevices.seconds + 0.2  # seconds of a call that has no time to wait


GPU_0 = drahealth_pb2.DeviceIdentifier(pool_name="node-1", device_name="gpu-0")


class Cluster:
    """Claims and slices in the API server, and the kubelet of the node."""

    def __init__(self, service, folder) -> None:
        self.folder = folder
        self.service = service
        self.gpus = [service.settled(index, "clean").device for index in range(2)]
        self.claims: dict[str, dict[str, Any]] = {}
        self.unreadable = False
        self.attributes = [{"type": {"string": "gpu"}, "uuid": {"string": uuid}} for uuid in self.gpus]
        self.vendor = VendorDriver(folder / "vendor", folder / "plugins", folder / "cdi")
        self.registry = folder / "registry"
        self.chosen = DraConfig(
            driver=VENDOR_DRIVER,
            plugins_dir=folder / "plugins",
            registry_dir=self.registry,
            vendor_registry_dir=folder / "vendor",
            cdi_dirs=(folder / "cdi",),
            run_dir=service.run_dir,
            cluster=ReportChoice(node="node-1"),
        )
        self.watch = FileWatch(self.registry)
        self.called = VENDOR_DRIVER  # the socket that the kubelet has chosen
        self.programs: list[asyncio.Task[None]] = []

    # -- the API server

    async def claim(self, _namespace, name):
        self._demand_readable()
        return self.claims[name]

    async def claim_changes(self, namespace, name):
        yield await self.claim(namespace, name)
        await asyncio.Event().wait()

    async def claim_places(self, uids):
        return {uid: ("default", uid) for uid in uids}

    async def slices_of(self, name):
        self._demand_readable()
        devices = [{"name": f"gpu-{number}", "attributes": it} for number, it in enumerate(self.attributes)]
        pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
        return [{"spec": {"driver": name, "nodeName": "node-1", "pool": pool, "devices": devices}}]

    def _demand_readable(self) -> None:
        if self.unreadable:
            raise Failure(FailureKind.AWAY, "the API server did not answer within 5 s")

    def allocate(self, name, *indices, **more):
        """The scheduler gives these devices to a claim, and the vendor's driver hands out the same."""
        devices = (f"gpu-{index}" for index in indices)
        self.claims[name] = allocated(name, *devices, driver=VENDOR_DRIVER, uid=name, **more)
        self.vendor.gives[name] = [self.gpus[index] for index in indices if index < len(self.gpus)]

    # -- the kubelet

    async def until_shown(self, *names):
        """Wait until the registry has these sockets and no others."""
        wanted = {f"autoclave-{name}-reg.sock" for name in names}
        async with asyncio.timeout(WITHIN):
            await self.watch.until(lambda: {it.name for it in self.registry.glob("[!.]*")} == wanted)

    @asynccontextmanager
    async def registrar(self):
        """The registration socket of Autoclave."""
        async with asyncio.timeout(WITHIN):
            await self.watch.until((self.registry / f"autoclave-{self.called}-reg.sock").exists)
        async with grpc.aio.insecure_channel(f"unix:{self.registry}/autoclave-{self.called}-reg.sock") as channel:
            yield pluginregistration_pb2_grpc.RegistrationStub(channel)

    @asynccontextmanager
    async def channel(self):
        """To what the kubelet calls for claims."""
        async with self.registrar() as registrar:
            info = await registrar.GetInfo(registration.InfoRequest(), timeout=WITHIN)
        async with grpc.aio.insecure_channel(f"unix:{info.endpoint}") as channel:
            yield channel

    async def prepare(self, name, within=WITHIN):
        async with self.channel() as channel:
            return await prepare(channel, name, within, uid=name)

    async def unprepare(self, name, within=WITHIN):
        async with self.channel() as channel:
            return await unprepare(channel, name, within, uid=name)

    async def healths(self):
        """The first message about the health of devices."""
        async with self.channel() as channel:
            health = drahealth_pb2_grpc.DRAResourceHealthStub(channel)
            stream = health.NodeWatchResources(drahealth_pb2.NodeWatchResourcesRequest())
            message = await stream.read()
            stream.cancel()
            return message

    # -- the node

    async def states(self):
        """Of each device, as soon as no scrub runs."""
        devices = [await asyncio.to_thread(self.service.settled, index, "granted", "clean") for index in range(2)]
        return [device.state for device in devices]

    def start_ours(self, instance=""):
        work = driver_process._work(replace(self.chosen, instance=instance), self.folder, InFlight())
        self.programs.append(asyncio.create_task(work))

    async def stop_ours(self):
        for program in self.programs:
            program.cancel()
        await asyncio.wait(self.programs)
        self.programs.clear()


@pytest.fixture
async def cluster(service, short_tmp, monkeypatch):
    for name in ("vendor", "plugins", "registry", "cdi", "plugins/autoclave"):
        (short_tmp / name).mkdir()
    cluster = await asyncio.to_thread(Cluster, service, short_tmp)
    monkeypatch.setattr("plugin.dra.driver_process.connect", lambda *_: cluster)
    monkeypatch.setattr(vendor, "LISTED_WITHIN", 0.0)
    monkeypatch.setattr(sockets, "POLL_EVERY", 6 * WITHIN)
    watching = asyncio.create_task(cluster.watch.run())
    await cluster.vendor.serve()
    cluster.start_ours()
    yield cluster
    await cluster.stop_ours()
    await cluster.vendor.kill()
    watching.cancel()


async def test_the_vendor_answers_for_devices_that_the_claim_has_clean(cluster):
    cluster.allocate("a", 0, 1)
    answer = await cluster.prepare("a")
    assert answer.error == ""
    assert [list(it.cdi_device_ids) for it in answer.devices] == [["k8s.gpu.nvidia.com/claim=a-gpu"]]
    assert UNKNOWN_FIELD in answer.SerializeToString()
    assert await cluster.states() == ["granted", "granted"]
    assert await cluster.prepare("a") == answer  # the kubelet asks again
    assert await cluster.unprepare("a") == ""
    assert await cluster.states() == ["clean", "clean"]
    assert cluster.vendor.asked == [("Prepare", ("a",)), ("Prepare", ("a",)), ("Unprepare", ("a",))]


async def test_a_claims_pods_are_let_in_behind_autoclave(cluster, service):
    cluster.allocate("a", 0, pods=("pod-a", "pod-b"))
    assert (await cluster.prepare("a")).error == ""
    async with admin_client.AdminClient(paths.admin_socket(service.run_dir)) as admin:
        rows = await admin.history(cluster.gpus[0])
    assert "its claim is reserved for 2 pods: pod-a, pod-b" in [row.text for row in rows]


async def test_the_vendor_gets_a_claim_after_the_one_before(cluster):
    """After a force delete, the kubelet prepares the next claim before it unprepares the last one."""
    cluster.allocate("a", 0)
    cluster.allocate("b", 0)
    await cluster.prepare("a")
    said = (await cluster.prepare("b", SOON)).error
    assert re.search("still belongs to another claim|is granted", said)  # by the driver's list, or by the service
    waiting = asyncio.create_task(cluster.prepare("b"))
    assert await cluster.unprepare("a") == ""
    assert (await waiting).error == ""
    assert cluster.vendor.asked == [("Prepare", ("a",)), ("Unprepare", ("a",)), ("Prepare", ("b",))]
    assert await cluster.unprepare("a") == ""  # a repeated call takes nothing from the next claim
    assert await cluster.states() == ["granted", "clean"]


async def test_a_vendors_error_keeps_the_devices_for_the_claim(cluster):
    cluster.allocate("a", 0)
    cluster.allocate("b", 0)
    cluster.vendor.fail = dict.fromkeys(("Prepare", "Unprepare"), "no\nMPS daemon")
    with capture_logs() as logs:
        assert (await cluster.prepare("a")).error == "no MPS daemon"
        assert await cluster.unprepare("a") == "no MPS daemon"
    refusals = [(line["call"], line["error"]) for line in logs if line["event"] == "claim refused"]
    assert refusals == [("prepare", "no MPS daemon"), ("unprepare", "no MPS daemon")]
    cluster.vendor.fail = {}
    assert (await cluster.prepare("b", SOON)).error
    assert await cluster.unprepare("a") == ""
    assert await cluster.states() == ["clean", "clean"]


async def test_a_vendor_that_does_not_answer_fails_the_call(cluster):
    cluster.allocate("a", 0)
    await cluster.prepare("a")
    cluster.vendor.hold["Unprepare"] = asyncio.Event()
    silent = "autoclave: the driver gpu.nvidia.com did not answer: DEADLINE_EXCEEDED"
    assert await cluster.unprepare("a", SOON) == f"{silent}; {VENDOR_LOG}"
    assert await cluster.states() == ["granted", "clean"]


async def test_an_answer_that_gives_away_another_device_is_refused(cluster):
    cluster.allocate("a", 0)
    cluster.vendor.gives["a"] = cluster.gpus
    answer = await cluster.prepare("a")
    assert cluster.gpus[1].lower() in answer.error
    assert not answer.devices


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"type": {"string": "mig"}, "parentUUID": {"string": "GPU-0"}}, "gpu-0 has no UUID in its ResourceSlice"),
        ({"type": {"string": "vfio"}, "uuid": {"string": "GPU-0"}}, "gpu-0 is of the type 'vfio'"),
        ({"uuid": {"string": "GPU-0000"}}, "gpu-0000 is not a device of this node"),
    ],
    ids=["on-demand", "vfio", "unknown"],
)
async def test_a_device_that_cannot_be_proven_clean_is_refused(cluster, attributes, why):
    cluster.attributes[0] = attributes
    cluster.allocate("a", 0)
    assert why in (await cluster.prepare("a")).error
    assert cluster.vendor.asked == []


async def test_a_device_in_no_resource_slice_is_refused(cluster):
    cluster.allocate("a", 7)
    assert "no ResourceSlice of gpu.nvidia.com on this node has the device gpu-7" in (await cluster.prepare("a")).error
    cluster.unreadable = True
    assert "the API server did not answer" in (await cluster.prepare("a")).error
    assert cluster.vendor.asked == []


async def test_a_claim_can_end_while_the_api_server_is_away(cluster):
    cluster.allocate("a", 0)
    await cluster.prepare("a")
    cluster.unreadable = True
    assert await cluster.unprepare("a") == ""
    assert await cluster.states() == ["clean", "clean"]


async def test_the_kubelet_registers_autoclave_as_the_vendor(cluster):
    async with cluster.registrar() as registrar:
        info = await registrar.GetInfo(registration.InfoRequest(), timeout=WITHIN)
        assert (info.type, info.name) == ("DRAPlugin", VENDOR_DRIVER)
        assert info.endpoint != str(cluster.vendor.service)
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", *dra_driver.HEALTHS]
        status = registration.RegistrationStatus(plugin_registered=True)
        await registrar.NotifyRegistrationStatus(status, timeout=WITHIN)
        refused = registration.RegistrationStatus(error="the versions differ")
        with pytest.raises(grpc.aio.AioRpcError, match="failed registration process"):
            await registrar.NotifyRegistrationStatus(refused, timeout=WITHIN)
    assert cluster.vendor.notified == [(True, ""), (False, "the versions differ")]


async def test_registrations_of_other_drivers_stay_unchanged(cluster):
    other = VendorDriver(
        cluster.folder / "vendor", cluster.folder / "plugins", cluster.folder, "compute-domain.nvidia.com"
    )
    await other.serve()
    await cluster.until_shown(VENDOR_DRIVER, other.name)
    async with grpc.aio.insecure_channel(f"unix:{cluster.registry}/autoclave-{other.name}-reg.sock") as channel:
        registrar = pluginregistration_pb2_grpc.RegistrationStub(channel)
        assert await registrar.GetInfo(registration.InfoRequest(), timeout=WITHIN) == registration.PluginInfo(
            type="DRAPlugin", name=other.name, endpoint=str(other.service), supported_versions=other.versions
        )
        status = registration.RegistrationStatus(plugin_registered=True)
        await registrar.NotifyRegistrationStatus(status, timeout=WITHIN)
    assert other.notified == [(True, "")]
    await other.stop()
    await cluster.until_shown(VENDOR_DRIVER)


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_the_kubelet_loses_autoclave_together_with_the_vendor(cluster, end):
    cluster.allocate("a", 0)
    await cluster.prepare("a")
    await getattr(cluster.vendor, end)()
    await cluster.until_shown()
    await cluster.vendor.serve()
    await cluster.until_shown(VENDOR_DRIVER)
    assert await cluster.unprepare("a") == ""
    assert await cluster.states() == ["clean", "clean"]


async def test_a_claim_ends_after_restarts_of_driver_and_service(cluster, service):
    cluster.allocate("a", 0)
    answer = await cluster.prepare("a")
    await cluster.stop_ours()
    service.kill()
    await asyncio.to_thread(service.start)
    cluster.start_ours()
    assert await cluster.prepare("a") == answer
    assert await cluster.unprepare("a") == ""
    assert await cluster.states() == ["clean", "clean"]


async def test_old_and_new_driver_answer_alike_during_an_update(cluster):
    """The kubelet calls one of two, and no rule says which."""
    cluster.allocate("a", 0)
    answer = await cluster.prepare("a")
    cluster.start_ours("next")
    await cluster.until_shown(VENDOR_DRIVER, f"{VENDOR_DRIVER}-next")
    cluster.called = f"{VENDOR_DRIVER}-next"
    assert await cluster.prepare("a") == answer
    assert await cluster.unprepare("a") == ""
    assert await cluster.states() == ["clean", "clean"]


async def test_health_has_the_names_of_the_vendor(cluster):
    message = await cluster.healths()
    healths = {(it.device.pool_name, it.device.device_name): it.health for it in message.devices}
    assert healths == dict.fromkeys([("node-1", "gpu-0"), ("node-1", "gpu-1")], drahealth_pb2.HEALTHY)


async def test_health_that_the_vendor_reports_is_handed_on(cluster):
    await cluster.vendor.stop()
    cluster.vendor.versions.append("v1alpha1.DRAResourceHealth")
    cluster.vendor.health.put_nowait([drahealth_pb2.DeviceHealth(device=GPU_0, message="of the vendor")])
    await cluster.vendor.serve()
    message = await cluster.healths()
    assert [it.message for it in message.devices] == ["of the vendor"]
