"""NVIDIA's device plugin as a kubelet meets it: its resource, its socket, its answer, and no word before a start.

It proves nothing and remembers nothing. With its defaults the real one answers with a variable, does not ask for
PreStartContainer, registers when it begins or sees another ``kubelet.sock``, and at no other time; this one is not run
beyond the life of a kubelet, so it registers when it begins.

python -m tests.flows.vendor --directory D --device ID ...
"""

import argparse
import asyncio
import sys
from pathlib import Path

from benchmarks import floor
from plugin.kubelet_api import deviceplugin_pb2 as pb
from tests.plugin.live_plugin import Plugin

RESOURCE, SOCKET = "nvidia.com/gpu", "nvidia-gpu.sock"
ROOT = Path(__file__).parents[2]


class Theirs(floor.Floor):
    """Yes to everything, in other words than ours."""

    async def GetDevicePluginOptions(self, request, context):  # noqa: ARG002, N802 - the proto's
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    async def Allocate(self, request, context):  # noqa: ARG002, N802 - the proto's
        return pb.AllocateResponse(container_responses=[answer(request.container_requests[0].devices_ids)])


def answer(uuids) -> pb.ContainerAllocateResponse:
    """What a container with these GPUs is to be given."""
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)})


class Vendor(Plugin):
    """That, as a process: ``start`` and ``stop``."""

    def __init__(self, directory, uuids) -> None:
        super().__init__(directory, PYTHONPATH=str(ROOT))
        devices = (f"--device={uuid}" for uuid in uuids)
        self.command = [sys.executable, "-m", "tests.flows.vendor", "--directory", str(directory), *devices]


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.flows.vendor")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--device", action="append", required=True)
    options = parser.parse_args()
    asyncio.run(floor.serve(options.directory, Theirs(options.device), RESOURCE, SOCKET))


if __name__ == "__main__":
    main()
