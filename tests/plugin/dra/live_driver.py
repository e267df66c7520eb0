"""The real DRA driver as a process of its own. The test speaks for the kubelet and the API server."""

import sys
from collections.abc import Collection
from typing import Any

import grpc.aio

from demo.standins.api_server import CLAIMS, ApiServer
from plugin.dra.config import DRIVER
from plugin.dra.dra_driver import MARGIN
from plugin.kubelet_api import dra_pb2 as wire
from plugin.kubelet_api import dra_pb2_grpc, pluginregistration_pb2, pluginregistration_pb2_grpc
from tests.patience import WITHIN
from tests.plugin.live_plugin import Plugin, until_files
from tests.plugin.scraping import get, scrape

NODE = "node-1"
POD = "pod-1"  # the UID of the pod of a claim
SOON = MARGIN + 0.2  # seconds of a call that has no time to wait


def allocated(
    name: str, *devices: str, driver: str = DRIVER, uid: str = "", pods: Collection[str] = (POD,), **more: object
) -> dict[str, Any]:
    """A claim to which the scheduler has given these devices, for these pods."""
    results = [{"driver": driver, "pool": NODE, "request": "gpus", "device": device, **more} for device in devices]
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"}
    allocation = {"devices": {"results": results}}
    reserved = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    return {
        "kind": "ResourceClaim", "metadata": metadata, "status": {"allocation": allocation, "reservedFor": reserved}
    }  # fmt: skip


def allocate(api: ApiServer, name: str, *devices: str) -> None:
    """Put such a claim into the API server."""
    api.put(CLAIMS, allocated(name, *map(str.lower, devices)))


async def prepare(
    channel: grpc.aio.Channel, name: str, within: float = WITHIN, uid: str = ""
) -> wire.NodePrepareResourceResponse:
    """As the kubelet does for a claim."""
    claim = wire.Claim(namespace="default", name=name, uid=uid or f"uid-{name}")
    stub: Any = dra_pb2_grpc.DRAPluginStub(channel)
    answer = await stub.NodePrepareResources(wire.NodePrepareResourcesRequest(claims=[claim]), timeout=within)
    found: wire.NodePrepareResourceResponse = answer.claims[claim.uid]
    return found


async def unprepare(channel: grpc.aio.Channel, name: str, within: float = WITHIN, uid: str = "") -> str:
    """The same at the end of the claim; the text of the error."""
    claim = wire.Claim(namespace="default", name=name, uid=uid or f"uid-{name}")
    stub: Any = dra_pb2_grpc.DRAPluginStub(channel)
    answer = await stub.NodeUnprepareResources(wire.NodeUnprepareResourcesRequest(claims=[claim]), timeout=within)
    error: str = answer.claims[claim.uid].error
    return error


class LiveDriver(Plugin):
    """``autoclave dra`` on the directories of a test."""

    def __init__(self, root, kubeconfig, *flags: object) -> None:
        super().__init__(root, KUBECONFIG=str(kubeconfig), NODE_NAME=NODE)
        self.root = root
        for name in ("plugins", "registry"):
            (root / name).mkdir(exist_ok=True)
        self.command = [
            sys.executable, "-m", "autoclave", "dra", "--log-format", "json", "--metrics-address", "127.0.0.1:0",
            "--plugins-dir", f"{root}/plugins", "--registry-dir", f"{root}/registry", "--run-dir", f"{root}/run",
            *map(str, flags),
        ]  # fmt: skip

    async def address(self):
        return (await self.hear("showing metrics"))["address"]

    async def scrape(self):
        return await scrape(await self.address())

    async def ready(self):
        return await get(await self.address(), "/readyz")

    async def register(self):
        """As the kubelet does when it has found the socket."""
        async with grpc.aio.insecure_channel(f"unix:{await self.socket('registry')}") as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            await stub.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=WITHIN, wait_for_ready=True)
            done = pluginregistration_pb2.RegistrationStatus(plugin_registered=True)
            await stub.NotifyRegistrationStatus(done, timeout=WITHIN)
        await self.hear("registered")

    async def socket(self, folder):
        """The socket of this process, as soon as it is there."""
        await until_files(lambda: any((self.root / folder).glob("[!.]*.sock")), self.root / folder)
        [found] = (self.root / folder).glob("[!.]*.sock")
        return found

    async def call(self, call, name, within=WITHIN):
        """Prepare or unprepare one claim; the text of the error."""
        async with grpc.aio.insecure_channel(f"unix:{await self.socket(f'plugins/{DRIVER}')}") as channel:
            if call == "prepare":
                return (await prepare(channel, name, within)).error
            return await unprepare(channel, name, within)
