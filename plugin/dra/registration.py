"""Registers the driver with the kubelet: two sockets, and the kubelet finds the second one in its plugin registry.

The sockets of each process have names of their own. The kubelet asks the newest process that it can reach, and so it
knows a driver at each moment of an update or a restart. The sockets of a killed process are removed after that.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

from plugin.kubelet_api import pluginregistration_pb2, pluginregistration_pb2_grpc
from plugin.registration import endpoint, events
from plugin.registration.events import Cause, Listener, RegistrationState
from plugin.registration.sockets import FileWatch
from scrubber.ground import unix_sockets

KIND = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")  # the kubelet takes the first it knows


async def stay_registered(
    driver: str, add: endpoint.Add, service_socket: Path, registry_socket: Path, on_event: Listener
) -> None:
    """Serve both sockets until cancelled, and serve them again when one of the files was removed."""

    def note(event: events.Event) -> None:
        if isinstance(event, events.Registered):
            for socket in (service_socket, registry_socket):
                _remove_stale(driver, socket)
        on_event(event)

    state = RegistrationState(driver, str(service_socket), note)
    registrar = _Registrar(driver, service_socket, state)
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


class _Registrar(pluginregistration_pb2_grpc.RegistrationServicer):
    """Answers the kubelet's calls on the second socket."""

    def __init__(self, driver: str, path: Path, state: RegistrationState) -> None:
        """``path`` is the driver's own socket."""
        self._info = pluginregistration_pb2.PluginInfo(
            type=KIND, name=driver, endpoint=str(path.absolute()), supported_versions=VERSIONS
        )
        self._state = state

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer on this server."""
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(  # noqa: N802 - the proto names it
        self, _request: pluginregistration_pb2.InfoRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pluginregistration_pb2.PluginInfo:
        """The name of the driver and the path of its socket."""
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802 - the proto names it
        self, request: pluginregistration_pb2.RegistrationStatus, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        """The result of the registration; the kubelet retries after a failure."""
        if request.plugin_registered:
            self._state.accepted()
        else:
            self._state.failed(Cause.REFUSED, f"the kubelet answers: {request.error}")
        return pluginregistration_pb2.RegistrationStatusResponse()


def _remove_stale(driver: str, ours: Path) -> None:
    """Remove the sockets of killed drivers beside ours: the kubelet would call them for ever."""
    for found in (*ours.parent.glob("dra*.sock"), *ours.parent.glob(f"{driver}*-reg.sock")):
        if isinstance(unix_sockets.connect_error(found), ConnectionRefusedError):
            found.unlink(missing_ok=True)
