"""A worker child opens what an address names."""

from __future__ import annotations

import os

import pytest

from scrubber.core.model import Vitals
from scrubber.devices import roster
from scrubber.devices.base import Address, DeviceError, DeviceHandling, DeviceNode

NODE = DeviceNode(lambda: (), lambda _name: False)


def test_the_target_from_the_backend_opens_the_right_gpu(bank) -> None:
    address = bank.backend.address(bank.first, DeviceHandling())
    assert roster.open_gpu(address, NODE).vitals() == Vitals()
    container_of = roster.container_of(address)
    assert container_of is not None
    assert container_of(os.getpid()) is None


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(DeviceError, match="unknown backend 'abacus'"):
        roster.open_gpu(Address("abacus", "desk"), NODE)


def test_containers_of_hardware_are_the_nodes_own() -> None:
    assert roster.container_of(Address("nvidia", "{}")) is None
