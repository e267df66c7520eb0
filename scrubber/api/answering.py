"""How gRPC servers answer any request: a place, decoding, one log line, metrics, an error's reason and code.

Streams have a limit of their own, so that streams that stay open leave a place for the requests of the plugin. The
limit of gRPC counts both together. A message that cannot be decoded is the caller's fault; gRPC says UNKNOWN for it. A
granted request is logged at level info, a refused one as a warning, an internal error with its traceback.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from ground import log, logged_calls, operation_id
from ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason, Refused
from ground.logged_calls import LoggedCall
from scrub_api import scrub_pb2
from scrubber.devices import shortage

logger = log.get("api")
Context = grpc.aio.ServicerContext[Any, Any]
Count = Callable[[str, str, str, float], None]  # request name, outcome, reason of a refusal, seconds

FAULT = "internal error in the scrub service"
REQUESTS, STREAMS = "requests", "streams"
MOST = {REQUESTS: 448, STREAMS: 64}  # at the same time, for each socket; a node has one plugin and few people


@dataclass(slots=True)
class LoggedRequest(LoggedCall):
    """A request. It is quiet if it changes nothing, or if each of its devices has its own line."""

    request: str
    devices: Sequence[str] = ()
    job: str = ""


@asynccontextmanager
async def answered(
    context: Context, request: str, count: Count | None = None, *, quiet: bool = False
) -> AsyncIterator[LoggedRequest]:
    """Handle a request: translate errors, write the log line, count the request."""
    asked = LoggedRequest(request, op=operation_id.from_metadata(context.invocation_metadata()), quiet=quiet)
    async with translated(context):
        with logged(asked, count):
            yield asked


def logged(asked: LoggedRequest, count: Count | None = None) -> AbstractContextManager[None]:
    """Write one log line when the request has ended. Errors pass through."""

    def counted() -> dict[str, object]:
        if count is not None:
            count(asked.request, asked.outcome.value, asked.reason, asked.seconds)
        job = {"job": asked.job} if asked.job else {}
        return {"request": asked.request, "devices": list(asked.devices), **job, **asked.ending}

    return logged_calls.logged(asked, logger, counted, cancelled="the caller cancelled the request", fault=FAULT)


@asynccontextmanager
async def translated(context: Context) -> AsyncIterator[None]:
    """Turn our errors into gRPC errors that carry the reason."""
    try:
        yield
    except AutoclaveError as error:
        await abort(context, _code(error), error)
    except grpc.aio.AbortError:
        raise
    except Exception as error:  # noqa: BLE001 - already logged
        lack = shortage.of(error)
        if lack is not None:
            await abort(
                context, grpc.StatusCode.UNAVAILABLE, NotReady(Reason.SHORTAGE, f"cannot answer: {lack}", "try again")
            )
        await abort(
            context, grpc.StatusCode.INTERNAL, Refused(Reason.INTERNAL, FAULT, "report it with the log of the service")
        )


async def abort(context: Context, code: grpc.StatusCode, error: AutoclaveError) -> NoReturn:
    """End a request with an error that our client makes from the details of the status."""
    device = {"device": error.device} if error.device else None
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain="autoclave", metadata=device)
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=error.message)
    for detail in (info, scrub_pb2.Remedies(remedies=error.remedies)):
        status.details.add().Pack(detail)
    await context.abort(code, error.message, tuple(rpc_status.to_status(status).trailing_metadata))


def _code(error: AutoclaveError) -> grpc.StatusCode:
    if error.reason is Reason.UNKNOWN_DEVICE:
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, InvalidRequest):
        return grpc.StatusCode.INVALID_ARGUMENT
    if error.reason is Reason.TOO_MANY_CALLS:
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, NotReady) or error.reason is Reason.LEDGER_UNAVAILABLE:
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.FAILED_PRECONDITION


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
        handler: Any = await continuation(handler_call_details)  # the stubs of gRPC describe handlers of threads
        if handler is None:  # there is no such method
            return None
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
                text = f"cannot serve more than {MOST[kind]} {kind} at the same time"
                raise NotReady(Reason.TOO_MANY_CALLS, text, "try again")
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
