"""The obstacles of a plugin, for ``/readyz`` and its metric: registrations, vendors, rivals, standby."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Protocol

from plugin.listing import Listing

LONGEST = 300  # characters of a reason, which may quote an error of another program


class Readiness:
    """What prevents a program that serves the kubelet from its work."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def obstacles(self) -> tuple[str, ...]:
        """Why the program is not ready, one line each."""
        return tuple(" ".join(why.split())[:LONGEST] for why in self._obstacles())

    @abstractmethod
    def _obstacles(self) -> Iterator[str]: ...

    def _without_devices(self, *, offers: bool = True) -> Iterator[str]:
        """Why the scrub service has no device to offer. ``offers``: whether there should be one by now."""
        if reason := self._listing.silence_reason():
            yield f"the scrub service does not answer: {reason}"
        elif offers and not self._listing.resources():
            yield "there is no device to offer"


class Registrations(Protocol):
    """What the plugin knows about itself and about others in the kubelet's directory."""

    standby: bool  # another plugin of this node is registered, and this one waits for its end
    rival: str  # the socket of another plugin in the kubelet's directory

    def obstacle(self, resource: str) -> str:
        """Why a resource is not registered; empty if it is."""


class Vendors(Protocol):
    """The plugins of vendors that are there."""

    def connected(self, resource: str) -> bool:
        """Whether the vendor's plugin of this resource is there."""

    def obstacles(self) -> Iterator[str]:
        """Why pods cannot get a vendor's devices."""


class PluginReadiness(Readiness):
    """The readiness of the device plugin."""

    def __init__(self, listing: Listing, registrations: Registrations, vendors: Vendors | None = None) -> None:
        """``vendors``: the plugins in front of which this one stands."""
        super().__init__(listing)
        self._registrations = registrations
        self._vendors = vendors

    def _obstacles(self) -> Iterator[str]:
        # On standby, the vendor's plugin has registered with the other plugin, which knows its devices.
        waits = self._vendors is not None and self._registrations.standby
        yield from self._without_devices(offers=not waits)
        if self._vendors is not None and not waits:
            yield from self._vendors.obstacles()
        if rival := self._registrations.rival:
            yield f"another plugin serves at {rival}: remove it; what it hands out is not proven"
        for resource in sorted(self._listing.resources()):
            if why := self._registrations.obstacle(resource):
                yield f"{resource} is not registered: {why}"
