"""Serves ``kubelet.sock`` in a directory of its own, so that a vendor's plugin registers here and not with the kubelet.

A plugin that registers again replaces its connection. A vendor's plugin looks for a new ``kubelet.sock`` to learn that
it has to register again, so one is made if its socket has gone: at its start, the kubelet removes all sockets of its
directory, also that of a vendor's plugin which knows only the path of ``kubelet.sock`` by an option.

A file names the plugins that are connected. A plugin of ours that was on standby connects to them before its own
``kubelet.sock`` makes them register again, which takes longer: the kubelet has their devices at once. It asks each one
for its list. A list in a file would prove nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ground import log, operation_id, private_files, unix_sockets
from ground.aio import Changed
from ground.errors import AutoclaveError, Reason
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.listing import Listing
from plugin.registration import endpoint, kubelet, other_plugins, sockets
from plugin.registration.sockets import FileWatch
from plugin.vendor.connection import VendorPlugin
from plugin.vendor.offer import VendorList, VendorOffer, refusal
from scrub_api import client

logger = log.get("vendor")

FIRST_LIST = 5.0  # seconds that Register waits for the first list: a plugin without a device may send none
KEPT = 5.0  # seconds that a list stays valid after its stream has ended: an Allocate waits that long for the vendor
REPEATED_WITHIN = 1.0  # seconds to connect to the plugins that had registered with the last plugin of this node
CONNECTED = "vendor.json"  # in our own directory: the sockets of the connected plugins, by resource
RENEWALS = (2.0, 4.0, 8.0, 16.0, 32.0)  # seconds to wait for a Register before ``kubelet.sock`` is made anew
BYPASS_AFTER = 40.0  # seconds for a plugin to register; NVIDIA's tries again every 30
DOUBT = "the vendor's plugin calls it unhealthy"
AGAIN = 1.0  # seconds until a service that did not end a proof is asked again
LONGEST = 300  # characters of a name that a plugin gives, in a message
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")  # of a resource, by the rules of Kubernetes


class VendorDirectory(deviceplugin_pb2_grpc.RegistrationServicer):
    """The plugins that have registered in one directory."""

    def __init__(self, directory: Path, kubelet_dir: Path, prefix: str, offer: VendorOffer, listing: Listing) -> None:
        """``prefix``: that of the resources that may register. The listing shows what the offer says."""
        self._directory = directory
        self._kubelet_dir = kubelet_dir
        self._prefix = prefix
        self._offer = offer
        self._listing = listing
        self._plugins: dict[str, VendorPlugin] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._keeping: dict[str, asyncio.TimerHandle] = {}
        self._replacing = asyncio.Lock()
        self._connected = kubelet_dir / sockets.SUBDIRECTORY / CONNECTED
        self._left: dict[str, str] = {}  # what that file says
        self._refused: dict[str, str] = {}
        self._bypass = ""
        self._renewals = 0
        self._changed = Changed()
        self._watch = FileWatch(directory, kubelet_dir)

    @property
    def socket(self) -> Path:
        """Where the vendor's plugin has to register."""
        return self._directory / "kubelet.sock"

    async def run(self, *, took_over: bool) -> None:
        """Serve until cancelled. A FatalError says what the operator has to change.

        ``took_over``: until now another plugin of ours was there, and knew the plugins of vendors.
        """
        add = partial(deviceplugin_pb2_grpc.add_RegistrationServicer_to_server, self)
        try:
            if took_over:
                await self._repeat_registrations()
            else:
                self._connected.unlink(missing_ok=True)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch.run(), name="watch of the vendor's sockets")
                tasks.create_task(self._find_bypass(), name="search for a way around this plugin")
                while True:
                    async with endpoint.serve(self.socket, add) as served:
                        waits_for = "waiting for the vendor's plugin, whose KUBELET_SOCKET must name this socket"
                        logger.info(waits_for, socket=str(self.socket))
                        await self._until_renewal(served)
        finally:
            for resource in list(self._plugins):
                await self._forget(resource)

    def connected(self, resource: str) -> bool:
        """Whether the vendor's plugin of this resource is there."""
        plugin = self._plugins.get(resource)
        return plugin is not None and plugin.connected

    def wants_start(self, resource: str) -> bool:
        """Whether the vendor's plugin asks for PreStartContainer, even while it is away."""
        return resource in self._plugins and self._plugins[resource].options.pre_start_required

    async def end_proofs(self, scrubber: client.ScrubberClient) -> None:
        """Until cancelled, end the proof of each device that a vendor calls unhealthy: its state is unknown here.

        Until the service has done so, the device stays unhealthy. A device that the service does not know is never
        offered, and is scrubbed once it is known.
        """
        warned: dict[str, str] = {}  # by device: the last error
        while True:
            await self._changed.until(lambda: bool(self._offer.doubts))
            for device, doubt in sorted(self._offer.doubts.items()):
                op = operation_id.new()
                try:
                    await scrubber.distrust(device, DOUBT, op=op)
                except AutoclaveError as error:
                    if str(error) != warned.get(device):  # each cause once, not each attempt
                        logger.warning("cannot end the proof of a device", op=op, device=device, error=str(error))
                        warned[device] = str(error)
                    if error.reason is not Reason.UNKNOWN_DEVICE:
                        continue
                else:
                    why = "the vendor's plugin calls a device unhealthy: it is scrubbed again"
                    logger.warning(why, op=op, device=device)
                    warned.pop(device, None)
                self._offer.trust(device, doubt)
                self._listing.offer_again()
            if self._offer.doubts:
                await asyncio.sleep(AGAIN)

    async def plugin(self, resource: str, within: float) -> VendorPlugin | None:
        """The plugin of a resource, if it is there now or within this time; None if it is away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._changed.until(lambda: self.connected(resource))
        return self._plugins[resource] if self.connected(resource) else None

    def distrust(self, resource: str) -> None:
        """The vendor's plugin did not answer: its devices are unhealthy until its next list, if it is away."""
        if not self.connected(resource):
            self._expire(resource)

    def healthy(self, resource: str, device: str) -> bool:
        """Whether the vendor's plugin is there and calls this device healthy."""
        return self._offer.healthy(resource, device)

    def obstacles(self) -> Iterator[str]:
        """Why pods cannot get a vendor's devices, one line each."""
        if self._bypass:
            yield f"the vendor's plugin at {self._bypass} has not registered at {self.socket}: set KUBELET_SOCKET"
        if not self._plugins:
            yield f"no plugin of a vendor has registered at {self.socket}"
        for resource in sorted(self._plugins):
            if not self.connected(resource):
                yield f"the vendor's plugin of {resource} is away"

    # -- a plugin registers

    async def Register(  # noqa: N802 - the proto names it
        self, request: wire.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.Empty:
        """Connect to the plugin, as the kubelet would, and wait for its first list."""
        path = self._socket_of(request.endpoint)
        why = self._wrong(request) or ("" if path else f"no plugin answers on {request.endpoint[:LONGEST]!r}")
        if path is None or why:
            logger.error("a vendor's plugin cannot register", resource=request.resource_name[:LONGEST], error=why)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"autoclave cannot register the plugin: {why}")
        try:
            listed = await self._connect(request.resource_name, path)
        except AutoclaveError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        resource = request.resource_name
        logger.info("the vendor's plugin has registered", resource=resource, socket=str(path), listed=listed)
        return wire.Empty()

    async def _repeat_registrations(self) -> None:
        """Connect to the plugins that had registered with the last plugin of this node, if they answer."""
        try:
            left = json.loads(private_files.content(self._connected))
            requests = [
                wire.RegisterRequest(version=kubelet.VERSION, endpoint=name, resource_name=resource)
                for resource, name in left.items()
            ]
        except (OSError, ValueError, AttributeError, TypeError) as error:
            logger.info("the last plugin left no vendor's plugin", error=str(error))
            return
        with suppress(TimeoutError, AutoclaveError):  # they register by themselves, a little later
            async with asyncio.timeout(REPEATED_WITHIN):
                for request in requests:
                    path, resource = self._socket_of(request.endpoint), request.resource_name
                    if path is not None and not self._wrong(request) and await self._connect(resource, path):
                        logger.info("the vendor's list is taken over", resource=resource, socket=str(path))

    def _leave(self) -> None:
        """Record the connected plugins for the next plugin of this node."""
        left = {resource: plugin.path.name for resource, plugin in self._plugins.items() if plugin.connected}
        if left != self._left:
            self._left = left
            with suppress(OSError):  # without the file, the next plugin waits until they register
                private_files.replace(self._connected, json.dumps(left).encode(), durable=False)

    def _wrong(self, request: wire.RegisterRequest) -> str:
        if request.version != kubelet.VERSION:
            return f"its version is {request.version[:LONGEST]!r}, and must be {kubelet.VERSION!r}"
        resource = request.resource_name
        domain, _, name = resource.partition("/")
        if domain != self._prefix or not _NAME.fullmatch(name):
            return f"{resource[:LONGEST]!r} is not a name of a resource below {self._prefix}/; see --resource-prefix"
        if not _fits(self._kubelet_dir / sockets.endpoint(resource)):
            return f"the name {resource} is too long for the path of a socket in {self._kubelet_dir}"
        return ""

    def _socket_of(self, name: str) -> Path | None:
        """The path of the socket: in this directory, or in the kubelet's, where some plugins always have it."""
        if name in ("", "kubelet.sock") or "/" in name or name.startswith("."):
            return None
        paths = (directory / name for directory in (self._directory, self._kubelet_dir))
        return next(
            (path for path in paths if _fits(path) and path.is_socket() and unix_sockets.connect_error(path) is None),
            None,
        )

    async def _connect(self, resource: str, path: Path) -> bool:
        """Follow the plugin at this socket, in place of an earlier one of the resource; whether its first list came."""
        plugin = VendorPlugin(resource, path, partial(self._take, resource))
        try:
            await plugin.ask_options()
        except BaseException:  # a registration that is cancelled leaves no connection open either
            await plugin.close()
            raise
        earlier = self._plugins.get(resource)
        if earlier is not None and earlier.path != path and not earlier.replaced():
            logger.warning(
                "two plugins of a vendor registered one resource: the last one counts",
                resource=resource, socket=str(path), earlier=str(earlier.path),
            )  # fmt: skip
        async with self._replacing:  # two plugins may register at the same time
            await self._forget(resource)
            self._renewals = 0
            self._plugins[resource] = plugin
            self._following[resource] = asyncio.create_task(plugin.follow(), name=f"list of {resource}")
        return await self.plugin(resource, FIRST_LIST) is plugin

    async def _forget(self, resource: str) -> None:
        """End the connection to the plugin of a resource. Its last list stays valid for a while."""
        plugin = self._plugins.pop(resource, None)
        if plugin is None:
            return
        following = self._following.pop(resource)
        following.cancel()
        await asyncio.wait({following})
        await plugin.close()
        if plugin.connected:
            self._take(resource, None)

    def _take(self, resource: str, offered: VendorList | None) -> None:
        """Take a list of a resource; None if no further list will follow."""
        if offered is None:
            if resource not in self._keeping:
                loop = asyncio.get_running_loop()
                self._keeping[resource] = loop.call_later(KEPT, self._expire, resource)
        else:
            if offered.doubts_all and not self._offer.doubts_all(resource):
                why = "the vendor's plugin calls all devices unhealthy: each goes out after a scrub"
                logger.warning(why, resource=resource, devices=len(offered.entries))
            self._offer.put(resource, offered)
            if resource in self._keeping:  # until a list can be used, the time to its end runs on
                self._keeping.pop(resource).cancel()
            self._leave()
            self._report_refused(resource)
            self._listing.offer_again()
        self._changed.notify()

    def _expire(self, resource: str) -> None:
        if resource in self._keeping:
            self._keeping.pop(resource).cancel()
        logger.error("the devices of a resource are unhealthy: the vendor's plugin is away", resource=resource)
        self._offer.away(resource)
        self._leave()
        self._listing.offer_again()

    def _report_refused(self, resource: str) -> None:
        """Log once why devices cannot be proven clean."""
        on_node = self._listing.on_node()
        reasons = [why for name in self._offer.ids(resource) if (why := refusal(name, on_node))]
        if reasons and self._refused.get(resource) != reasons[0]:
            logger.error("devices cannot be proven clean", resource=resource, devices=len(reasons), error=reasons[0])
        self._refused[resource] = reasons[0] if reasons else ""

    # -- the files

    async def _until_renewal(self, served: endpoint.PluginServer) -> None:
        """Return when ``kubelet.sock`` is gone, or when a plugin must register again and does not do so on its own."""
        while not served.gone():
            await self._watch.until(lambda: served.gone() or (self._lost() and self._renewals < len(RENEWALS)))
            if not served.gone():
                await asyncio.sleep(RENEWALS[self._renewals])
                if self._lost():
                    self._renewals += 1
                    logger.info("making kubelet.sock anew: a vendor's plugin has to register again")
                    return

    def _lost(self) -> bool:
        """Whether a plugin that has registered can no longer be reached."""
        return any(plugin.replaced() for plugin in self._plugins.values())

    async def _find_bypass(self) -> None:
        """Look for plugins that serve in the kubelet's directory and do not register here."""
        clock = asyncio.get_running_loop().time
        since: dict[Path, float] = {}
        while True:
            before = self._watch.notifications
            registered = {plugin.path for plugin in self._plugins.values()}
            unregistered = other_plugins.serving(self._kubelet_dir, self._prefix) - registered
            since = {socket: since.get(socket, clock()) for socket in unregistered}
            late = sorted(str(path) for path, begun in since.items() if clock() - begun >= BYPASS_AFTER)
            if late and late[0] != self._bypass:
                logger.error("a vendor's plugin registers with the kubelet itself: nothing is proven", socket=late[0])
            self._bypass = late[0] if late else ""
            await self._watch.after(before)


def _fits(path: Path) -> bool:
    """Whether the kernel accepts the path of a socket."""
    return len(os.fsencode(path)) <= unix_sockets.MAX_PATH_BYTES
