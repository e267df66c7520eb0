"""The kubelet's client for one plugin: the dial, the five calls, their deadlines, and the kubelet's error messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from demo.standins.journal import Call, Journal
from demo.standins.timing import Timing
from plugin.kubelet_api import deviceplugin_pb2, deviceplugin_pb2_grpc

OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),  # each dial makes its own connection, as in Go
)


class PluginError(Exception):
    """A call to the plugin failed; the message is that of gRPC for Go."""


def _go_text(error: grpc.aio.AioRpcError) -> str:
    name = "Canceled" if error.code() is grpc.StatusCode.CANCELLED else error.code().name.title().replace("_", "")
    late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return f"rpc error: code = {name} desc = {'context deadline exceeded' if late else error.details()}"


class Endpoint:
    """A connection to one plugin; or, after a start of the kubelet, a plugin that only the checkpoint names."""

    def __init__(self, resource: str, path: Path | None, journal: Journal, timing: Timing) -> None:
        """Without a path, the plugin is known from the checkpoint only, and stopped."""
        self.resource = resource
        self.path = path
        self.options: deviceplugin_pb2.DevicePluginOptions | None = None
        self.stopped = path is None
        self.listed = False  # whether the first list has arrived
        self.hears = asyncio.Event()  # whether lists are taken as they arrive
        self.hears.set()
        self.listening: asyncio.Task[None] | None = None
        self._journal = journal
        self._timing = timing
        self._channel: grpc.aio.Channel | None = None

    def __str__(self) -> str:
        return f"{self.resource} at {self.path}"

    async def connect(self, deadline: float | None) -> None:
        """Dial, then ask for the options; the deadline is the rest of the caller's Register."""
        self._channel = grpc.aio.insecure_channel(f"unix:{self.path}", options=OPTIONS)
        try:
            await asyncio.wait_for(self._channel.channel_ready(), self._timing.dial)
        except TimeoutError:
            raise PluginError("failed to dial device plugin: context deadline exceeded") from None
        call = Call("GetDevicePluginOptions", self.resource, deadline=deadline)
        ask = self._stub().GetDevicePluginOptions
        self.options = await recorded(self._journal, call, lambda: ask(deviceplugin_pb2.Empty(), timeout=deadline))

    async def listen(self, replace: Callable[[Sequence[deviceplugin_pb2.Device]], None]) -> None:
        """Read lists until the stream ends."""
        call = self._journal.begin(Call("ListAndWatch", self.resource))
        outcome, message = "OK", ""
        try:
            async for update in self._stub().ListAndWatch(deviceplugin_pb2.Empty()):
                await self.hears.wait()
                replace(update.devices)
                self.listed = True
        except grpc.aio.AioRpcError as error:
            outcome, message = error.code().name, error.details() or ""
        except asyncio.CancelledError:
            outcome = "CANCELLED"
            raise
        finally:
            self._journal.end(call, outcome, message)

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The plugin's preference among the available devices; it may return fewer devices, or unknown ones."""
        self._demand_running()
        request = deviceplugin_pb2.PreferredAllocationRequest()
        request.container_requests.add(available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size)
        call = Call("GetPreferredAllocation", self.resource, tuple(available), tuple(must), size)
        response = await recorded(self._journal, call, lambda: self._stub().GetPreferredAllocation(request))
        return response.container_responses[0].deviceIDs if response.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> deviceplugin_pb2.AllocateResponse:
        """Call Allocate, without a deadline and without a retry."""
        self._demand_running()
        request = deviceplugin_pb2.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        call = Call("Allocate", self.resource, tuple(ids), size=len(ids))
        response: deviceplugin_pb2.AllocateResponse
        response = await recorded(self._journal, call, lambda: self._stub().Allocate(request))
        return response

    async def prestart(self, ids: Sequence[str]) -> None:
        """Call PreStartContainer, the only call with its own deadline."""
        self._demand_running()
        request = deviceplugin_pb2.PreStartContainerRequest(devices_ids=ids)
        limit = self._timing.prestart
        call = Call("PreStartContainer", self.resource, tuple(ids), size=len(ids), deadline=limit)
        await recorded(self._journal, call, lambda: self._stub().PreStartContainer(request, timeout=limit))

    async def close(self) -> None:
        """Cancel every call and close the connection."""
        self.stopped = True
        listening, self.listening = self.listening, None
        if listening is not None and listening is not asyncio.current_task():
            listening.cancel()
            await asyncio.wait([listening])  # the journal has its failure, if any
        if self._channel is not None:
            await self._channel.close()

    def _demand_running(self) -> None:
        if self.stopped:
            raise PluginError(f"endpoint {self} has been stopped")

    def _stub(self) -> deviceplugin_pb2_grpc.DevicePluginAsyncStub:
        assert self._channel is not None, "a stopped endpoint is not called"  # noqa: S101 - narrows the type
        return deviceplugin_pb2_grpc.DevicePluginStub(self._channel)


async def recorded(journal: Journal, call: Call, send: Callable[[], Any]) -> Any:  # noqa: ANN401 - as the generated stubs' answers
    """Send a call, and record it from its start to its end. A PluginError has the text of gRPC for Go."""
    journal.begin(call)
    try:
        response = await send()
    except grpc.aio.AioRpcError as error:
        journal.end(call, error.code().name, error.details() or "")
        raise PluginError(_go_text(error)) from error
    except asyncio.CancelledError:
        journal.end(call, "CANCELLED")
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # this task was not cancelled: the call was, because its connection was closed
        raise PluginError("rpc error: code = Canceled desc = grpc: the client connection is closing") from None
    journal.end(call, "OK")
    return response
