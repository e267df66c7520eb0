"""The port to a container runtime: real processes, simulated GPU users, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from demo.standins.pods import Container, Pod
from plugin.kubelet_api import deviceplugin_pb2

Devices = Mapping[str, tuple[str, ...]]  # resource name to device ids


class CannotCreate(Exception):
    """CreateContainer of the runtime failed; any other exception is a fault of the test."""


class Runtime:
    """The base class of runtimes. It starts no process: containers run at once, init containers succeed at once."""

    async def open_sandbox(self, pod: Pod) -> None:
        """Make the pod's sandbox. Called before each PreStartContainer, so it may exist already."""

    async def close_sandbox(self, pod: Pod) -> None:
        """Remove the pod's sandbox, after all its containers."""

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        """Return as soon as the container runs; for an init container, as soon as it has succeeded."""

    async def stop(self, pod: Pod, container: Container) -> None:
        """Return when the container has ended. Also called for a container that has ended by itself."""
