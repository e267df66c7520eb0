"""A device plugin that does nothing: what the language costs. Answers every Allocate at once, proves and keeps nothing.

python -m benchmarks.floor --directory D --devices N|ID,...
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from plugin.kubelet_api import deviceplugin_pb2 as pb
from plugin.kubelet_api import deviceplugin_pb2_grpc as wire

RESOURCE = "floor.example/gpu"
Context = grpc.aio.ServicerContext[Any, Any]


class Floor(wire.DevicePluginServicer):
    """Yes to everything."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:  # noqa: ARG002, N802 - the proto's
        """Both hooks are wanted."""
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: ARG002, N802 - the proto's
        """The list, once."""
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health="Healthy") for name in self._ids])
        await asyncio.Event().wait()

    async def GetPreferredAllocation(  # noqa: N802 - the proto's
        self, request: pb.PreferredAllocationRequest, context: Context  # noqa: ARG002 - the proto's
    ) -> pb.PreferredAllocationResponse:  # fmt: skip
        """The first that come."""
        asked = request.container_requests[0]
        ids = asked.available_deviceIDs[: asked.allocation_size]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids)]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:  # noqa: ARG002, N802 - the proto's
        """A CDI name a device."""
        names = [pb.CDIDevice(name=f"nvidia.com/gpu={name}") for name in request.container_requests[0].devices_ids]
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(cdi_devices=names)])

    async def PreStartContainer(  # noqa: N802 - the proto's
        self, request: pb.PreStartContainerRequest, context: Context  # noqa: ARG002 - the proto's
    ) -> pb.PreStartContainerResponse:  # fmt: skip
        """Yes."""
        return pb.PreStartContainerResponse()


async def serve(directory: Path, plugin: Floor, resource: str = RESOURCE, socket: str = "floor.sock") -> None:
    """Serve, register once, stay."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = grpc.aio.server()
    wire.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{directory}/{socket}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{directory}/kubelet.sock") as channel:
        request = pb.RegisterRequest(version="v1beta1", endpoint=socket, resource_name=resource)
        await wire.RegistrationStub(channel).Register(request, timeout=15)
    await stop.wait()
    await server.stop(0)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--devices", required=True)
    options = parser.parse_args()
    many = range(int(options.devices)) if options.devices.isdecimal() else ()
    ids = [f"GPU-{number:032d}" for number in many] or options.devices.split(",")
    asyncio.run(serve(options.directory, Floor(ids)))


if __name__ == "__main__":
    main()
