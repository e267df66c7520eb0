"""NVSentinel's platform connector, as far as a health monitor sees it: a gRPC server on a unix socket of the node."""
# ruff: noqa: N802 - the proto names the method

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import empty_pb2

from plugin.cluster import nvsentinel_pb2_grpc
from tests.patience import WITHIN


class PlatformConnector(nvsentinel_pb2_grpc.PlatformConnectorServicer):
    """Keeps what it is told; ``refusal``: what it answers instead; ``hangs``: it answers the next call never."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.refusal: grpc.StatusCode | None = None
        self.hangs = False
        self.events: list[Any] = []  # of all calls that it took
        self.calls = 0
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    async def open(self):
        """As NVSentinel's: it removes an old socket before it listens."""
        self.socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        nvsentinel_pb2_grpc.add_PlatformConnectorServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def close(self):
        """As NVSentinel's: it removes its socket."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
            self.socket.unlink(missing_ok=True)

    async def HealthEventOccurredV1(self, request, context):
        async with self._changed:
            self.calls += 1
            if self.refusal is None:
                assert request.version == 1
                self.events += request.events
            self._changed.notify_all()
        if self.hangs:
            self.hangs = False
            await asyncio.Event().wait()
        if self.refusal is not None:
            await context.abort(self.refusal, "no")
        return empty_pb2.Empty()

    async def until(self, holds):
        """Wait until it has heard what the test waits for."""
        async with asyncio.timeout(WITHIN), self._changed:
            await self._changed.wait_for(holds)

    def reported(self):
        """What it was told, oldest first: the device, and its fault, or ``healthy``."""
        return [(e.entitiesImpacted[0].entityValue, *(e.errorCode or ["healthy"])) for e in self.events]

    def states(self):
        """The last that it was told of each device."""
        return dict(self.reported())
