"""One gRPC server on one socket, and the ListAndWatch streams that are open on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import grpc

from ground import aio
from ground.aio import Changed
from ground.errors import FatalError
from plugin.kubelet_api import deviceplugin_pb2, deviceplugin_pb2_grpc
from plugin.registration import sockets
from plugin.registration.registration_state import Cause, NotRegistered

Add = Callable[[grpc.aio.Server], None]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"
GRACE = 0.5  # seconds to finish a call when the server stops, after ``stopping.drain``; streams end at once
PROOF = 5.0  # seconds for the plugin's own socket to answer


class Streams(Changed, grpc.aio.ServerInterceptor):
    """Counts the ListAndWatch streams of a server, and can end them all."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0
        self.ended = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap ListAndWatch; leave every other call alone."""
        handler = await continuation(handler_call_details)
        if handler_call_details.method != LIST_AND_WATCH or handler is None or handler.unary_stream is None:
            return handler
        listen: Any = handler.unary_stream  # typed for threads; the servicer here is an asynchronous generator

        async def followed(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            if not self._closed:  # a stream that opens after close would never end
                await self._follow(_send(lambda: listen(request, context), context))

        return grpc.unary_stream_rpc_method_handler(
            cast("Any", followed),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _follow(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(sending, name="ListAndWatch")
        self._tasks.add(task)
        self.opened += 1
        self.notify()
        try:
            await task
        except asyncio.CancelledError:
            if not self._closed:
                raise
        finally:
            self._tasks.discard(task)
            self.ended += 1
            self.notify()

    @property
    def open(self) -> int:
        """How many streams are open."""
        return self.opened - self.ended

    def close(self) -> None:
        """End all streams: a ListAndWatch waits forever, and would use up the grace time of other calls."""
        self._closed = True
        for task in self._tasks:
            task.cancel()


async def _send(
    listen: Callable[[], AsyncGenerator[object, None]], context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    """Send the lists of the servicer, each as a whole: a stream cannot end cleanly within a message."""
    async with aclosing(listen()) as lists:
        async for message in lists:
            await aio.finish(context.write(message))


@dataclass(frozen=True, slots=True)
class PluginServer:
    """A serving socket."""

    path: Path
    identity: sockets.Identity
    streams: Streams

    def gone(self) -> bool:
        """Whether the file of the socket was removed or replaced, so that no client can connect any more."""
        return not sockets.same(sockets.identity(self.path), self.identity)

    async def prove(self) -> deviceplugin_pb2.DevicePluginOptions:
        """Make the call that the kubelet makes inside Register: an answer proves that this path serves."""
        if self.gone():
            raise NotRegistered(Cause.NOT_SERVING, f"the file {self.path} is not the plugin's socket")
        try:
            async with dial(self.path) as channel:
                stub = deviceplugin_pb2_grpc.DevicePluginStub(channel)
                return await stub.GetDevicePluginOptions(deviceplugin_pb2.Empty(), timeout=PROOF)
        except grpc.aio.AioRpcError as error:
            detail = f"the plugin's own socket {self.path} does not answer: {describe(error)}"
            raise NotRegistered(Cause.NOT_SERVING, detail) from error


@asynccontextmanager
async def serve(path: Path, add: Add) -> AsyncIterator[PluginServer]:
    """Serve on this path within the context. After it the server has stopped and the path is free."""
    sockets.claim(path)
    streams = Streams()
    server = grpc.aio.server(interceptors=[streams])
    add(server)
    try:
        _bind(server, sockets.hidden(path))
        await aio.finish(server.start())  # gRPC cannot stop a server whose start was cancelled
        endpoint = PluginServer(path, sockets.publish(path), streams)
        try:
            yield endpoint
        finally:
            sockets.withdraw(path, endpoint.identity)
    finally:
        streams.close()
        await aio.finish(server.stop(GRACE))


def _bind(server: grpc.aio.Server, path: Path) -> None:
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise FatalError(f"cannot serve on {path}: {error}", "make its directory writable for this user") from error


def dial(path: Path) -> grpc.aio.Channel:
    """A channel that shares no connection: by default channels share connections and the pauses after failures."""
    return grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])


def describe(error: grpc.aio.AioRpcError) -> str:
    """A gRPC error in words."""
    return f"{error.code().name}: {error.details()}"
