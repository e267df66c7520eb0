"""Registers one resource through the kubelet's ``plugins_registry``: a second socket, which the kubelet finds and asks.

The kubelet looks for such sockets by itself, also after its restart, and tries again by itself when something fails. We
keep both files in place, the second one only while the first one serves. Should nobody listen to us for a while, the
second one appears once more: the kubelet does not come back by itself after it ended our stream.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import tenacity

from plugin.kubelet_api import pluginregistration_pb2, pluginregistration_pb2_grpc
from plugin.registration import endpoint, events, sockets
from plugin.registration.events import Cause, NotRegistered
from plugin.registration.registration_state import RegistrationState
from plugin.registration.watch import FileWatch

KIND = "DevicePlugin"
VERSIONS = ("v1beta1",)
UNHEARD = 15.0  # seconds without a stream until we show ourselves again; the kubelet takes up to 12 to register us


class Registrar(pluginregistration_pb2_grpc.RegistrationServicer):
    """Answers what the kubelet asks on the second socket."""

    def __init__(self, resource: str, path: Path, standing: RegistrationState) -> None:
        """``path`` is the device plugin's own socket."""
        self._info = pluginregistration_pb2.PluginInfo(
            type=KIND, name=resource, endpoint=str(path.absolute()), supported_versions=VERSIONS
        )
        self._standing = standing

    async def GetInfo(  # noqa: N802 - the proto names it
        self, _request: pluginregistration_pb2.InfoRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pluginregistration_pb2.PluginInfo:
        """Who we are, and where."""
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802 - the proto names it
        self, request: pluginregistration_pb2.RegistrationStatus, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        """What the kubelet made of it; it asks again by itself after a failure."""
        if request.plugin_registered:
            self._standing.accepted()
        else:
            self._standing.failed(Cause.REFUSED, f"the kubelet says: {request.error}")
        return pluginregistration_pb2.RegistrationStatusResponse()


class RegistryRegistration:
    """One resource, served and on show for the kubelet. The caller holds ``sockets.sole_instance``."""

    def __init__(
        self,
        resource: str,
        add: endpoint.Add,
        kubelet_dir: Path,
        registry_dir: Path,
        on_event: events.Listener = events.unheard,
    ) -> None:
        """Nothing is served before ``run``; ``add`` is called for every server that is made."""
        self._add = add
        self._path = kubelet_dir / sockets.endpoint(resource)
        self._door = registry_dir / f"{self._path.stem}-reg.sock"
        self._watch = FileWatch(self._path.parent, registry_dir)
        self._standing = RegistrationState(resource, str(self._path), on_event)
        self._registrar = Registrar(resource, self._path, self._standing)

    async def run(self) -> None:
        """Until cancelled. A FatalError says what a person has to mend."""
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        """Serve one socket and show it to the kubelet, until its file is gone."""
        async with endpoint.serve(self._path, self._add) as served:
            self._standing.fresh()
            while await self._serves(served):
                await self._show(served)
        self._standing.lost(Cause.SOCKET_GONE, f"the file {self._path} was removed")

    async def _serves(self, served: endpoint.PluginServer) -> bool:
        """Wait until our socket answers, or its file is gone."""
        there = tenacity.retry_if_exception(lambda _error: not served.gone())
        retrying = self._standing.retrying()
        try:
            await retrying.copy(retry=tenacity.retry_all(retrying.retry, there))(served.prove)
        except NotRegistered:
            return False
        return True

    async def _show(self, served: endpoint.PluginServer) -> None:
        """Serve the second socket, until one of the two files is gone."""
        async with endpoint.serve(self._door, self._add_registrar) as door, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch.run()), group.create_task(self._show_again(served, door))]
            await self._watch.until(lambda: served.gone() or door.gone())
            for task in tasks:
                task.cancel()

    async def _show_again(self, served: endpoint.PluginServer, door: endpoint.PluginServer) -> None:
        """Only while nobody listens: the kubelet lets go of a plugin before it registers it anew."""
        streams = served.streams
        while True:
            try:
                async with asyncio.timeout(UNHEARD):
                    await streams.until(lambda: streams.open > 0)
            except TimeoutError:
                with suppress(FileNotFoundError):  # removed this moment: the watch has seen it
                    sockets.announce(door.path)
                continue
            await streams.until(lambda: streams.open == 0)
            self._standing.lost(Cause.STREAM_ENDED, "ListAndWatch ended")
            self._standing.fresh()  # each loss is told

    def _add_registrar(self, server: grpc.aio.Server) -> None:
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self._registrar, server)
