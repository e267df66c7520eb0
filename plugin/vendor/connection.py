"""One plugin of a vendor: its list, which is followed as long as the plugin is there, and the calls to it.

A vendor's plugin may serve only one stream of its list: a second stream would take changes from the first. So a stream
is opened again only on the same socket. After a restart of the vendor's plugin, its next Register opens the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ground import log
from ground.errors import VENDOR_LOG, NotReady, Reason, Refused
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.registration import endpoint, sockets
from plugin.vendor import offer
from plugin.vendor.offer import VendorList

logger = log.get("vendor")

ANSWERS_WITHIN = 5.0  # seconds for the options
AGAIN = 1.0  # seconds until a stream that has ended is opened again
GONE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


class VendorPlugin:
    """The plugin behind one socket, for one resource."""

    def __init__(self, resource: str, path: Path, on_list: Callable[[VendorList | None], None]) -> None:
        """``on_list`` gets each list that can be used, and None when they end. ``close`` ends the connection."""
        self.resource = resource
        self.path = path
        self.options = wire.DevicePluginOptions()
        self.connected = False
        self._closed = False
        self._identity = sockets.identity(path)
        self._on_list = on_list
        self._channel = endpoint.dial(path)
        self._stub: Any = deviceplugin_pb2_grpc.DevicePluginStub(self._channel)  # typed for threads

    async def ask_options(self) -> None:
        """Read the options, as the kubelet does inside Register. Raises NotReady without an answer."""
        self.options = await self._answered(self._stub.GetDevicePluginOptions(wire.Empty(), timeout=ANSWERS_WITHIN))

    def replaced(self) -> bool:
        """Whether the file of its socket was removed or replaced, so that no client can connect to this plugin."""
        return self._identity is None or not sockets.same(sockets.identity(self.path), self._identity)

    async def follow(self) -> None:
        """Follow the list until cancelled, or until the plugin and its socket are gone."""
        warned = ""
        while True:
            why = await self._follow_one_stream()
            if self.connected:
                self.connected = False
                self._on_list(None)
            if why != warned:  # each cause once, not each attempt
                logger.warning("the list of the vendor's plugin ended", resource=self.resource, error=why)
            warned = why
            if self.replaced():
                return
            await asyncio.sleep(AGAIN)

    async def allocate(self, request: wire.AllocateRequest, within: float) -> wire.AllocateResponse:
        """The vendor's answer, unchanged."""
        answer: wire.AllocateResponse = await self._answered(self._stub.Allocate(request, timeout=within))
        return answer

    async def start(self, request: wire.PreStartContainerRequest, within: float) -> None:
        """Let the vendor's plugin prepare the start of a container."""
        await self._answered(self._stub.PreStartContainer(request, timeout=within))

    async def prefer(
        self, request: wire.ContainerPreferredAllocationRequest, within: float
    ) -> wire.PreferredAllocationResponse:
        """The vendor's choice for one container."""
        asked = wire.PreferredAllocationRequest(container_requests=[request])
        answer: wire.PreferredAllocationResponse
        answer = await self._answered(self._stub.GetPreferredAllocation(asked, timeout=within))
        return answer

    async def close(self) -> None:
        """End the connection, and with it every call."""
        self._closed = True
        await self._channel.close()

    async def _follow_one_stream(self) -> str:
        """Read lists until the stream ends; returns why."""
        call = self._stub.ListAndWatch(wire.Empty())
        try:
            async for message in call:
                offered = offer.read(message)
                self.connected = True
                self._on_list(offered)
        except grpc.aio.AioRpcError as error:
            return endpoint.describe(error)
        except ValueError as error:
            return f"its list cannot be used: {error}"
        finally:
            call.cancel()
        return "the vendor's plugin ended it"

    async def _answered(self, call: Any) -> Any:  # noqa: ANN401 - any call
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            text = f"the vendor's plugin of {self.resource} registered again before it answered"
            raise NotReady(Reason.VENDOR, text, "the kubelet starts another pod in its place") from None
        except grpc.aio.AioRpcError as error:
            logger.warning("the vendor's plugin refused", resource=self.resource, error=endpoint.describe(error))
            if error.code() in GONE:
                text = f"the vendor's plugin of {self.resource} did not answer: {error.code().name}"
                raise NotReady(Reason.VENDOR, text, VENDOR_LOG) from error
            raise Refused(Reason.VENDOR, error.details() or error.code().name, VENDOR_LOG) from error
