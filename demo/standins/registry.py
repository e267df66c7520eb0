"""The plugins_registry directory, in which the kubelet finds the sockets of plugins.

Copies ``PK/pluginmanager``: the kubelet calls GetInfo, connects the plugin as after Register, and notifies the plugin
of the result.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc
from asyncinotify import Inotify, Mask

from demo.standins.clients import Clients
from demo.standins.dra_plugins import DraPlugins
from demo.standins.endpoint import OPTIONS, PluginError
from demo.standins.journal import Call, Journal, RegistrationCall
from demo.standins.timing import Timing
from plugin.kubelet_api import pluginregistration_pb2, pluginregistration_pb2_grpc

TYPE, DRA_TYPE = "DevicePlugin", "DRAPlugin"


class Registry:
    """Watches the directory for one kubelet process."""

    def __init__(
        self, directory: Path, clients: Clients, dra: DraPlugins | None, journal: Journal, timing: Timing
    ) -> None:
        """Without ``dra``, DRA drivers are refused."""
        self._dra = dra
        self._directory, self._clients, self._journal, self._timing = directory, clients, journal, timing
        self._work: dict[str, asyncio.Task[None]] = {}  # by name of the socket
        self._removals: dict[str, Callable[[], Awaitable[None]]] = {}  # name of the socket to the end of its plugin
        self._inotify: Inotify | None = None
        self._watching: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Watch the directory first, then register the sockets that exist: so no socket is missed."""
        self._inotify = Inotify()
        changes = Mask.CREATE | Mask.DELETE | Mask.MOVED_TO | Mask.MOVED_FROM
        self._inotify.add_watch(self._directory, changes)
        self._watching = self._journal.spawn(self._watch(self._inotify), f"watch {self._directory}")
        for path in sorted(self._directory.iterdir()):
            self._found(path)

    async def close(self) -> None:
        """Stop: the kubelet ends. The sockets of plugins stay."""
        tasks = [task for task in (self._watching, *self._work.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # the journal has each failure
        if self._inotify is not None:
            self._inotify.close()

    async def _watch(self, inotify: Inotify) -> None:
        async for event in inotify:
            if event.name is None:
                continue
            name = str(event.name)
            if event.mask & (Mask.DELETE | Mask.MOVED_FROM):
                await self._lost(name)
            elif event.mask & (Mask.CREATE | Mask.MOVED_TO):
                await self._lost(name)  # a new socket with a known name is a new plugin
                self._found(self._directory / name)

    def _found(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # removed again: the watch reports that, too
            if path.name.startswith(".") or not stat.S_ISSOCK(path.lstat().st_mode):
                return
            if path.name not in self._work:
                self._work[path.name] = self._journal.spawn(self._register(path), f"register {path}")

    async def _lost(self, name: str) -> None:
        task = self._work.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        remove = self._removals.pop(name, None)
        if remove is not None:
            await remove()

    async def _register(self, path: Path) -> None:
        """Register with growing pauses between attempts, as long as the socket exists."""
        pause = self._timing.registry_retry
        while not await self._try(path):
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._timing.registry_retry_most)

    async def _try(self, path: Path) -> bool:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            try:
                await asyncio.wait_for(channel.channel_ready(), self._timing.dial)
                info = await self._get_info(stub)
            except (TimeoutError, PluginError) as error:
                self._journal.add_registration(RegistrationCall("", str(path), f"cannot ask the plugin: {error!r}"))
                return False
            refusal = await self._connect(path, info)
            if not refusal:
                await asyncio.sleep(0)  # lets the list open before the plugin is notified
            self._journal.add_registration(RegistrationCall(info.name, info.endpoint, refusal))
            notified = await self._notify(stub, info.name, refusal)
            if not notified and info.type == DRA_TYPE and path.name in self._removals:
                await self._removals.pop(path.name)()
            return notified and not refusal

    async def _get_info(
        self, stub: pluginregistration_pb2_grpc.RegistrationAsyncStub
    ) -> pluginregistration_pb2.PluginInfo:
        limit = self._timing.get_info
        call = self._journal.begin(Call("GetInfo", "", deadline=limit))
        try:
            info = await stub.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=limit)
        except grpc.aio.AioRpcError as error:
            self._journal.end(call, error.code().name, error.details() or "")
            raise PluginError(f"failed to get plugin info: {error.details()}") from error
        call.resource = info.name
        self._journal.end(call, "OK")
        return info

    async def _connect(self, path: Path, info: pluginregistration_pb2.PluginInfo) -> str:
        """Connect the plugin; returns why that failed, or an empty string."""
        if info.type == TYPE:
            return await self._connect_plugin(path, info)
        if info.type == DRA_TYPE and self._dra is not None:
            return self._connect_driver(self._dra, path, info)
        return f"RegisterPlugin error -- no handler registered for plugin type: {info.type}"

    async def _connect_plugin(self, path: Path, info: pluginregistration_pb2.PluginInfo) -> str:
        refusal = self._clients.refusal(info.name, info.supported_versions)
        if refusal:
            return f"RegisterPlugin error -- plugin validation failed with err: {refusal}"
        try:
            await self._clients.connect(info.name, Path(info.endpoint), None)
        except PluginError as error:
            return f"RegisterPlugin error -- plugin registration failed with err: {error}"
        self._removals[path.name] = partial(self._clients.disconnect, info.name)
        return ""

    def _connect_driver(self, dra: DraPlugins, path: Path, info: pluginregistration_pb2.PluginInfo) -> str:
        endpoint = info.endpoint or str(path)
        refusal = dra.refusal(info.supported_versions)
        if refusal:
            about = f"invalid supported gRPC versions of DRA driver plugin {info.name} at endpoint {endpoint}"
            return f"RegisterPlugin error -- plugin validation failed with err: {about}: {refusal}"
        refusal = dra.register(info.name, endpoint, info.supported_versions)
        if refusal:
            return f"RegisterPlugin error -- plugin registration failed with err: {refusal}"
        self._removals[path.name] = partial(dra.deregister, info.name, endpoint)
        return ""

    async def _notify(
        self, stub: pluginregistration_pb2_grpc.RegistrationAsyncStub, resource: str, refusal: str
    ) -> bool:
        limit = self._timing.notify
        status = pluginregistration_pb2.RegistrationStatus(plugin_registered=not refusal, error=refusal)
        call = self._journal.begin(Call("NotifyRegistrationStatus", resource, deadline=limit))
        try:
            await stub.NotifyRegistrationStatus(status, timeout=limit)
        except grpc.aio.AioRpcError as error:
            self._journal.end(call, error.code().name, error.details() or "")
            return False
        self._journal.end(call, "OK")
        return True
