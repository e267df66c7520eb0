"""``v1beta1.RegistrationService`` on kubelet.sock, which plugins call to register."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

from demo.standins import journal
from demo.standins.clients import Clients
from demo.standins.endpoint import PluginError
from plugin.kubelet_api import deviceplugin_pb2, deviceplugin_pb2_grpc

FOR_EVER = 1e9  # seconds; gRPC represents "no deadline" as a very long time


class RegistrationService(deviceplugin_pb2_grpc.RegistrationServicer):
    """Answers after it has dialled the plugin."""

    def __init__(self, directory: Path, clients: Clients, journal: journal.Journal) -> None:
        """Endpoints are relative to the directory."""
        self._directory, self._clients, self._journal = directory, clients, journal
        self._work: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Cancel every registration: the kubelet ends."""
        work = list(self._work)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)  # the journal has each failure

    async def Register(  # noqa: N802 - the proto's name
        self, request: deviceplugin_pb2.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> deviceplugin_pb2.Empty:
        """Refuse with status UNKNOWN, as Go does for an error without a status."""
        deadline = _deadline(context.time_remaining())
        errors: list[str] = []
        work = self._journal.spawn(self._register(request, deadline, errors), f"register {request.resource_name}")
        self._work.add(work)
        self._journal.changed()
        work.add_done_callback(self._work.discard)
        await asyncio.shield(work)  # the kubelet goes on even if the caller gives up
        if errors:
            await context.abort(grpc.StatusCode.UNKNOWN, errors[0])
        return deviceplugin_pb2.Empty()

    async def _register(
        self, request: deviceplugin_pb2.RegisterRequest, deadline: float | None, errors: list[str]
    ) -> None:
        resource, endpoint = request.resource_name, request.endpoint
        refusal = self._clients.refusal(resource, [request.version])
        if not refusal:
            try:
                await self._clients.connect(resource, self._directory / endpoint, deadline)
            except PluginError as error:
                refusal = str(error)
        if refusal:
            errors.append(refusal)
        self._journal.add_registration(journal.RegistrationCall(resource, endpoint, refusal))


def _deadline(left: float | None) -> float | None:
    """The deadline in seconds, or None without one: gRPC returns None although the types say float."""
    return left if left is not None and left < FOR_EVER else None
