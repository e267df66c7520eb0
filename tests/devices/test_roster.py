"""A worker child opens what an address names."""

from __future__ import annotations

import pytest

from scrubber.core.model import Vitals
from scrubber.devices import roster
from scrubber.devices.base import Address, DeviceError


def test_an_address_from_the_backend_opens_that_gpu(bank) -> None:
    address = bank.backend.address(bank.first)
    assert roster.open_gpu(address).vitals() == Vitals()
    assert roster.container_of(address)(1) is None


def test_an_unknown_backend_is_an_error() -> None:
    for opener in (roster.open_gpu, roster.container_of):
        with pytest.raises(DeviceError, match="no backend is called 'abacus'"):
            opener(Address("abacus", "desk"))


def test_every_backend_that_can_be_opened_can_tell_containers() -> None:
    assert roster.OPENERS.keys() == roster.CONTAINERS.keys()
