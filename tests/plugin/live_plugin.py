"""The real plugin as a process of its own, and what it says."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
from prometheus_client import CollectorRegistry

from plugin.device_plugin import DevicePlugin, OwnResponses
from plugin.hooks import Hooks
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.metrics.collector import PluginCounters
from plugin.registration.sockets import FileWatch
from plugin.stopping import InFlight
from tests.patience import WITHIN

# Lines of the log that several tests wait for.
STANDING_BY = "waiting for another plugin of Autoclave on this node to stop"
FOLLOWED = "the kubelet follows this plugin"
NO_DIRECTORY = "waiting for the directory of the kubelet"
NO_KUBELET = "waiting for the kubelet"
NO_SERVICE = "waiting for the scrub service"
NO_VENDOR = "waiting for the vendor's plugin, whose KUBELET_SOCKET must name this socket"
TAKEN_OVER = "the vendor's list is taken over"
LIST_ENDED = "the list of the vendor's plugin ended"


class Plugin:
    """``autoclave plugin`` on the directories of a test."""

    def __init__(self, root: Path, *flags: object, **env: str) -> None:
        self.command = [
            sys.executable, "-m", "autoclave", "plugin", "--log-format", "json",
            "--kubelet-dir", str(root), "--run-dir", str(root / "run"), *map(str, flags),
        ]  # fmt: skip
        self.env = {**os.environ, **env}
        self.log_lines: list[dict[str, Any]] = []
        self.said = ""  # what is no line of the log

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            *self.command, env=self.env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        self._moved = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            async with self._moved:
                if line.startswith(b"{"):
                    self.log_lines.append(json.loads(line))
                else:
                    self.said += line.decode()
                self._moved.notify_all()

    def lines(self, event):
        """Every line of the log with these words."""
        return [line for line in self.log_lines if line["event"] == event]

    async def hear(self, event, times=1):
        """Wait for these words; the last line that has them."""
        async with asyncio.timeout(WITHIN), self._moved:
            await self._moved.wait_for(lambda: len(self.lines(event)) >= times)
        return self.lines(event)[-1]

    async def ended(self):
        """Wait for the end; the exit code."""
        async with asyncio.timeout(WITHIN):
            code = await self.process.wait()
            await self._reading
        return code

    async def stop(self):
        """As the kubelet stops a pod."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def clear_away(self):
        """Leave nothing behind."""
        if self.process.returncode is None:
            self.process.kill()
        await self.ended()

    def status(self):
        """What the kernel says of the process."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def until_files(holds, *folders):
    """Wait until the files of these folders are as the test wants."""
    watch = FileWatch(*folders)
    watching = asyncio.create_task(watch.run())
    async with asyncio.timeout(WITHIN):
        await watch.until(holds)
    watching.cancel()


@asynccontextmanager
async def serving(listing, scrubber, path, style, registry=None, in_flight=None) -> AsyncIterator[Any]:
    """The plugin in this process, for NVIDIA's resource; and the kubelet's end of its socket."""
    in_flight, counters = in_flight or InFlight(), PluginCounters(registry or CollectorRegistry())
    hooks = Hooks(scrubber, listing)
    servicer = DevicePlugin("nvidia.com/gpu", listing, hooks, in_flight, counters, OwnResponses(style))
    server = grpc.aio.server()
    deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield deviceplugin_pb2_grpc.DevicePluginStub(channel)
    await server.stop(None)


def own_socket(root):
    """The socket of the present registration."""
    (path,) = (root / "autoclave").glob("nvidia.com_gpu-*.sock")
    return path


async def allocate(root, *ids):
    """Ask the plugin itself, as a kubelet with an old list in its head would."""
    async with grpc.aio.insecure_channel(f"unix:{own_socket(root)}") as channel:
        requests = [wire.ContainerAllocateRequest(devices_ids=ids)]
        stub = deviceplugin_pb2_grpc.DevicePluginStub(channel)
        return await stub.Allocate(wire.AllocateRequest(container_requests=requests), timeout=WITHIN)
