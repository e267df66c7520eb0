# ruff: noqa: N802, ARG002 - the proto names the methods and what they are given
"""A device plugin that does nothing well: it says yes, unless it is told otherwise."""

import asyncio
from pathlib import Path

import grpc

from plugin.kubelet_api import (
    deviceplugin_pb2,
    deviceplugin_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)

HEALTHY = "Healthy"
GPU = "example.com/gpu"
RETRY = (("grpc.use_local_subchannel_pool", 1),)


class Little(deviceplugin_pb2_grpc.DevicePluginServicer, pluginregistration_pb2_grpc.RegistrationServicer):
    """Its knobs are its attributes; ``show`` sends a new list."""

    def __init__(
        self, directory, *, resource=GPU, socket="little.sock", count=4, prestart=True, preferred=True
    ) -> None:
        self.directory = Path(directory)
        self.resource, self.socket = resource, socket
        self.prestart, self.preferred = prestart, preferred
        self.devices = {str(number): HEALTHY for number in range(count)}
        self.nodes: dict[str, list[int]] = {}
        self.fail: dict[str, str] = {}  # method to the text it fails with
        self.hold: dict[str, asyncio.Event] = {}  # method to what it waits for
        self.prefer: list[str] = []
        self.answer = {"LITTLE": "yes"}
        self.responses = 1
        self.type, self.versions = "DevicePlugin", ["v1beta1"]
        self.notified: list[tuple[bool, str]] = []
        self.left: dict[str, float | None] = {}  # method to the time it was given
        self.cancelled: list[str] = []
        self.ended = asyncio.Event()  # a stream of ours has ended
        self._changed: set[asyncio.Event] = set()
        self._streams: set[asyncio.Task[bool]] = set()
        self.server: grpc.aio.Server | None = None

    # -- a plugin's life

    async def serve(self, path=None, registration=None):
        self.server = grpc.aio.server()
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(self, self.server)
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, self.server)
        self.path = path or self.directory / self.socket
        self.server.add_insecure_port(f"unix:{self.path}")
        if registration:
            self.server.add_insecure_port(f"unix:{registration}")
        await self.server.start()
        return self

    async def register(self, within=15.0, version="v1beta1", endpoint=None, resource=None):
        async with grpc.aio.insecure_channel(f"unix:{self.directory}/kubelet.sock", options=RETRY) as channel:
            request = deviceplugin_pb2.RegisterRequest(
                version=version, endpoint=endpoint or self.socket, resource_name=resource or self.resource
            )
            await deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=within)

    async def begin(self):
        await self.serve()
        await self.register()
        return self

    async def stop(self):
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    def end_streams(self):
        """End ListAndWatch, but go on serving."""
        for task in self._streams:
            task.cancel()

    def show(self, **health):
        """``show(g0="Unhealthy")``: change some devices' health, or drop them with None; then send the list."""
        for name, state in health.items():
            if state is None:
                del self.devices[name.removeprefix("g")]
            else:
                self.devices[name.removeprefix("g")] = state
        for event in self._changed:
            event.set()

    # -- the five calls

    async def GetDevicePluginOptions(self, request, context):
        await self._say("GetDevicePluginOptions", context)
        return deviceplugin_pb2.DevicePluginOptions(
            pre_start_required=self.prestart, get_preferred_allocation_available=self.preferred
        )

    async def ListAndWatch(self, request, context):
        changed = asyncio.Event()
        self._changed.add(changed)
        self.left["ListAndWatch"] = context.time_remaining()
        task: asyncio.Task[bool] = asyncio.create_task(asyncio.Event().wait())
        self._streams.add(task)
        try:
            while True:
                yield self._list()
                waiting = asyncio.create_task(changed.wait())
                await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if task.done():
                    return
                changed.clear()
        finally:
            task.cancel()
            self._streams.discard(task)
            self._changed.discard(changed)
            self.ended.set()

    async def GetPreferredAllocation(self, request, context):
        await self._say("GetPreferredAllocation", context)
        response = deviceplugin_pb2.PreferredAllocationResponse()
        response.container_responses.add(deviceIDs=self.prefer)
        return response

    async def Allocate(self, request, context):
        await self._say("Allocate", context)
        response = deviceplugin_pb2.AllocateResponse()
        for _ in range(self.responses):
            response.container_responses.add(envs=self.answer)
        return response

    async def PreStartContainer(self, request, context):
        await self._say("PreStartContainer", context)
        return deviceplugin_pb2.PreStartContainerResponse()

    # -- plugins_registry

    async def GetInfo(self, request, context):
        await self._say("GetInfo", context)
        return pluginregistration_pb2.PluginInfo(
            type=self.type, name=self.resource, endpoint=str(self.path), supported_versions=self.versions
        )

    async def NotifyRegistrationStatus(self, request, context):
        await self._say("NotifyRegistrationStatus", context)
        self.notified.append((request.plugin_registered, request.error))
        return pluginregistration_pb2.RegistrationStatusResponse()

    # --

    def _list(self) -> deviceplugin_pb2.ListAndWatchResponse:
        response = deviceplugin_pb2.ListAndWatchResponse()
        for name, health in self.devices.items():
            device = response.devices.add(ID=name, health=health)
            for node in self.nodes.get(name, []):
                device.topology.nodes.add(ID=node)
        return response

    async def _say(self, method, context) -> None:
        self.left[method] = context.time_remaining()
        if method in self.hold:
            try:
                await self.hold[method].wait()
            except asyncio.CancelledError:
                self.cancelled.append(method)
                raise
        if method in self.fail:
            await context.abort(grpc.StatusCode.INTERNAL, self.fail[method])
