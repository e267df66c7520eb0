"""The kubelet's side of a registration, and the smallest plugin there is; over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from demo.standins.do_nothing_plugin import DoNothingPlugin
from ground.aio import Changed
from plugin.kubelet_api import deviceplugin_pb2 as pb
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.registration.registration_state import Cause, NotRegistered
from tests.patience import WITHIN

RESOURCE = "example.com/gpu"


class SeenEvents(Changed):
    """Events of a registration, to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: list[str] = []  # resources
        self.failures: list[tuple[str, NotRegistered]] = []

    def __call__(self, resource: str, failure: NotRegistered | None) -> None:
        if failure is None:
            self.registered.append(resource)
        else:
            self.failures.append((resource, failure))
        self.notify()

    def causes(self) -> list[Cause]:
        return [failure.cause for _, failure in self.failures]


class Plugin(DoNothingPlugin):
    """Shows one device for ever. Its server is the caller's."""

    def __init__(self) -> None:
        super().__init__(Path(), ["GPU-1"])
        self.allocating = asyncio.Event()

    def add(self, server):
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(self, server)

    async def Allocate(self, request, context):  # noqa: N802 - the proto names it
        self.allocating.set()
        return await super().Allocate(request, context)


async def hears(seen_events, cause, times=1):
    async with asyncio.timeout(WITHIN):
        await seen_events.until(lambda: seen_events.causes().count(cause) >= times)


class Kubelet(Changed, deviceplugin_pb2_grpc.RegistrationServicer):
    """``kubelet.sock`` and what lies behind it: dials back inside Register, then listens."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.path = directory / "kubelet.sock"
        self.registers: list[pb.RegisterRequest] = []  # every Register that arrived
        self.listening: dict[
            str, grpc.aio.UnaryStreamCall[pb.Empty, pb.ListAndWatchResponse]
        ] = {}  # endpoint -> the open stream
        self.connected = 0  # plugins
        self.gaps = 0  # how often there was a plugin, and then none
        self.refusal = ""
        self.hangs = self.drops = self.ignores = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self):
        """As the kubelet does: every socket of the directory itself goes first."""
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink()
        self._server = grpc.aio.server()
        deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def stop(self):
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(None)
        self._server = None

    async def Register(self, request, context):  # noqa: N802 - the proto names it
        self.registers.append(request)
        self.notify()
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        path = self.directory / request.endpoint
        async with grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]) as back:
            await deviceplugin_pb2_grpc.DevicePluginStub(back).GetDevicePluginOptions(pb.Empty())
        if not self.ignores:
            self.connected += 1
            task = asyncio.create_task(self._listen(request.endpoint, path))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return pb.Empty()

    async def _listen(self, endpoint: str, path: Path) -> None:
        async with grpc.aio.insecure_channel(
            f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            stream = deviceplugin_pb2_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
            try:
                async for _ in stream:
                    self.listening[endpoint] = stream
                    self.notify()
                    if self.drops:
                        stream.cancel()
            except grpc.aio.AioRpcError:
                pass  # the plugin is gone
            finally:
                self.listening.pop(endpoint, None)
                self.connected -= 1
                self.gaps += not self.connected
                self.notify()

    async def until(self, holds):
        async with asyncio.timeout(WITHIN):
            await Changed.until(self, holds)

    def hang_up(self):
        """End every stream from the kubelet's side, as it does when an older plugin of the resource leaves."""
        for stream in self.listening.values():
            stream.cancel()

    async def knows(self, count=1):
        """Until so many Registers came, and somebody is listened to."""
        await self.until(lambda: len(self.registers) >= count and self.listening)


@asynccontextmanager
async def running(registration) -> AsyncIterator[asyncio.Task[None]]:
    """A registration at work. Told to end, it waits for nothing: with ``long_waits`` any wait outlasts our patience."""
    task = asyncio.create_task(registration.run())
    try:
        yield task
    finally:
        task.cancel()
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
