"""Shows the kubelet the drivers that register in a directory which the kubelet does not watch.

One driver is behind us: the kubelet calls this program instead. All others are only shown: the kubelet calls them
itself. A driver that is gone is no longer shown, so that the kubelet treats it as gone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ground import log, unix_sockets
from plugin.dra.config import DraConfig
from plugin.dra.dra_driver import HEALTHS
from plugin.dra.metrics import DraCounters
from plugin.dra.registration import ANSWERS_WITHIN, KIND, Registrar
from plugin.dra.vendor.vendor_devices import SERVED
from plugin.kubelet_api import pluginregistration_pb2 as wire
from plugin.kubelet_api import pluginregistration_pb2_grpc
from plugin.registration import endpoint, registration_state, sockets
from plugin.registration.endpoint import PluginServer
from plugin.registration.registration_state import Cause, RegistrationState
from plugin.registration.sockets import FileWatch

logger = log.get("vendor")

AGAIN = 1.0  # seconds until a driver that does not answer is asked again
PREFIX = "autoclave-"  # of our sockets

MakeServer = Callable[[grpc.aio.Channel, Sequence[str]], endpoint.Add]


class VendorRegistry:
    """Follows one directory."""

    def __init__(
        self,
        chosen: DraConfig,
        directory: Path,
        make_server: MakeServer,
        counters: DraCounters,
    ) -> None:
        """``make_server`` makes the server for that driver, from a channel to it and the versions that it serves."""
        self._chosen = chosen
        self._directory = directory
        self._make_server = make_server
        self._counters = counters
        self._watch = FileWatch(directory, chosen.registry_dir, chosen.in_front_dir)

    async def run(self) -> None:
        """Follow until cancelled. A FatalError says what the operator has to change."""
        for place in (self._chosen.registry_dir, self._chosen.in_front_dir):
            sockets.remove_dead(place, f"{PREFIX}*.sock")  # the kubelet would call them for ever
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run(), name="watch of the sockets")
            shown: dict[Path, tuple[sockets.Identity, asyncio.Task[None]]] = {}
            while True:
                self._report_bypass()
                present = _found(self._directory)
                for path in [path for path, (identity, _) in shown.items() if present.get(path) != identity]:
                    _, task = shown.pop(path)
                    task.cancel()
                    await asyncio.wait({task})
                for path in present.keys() - shown.keys():
                    shown[path] = present[path], tasks.create_task(self._follow(path), name=f"driver at {path.name}")
                await self._watch.until(
                    lambda: (
                        _found(self._directory) != {path: shown[path][0] for path in shown}
                        or bypass(self._chosen) != self._counters.bypass
                    )
                )

    def _report_bypass(self) -> None:
        socket = bypass(self._chosen)
        if socket == self._counters.bypass:
            return
        self._counters.bypass = socket
        if socket:
            logger.error(
                "the kubelet calls the driver and not Autoclave: nothing is proven",
                driver=self._chosen.driver,
                socket=str(self._chosen.registry_dir / socket),
            )

    async def _follow(self, path: Path) -> None:
        """Show the driver behind one socket whenever it answers, until cancelled."""
        warned = ""
        while True:
            async with endpoint.dial(path) as channel:
                info = await self._usable_info(channel)
                if isinstance(info, str):
                    if info != warned:  # each cause once, not each attempt
                        logger.warning("a driver cannot be shown to the kubelet", socket=path.name, error=info)
                    warned = info
                else:
                    warned = ""
                    await self._show(path, channel, info)
            await asyncio.sleep(AGAIN)

    async def _show(self, path: Path, channel: grpc.aio.Channel, info: wire.PluginInfo) -> None:
        """Show a driver until it no longer answers, or until one of our files is removed."""
        behind_us = self._is_behind_us(info)
        service = Path(info.endpoint or path)  # without one, the kubelet calls the registration socket
        name = socket_name(self._chosen, path)
        ours = self._chosen.in_front_dir / f"{name}.sock" if behind_us else service
        state = RegistrationState(info.name, self._counters.record if behind_us else registration_state.ignore)
        state.restart()
        lost = "its socket was removed or replaced"
        try:
            async with AsyncExitStack() as stack:
                servers: list[PluginServer] = []
                if behind_us:
                    upstream = await stack.enter_async_context(endpoint.dial(service))
                    add = self._make_server(upstream, info.supported_versions)
                    servers.append(await stack.enter_async_context(endpoint.serve(ours, add)))
                registrar = Registrar(_ours(info, ours, behind_us=behind_us), state, channel)
                shown = self._chosen.registry_dir / f"{name}-reg.sock"
                servers.append(await stack.enter_async_context(endpoint.serve(shown, registrar.add_to)))
                logger.info("driver shown to the kubelet", driver=info.name, behind_us=behind_us, socket=shown.name)
                lost = await self._until_lost(channel, info, servers)
        finally:
            state.lost(Cause.SOCKET_GONE, lost)

    async def _until_lost(
        self, channel: grpc.aio.Channel, info: wire.PluginInfo, servers: Iterable[PluginServer]
    ) -> str:
        async def file_removed() -> str:
            await self._watch.until(lambda: any(server.gone() for server in servers))
            return "the file of a socket was removed"

        tasks = {asyncio.create_task(file_removed()), asyncio.create_task(_until_silent(channel, info))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in tasks:
                task.cancel()

    def _is_behind_us(self, info: wire.PluginInfo) -> bool:
        return info.type == KIND and info.name == self._chosen.driver

    async def _usable_info(self, channel: grpc.aio.Channel) -> wire.PluginInfo | str:
        """What a driver says about itself, or why it cannot be shown to the kubelet."""
        try:
            info = await _info(channel)
        except grpc.aio.AioRpcError as error:
            return endpoint.describe(error)
        if self._is_behind_us(info) and SERVED.isdisjoint(info.supported_versions):
            return f"{info.name} serves {', '.join(info.supported_versions)}, and none of {', '.join(sorted(SERVED))}"
        return info


def socket_name(chosen: DraConfig, vendor_socket: Path) -> str:
    """The name of our sockets for a socket of the vendor, short enough for both directories."""
    plain = vendor_socket.name.removesuffix(".sock").removesuffix("-reg")
    hashed = hashlib.sha256(vendor_socket.name.encode()).hexdigest()[:12]
    names = [f"{PREFIX}{name}{chosen.suffix}" for name in (plain, hashed)]
    places = chosen.in_front_dir, chosen.registry_dir
    fits = all(len(f"{place}/{names[0]}-reg.sock".encode()) <= unix_sockets.MAX_PATH_BYTES for place in places)
    return names[0] if fits else names[1]


def bypass(chosen: DraConfig) -> str:
    """The socket by which the kubelet finds the driver without this program; empty: there is none."""
    others = sorted(path.name for path in _found(chosen.registry_dir) if not path.name.startswith(PREFIX))
    return next((name for name in others if name.startswith(chosen.driver)), "")


def _found(directory: Path) -> dict[Path, sockets.Identity]:
    """The sockets that the kubelet would find; it ignores names that begin with a dot."""
    identities = ((path, sockets.identity(path)) for path in directory.glob("[!.]*"))
    return {path: identity for path, identity in identities if identity is not None}


def _ours(info: wire.PluginInfo, service: Path, *, behind_us: bool) -> wire.PluginInfo:
    """The info that the kubelet gets."""
    shown = wire.PluginInfo()
    shown.CopyFrom(info)
    shown.endpoint = str(service)
    if behind_us:
        shown.ClearField("supported_versions")
        shown.supported_versions.extend(
            [*(version for version in info.supported_versions if version in SERVED), *HEALTHS]
        )
    return shown


async def _info(channel: grpc.aio.Channel) -> wire.PluginInfo:
    stub: Any = pluginregistration_pb2_grpc.RegistrationStub(channel)  # typed for threads
    info: wire.PluginInfo = await stub.GetInfo(wire.InfoRequest(), timeout=ANSWERS_WITHIN)
    return info


async def _until_silent(channel: grpc.aio.Channel, info: wire.PluginInfo) -> str:
    """Return why the driver is gone. A connection may also end without reason."""
    while True:
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        try:
            if await _info(channel) != info:
                return "the driver registers as another one"
        except grpc.aio.AioRpcError as error:
            return endpoint.describe(error)
