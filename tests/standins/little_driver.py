# ruff: noqa: ARG002, N802 - the proto names the methods and what they are given
"""A DRA driver that does nothing: it says yes, unless the test says otherwise."""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio

from plugin.kubelet_api import dra_pb2 as wire
from plugin.kubelet_api import dra_pb2_grpc, drahealth_pb2, drahealth_pb2_grpc, pluginregistration_pb2_grpc
from plugin.kubelet_api import pluginregistration_pb2 as registration

NIC = "nic.example.com"
POOL = "node-1"


def device_slice(driver, *devices, node=POOL, taints=()):
    """A slice with these devices, for the API server."""
    listed = [{"name": name, **({"taints": TAINTS} if name in taints else {})} for name in devices]
    its = {"driver": driver, "nodeName": node, "pool": {"name": node}, "devices": listed}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": its}


TAINTS = [{"key": "example.com/sick", "effect": "NoSchedule"}]


class LittleDriver(
    dra_pb2_grpc.DRAPluginServicer,
    pluginregistration_pb2_grpc.RegistrationServicer,
    drahealth_pb2_grpc.DRAResourceHealthServicer,
):
    """Its knobs are its attributes. One socket, in the registry, is for all calls."""

    def __init__(self, registry, name=NIC, socket="") -> None:
        self.name, self.path = name, Path(registry) / (socket or f"{name}-reg.sock")
        self.versions = ["v1.DRAPlugin"]
        self.fail: dict[str, str] = {}  # method to the error of each claim
        self.hold: dict[str, asyncio.Event] = {}  # method to what it waits for
        self.skips = self.invents = False  # answer for no claim, for a claim that was not in the request
        self.asked: list[tuple[str, tuple[str, ...]]] = []  # method and the names of the claims
        self.notified: list[tuple[bool, str]] = []
        self.health: asyncio.Queue[list[drahealth_pb2.DeviceHealth]] = asyncio.Queue()
        self.server: grpc.aio.Server | None = None

    async def serve(self):
        self.server = grpc.aio.server()
        dra_pb2_grpc.add_DRAPluginServicer_to_server(self, self.server)
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, self.server)
        drahealth_pb2_grpc.add_DRAResourceHealthServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.path}")
        await self.server.start()
        return self

    async def stop(self):
        """End the server; its socket goes, too."""
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    def calls(self, method):
        """The claims of each call of a method."""
        return [names for asked, names in self.asked if asked.endswith(method)]

    async def GetInfo(self, request, context):
        return registration.PluginInfo(type="DRAPlugin", name=self.name, supported_versions=self.versions)

    async def NotifyRegistrationStatus(self, request, context):
        self.notified.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(self, request, context):
        answer = wire.NodePrepareResourcesResponse()
        for uid, name, error in await self._said("Prepare", request):
            answer.claims[uid].error = error
            if not error:
                device = answer.claims[uid].devices.add(pool_name=POOL, device_name="nic-0", request_names=["devices"])
                device.cdi_device_ids.append(f"example.com/nic={name}")
        return answer

    async def NodeUnprepareResources(self, request, context):
        answer = wire.NodeUnprepareResourcesResponse()
        for uid, _, error in await self._said("Unprepare", request):
            answer.claims[uid].error = error
        return answer

    async def NodeWatchResources(self, request, context):
        while True:
            yield drahealth_pb2.NodeWatchResourcesResponse(devices=await self.health.get())

    async def _said(self, method: str, request: Any) -> list[tuple[str, str, str]]:  # noqa: ANN401 - both requests
        self.asked.append((method, tuple(claim.name for claim in request.claims)))
        if method in self.hold:
            await self.hold[method].wait()
        if self.skips:
            return []
        error = self.fail.get(method, "")
        invented = [("another-uid", "another", error)] if self.invents else []
        return invented + [(claim.uid, claim.name, error) for claim in request.claims]
