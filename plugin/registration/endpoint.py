"""One gRPC server on one socket, and the ListAndWatch streams that are open on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import grpc

from plugin.changed import Changed
from plugin.kubelet_api import deviceplugin_pb2, deviceplugin_pb2_grpc
from plugin.registration import sockets
from plugin.registration.events import Cause, NotRegistered
from scrubber.ground.errors import FatalError

Add = Callable[[grpc.aio.Server], None]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"
GRACE = 0.5  # seconds for an Allocate in flight to be answered when we stop; streams get none
PROOF = 5.0  # seconds within which our own socket has to answer us


class Streams(Changed, grpc.aio.ServerInterceptor):
    """Counts the streams that come and go, whatever the servicer does with them, and can end them all."""

    def __init__(self) -> None:
        """None yet."""
        super().__init__()
        self.opened = 0
        self.ended = 0
        self._pumps: set[asyncio.Task[None]] = set()
        self._closed = False

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Stand between the kubelet and ListAndWatch; leave everything else alone."""
        handler = await continuation(handler_call_details)
        if handler_call_details.method != LIST_AND_WATCH or handler is None or handler.unary_stream is None:
            return handler
        listen: Any = handler.unary_stream  # typed for threads; what is added here is an asynchronous generator

        async def followed(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            if not self._closed:  # it may have come while we were leaving: nobody would end it any more
                await self._follow(_pump(lambda: listen(request, context), context))

        return grpc.unary_stream_rpc_method_handler(
            cast("Any", followed),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _follow(self, pumping: Coroutine[Any, Any, None]) -> None:
        pump = asyncio.create_task(pumping, name="ListAndWatch")
        self._pumps.add(pump)
        self.opened += 1
        self.ring()
        try:
            await pump
        except asyncio.CancelledError:
            if not self._closed:
                raise
        finally:
            self._pumps.discard(pump)
            self.ended += 1
            self.ring()

    @property
    def open(self) -> int:
        """How many the kubelet, or somebody else, listens to."""
        return self.opened - self.ended

    def close(self) -> None:
        """End them all, from our side: a ListAndWatch waits for ever, and would use up the grace of the others."""
        self._closed = True
        for pump in self._pumps:
            pump.cancel()


async def _pump(
    listen: Callable[[], AsyncGenerator[object, None]], context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    """Send what the servicer lists. A message is sent whole: a stream cut off within one cannot be ended cleanly."""
    async with aclosing(listen()) as lists:
        async for message in lists:
            await _whole(context.write(message))


@dataclass(frozen=True, slots=True)
class PluginServer:
    """A socket that serves."""

    path: Path
    identity: sockets.Identity
    streams: Streams

    def gone(self) -> bool:
        """Whether nobody can reach us any more: the file was removed, or replaced by another."""
        return not sockets.same(sockets.identity(self.path), self.identity)

    async def prove(self) -> deviceplugin_pb2.DevicePluginOptions:
        """Ask ourselves what the kubelet will ask us inside Register: an answer proves that this path serves."""
        if self.gone():
            raise NotRegistered(Cause.NOT_SERVING, f"the file {self.path} is not our socket")
        try:
            async with dial(self.path) as channel:
                stub = deviceplugin_pb2_grpc.DevicePluginStub(channel)
                return await stub.GetDevicePluginOptions(deviceplugin_pb2.Empty(), timeout=PROOF)
        except grpc.aio.AioRpcError as error:
            detail = f"our own socket {self.path} does not answer: {words(error)}"
            raise NotRegistered(Cause.NOT_SERVING, detail) from error


@asynccontextmanager
async def serve(path: Path, add: Add) -> AsyncIterator[PluginServer]:
    """Serve on this path as long as the context lasts. The server has stopped when it ends: the path is free again."""
    sockets.claim(path)
    streams = Streams()
    server = grpc.aio.server(interceptors=[streams])
    add(server)
    try:
        _bind(server, sockets.hidden(path))
        await _whole(server.start())
        endpoint = PluginServer(path, sockets.publish(path), streams)
        try:
            yield endpoint
        finally:
            sockets.withdraw(path, endpoint.identity)
    finally:
        streams.close()
        await _whole(server.stop(GRACE))


async def _whole(step: Coroutine[Any, Any, None]) -> None:
    """Let a step of gRPC end before a cancellation goes on: a server whose start is cut off cannot be stopped."""
    task = asyncio.create_task(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)  # the step is over, and with a cancellation so is its worth
        raise


def _bind(server: grpc.aio.Server, path: Path) -> None:
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise FatalError(f"cannot serve on {path}: {error}; make its directory ours to write to") from error


def dial(path: Path) -> grpc.aio.Channel:
    """A channel of its own. Channels share connections by default, and with them the pauses after a failed one."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])


def words(error: grpc.aio.AioRpcError) -> str:
    """A gRPC error, for people."""
    return f"{error.code().name}: {error.details()}"
