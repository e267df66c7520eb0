"""Which backend a worker child opens by which name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from scrubber.devices.base import Address, DeviceError, DeviceNode, Gpu
from scrubber.devices.nvidia.host import NAME
from scrubber.devices.simulated import containers, layout
from scrubber.devices.simulated.gpu import SimulatedGpu

OPENERS: dict[str, Callable[[str, DeviceNode], Gpu]] = {
    layout.NAME: lambda place, _node: SimulatedGpu(Path(place)),
    NAME: lambda place, node: load_nvidia().NvidiaGpu(place, node.users, daemon_runs=node.runs),
}
CONTAINERS: dict[str, Callable[[int], str | None]] = {
    layout.NAME: containers.of,
}


def load_nvidia() -> ModuleType:
    """The module with the NVIDIA GPU. Loaded by name: workers of a simulated node start sooner without it."""
    return importlib.import_module("scrubber.devices.nvidia.gpu")


def open_gpu(address: Address, node: DeviceNode) -> Gpu:
    """The device under a worker child's hands."""
    if address.backend not in OPENERS:
        raise DeviceError(f"cannot open {address.place}: no backend is called {address.backend!r}")
    return OPENERS[address.backend](address.place, node)


def container_of(address: Address) -> Callable[[int], str | None] | None:
    """How processes are told apart where that device lives; None where it lives on the node itself."""
    return CONTAINERS.get(address.backend)
