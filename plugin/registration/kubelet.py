"""Registers one resource through ``kubelet.sock``, and again when the kubelet may have lost it.

Reasons to register again: the kubelet started, the plugin's socket was removed, or the kubelet ended the stream. Before
1.37 the kubelet ends the stream of a running plugin when an older plugin of the same resource stops.

Rules: each registration has a socket of its own. From 1.37 on the kubelet knows a plugin by its socket; a Register that
arrives before the kubelet has noticed the end of the last stream from the same socket makes it refuse that socket until
the kubelet starts again. Register only after the socket answers, because a failed Register makes the kubelet forget a
plugin that works. Dial ``kubelet.sock`` only after a plain connect succeeded, because gRPC retries late. Pause longer
after every failure. Do not pause when ``kubelet.sock`` was replaced.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from ground import log, paths, unix_sockets
from plugin.kubelet_api import deviceplugin_pb2, deviceplugin_pb2_grpc
from plugin.registration import endpoint, registration_state, sockets
from plugin.registration.registration_state import Cause, NotRegistered, RegistrationState
from plugin.registration.sockets import FileWatch

logger = log.get("registration")

VERSION = "v1beta1"
REGISTER = 15.0  # seconds; the kubelet dials the plugin inside Register, for up to 10
ASK = 10.0  # seconds after Register for the kubelet to open its stream, which it does at once
SETTLED = 30.0  # seconds that a stream has to last until the next failure has a short pause


class KubeletRegistration:
    """One resource, served and registered."""

    def __init__(
        self,
        resource: str,
        add: endpoint.Add,
        kubelet_dir: Path,
        on_event: registration_state.Listener = registration_state.ignore,
    ) -> None:
        """Serve nothing before ``run``; ``add`` is called for every new server."""
        self._resource = resource
        self._add = add
        self._directory = kubelet_dir
        self._kubelet_socket = kubelet_dir / paths.KUBELET_SOCKET
        self._watch = FileWatch(kubelet_dir, kubelet_dir / sockets.SUBDIRECTORY)
        self._state = RegistrationState(resource, on_event)

    async def run(self) -> None:
        """Stay registered until cancelled. A FatalError says what the operator has to change."""
        sockets.claim(self._directory / sockets.endpoint(self._resource))  # an unusable path is an error of the start
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run())
            while True:
                kubelet = sockets.identity(self._kubelet_socket)
                if kubelet is not None:  # a new ``kubelet.sock`` belongs to a kubelet that does not know the plugin
                    await self._stay_registered(kubelet)
                    continue
                logger.info("waiting for the kubelet", socket=str(self._kubelet_socket))
                await self._watch.until(lambda: sockets.identity(self._kubelet_socket) is not None)

    async def _stay_registered(self, kubelet: sockets.Identity) -> None:
        """Stay registered until this kubelet's socket changes. This also ends a pause, or a Register that hangs."""
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keep())
            await self._watch.until(lambda: sockets.identity(self._kubelet_socket) != kubelet)
            self._state.lost(Cause.KUBELET_CHANGED, f"{self._kubelet_socket} was replaced or removed")
            keeping.cancel()

    async def _keep(self) -> None:
        """Keep registering. Pauses become short again only after a registration that lasted."""
        while True:
            self._state.restart()
            await self._state.retrying()(self._register_once)

    async def _register_once(self) -> None:
        """One registration on a new socket, until its stream ends or the file of the socket is removed."""
        if (error := unix_sockets.connect_error(self._kubelet_socket)) is not None:
            text = f"the kubelet does not answer on {self._kubelet_socket}: {error.strerror}"
            raise NotRegistered(Cause.KUBELET_SILENT, text) from error
        name = sockets.endpoint(self._resource)
        async with endpoint.serve(self._directory / name, self._add) as served:
            registered = asyncio.create_task(self._registered(served, name))
            removed = asyncio.create_task(self._watch.until(served.gone))
            try:
                await asyncio.wait({registered, removed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                removed.cancel()
                registered.cancel()
            if registered.done():
                await registered
            else:
                self._state.lost(Cause.SOCKET_GONE, f"the file {served.path} was removed")

    async def _registered(self, served: endpoint.PluginServer, name: str) -> None:
        """From Register to the end of the stream."""
        streams = served.streams
        await self._register(name, await served.prove())
        began = asyncio.get_running_loop().time()
        self._state.accepted(name)
        sockets.remove_dead(served.path.parent, "*.sock")  # of killed plugins
        try:
            async with asyncio.timeout(ASK):
                await streams.until(lambda: streams.opened > 0)
        except TimeoutError:
            raise NotRegistered(Cause.NOT_ASKED, f"no ListAndWatch within {ASK:g} s of Register") from None
        await streams.until(lambda: streams.open == 0)  # a person may listen beside the kubelet
        if asyncio.get_running_loop().time() - began < SETTLED:
            raise NotRegistered(Cause.STREAM_ENDED, f"ListAndWatch ended within {SETTLED:g} s of Register")
        self._state.lost(Cause.STREAM_ENDED, "ListAndWatch ended")

    async def _register(self, name: str, options: deviceplugin_pb2.DevicePluginOptions) -> None:
        """Register through a new channel: gRPC would delay calls to a new kubelet after failures of the last one."""
        request = deviceplugin_pb2.RegisterRequest(
            version=VERSION, endpoint=name, resource_name=self._resource, options=options
        )
        try:
            async with endpoint.dial(self._kubelet_socket) as channel:
                await deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER)
        except grpc.aio.AioRpcError as error:
            raise NotRegistered(Cause.REFUSED, f"Register failed: {endpoint.describe(error)}") from error
