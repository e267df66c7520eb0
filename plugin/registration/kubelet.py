"""Registers one resource through ``kubelet.sock``, and again when the kubelet may have lost it.

Reasons to register again: the kubelet started, the plugin's socket was removed, or the kubelet ended the stream. The
kubelet ends the stream of a running plugin when an older plugin of the same resource stops.

Rules: register only after the plugin's own socket answers, because a failed Register makes the kubelet forget a plugin
that works. Dial ``kubelet.sock`` only after a plain connect succeeded, because gRPC retries late. Pause longer after
every failure. Do not pause when ``kubelet.sock`` was replaced.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from ground import log, unix_sockets
from plugin.kubelet_api import deviceplugin_pb2, deviceplugin_pb2_grpc
from plugin.registration import endpoint, events, sockets
from plugin.registration.events import Cause, NotRegistered, RegistrationState
from plugin.registration.sockets import FileWatch

logger = log.get("registration")

VERSION = "v1beta1"
REGISTER = 15.0  # seconds; the kubelet dials the plugin inside Register, for up to 10
ASK = 10.0  # seconds after Register for the kubelet to open its stream, which it does at once
SETTLED = 30.0  # seconds that a stream has to last until the next failure has a short pause


class KubeletRegistration:
    """One resource, served and registered. The caller holds ``sockets.sole_instance``."""

    def __init__(
        self, resource: str, add: endpoint.Add, kubelet_dir: Path, on_event: events.Listener = events.ignore
    ) -> None:
        """Serve nothing before ``run``; ``add`` is called for every new server."""
        self._resource = resource
        self._add = add
        self._endpoint = sockets.endpoint(resource)
        self._path = kubelet_dir / self._endpoint
        self._kubelet_socket = kubelet_dir / "kubelet.sock"
        self._watch = FileWatch(kubelet_dir, self._path.parent)
        self._state = RegistrationState(resource, self._endpoint, on_event)

    async def run(self) -> None:
        """Stay registered until cancelled. A FatalError says what the operator has to change."""
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        """Serve one socket and keep it registered, until its file is removed."""
        async with endpoint.serve(self._path, self._add) as served, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch.run()), group.create_task(self._follow_kubelets(served))]
            await self._watch.until(served.gone)
            self._state.lost(Cause.SOCKET_GONE, f"the file {self._path} was removed")
            for task in tasks:
                task.cancel()

    async def _follow_kubelets(self, served: endpoint.PluginServer) -> None:
        """Register with each new ``kubelet.sock``: it belongs to a kubelet that does not know the plugin."""
        while True:
            kubelet = sockets.identity(self._kubelet_socket)
            if kubelet is not None:
                await self._stay_registered(served, kubelet)
                continue
            logger.info("waiting for the kubelet", socket=str(self._kubelet_socket))
            await self._watch.until(lambda: sockets.identity(self._kubelet_socket) is not None)

    async def _stay_registered(self, served: endpoint.PluginServer, kubelet: sockets.Identity) -> None:
        """Stay registered until this kubelet's socket changes. Then end also a pause or a Register that hangs."""
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keep(served))
            await self._watch.until(lambda: sockets.identity(self._kubelet_socket) != kubelet)
            self._state.lost(Cause.KUBELET_CHANGED, f"{self._kubelet_socket} was replaced or removed")
            keeping.cancel()

    async def _keep(self, served: endpoint.PluginServer) -> None:
        """Register again and again. Pauses start short again only after a registration that lasted."""
        while True:
            self._state.restart()
            await self._state.retrying()(self._register_once, served)

    async def _register_once(self, served: endpoint.PluginServer) -> None:
        """One registration, from Register to the end of its stream."""
        streams = served.streams
        options = await served.prove()
        if (error := unix_sockets.connect_error(self._kubelet_socket)) is not None:
            text = f"the kubelet does not answer on {self._kubelet_socket}: {error.strerror}"
            raise NotRegistered(Cause.KUBELET_SILENT, text) from error
        opened, ended = streams.opened, streams.ended  # also notices an older stream that ends during Register
        await self._register(options)
        began = asyncio.get_running_loop().time()
        self._state.accepted()
        try:
            async with asyncio.timeout(ASK):
                await streams.until(lambda: streams.opened != opened)
        except TimeoutError:
            raise NotRegistered(Cause.NOT_ASKED, f"no ListAndWatch within {ASK:g} s of Register") from None
        await streams.until(lambda: streams.ended != ended)
        if asyncio.get_running_loop().time() - began < SETTLED:
            raise NotRegistered(Cause.STREAM_ENDED, f"ListAndWatch ended within {SETTLED:g} s of Register")
        self._state.lost(Cause.STREAM_ENDED, "ListAndWatch ended")

    async def _register(self, options: deviceplugin_pb2.DevicePluginOptions) -> None:
        """Use a new channel for each call: gRPC would delay calls to a new kubelet after failures of the last one."""
        request = deviceplugin_pb2.RegisterRequest(
            version=VERSION, endpoint=self._endpoint, resource_name=self._resource, options=options
        )
        try:
            async with endpoint.dial(self._kubelet_socket) as channel:
                await deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER)
        except grpc.aio.AioRpcError as error:
            raise NotRegistered(Cause.REFUSED, f"Register failed: {endpoint.describe(error)}") from error
