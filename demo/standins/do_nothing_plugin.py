"""A device plugin that does nothing: it says yes to every call, unless it is told otherwise.

Tests set its attributes. Benchmarks run it as a program, to see what the language costs:
python -m demo.standins.do_nothing_plugin --directory D --devices N|ID,... [--resource NAME] [--socket NAME]
"""
# ruff: noqa: N802, ARG002 - the proto names the methods and what they are given

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from plugin.kubelet_api import deviceplugin_pb2 as pb
from plugin.kubelet_api import deviceplugin_pb2_grpc as wire
from plugin.kubelet_api import pluginregistration_pb2 as registration
from plugin.kubelet_api import pluginregistration_pb2_grpc

RESOURCE = "example.com/gpu"
HEALTHY = "Healthy"
REGISTERS_WITHIN = 15.0
RETRY = (("grpc.use_local_subchannel_pool", 1),)
Context = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[Sequence[str]], pb.ContainerAllocateResponse]


def cdi_devices(ids: Sequence[str]) -> pb.ContainerAllocateResponse:
    """A container gets each device by its CDI name."""
    return pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=f"nvidia.com/gpu={name}") for name in ids])


def variable(ids: Sequence[str]) -> pb.ContainerAllocateResponse:
    """A container gets its devices in a variable, as with the default of NVIDIA's plugin."""
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)})


class DoNothingPlugin(wire.DevicePluginServicer, pluginregistration_pb2_grpc.RegistrationServicer):
    """``show`` sends a new list."""

    def __init__(
        self,
        directory: Path,
        ids: Iterable[str] = "0123",
        *,
        resource: str = RESOURCE,
        socket: str = "do-nothing.sock",
        prestart: bool = True,
        preferred: bool = True,
        answer: Answer = cdi_devices,
    ) -> None:
        self.directory, self.path = directory, directory / socket
        self.resource, self.socket = resource, socket
        self.prestart, self.preferred, self.answer = prestart, preferred, answer
        self.devices = dict.fromkeys(ids, HEALTHY)
        self.nodes: dict[str, list[int]] = {}
        self.fail: dict[str, str] = {}  # method to the text it fails with
        self.hold: dict[str, asyncio.Event] = {}  # method to what it waits for
        self.prefer: list[str] | None = None
        self.type, self.versions = "DevicePlugin", ["v1beta1"]
        self.notified: list[tuple[bool, str]] = []
        self.left: dict[str, float | None] = {}  # method to the time it was given
        self.cancelled: list[str] = []
        self.ended = asyncio.Event()  # a stream of ours has ended
        self._changed: set[asyncio.Event] = set()
        self._server: grpc.aio.Server | None = None

    # -- a plugin's life

    async def serve(self, *more: Path) -> DoNothingPlugin:
        """Serve all calls at its socket, and at these sockets."""
        self._server = grpc.aio.server()
        wire.add_DevicePluginServicer_to_server(self, self._server)
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)
        for path in (self.path, *more):
            self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()
        return self

    async def register(
        self,
        within: float = REGISTERS_WITHIN,
        version: str = "v1beta1",
        endpoint: str | None = None,
        resource: str | None = None,
    ) -> None:
        """Call Register once."""
        async with grpc.aio.insecure_channel(f"unix:{self.directory}/kubelet.sock", options=RETRY) as channel:
            request = pb.RegisterRequest(
                version=version, endpoint=endpoint or self.socket, resource_name=resource or self.resource
            )
            await wire.RegistrationStub(channel).Register(request, timeout=within)

    async def begin(self) -> DoNothingPlugin:
        """Serve and register."""
        await self.serve()
        await self.register()
        return self

    async def stop(self) -> None:
        """End the server; its socket goes, too."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def show(self, **health: str | None) -> None:
        """``show(g0="Unhealthy")``: change some devices' health, or drop them with None; then send the list."""
        for name, state in health.items():
            if state is None:
                del self.devices[name.removeprefix("g")]
            else:
                self.devices[name.removeprefix("g")] = state
        for event in self._changed:
            event.set()

    # -- the five calls

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        """Which of the other calls are wanted."""
        await self._called("GetDevicePluginOptions", context)
        return pb.DevicePluginOptions(
            pre_start_required=self.prestart, get_preferred_allocation_available=self.preferred
        )

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        """The list, and again after each change."""
        changed = asyncio.Event()
        self._changed.add(changed)
        self.left["ListAndWatch"] = context.time_remaining()
        try:
            while True:
                yield self._list()
                await changed.wait()
                changed.clear()
        finally:
            self._changed.discard(changed)
            self.ended.set()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """The devices of ``prefer``, or the first of its list that are available."""
        await self._called("GetPreferredAllocation", context)
        asked = request.container_requests[0]
        available = [name for name in self.devices if name in asked.available_deviceIDs]
        ids = available[: asked.allocation_size] if self.prefer is None else self.prefer
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids)]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Yes."""
        await self._called("Allocate", context)
        answer = self.answer(request.container_requests[0].devices_ids)
        return pb.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Yes."""
        await self._called("PreStartContainer", context)
        return pb.PreStartContainerResponse()

    # -- plugins_registry

    async def GetInfo(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:
        """What the kubelet asks before it registers a plugin that it has found."""
        await self._called("GetInfo", context)
        return registration.PluginInfo(
            type=self.type, name=self.resource, endpoint=str(self.path), supported_versions=self.versions
        )

    async def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        """What became of it."""
        await self._called("NotifyRegistrationStatus", context)
        self.notified.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()

    def _list(self) -> pb.ListAndWatchResponse:
        response = pb.ListAndWatchResponse()
        for name, health in self.devices.items():
            device = response.devices.add(ID=name, health=health)
            for node in self.nodes.get(name, []):
                device.topology.nodes.add(ID=node)
        return response

    async def _called(self, method: str, context: Context) -> None:
        self.left[method] = context.time_remaining()
        if method in self.hold:
            try:
                await self.hold[method].wait()
            except asyncio.CancelledError:
                self.cancelled.append(method)
                raise
        if method in self.fail:
            await context.abort(grpc.StatusCode.INTERNAL, self.fail[method])


async def until_sigterm() -> None:
    """Return when the process is told to end."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


async def _run(plugin: DoNothingPlugin) -> None:
    await plugin.begin()
    await until_sigterm()
    await plugin.stop()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m demo.standins.do_nothing_plugin")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--devices", required=True)
    parser.add_argument("--resource", default=RESOURCE)
    parser.add_argument("--socket", default="do-nothing.sock")
    parser.add_argument("--like-nvidia", action="store_true", help="answer with a variable, without PreStartContainer")
    asked = parser.parse_args()
    many = range(int(asked.devices)) if asked.devices.isdecimal() else ()
    ids = [f"GPU-{number:032d}" for number in many] or asked.devices.split(",")
    answer = variable if asked.like_nvidia else cdi_devices
    options = {"resource": asked.resource, "socket": asked.socket, "prestart": not asked.like_nvidia, "answer": answer}
    asyncio.run(_run(DoNothingPlugin(asked.directory, ids, **options)))


if __name__ == "__main__":
    main()
