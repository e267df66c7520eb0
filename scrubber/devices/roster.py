"""The backends that a worker child can open, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from scrubber.devices.base import Address, DeviceError, DeviceNode, Gpu
from scrubber.devices.nvidia import host
from scrubber.devices.simulated import containers, layout
from scrubber.devices.simulated.simulated_gpu import SimulatedGpu


def load_nvidia() -> ModuleType:
    """The module of the NVIDIA GPU. Loaded only when needed: workers of a simulated node start faster without it."""
    return importlib.import_module("scrubber.devices.nvidia.gpu")


def open_gpu(address: Address, node: DeviceNode) -> Gpu:
    """Open the device of a worker child."""
    match address.backend:
        case layout.NAME:
            return SimulatedGpu(Path(address.place))
        case host.NAME:
            gpu: Gpu = load_nvidia().NvidiaGpu(address.place, node.users, daemon_runs=node.runs, memory=node.memory)
            return gpu
    raise DeviceError(f"cannot open {address.place}: unknown backend {address.backend!r}")


def container_of(address: Address) -> Callable[[int], str | None] | None:
    """How a backend finds the container of a process; None for the node's own control groups."""
    return containers.of if address.backend == layout.NAME else None
