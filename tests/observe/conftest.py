"""Observations of simulated GPUs."""

from tests.devices.conftest import bank

__all__ = ["bank"]
