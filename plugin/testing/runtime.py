"""The port to whatever runs containers: real processes, simulated GPU users, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from plugin.kubelet_api import deviceplugin_pb2
from plugin.testing.pods import Container, Pod

Devices = Mapping[str, tuple[str, ...]]  # resource name to device ids


class CannotCreate(Exception):
    """Raised by a runtime whose CreateContainer fails; any other exception is a fault of the test."""


class Runtime(Protocol):
    """Runs containers."""

    async def open_sandbox(self, pod: Pod) -> None:
        """The pod itself is there: before its first PreStartContainer, and again where it is there already."""

    async def close_sandbox(self, pod: Pod) -> None:
        """The pod has gone, after all of its containers."""

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        """Return as soon as the container runs; for an init container, as soon as it has ended well."""

    async def stop(self, pod: Pod, container: Container) -> None:
        """Return when it has ended. Also called for a container that has ended by itself."""


class Nothing:
    """Runs nothing: every container is up at once, every init container done at once."""

    async def open_sandbox(self, pod: Pod) -> None:
        """See the protocol."""

    async def close_sandbox(self, pod: Pod) -> None:
        """See the protocol."""

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        """See the protocol."""

    async def stop(self, pod: Pod, container: Container) -> None:
        """See the protocol."""
