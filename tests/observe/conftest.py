"""Observations of simulated GPUs."""

from tests.devices.conftest import bank, launch

__all__ = ["bank", "launch"]
