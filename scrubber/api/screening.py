"""What every call passes before its method: it finds a place, and its message is decoded.

Streams have a limit of their own, so that streams that stay open leave a place for the requests of the plugin. The
limit of gRPC counts both together. A message that cannot be decoded is the caller's fault; gRPC says UNKNOWN for it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from scrubber.api.answering import Context, answered
from scrubber.ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason

REQUESTS, STREAMS = "requests", "streams"
MOST = {REQUESTS: 448, STREAMS: 64}  # at the same time, for each socket; a node has one plugin and few people


class Screening(grpc.aio.ServerInterceptor):
    """The screening of one server."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a method, behind the screening."""
        found = await continuation(handler_call_details)
        if found is None:  # there is no such method
            return None
        handler: Any = found  # the stubs of gRPC describe handlers of threads
        name = handler_call_details.method.rpartition("/")[2].lower()

        async def request(raw: bytes, context: Context) -> object:
            async with self._admitted(REQUESTS, name, raw, handler.request_deserializer, context) as message:
                return await handler.unary_unary(message, context)

        async def stream(raw: bytes, context: Context) -> None:
            async with self._admitted(STREAMS, name, raw, handler.request_deserializer, context) as message:
                answers = handler.unary_stream(message, context)
                if inspect.isawaitable(answers):  # it writes its answers itself
                    await answers
                    return
                async with aclosing(answers):
                    async for answer in answers:
                        await context.write(answer)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(request, None, handler.response_serializer)

    @asynccontextmanager
    async def _admitted(
        self, kind: str, name: str, raw: bytes, decode: Callable[[bytes], object], context: Context
    ) -> AsyncIterator[object]:
        """The message of a call, which has a place until the end of the block. A call that may not begin ends here."""
        try:
            if self._open[kind] >= MOST[kind]:
                text = f"cannot serve more than {MOST[kind]} {kind} at the same time; try again"
                raise NotReady(Reason.TOO_MANY_CALLS, text)
            message = _decoded(raw, decode)
        except AutoclaveError:
            async with answered(context, name):
                raise
        self._open[kind] += 1
        try:
            yield message
        finally:
            self._open[kind] -= 1


def _decoded(raw: bytes, decode: Callable[[bytes], object]) -> object:
    try:
        return decode(raw)
    except DecodeError as error:
        raise InvalidRequest(f"cannot read the request: {error}") from error
