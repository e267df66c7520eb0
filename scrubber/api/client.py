"""The clients of both sockets. Every call has a deadline; every failure is one of ``scrubber.ground.errors``."""

from __future__ import annotations

import asyncio
import os
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Union, Unpack, cast, get_args, get_origin, get_type_hints

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from scrubber.api import last_list, scrub_pb2, scrub_pb2_grpc
from scrubber.core import views
from scrubber.ground import operation_id, paths, unix_sockets
from scrubber.ground.device_messages import AdvertisedDevices, GrantedDevice
from scrubber.ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason, Refused, Unreachable

R = TypeVar("R")

# A service restarts within a second; the default back-off would wait longer. Despite its name, the
# second option is the time limit of one connection attempt; on a busy node an attempt needs time.
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 300),
    # Without it, each message costs a ping in both processes, which measures the bandwidth of a local socket.
    ("grpc.http2.bdp_probe", 0),
)
_REASONS = {reason.value: reason for reason in Reason}
RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
PAGE = 1000  # rows of history in one answer; the service has its own limit, which is higher
SHORT = 10.0  # seconds for requests that the service answers from memory


class Which(TypedDict, total=False):
    """Which rows of the history: see ``HistoryRequest`` in ``scrub.proto``."""

    after: int
    until: float
    kinds: Sequence[str]
    warnings: bool
    without_steps: bool


class _Client:
    """A connection to one of the sockets. Use it with ``async with``."""

    def __init__(self, socket: Path) -> None:
        limit = unix_sockets.MAX_PATH_BYTES
        if len(os.fsencode(socket)) > limit:
            raise Unreachable(f"cannot reach the scrub service at {socket}: a socket path has at most {limit} bytes")
        self.socket = socket
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def reachable(self, within: float) -> bool:
        """Whether the socket accepts a connection within this time."""
        try:
            await asyncio.wait_for(self._channel.channel_ready(), within)
        except TimeoutError:
            return False
        return True

    async def _ask(self, call: Awaitable[R]) -> R:
        with translated(self.socket):
            return await call

    async def _stream(self, call: grpc.aio.UnaryStreamCall[Any, Any], kind: type[R]) -> AsyncGenerator[R, None]:
        """What the messages say. As long as a message says the same as the one before, the same object again."""
        with translated(self.socket):
            last: tuple[Message, R] | None = None
            try:
                async for message in call:
                    if last is None or message != last[0]:
                        last = message, view(kind, message)
                    yield last[1]
            finally:
                call.cancel()  # a stream that is only forgotten stays open in the service


class ScrubberClient(_Client):
    """Client of the socket for the device plugin and ``autoclave acquire``."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self._stub = scrub_pb2_grpc.ScrubberStub(self._channel)

    async def acquire(
        self, devices: Sequence[str], *, announced: bool = False, exclusive: bool = False, owner: str = "",
        op: str = "", timeout: float = SHORT,
    ) -> tuple[GrantedDevice, ...]:  # fmt: skip
        """Grants for all devices, or an error and no grant. ``op`` is the operation id in the caller's log.

        ``exclusive`` refuses a device that is granted or in use, unless this request repeats one for the same owner.
        Without it, the request says that the last owner has left. ``owner``: who the devices are for, for people and
        for ``release``.
        """
        request = scrub_pb2.AcquireRequest(devices=devices, announced=announced, exclusive=exclusive, owner=owner)
        answer = await self._ask(self._stub.Acquire(request, timeout=timeout, metadata=operation_id.to_metadata(op)))
        return tuple(view(GrantedDevice, grant) for grant in answer.grants)

    async def start(self, devices: Sequence[str], owner: str = "", *, op: str = "", timeout: float = 30.0) -> None:
        """A container of ``owner`` may start, or an error. Without ``owner``, the kubelet's checkpoint names it."""
        request = scrub_pb2.StartRequest(devices=devices, owner=owner)
        await self._ask(self._stub.Start(request, timeout=timeout, metadata=operation_id.to_metadata(op)))

    async def release(
        self, devices: Sequence[str] = (), *, owner: str = "", op: str = "", timeout: float = SHORT
    ) -> frozenset[str]:
        """Say that the last owner has left. ``owner`` refuses a device that was acquired for another owner.

        Without ``devices``: all devices of the owner, if it has any.

        Returns the devices that were granted or in use.
        """
        request = scrub_pb2.ReleaseRequest(devices=devices, owner=owner)
        answer = await self._ask(self._stub.Release(request, timeout=timeout, metadata=operation_id.to_metadata(op)))
        return frozenset(answer.released)

    def last_list(self) -> AdvertisedDevices | None:
        """The list that the service has left in its run directory, and for how long it is still valid.

        None: there is none, or it is of another boot, or too old.
        """
        told = last_list.read(paths.last_list(self.socket.parent))
        return view(AdvertisedDevices, told) if told is not None else None

    def watch(self) -> AsyncGenerator[AdvertisedDevices, None]:
        """Yield the full list of devices: first now, then after every change."""
        return self._stream(self._stub.Watch(scrub_pb2.WatchRequest()), AdvertisedDevices)


class AdminClient(_Client):
    """Client of the socket for operators."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self._stub = scrub_pb2_grpc.AdminStub(self._channel)

    async def status(
        self, gpus: Sequence[str] = (), *, newer_than: int = 0, wait: float = 0.0, timeout: float = SHORT
    ) -> views.Status:
        """All devices, or the named ones. ``wait``: seconds to wait until the ledger has a row after ``newer_than``."""
        request = scrub_pb2.StatusRequest(gpus=gpus, newer_than=newer_than, wait_seconds=wait)
        answer = await self._ask(self._stub.Status(request, timeout=timeout + wait))
        return view(views.Status, answer)

    def scrub(
        self, gpus: Sequence[str], *, every: bool = False, path: str = "", no_wait: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[views.ScrubProgress, None]:  # fmt: skip
        """Progress of the jobs until each has its result."""
        request = scrub_pb2.ScrubRequest(gpus=gpus, all=every, path=path, no_wait=no_wait)
        return self._stream(self._stub.Scrub(request, timeout=timeout), views.ScrubProgress)

    async def quarantine(self, gpu: str, reason: str, by: str, *, timeout: float = SHORT) -> views.DeviceStatus:
        """Quarantine a device."""
        request = scrub_pb2.QuarantineRequest(gpu=gpu, reason=reason, by=by)
        answer = await self._ask(self._stub.Quarantine(request, timeout=timeout))
        return view(views.DeviceStatus, answer.device)

    def reinstate(
        self, gpus: Sequence[str], reason: str, by: str, *, without_evidence: bool = False, timeout: float | None = None
    ) -> AsyncGenerator[views.ScrubProgress, None]:
        """End quarantines with a scrub and a self-test; without evidence, at once."""
        request = scrub_pb2.ReinstateRequest(gpus=gpus, reason=reason, by=by, without_evidence=without_evidence)
        return self._stream(self._stub.Reinstate(request, timeout=timeout), views.ScrubProgress)

    async def explain(self, gpu: str, *, timeout: float = SHORT) -> views.Explanation:
        """Why a device is in its state."""
        answer = await self._ask(self._stub.Explain(scrub_pb2.ExplainRequest(gpu=gpu), timeout=timeout))
        return view(views.Explanation, answer)

    async def history(
        self, gpu: str = "", *, since: float = 0.0, limit: int = 1000, **which: Unpack[Which]
    ) -> tuple[views.HistoryEntry, ...]:
        """The newest rows of the ledger that are asked for, newest last. Asks page by page."""
        found: tuple[views.HistoryEntry, ...] = ()
        while len(found) < limit:
            request = scrub_pb2.HistoryRequest(
                gpu=gpu, since=since, limit=min(limit - len(found), PAGE), before=found[0].seq if found else 0,
                **which,
            )  # fmt: skip
            page = (await self._ask(self._stub.History(request, timeout=SHORT))).entries
            found = (*(view(views.HistoryEntry, entry) for entry in page), *found)
            if len(page) < request.limit:
                break
        return found


@contextmanager
def translated(socket: Path) -> Iterator[None]:
    """Turn gRPC errors into our errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _ours(error, socket) from None


def _ours(error: grpc.aio.AioRpcError, socket: Path) -> AutoclaveError:
    reason = _reason(error)
    message = error.details() or "no details"
    code = error.code()
    if reason is not None:
        kind = {grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest, grpc.StatusCode.NOT_FOUND: InvalidRequest}.get(code)
        if kind is not None:
            return InvalidRequest(message, reason)
        return (NotReady if code in RETRIED else Refused)(reason, message)
    if code is grpc.StatusCode.UNAVAILABLE:
        hint = "is the scrub service running, and is --run-dir the same?"
        return Unreachable(f"cannot reach the scrub service at {socket}: {hint}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NotReady(Reason.TIMED_OUT, "the scrub service did not answer in time")
    if code is grpc.StatusCode.CANCELLED:  # by the service when it stops; a caller that cancels gets no gRPC error
        return NotReady(Reason.SHUTTING_DOWN, "the scrub service stopped before it answered; try again")
    return Refused(Reason.INTERNAL, f"the scrub service failed: {message}")


def _reason(error: grpc.aio.AioRpcError) -> Reason | None:
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == "autoclave":
            return _REASONS.get(info.reason, Reason.INTERNAL)  # a newer service may have more reasons
    return None


def view(kind: type[R], message: Message) -> R:
    """The view in a message, by field name: both have the same fields. An optional field that is unset becomes None."""
    return kind(**{name: read(message) for name, read in _readers(cast("Any", kind))})


@cache
def _readers(kind: Any) -> tuple[tuple[str, Callable[[Message], Any]], ...]:  # noqa: ANN401 - any of the views
    """One reader for each field. Cached, because type hints take longer to look up than the rest of a conversion."""
    hints = get_type_hints(kind)
    return tuple((field.name, _reader(field.name, hints[field.name])) for field in fields(cast("Any", kind)))


def _reader(name: str, hint: Any) -> Callable[[Message], Any]:  # noqa: ANN401 - the hint of any field
    value = attrgetter(name)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        if not is_dataclass(inner):
            return lambda message: tuple(value(message))
        return lambda message: tuple([view(inner, item) for item in value(message)])
    if get_origin(hint) in (Union, types.UnionType):
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        read = _reader(name, inner)
        return lambda message: read(message) if message.HasField(name) else None
    if is_dataclass(hint):
        return lambda message: view(cast("Any", hint), value(message))
    return value
