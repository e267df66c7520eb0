"""How containers get devices of this plugin's own: by the answer that the operator chose, after the gate."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

from plugin import preferred, response
from plugin.devices import Device
from plugin.kubelet_api import deviceplugin_pb2 as wire

SharedNodes: TypeAlias = Callable[[], Collection[str]]


class OwnHandout:
    """Implements ``device_plugin.Handout``."""

    def __init__(self, style: response.Style, shared_nodes: SharedNodes) -> None:
        """``shared_nodes`` returns the device nodes of the driver that exist now."""
        self._style = style
        self._shared_nodes = shared_nodes

    async def allocate(
        self,
        _request: wire.AllocateRequest,
        groups: Sequence[Sequence[Device]],
        acquire: Callable[[], Awaitable[None]],
    ) -> wire.AllocateResponse:
        """The answer is made first: if it cannot be made, no device is acquired."""
        shared = self._shared_nodes() if self._style.pass_device_specs else ()
        made = (response.respond(devices, self._style, shared, uuid.uuid4()) for devices in groups)
        answer = wire.AllocateResponse(container_responses=made)
        await acquire()
        return answer

    async def start(self, _request: wire.PreStartContainerRequest, _within: float | None) -> None:
        """Nothing is left to do."""

    async def prefer(self, shown: Sequence[Device], request: wire.ContainerPreferredAllocationRequest) -> list[str]:
        """The preferred devices by the last list."""
        available, must = list(request.available_deviceIDs), list(request.must_include_deviceIDs)
        return preferred.prefer(shown, available, must, request.allocation_size)
