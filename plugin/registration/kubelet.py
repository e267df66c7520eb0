"""Registers one resource through ``kubelet.sock``, and again for every reason there is.

Reasons: the kubelet came (back), our socket was removed, the kubelet ended our stream while we live - which it does to
the living plugin when an older one of the same resource leaves. Rules: never register before our own socket answers (a
failed Register makes the kubelet forget a plugin that works), never dial ``kubelet.sock`` before a plain connect worked
(gRPC's own pauses come late), pause longer after every failure, and not at all when ``kubelet.sock`` is a new one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import structlog

from plugin.kubelet_api import deviceplugin_pb2, deviceplugin_pb2_grpc
from plugin.registration import endpoint, events, sockets
from plugin.registration.events import Cause, NotRegistered
from plugin.registration.registration_state import RegistrationState
from plugin.registration.watch import FileWatch

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="registration")

VERSION = "v1beta1"
REGISTER = 15.0  # seconds; the kubelet dials us back inside Register, for up to 10
ASK = 10.0  # seconds after Register within which the kubelet opens its stream: it does so at once
SETTLED = 30.0  # seconds a stream has to live for the pauses to begin short again


class KubeletRegistration:
    """One resource, served and registered. The caller holds ``sockets.sole_instance``."""

    def __init__(
        self, resource: str, add: endpoint.Add, kubelet_dir: Path, on_event: events.Listener = events.unheard
    ) -> None:
        """Nothing is served before ``run``; ``add`` is called for every server that is made."""
        self._resource = resource
        self._add = add
        self._endpoint = sockets.endpoint(resource)
        self._path = kubelet_dir / self._endpoint
        self._door = kubelet_dir / "kubelet.sock"
        self._watch = FileWatch(kubelet_dir, self._path.parent)
        self._standing = RegistrationState(resource, self._endpoint, on_event)

    async def run(self) -> None:
        """Until cancelled. A FatalError says what a person has to mend."""
        while True:
            await self.run_once()

    async def run_once(self) -> None:
        """Serve one socket and keep it registered, until its file is gone."""
        async with endpoint.serve(self._path, self._add) as served, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch.run()), group.create_task(self._follow_kubelets(served))]
            await self._watch.until(served.gone)
            self._standing.lost(Cause.SOCKET_GONE, f"the file {self._path} was removed")
            for task in tasks:
                task.cancel()

    async def _follow_kubelets(self, served: endpoint.PluginServer) -> None:
        """Each new ``kubelet.sock`` is a kubelet that has never heard of us."""
        while True:
            kubelet = sockets.identity(self._door)
            if kubelet is not None:
                await self._stay_registered(served, kubelet)
                continue
            logger.info("waiting for the kubelet", socket=str(self._door))
            await self._watch.until(lambda: sockets.identity(self._door) is not None)

    async def _stay_registered(self, served: endpoint.PluginServer, kubelet: sockets.Identity) -> None:
        """Whatever is under way, a pause or a Register that hangs, is cut short when this kubelet's socket changes."""
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keep(served))
            await self._watch.until(lambda: sockets.identity(self._door) != kubelet)
            self._standing.lost(Cause.KUBELET_CHANGED, f"{self._door} is not the one it was")
            keeping.cancel()

    async def _keep(self, served: endpoint.PluginServer) -> None:
        """Register again and again. Only after a registration that lasted do the pauses begin short again."""
        while True:
            self._standing.fresh()
            await self._standing.retrying()(self._register_once, served)

    async def _register_once(self, served: endpoint.PluginServer) -> None:
        """One registration, from Register to the end of its stream."""
        streams = served.streams
        options = await served.prove()
        self._knock()
        opened, ended = streams.opened, streams.ended  # the end of an older stream during Register counts too
        await self._register(options)
        began = asyncio.get_running_loop().time()
        self._standing.accepted()
        try:
            async with asyncio.timeout(ASK):
                await streams.until(lambda: streams.opened != opened)
        except TimeoutError:
            raise NotRegistered(Cause.NOT_ASKED, f"no ListAndWatch within {ASK:g} s of Register") from None
        await streams.until(lambda: streams.ended != ended)
        if asyncio.get_running_loop().time() - began < SETTLED:
            raise NotRegistered(Cause.STREAM_ENDED, f"ListAndWatch ended within {SETTLED:g} s of Register")
        self._standing.lost(Cause.STREAM_ENDED, "ListAndWatch ended")

    def _knock(self) -> None:
        error = sockets.knock(self._door)
        if error is not None:
            raise NotRegistered(Cause.KUBELET_SILENT, f"nobody answers on {self._door}: {error.strerror}") from error

    async def _register(self, options: deviceplugin_pb2.DevicePluginOptions) -> None:
        """A channel for this one call: the next kubelet must not wait for what a channel learned of the last."""
        request = deviceplugin_pb2.RegisterRequest(
            version=VERSION, endpoint=self._endpoint, resource_name=self._resource, options=options
        )
        try:
            async with endpoint.dial(self._door) as channel:
                await deviceplugin_pb2_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER)
        except grpc.aio.AioRpcError as error:
            raise NotRegistered(Cause.REFUSED, f"Register failed: {endpoint.words(error)}") from error
