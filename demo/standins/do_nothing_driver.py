"""A DRA driver that does nothing: it says yes to every call, unless it is told otherwise. Tests set its attributes."""
# ruff: noqa: ARG002, N802 - the proto names the methods and what they are given

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import grpc.aio

from plugin.kubelet_api import dra_pb2 as pb
from plugin.kubelet_api import dra_pb2_grpc as wire
from plugin.kubelet_api import drahealth_pb2, drahealth_pb2_grpc, pluginregistration_pb2_grpc
from plugin.kubelet_api import pluginregistration_pb2 as registration

NIC = "nic.example.com"
POOL = "node-1"
TAINTS = [{"key": "example.com/sick", "effect": "NoSchedule"}]
Context = grpc.aio.ServicerContext[Any, Any]


def device_slice(driver: str, *devices: str, node: str = POOL, taints: Collection[str] = ()) -> dict[str, Any]:
    """A slice with these devices, for the API server."""
    listed = [{"name": name, **({"taints": TAINTS} if name in taints else {})} for name in devices]
    its = {"driver": driver, "nodeName": node, "pool": {"name": node}, "devices": listed}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": its}


class DoNothingDriver(
    wire.DRAPluginServicer,
    pluginregistration_pb2_grpc.RegistrationServicer,
    drahealth_pb2_grpc.DRAResourceHealthServicer,
):
    """Each of its sockets serves all calls. ``prepared`` says what a claim gets."""

    def __init__(self, name: str, *sockets: Path) -> None:
        """``sockets``: the last one is the endpoint that GetInfo names, if there are several."""
        self.name, self.sockets = name, sockets
        self.versions = ["v1.DRAPlugin"]
        self.fail: dict[str, str] = {}  # method to the error of each claim
        self.hold: dict[str, asyncio.Event] = {}  # method to what it waits for
        self.asked: list[tuple[str, tuple[str, ...]]] = []  # method and the names of the claims
        self.notified: list[tuple[bool, str]] = []
        self.health: asyncio.Queue[list[drahealth_pb2.DeviceHealth]] = asyncio.Queue()
        self._servers: list[grpc.aio.Server] = []

    async def serve(self) -> DoNothingDriver:
        """Serve. The file of an earlier process is replaced, as the helper library of Go does."""
        for path in self.sockets:
            server = grpc.aio.server()
            wire.add_DRAPluginServicer_to_server(self, server)
            pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, server)
            drahealth_pb2_grpc.add_DRAResourceHealthServicer_to_server(self, server)
            new = path.with_name(f".{path.stem}.new")
            server.add_insecure_port(f"unix:{new}")
            await server.start()
            new.replace(path)
            self._servers.append(server)
        return self

    async def kill(self) -> None:
        """End as a process that is killed: its files stay."""
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()

    async def stop(self) -> None:
        """End as a process that is asked to."""
        if self._servers:
            for path in self.sockets:
                path.unlink()
        await self.kill()

    def calls(self, method: str) -> list[tuple[str, ...]]:
        """The claims of each call of a method."""
        return [names for asked, names in self.asked if asked.endswith(method)]

    async def prepared(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        """What a claim gets."""
        answer = pb.NodePrepareResourceResponse()
        device = answer.devices.add(pool_name=POOL, device_name="nic-0", request_names=["devices"])
        device.cdi_device_ids.append(f"example.com/nic={claim.name}")
        return answer

    async def GetInfo(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:
        """What the kubelet asks before it registers a driver that it has found."""
        endpoint = str(self.sockets[-1]) if len(self.sockets) > 1 else ""
        return registration.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=endpoint, supported_versions=self.versions
        )

    async def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        """What became of it."""
        self.notified.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        """Yes."""
        claims = await self._called("Prepare", request)
        refused = pb.NodePrepareResourceResponse(error=self.fail.get("Prepare", ""))
        answers = {claim.uid: refused if refused.error else await self.prepared(claim) for claim in claims}
        return pb.NodePrepareResourcesResponse(claims=answers)

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        """Yes."""
        claims = await self._called("Unprepare", request)
        answer = pb.NodeUnprepareResourceResponse(error=self.fail.get("Unprepare", ""))
        return pb.NodeUnprepareResourcesResponse(claims={claim.uid: answer for claim in claims})

    async def NodeWatchResources(
        self, request: drahealth_pb2.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[drahealth_pb2.NodeWatchResourcesResponse]:
        """What a test puts into ``health``."""
        while True:
            yield drahealth_pb2.NodeWatchResourcesResponse(devices=await self.health.get())

    async def _called(
        self, method: str, request: pb.NodePrepareResourcesRequest | pb.NodeUnprepareResourcesRequest
    ) -> list[pb.Claim]:
        self.asked.append((method, tuple(claim.name for claim in request.claims)))
        if method in self.hold:
            await self.hold[method].wait()
        return list(request.claims)
