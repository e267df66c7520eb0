"""Simulated GPUs and processes, as in the tests of the devices, and zygotes."""

from tests.devices.conftest import bank, launch
from tests.workers.zygotes import make

__all__ = ["bank", "launch", "make"]
