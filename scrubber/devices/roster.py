"""Which backend a worker child opens by which name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scrubber.devices.base import Address, DeviceError, Gpu
from scrubber.devices.simulated import containers, layout
from scrubber.devices.simulated.gpu import SimulatedGpu

OPENERS: dict[str, Callable[[str], Gpu]] = {
    layout.NAME: lambda place: SimulatedGpu(Path(place)),
}
CONTAINERS: dict[str, Callable[[int], str | None]] = {
    layout.NAME: containers.of,
}


def open_gpu(address: Address) -> Gpu:
    """The device under a worker child's hands."""
    _check(address)
    return OPENERS[address.backend](address.place)


def container_of(address: Address) -> Callable[[int], str | None]:
    """How processes are told apart where that device lives."""
    _check(address)
    return CONTAINERS[address.backend]


def _check(address: Address) -> None:
    if address.backend not in OPENERS:
        raise DeviceError(f"cannot open {address.place}: no backend is called {address.backend!r}")
