"""Registers the DRA driver through the kubelet's plugin registry: a registration socket and a service socket.

Each process has its own socket names. The kubelet asks the newest process that it can reach, so it knows a driver at
each moment of an update or a restart. The sockets of a killed process are removed after that.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

from plugin.dra.dra_driver import HEALTHS
from plugin.kubelet_api import pluginregistration_pb2, pluginregistration_pb2_grpc
from plugin.registration import endpoint, sockets
from plugin.registration.registration_state import Cause, Listener, NotRegistered, RegistrationState
from plugin.registration.sockets import FileWatch

KIND = "DRAPlugin"
ANSWERS_WITHIN = 5.0  # seconds for a call to the registration socket of a vendor's driver
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTHS)  # the kubelet takes the first it knows


async def stay_registered(
    driver: str, add: endpoint.Add, service_socket: Path, registry_socket: Path, on_event: Listener
) -> None:
    """Serve both sockets until cancelled, and serve them again when one of the files has been removed."""

    def report(name: str, failure: NotRegistered | None) -> None:
        if failure is None:  # the kubelet would call the sockets of killed drivers for ever
            sockets.remove_dead(service_socket.parent, "dra*.sock")
            sockets.remove_dead(registry_socket.parent, f"{driver}*-reg.sock")
        on_event(name, failure)

    state = RegistrationState(driver, report)
    registrar = Registrar(_info(driver, service_socket), state)
    watch = FileWatch(service_socket.parent, registry_socket.parent)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch.run(), name="watch of the sockets")
        while True:
            state.restart()
            # The kubelet calls the driver as soon as it finds the second socket, so the first one serves before.
            async with (
                endpoint.serve(service_socket, add) as served,
                endpoint.serve(registry_socket, registrar.add_to) as shown,
            ):
                await watch.until(lambda: served.gone() or shown.gone())
            state.lost(Cause.SOCKET_GONE, "the file of a socket was removed")


def _info(driver: str, service_socket: Path) -> pluginregistration_pb2.PluginInfo:
    return pluginregistration_pb2.PluginInfo(
        type=KIND, name=driver, endpoint=str(service_socket.absolute()), supported_versions=VERSIONS
    )


class Registrar(pluginregistration_pb2_grpc.RegistrationServicer):
    """Answers the kubelet's calls on the second socket."""

    def __init__(
        self,
        info: pluginregistration_pb2.PluginInfo,
        state: RegistrationState,
        vendor: grpc.aio.Channel | None = None,
    ) -> None:
        """``vendor``: a channel to the driver in front of which this driver stands.

        That driver also gets what the kubelet says.
        """
        self._info = info
        self._state = state
        self._vendor: Any = None if vendor is None else pluginregistration_pb2_grpc.RegistrationStub(vendor)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer on this server."""
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(  # noqa: N802 - the proto names it
        self, _request: pluginregistration_pb2.InfoRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pluginregistration_pb2.PluginInfo:
        """The name of the driver and the path of its socket."""
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802 - the proto names it
        self, request: pluginregistration_pb2.RegistrationStatus, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        """The result of the registration.

        The kubelet retries after a failure. An error of a vendor's driver ends the registration of that driver.
        """
        if request.plugin_registered:
            self._state.accepted(self._info.endpoint)
        else:
            self._state.failed(NotRegistered(Cause.REFUSED, f"the kubelet answers: {request.error}"))
        if self._vendor is not None:
            try:
                await self._vendor.NotifyRegistrationStatus(request, timeout=ANSWERS_WITHIN)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
        return pluginregistration_pb2.RegistrationStatusResponse()
