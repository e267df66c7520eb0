"""The plugin's client of the scrub service: its list and calls, and gRPC errors translated with their reasons.

Every call has a deadline; each failure is in ``ground.errors``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from ground import operation_id, paths, unix_sockets
from ground.errors import AutoclaveError, InvalidRequest, NotReady, Reason, Refused, Unreachable
from scrub_api import last_list, scrub_pb2, scrub_pb2_grpc
from scrub_api.device_messages import GrantedDevice, ReportedDevice, ReportedDevices

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
_FIELDS = [field.name for field in fields(ReportedDevice)]
_REASONS = {reason.value: reason for reason in Reason}
RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
WRONG = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
SAME_VERSION = "update the service, or use the program of its version"
SHORT = 10.0  # seconds for requests that the service answers from memory


class Client:
    """A connection to one of the sockets. Use it with ``async with``."""

    def __init__(self, socket: Path) -> None:
        limit = unix_sockets.MAX_PATH_BYTES
        if len(os.fsencode(socket)) > limit:
            why = f"cannot reach the scrub service at {socket}: a socket path has at most {limit} bytes"
            raise Unreachable(why, "give a shorter --run-dir")
        self.socket = socket
        self.channel = grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()

    async def reachable(self, within: float) -> bool:
        """Whether the socket accepts a connection within this time."""
        try:
            await asyncio.wait_for(self.channel.channel_ready(), within)
        except TimeoutError:
            return False
        return True

    async def ask(self, call: Awaitable[R]) -> R:
        """The answer of a call."""
        with translated(self.socket):
            return await call

    async def stream(
        self, call: grpc.aio.UnaryStreamCall[Any, Any], read: Callable[[Any], R]
    ) -> AsyncGenerator[R, None]:
        """What the messages say. As long as a message says the same as the one before, the same object again."""
        with translated(self.socket):
            last: tuple[Message, R] | None = None
            try:
                async for message in call:
                    if last is None or message != last[0]:
                        last = message, read(message)
                    yield last[1]
            finally:
                call.cancel()  # a stream that is only forgotten stays open in the service


class ScrubberClient(Client):
    """Client of the socket for the device plugin and ``autoclave acquire``."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self._stub = scrub_pb2_grpc.ScrubberStub(self.channel)

    async def acquire(  # noqa: PLR0913 - what is asked for, and by whom
        self, devices: Sequence[str], *, announced: bool = False, exclusive: bool = False, owner: str = "",
        group: int = 0, pods: Collection[str] | None = None, op: str = "", timeout: float = SHORT,
    ) -> tuple[GrantedDevice, ...]:  # fmt: skip
        """Grants for all devices, or an error and no grant. ``op`` is the operation id in the caller's log.

        ``exclusive`` refuses a device that is granted or in use, unless this request repeats one for the same owner.
        Without it, the request says that the last owner has left. ``owner``: who the devices are for, for people and
        for ``release``. ``group``: the only control group that may open them, by its id; 0: all may. ``pods``: the only
        pods that may, as in ``let_in``; None: all may.
        """
        request = scrub_pb2.AcquireRequest(
            devices=devices, announced=announced, exclusive=exclusive, owner=owner, group=group,
            pods=None if pods is None else scrub_pb2.Pods(uids=pods),
        )  # fmt: skip
        answer = await self.ask(self._stub.Acquire(request, timeout=timeout, metadata=operation_id.to_metadata(op)))
        return tuple(GrantedDevice(it.device, it.grant, it.receipt, it.receipts) for it in answer.grants)

    async def start(self, devices: Sequence[str], owner: str = "", *, op: str = "", timeout: float = 30.0) -> None:
        """A container of ``owner`` may start, or an error. Without ``owner``, the kubelet's checkpoint names it."""
        request = scrub_pb2.StartRequest(devices=devices, owner=owner)
        await self.ask(self._stub.Start(request, timeout=timeout, metadata=operation_id.to_metadata(op)))

    async def release(
        self, devices: Sequence[str] = (), *, owner: str = "", op: str = "", timeout: float = SHORT
    ) -> frozenset[str]:
        """Say that the last owner has left. ``owner`` refuses a device that was acquired for another owner.

        Without ``devices``: all devices of the owner, if it has any.

        Returns the devices that were granted or in use.
        """
        request = scrub_pb2.ReleaseRequest(devices=devices, owner=owner)
        answer = await self.ask(self._stub.Release(request, timeout=timeout, metadata=operation_id.to_metadata(op)))
        return frozenset(answer.released)

    async def let_in(self, owner: str, pods: Collection[str], *, op: str = "", timeout: float = SHORT) -> None:
        """From now on the pods with these UIDs may open the devices of this owner, and nobody else."""
        request = scrub_pb2.LetInRequest(owner=owner, pods=scrub_pb2.Pods(uids=pods))
        await self.ask(self._stub.LetIn(request, timeout=timeout, metadata=operation_id.to_metadata(op)))

    async def distrust(self, device: str, reason: str, *, op: str = "", timeout: float = SHORT) -> None:
        """End the proof of a device. After an error it may still be offered with that proof."""
        request = scrub_pb2.DistrustRequest(device=device, reason=reason)
        await self.ask(self._stub.Distrust(request, timeout=timeout, metadata=operation_id.to_metadata(op)))

    def last_list(self) -> ReportedDevices | None:
        """The list that the service has left in its run directory, and for how long it is still valid.

        None: there is none, or it is of another boot, or too old. Raises Unreachable if it cannot be read.
        """
        file = paths.last_list(self.socket.parent)
        try:
            response = last_list.read(file)
        except (OSError, DecodeError) as error:
            raise Unreachable(f"cannot read the last list of devices {file}: {error}") from error
        return _reported(response) if response is not None else None

    def watch(self) -> AsyncGenerator[ReportedDevices, None]:
        """Yield the full list of devices: first now, then after every change."""
        return self.stream(self._stub.Watch(scrub_pb2.WatchRequest()), _reported)


@contextmanager
def translated(socket: Path) -> Iterator[None]:
    """Turn gRPC errors into our errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _ours(error, socket) from None


def _ours(error: grpc.aio.AioRpcError, socket: Path) -> AutoclaveError:
    message, code = error.details() or "no details", error.code()
    info, remedies = _details(error)
    if info is not None:
        reason = _REASONS.get(info.reason, Reason.INTERNAL)  # a newer service may have more reasons
        device = info.metadata.get("device", "")
        if code in WRONG:
            return InvalidRequest(message, *remedies, reason=reason, device=device)
        return (NotReady if code in RETRIED else Refused)(reason, message, *remedies, device=device)
    if code is grpc.StatusCode.UNAVAILABLE:
        hint = "is the scrub service running, and is --run-dir the same?"
        return Unreachable(f"cannot reach the scrub service at {socket}: {hint}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable("the scrub service did not answer in time", reason=Reason.TIMED_OUT)
    if code is grpc.StatusCode.CANCELLED:  # by the service when it stops; a caller that cancels gets no gRPC error
        return NotReady(Reason.SHUTTING_DOWN, "the scrub service stopped before it answered", "try again")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        why = "the scrub service is older than this program: it does not know the request"
        return Refused(Reason.INTERNAL, why, SAME_VERSION)
    return Refused(Reason.INTERNAL, f"the scrub service failed: {message}", "the log of the service says more")


def _details(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo | None, Sequence[str]]:
    """What the service says of its error: the reason with the device, and the remedies. None: gRPC made the error."""
    status, ours = rpc_status.from_call(error), None
    info, advice = error_details_pb2.ErrorInfo(), scrub_pb2.Remedies()
    for detail in status.details if status is not None else ():
        if detail.Unpack(info) and info.domain == "autoclave":
            ours = info
        detail.Unpack(advice)  # an older service has none: its message ends with them
    return ours, advice.remedies


def _reported(message: scrub_pb2.WatchResponse) -> ReportedDevices:
    return ReportedDevices(tuple(map(_device, message.devices)), message.silence_seconds, message.checkpoint)


def _device(message: scrub_pb2.ReportedDevice) -> ReportedDevice:
    values: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS}
    numa_node = message.numa_node if message.HasField("numa_node") else None
    return ReportedDevice(**{**values, "nodes": tuple(message.nodes), "numa_node": numa_node})
