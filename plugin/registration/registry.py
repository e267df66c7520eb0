"""Registers one resource through the kubelet's ``plugins_registry``: a second socket that the kubelet finds and calls.

The kubelet finds such sockets itself, also after its restart, and retries after a failure. The plugin keeps both files
in place, the second one only while the first one serves. If no ListAndWatch stream is open for a while, the plugin
renames the second file away and back, because the kubelet does not return by itself after it has ended the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import tenacity

from plugin.kubelet_api import pluginregistration_pb2, pluginregistration_pb2_grpc
from plugin.registration import endpoint, events, sockets
from plugin.registration.events import Cause, NotRegistered, RegistrationState
from plugin.registration.sockets import FileWatch

DEVICE_PLUGIN, DEVICE_PLUGIN_VERSIONS = "DevicePlugin", ("v1beta1",)
SHOW_AGAIN_AFTER = 15.0  # seconds without a stream; the kubelet needs up to 12 for a registration


class Registrar(pluginregistration_pb2_grpc.RegistrationServicer):
    """Answers the kubelet's calls on the second socket."""

    def __init__(
        self, name: str, path: Path, state: RegistrationState, kind: str = DEVICE_PLUGIN,
        versions: Sequence[str] = DEVICE_PLUGIN_VERSIONS,
    ) -> None:  # fmt: skip
        """``path`` is the plugin's own socket, ``kind`` the kubelet's word for such plugins."""
        self._info = pluginregistration_pb2.PluginInfo(
            type=kind, name=name, endpoint=str(path.absolute()), supported_versions=versions
        )
        self._state = state

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer on this server."""
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(  # noqa: N802 - the proto names it
        self, _request: pluginregistration_pb2.InfoRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pluginregistration_pb2.PluginInfo:
        """The name of the plugin and the path of its socket."""
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


class RegistryRegistration:
    """One resource, served and visible in the registry. The caller holds ``sockets.sole_instance``."""

    def __init__(
        self,
        resource: str,
        add: endpoint.Add,
        kubelet_dir: Path,
        registry_dir: Path,
        on_event: events.Listener = events.ignore,
    ) -> None:
        """Serve nothing before ``run``; ``add`` is called for every new server."""
        self._add = add
        self._path = kubelet_dir / sockets.endpoint(resource)
        self._registry_socket = registry_dir / f"{self._path.stem}-reg.sock"
        self._watch = FileWatch(self._path.parent, registry_dir)
        self._state = RegistrationState(resource, str(self._path), on_event)
        self._registrar = Registrar(resource, self._path, self._state)

    async def run(self) -> None:
        """Stay registered until cancelled. A FatalError says what the operator has to change."""
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        """Serve one socket and show it to the kubelet, until its file is removed."""
        async with endpoint.serve(self._path, self._add) as served:
            self._state.restart()
            while await self._serves(served):
                await self._show(served)
        self._state.lost(Cause.SOCKET_GONE, f"the file {self._path} was removed")

    async def _serves(self, served: endpoint.PluginServer) -> bool:
        """Wait until the plugin's socket answers (True) or its file is removed (False)."""
        exists = tenacity.retry_if_exception(lambda _error: not served.gone())
        retrying = self._state.retrying()
        try:
            await retrying.copy(retry=tenacity.retry_all(retrying.retry, exists))(served.prove)
        except NotRegistered:
            return False
        return True

    async def _show(self, served: endpoint.PluginServer) -> None:
        """Serve the second socket, until one of the two files is removed."""
        async with (
            endpoint.serve(self._registry_socket, self._registrar.add_to) as registrar,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(self._watch.run()), group.create_task(self._show_again(served, registrar))]
            await self._watch.until(lambda: served.gone() or registrar.gone())
            for task in tasks:
                task.cancel()

    async def _show_again(self, served: endpoint.PluginServer, registrar: endpoint.PluginServer) -> None:
        """Show the second socket again, only while no stream is open: the kubelet first drops a registered plugin."""
        streams = served.streams
        while True:
            try:
                async with asyncio.timeout(SHOW_AGAIN_AFTER):
                    await streams.until(lambda: streams.open > 0)
            except TimeoutError:
                with suppress(FileNotFoundError):  # just removed: the watch sees it, too
                    sockets.show_again(registrar.path)
                continue
            await streams.until(lambda: streams.open == 0)
            self._state.lost(Cause.STREAM_ENDED, "ListAndWatch ended")
            self._state.restart()  # so that each loss is logged
