"""Simulated GPUs and processes, as in the tests of the devices."""

from tests.devices.conftest import bank, launch

__all__ = ["bank", "launch"]
