"""A scrub service that does as it is told, behind the real wire: for what a healthy service never does."""
# ruff: noqa: ARG002, N802 - the proto names the methods and what they are given

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc.aio

from ground import paths, unix_sockets
from ground.errors import AutoclaveError
from scrub_api import last_list, scrub_pb2, scrub_pb2_grpc
from scrub_api.device_messages import ReportedDevice, ReportedDevices
from scrubber.api import answering
from tests.patience import WITHIN


def gpu(index, *, healthy=True, clean=True, **more):
    """What a service says of a GPU."""
    about = {"numa_node": 0, "resource": "nvidia.com/gpu", **more}
    return ReportedDevice(f"GPU-{index:04}", healthy=healthy, clean=clean, index=index, **about)


Answer = Callable[[list[str]], Awaitable[None]]


async def yes(_devices: list[str]) -> None:
    """Everything may go out."""


async def hang(_devices: list[str]) -> None:
    """No answer is ever sent."""
    await asyncio.Event().wait()


def no(error: AutoclaveError, meanwhile: Callable[[], None] = lambda: None) -> Answer:
    """Nothing may go out."""

    async def answer(_devices: list[str]) -> None:
        meanwhile()
        raise error

    return answer


class ScrubServer(scrub_pb2_grpc.ScrubberServicer):
    """Stands where the service would; ``say`` what it says, set ``answer`` to what it does when asked for devices."""

    def __init__(self, run_dir: Path) -> None:
        self.socket = run_dir / "scrubber.sock"
        self.devices: tuple[ReportedDevice, ...] = ()
        self.silence = 5.0
        self.checkpoint = ""
        self.mute = False  # accepts everybody, says nothing
        self.brief = False  # ends each list after the first message
        self.watched = 0
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.left: list[float] = []  # seconds that the caller still waits
        self.announced: list[bool] = []
        self.answer: Answer = yes
        self.receipt = "a-receipt"  # of everything that goes out
        self.receipts: dict[str, str] = {}  # the directory of each device that goes out
        self._moved = asyncio.Event()
        self._seen = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def open(self):
        self._server = grpc.aio.server()
        scrub_pb2_grpc.add_ScrubberServicer_to_server(self, self._server)
        self._server.add_insecure_port(unix_sockets.claim(self.socket))
        await self._server.start()

    async def close(self):
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def say(self, *devices):
        self.devices = devices
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def leave(self, *devices, silence=60.0):
        """Leave a last list in the run directory, as a service does that has just gone."""
        response = scrub_pb2.WatchResponse(**asdict(ReportedDevices(devices, silence)))
        last_list.write(paths.last_list(self.socket.parent), last_list.stamped(response))

    async def until(self, holds):
        """Wait until somebody asked for what the test waits for."""
        async with self._seen, asyncio.timeout(WITHIN):
            await self._seen.wait_for(lambda: holds(self))

    async def Acquire(self, request, context):
        self.announced.append(request.announced)
        granted = [
            scrub_pb2.Granted(device=each, receipt=self.receipt, receipts=self.receipts.get(each, ""))
            for each in request.devices
        ]
        return await self._answered("acquire", request, context, scrub_pb2.AcquireResponse(grants=granted))

    async def Start(self, request, context):
        return await self._answered("start", request, context, scrub_pb2.StartResponse())

    async def Release(self, request, context):
        return await self._answered("release", request, context, scrub_pb2.ReleaseResponse())

    async def Distrust(self, request, context):
        asked = scrub_pb2.AcquireRequest(devices=[request.device])
        return await self._answered("distrust", asked, context, scrub_pb2.DistrustResponse())

    async def LetIn(self, request, context):
        asked = scrub_pb2.AcquireRequest(devices=request.pods.uids)
        return await self._answered("let in", asked, context, scrub_pb2.LetInResponse())

    async def _notice(self) -> None:
        async with self._seen:
            self._seen.notify_all()

    async def _answered(self, what: str, request: Any, context: Any, response: Any) -> Any:  # noqa: ANN401 - any of them
        self.asked.append((what, tuple(request.devices)))
        self.left.append(context.time_remaining())
        await self._notice()
        async with answering.translated(context):
            await self.answer(list(request.devices))
        return response

    async def Watch(self, request, context):
        self.watched += 1
        await self._notice()
        while True:
            moved = self._moved
            if not self.mute:
                reported = ReportedDevices(self.devices, self.silence, self.checkpoint)
                yield scrub_pb2.WatchResponse(**asdict(reported))
                if self.brief:
                    return
            await moved.wait()
