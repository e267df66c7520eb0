"""The registered plugins, and what happens when a stream ends or a registration fails.

Copies ``DM/plugin/v1beta1/handler.go`` and ``DM/manager.go``. The kubelet finds a client by its resource name alone,
which is the cause of R1 and R10.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from demo.standins.endpoint import Endpoint, PluginError
from demo.standins.inventory import ShownDevices
from demo.standins.journal import Journal
from demo.standins.timing import Timing
from plugin.kubelet_api import deviceplugin_pb2

VERSION = "v1beta1"
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
QUALIFIED = re.compile(rf"(?P<domain>{LABEL}(\.{LABEL})*)/(?P<name>[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)")
LONGEST_DOMAIN = 253 - len("requests.")  # the kubelet checks the name with this prefix, which quotas use
LONGEST_NAME = 63


class Clients:
    """The plugins of one kubelet process."""

    def __init__(
        self,
        resources: Iterable[str],
        inventory: ShownDevices,
        save: Callable[[], None],
        journal: Journal,
        *,
        timing: Timing,
    ) -> None:
        """``resources``: those of the checkpoint, whose endpoints are stopped."""
        self.endpoints = {resource: Endpoint(resource, None, journal, timing) for resource in resources}
        self._latest: dict[str, Endpoint] = {}
        self._open: set[Endpoint] = set()
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._inventory, self._save, self._journal = inventory, save, journal
        self._timing = timing
        for resource in self.endpoints:
            self._expire_later(resource)

    def refusal(self, resource: str, versions: Sequence[str]) -> str:
        """The kubelet's message if this plugin may not register; empty if it may."""
        if VERSION not in versions:
            asked = " ".join(versions)
            return f'requested API version "{asked}" is not supported by kubelet. Supported version is ["{VERSION}"]'
        if not _is_extended(resource):
            return f'the ResourceName "{resource}" is invalid'
        return ""

    async def connect(self, resource: str, path: Path, deadline: float | None) -> None:
        """Dial the plugin and open its list, or raise a PluginError. The last plugin wins, without a check."""
        endpoint = Endpoint(resource, path, self._journal, self._timing)
        self._latest[resource] = endpoint
        self._open.add(endpoint)
        try:
            await endpoint.connect(deadline)
        except (PluginError, asyncio.CancelledError):
            self._latest.pop(resource, None)  # R10: the entry of the resource, even if it belongs to an earlier plugin
            await self._release(endpoint)
            raise
        self.endpoints[resource] = endpoint
        self._cancel_expiry(resource)
        endpoint.listening = self._journal.spawn(self._listen(endpoint), f"list of {endpoint}")
        self._journal.changed()

    async def disconnect(self, resource: str) -> None:
        """The plugin has removed its registration."""
        client = self._latest.pop(resource, None)
        if client is not None:
            await self._stop(client)

    async def close(self) -> None:
        """End every stream: the kubelet ends."""
        for timer in self._expiries.values():
            timer.cancel()
        await asyncio.gather(*(endpoint.close() for endpoint in self._open))

    async def _listen(self, endpoint: Endpoint) -> None:
        await endpoint.listen(partial(self._replace, endpoint.resource))
        client = self._latest.get(endpoint.resource)
        if client is not None:  # R1: it may be the endpoint of a newer plugin
            del self._latest[endpoint.resource]
            await self._stop(client)

    def _replace(self, resource: str, devices: Sequence[deviceplugin_pb2.Device]) -> None:
        self._inventory.replace(resource, devices)
        self._save()
        self._journal.changed()

    async def _stop(self, client: Endpoint) -> None:
        """Make the resource's devices unhealthy; later the kubelet forgets them."""
        if client.resource in self.endpoints:
            self.endpoints[client.resource].stopped = True
            self._inventory.fail(client.resource)
            self._expire_later(client.resource)
            self._journal.changed()
        if client.options is not None:  # while the kubelet still dials, there is no connection to close
            await self._release(client)

    async def _release(self, endpoint: Endpoint) -> None:
        self._open.discard(endpoint)
        await endpoint.close()

    def _expire_later(self, resource: str) -> None:
        self._cancel_expiry(resource)
        loop = asyncio.get_running_loop()
        self._expiries[resource] = loop.call_later(self._timing.stopped_grace, self._expire, resource)

    def _cancel_expiry(self, resource: str) -> None:
        timer = self._expiries.pop(resource, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, resource: str) -> None:
        """``GetCapacity`` drops an endpoint that was stopped for too long."""
        del self._expiries[resource]
        del self.endpoints[resource]
        self._inventory.forget(resource)
        self._save()
        self._journal.changed()


def _is_extended(resource: str) -> bool:
    """Whether a device plugin may offer a resource of this name."""
    match = QUALIFIED.fullmatch(resource)
    if match is None or "kubernetes.io/" in resource or resource.startswith("requests."):
        return False
    return len(match["domain"]) <= LONGEST_DOMAIN and len(match["name"]) <= LONGEST_NAME
