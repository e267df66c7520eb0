"""The registered DRA drivers: which instance is called, and the deletion of their slices.

Copies ``PK/cm/dra/plugin/dra_plugin_manager.go`` and ``dra_plugin.go``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from demo.standins.cluster import Cluster
from demo.standins.endpoint import OPTIONS, recorded
from demo.standins.http_api import ServerAway
from demo.standins.journal import Call, Journal
from demo.standins.timing import Timing
from plugin.kubelet_api import dra_pb2

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
ALL = ""  # instead of the name of a driver
_NOT_FOUND = 404
_ERRORS = 400
_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100))


class NoDriver(Exception):
    """No instance of the driver is registered."""


class DraPlugin:
    """One instance of a driver."""

    def __init__(self, driver: str, endpoint: str, service: str, journal: Journal, timing: Timing) -> None:
        """``service`` is the version of the calls, from ``SERVICES``."""
        self.driver, self.endpoint, self.service = driver, endpoint, service
        self.connected = False
        self.tasks: list[asyncio.Task[None]] = []
        self.channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=(*OPTIONS, *_RECONNECT))
        self._journal, self._timing = journal, timing

    async def prepare(self, claims: Sequence[dra_pb2.Claim]) -> dra_pb2.NodePrepareResourcesResponse:
        """Call NodePrepareResources."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=claims)
        answer: dra_pb2.NodePrepareResourcesResponse
        answer = await self._call("NodePrepareResources", request, dra_pb2.NodePrepareResourcesResponse)
        return answer

    async def unprepare(self, claims: Sequence[dra_pb2.Claim]) -> dra_pb2.NodeUnprepareResourcesResponse:
        """Call NodeUnprepareResources."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims)
        answer: dra_pb2.NodeUnprepareResourcesResponse
        answer = await self._call("NodeUnprepareResources", request, dra_pb2.NodeUnprepareResourcesResponse)
        return answer

    async def close(self) -> None:
        """End the connection, and with it every call."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)  # the journal has each failure
        await self.channel.close()

    async def _call(self, method: str, request: Any, answer: Any) -> Any:  # noqa: ANN401 - any message
        limit = self._timing.dra_call
        uids = tuple(claim.uid for claim in request.claims)
        send = self.channel.unary_unary(
            f"/k8s.io.kubelet.pkg.apis.dra.{self.service}/{method}", type(request).SerializeToString, answer.FromString
        )
        call = Call(method, self.driver, uids, size=len(uids), deadline=limit)
        return await recorded(self._journal, call, lambda: send(request, timeout=limit))


class DraPlugins:
    """The drivers of one kubelet process."""

    def __init__(self, cluster: Cluster, journal: Journal, timing: Timing) -> None:
        self._cluster, self._journal, self._timing = cluster, journal, timing
        self._plugins: dict[str, list[DraPlugin]] = {}  # by driver, oldest first
        self._expiries: dict[str, asyncio.TimerHandle] = {}  # also those that have passed
        self._deletions: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Delete all slices of the node: no driver has registered with this kubelet process."""
        self._begin_deletion(ALL)

    async def close(self) -> None:
        """End all connections: the kubelet ends."""
        for timer in self._expiries.values():
            timer.cancel()
        deletions = list(self._deletions)
        for task in deletions:
            task.cancel()
        await asyncio.gather(*deletions, return_exceptions=True)  # the journal has each failure
        plugins = [plugin for instances in self._plugins.values() for plugin in instances]
        self._plugins.clear()
        await asyncio.gather(*(plugin.close() for plugin in plugins))

    def refusal(self, versions: Sequence[str]) -> str:
        """Why a driver with these services may not register; empty if it may."""
        if not versions:
            return "empty list of supported gRPC services (aka supported versions)"
        if not set(versions) & set(SERVICES):
            return (
                f"none of services supported by the plugin ({_quoted(versions)}) are supported by the kubelet"
                f" ({_quoted(SERVICES)})"
            )
        return ""

    def register(self, driver: str, endpoint: str, versions: Sequence[str]) -> str:
        """Add an instance. Returns why that is refused, or an empty string."""
        instances = self._plugins.setdefault(driver, [])
        if any(plugin.endpoint == endpoint for plugin in instances):
            return f"endpoint {endpoint} already registered for DRA driver plugin {driver}"
        service = next(version for version in versions if version in SERVICES)  # the driver's order counts
        plugin = DraPlugin(driver, endpoint, service, self._journal, self._timing)
        instances.append(plugin)
        plugin.tasks = [
            self._journal.spawn(self._follow_connection(plugin), f"connection to {driver}"),
        ]
        self._sync(driver)
        return ""

    async def deregister(self, driver: str, endpoint: str) -> None:
        """Remove an instance."""
        for plugin in [plugin for plugin in self._plugins.get(driver, ()) if plugin.endpoint == endpoint]:
            self._plugins[driver].remove(plugin)
            self._sync(driver)
            await plugin.close()

    def plugin(self, driver: str) -> DraPlugin:
        """The newest connected instance, otherwise the newest one."""
        instances = self._plugins.get(driver)
        if not instances:
            raise NoDriver(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(instances) if plugin.connected), instances[-1])

    def usable(self, driver: str) -> bool:
        """Whether an instance is connected."""
        return any(plugin.connected for plugin in self._plugins.get(driver, ()))

    async def _follow_connection(self, plugin: DraPlugin) -> None:
        while True:
            state = plugin.channel.get_state(try_to_connect=True)
            plugin.connected = state is grpc.ChannelConnectivity.READY
            self._sync(plugin.driver)
            await plugin.channel.wait_for_state_change(state)

    def _sync(self, driver: str) -> None:
        """Delete the slices of a driver that is away for too long, once. A deletion that has begun goes on."""
        self._journal.changed()
        if self.usable(driver):
            if driver in self._expiries:
                self._expiries.pop(driver).cancel()
        elif driver not in self._expiries:
            loop = asyncio.get_running_loop()
            self._expiries[driver] = loop.call_later(self._timing.slices_kept, self._begin_deletion, driver)

    def _begin_deletion(self, driver: str) -> None:
        task = self._journal.spawn(self._delete_slices(driver), f"delete the slices of {driver or 'all drivers'}")
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def _delete_slices(self, driver: str) -> None:
        pause = self._timing.slices_retry
        while not self._deleted(driver):
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._timing.slices_retry_most)
        self._journal.changed()

    def _deleted(self, driver: str) -> bool:
        try:
            code = self._cluster.delete_slices(driver).code
        except ServerAway:
            return False
        return code < _ERRORS or code == _NOT_FOUND


def _quoted(names: Sequence[str]) -> str:
    """As Go prints a list of strings."""
    return "[" + " ".join(f'"{name}"' for name in names) + "]"
