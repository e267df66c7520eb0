"""Decode the messages of every call, so that one that cannot be decoded is the caller's fault."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Decoding(grpc.aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to a message that cannot be decoded. gRPC says UNKNOWN."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Decode the message of every call here, before its method."""
        found = await continuation(handler_call_details)
        if found is None:  # there is no such method
            return None
        handler: Any = found  # typed for threads
        streams = handler.response_streaming

        async def decoded(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> object:
            try:
                message = handler.request_deserializer(raw)
            except DecodeError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"cannot read the request: {error}")
            return await (handler.unary_stream if streams else handler.unary_unary)(message, context)

        method_handler = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        return method_handler(cast("Any", decoded), None, handler.response_serializer)
