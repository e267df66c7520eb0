"""A vendor's DRA driver as the gate meets it: two sockets, devices, CDI specifications, errors, delays, death."""
# ruff: noqa: ARG002, N802 - the proto names the methods and what they are given

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc.aio

from plugin.kubelet_api import dra_pb2 as wire
from plugin.kubelet_api import drahealth_pb2 as health_wire
from plugin.kubelet_api import pluginregistration_pb2 as registration
from plugin.kubelet_api import pluginregistration_pb2_grpc
from scrubber.ground.aio import Changed
from tests.patience import WITHIN

UNKNOWN_FIELD = b"\xba\x3e\x05later"  # number 999: this driver is newer than the gate


class VendorDriver(pluginregistration_pb2_grpc.RegistrationServicer):
    """One process of it."""

    def __init__(self, registry: Path, plugins: Path, cdi: Path, name: str = "gpu.nvidia.com") -> None:
        self.name = name
        self.versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        self.shown, self.service = registry / f"{name}-reg.sock", plugins / name / "dra.sock"
        self.service.parent.mkdir(exist_ok=True)
        self.cdi = cdi
        self.gives: dict[str, list[str]] = {}  # by claim: the UUIDs of what a container gets
        self.calls: list[tuple[str, str]] = []
        self.statuses: list[registration.RegistrationStatus] = []
        self.error = ""  # of each call for a claim
        self.silent = False
        self.changed = Changed()
        self._servers: list[grpc.aio.Server] = []

    async def start(self):
        """Serve. Files of an earlier process are replaced, as the helper library of Go does."""
        unary: Any = grpc.unary_unary_rpc_method_handler
        stream: Any = grpc.unary_stream_rpc_method_handler
        calls = {
            "NodePrepareResources": unary(self.prepare, wire.NodePrepareResourcesRequest.FromString, bytes),
            "NodeUnprepareResources": unary(
                self.unprepare,
                wire.NodeUnprepareResourcesRequest.FromString,
                wire.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        health = {"NodeWatchResources": stream(self.watch, bytes, bytes)}
        generic = grpc.method_handlers_generic_handler
        for path in (self.service, self.shown):
            server = grpc.aio.server()
            server.add_generic_rpc_handlers(
                (
                    generic("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", calls),
                    generic("v1alpha1.DRAResourceHealth", health),
                )
            )
            pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, server)
            new = path.with_name(f".{path.stem}.new")
            server.add_insecure_port(f"unix:{new}")
            await server.start()
            new.replace(path)
            self._servers.append(server)

    async def die(self):
        """End as a process that is killed: its files stay."""
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()

    async def stop(self):
        """End as a process that is asked to."""
        self.shown.unlink()
        self.service.unlink()
        await self.die()

    async def until(self, holds):
        """Wait for calls."""
        async with asyncio.timeout(WITHIN):
            await self.changed.until(holds)

    async def GetInfo(self, request, context):
        return registration.PluginInfo(
            type="DRAPlugin", name=self.name, endpoint=str(self.service), supported_versions=self.versions
        )

    async def NotifyRegistrationStatus(self, request, context):
        self.statuses.append(request)
        if not request.plugin_registered:
            await context.abort(grpc.StatusCode.UNKNOWN, "failed registration process")
        return registration.RegistrationStatusResponse()

    async def prepare(self, request, context):
        [claim] = request.claims
        await self._called("prepare", claim.uid)
        answer = wire.NodePrepareResourceResponse(error=self.error)
        if not self.error:
            cdi_id = f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu"
            answer.devices.add(pool_name="node-1", device_name="gpu-0", cdi_device_ids=[cdi_id])
            self.specify(claim.uid)
        raw = answer.SerializeToString() + UNKNOWN_FIELD
        answer = wire.NodePrepareResourceResponse.FromString(raw)
        return wire.NodePrepareResourcesResponse(claims={claim.uid: answer}).SerializeToString()

    def specify(self, claim: str):
        """Write what a container gets: GPUs as files that have their names."""
        nodes = [{"path": f"/dev/{uuid}"} for uuid in self.gives[claim]]
        device = {"name": f"{claim}-gpu", "containerEdits": {"deviceNodes": nodes}}
        document = {"cdiVersion": "0.6.0", "kind": "k8s.gpu.nvidia.com/claim", "devices": [device]}
        (self.cdi / f"claim_{claim}.json").write_text(json.dumps(document))

    async def unprepare(self, request, context):
        [claim] = request.claims
        await self._called("unprepare", claim.uid)
        answer = wire.NodeUnprepareResourceResponse(error=self.error)
        return wire.NodeUnprepareResourcesResponse(claims={claim.uid: answer})

    async def watch(self, request, context):
        sick = health_wire.DeviceHealth(
            device=health_wire.DeviceIdentifier(pool_name="node-1", device_name="gpu-0"), message="of the vendor"
        )
        await context.write(health_wire.NodeWatchResourcesResponse(devices=[sick]).SerializeToString())
        await asyncio.Event().wait()

    async def _called(self, call: str, claim: str) -> None:
        self.calls.append((call, claim))
        self.changed.notify()
        if self.silent:
            await asyncio.Event().wait()
