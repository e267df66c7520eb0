"""Observations of simulated GPUs."""

from tests.devices.conftest import bank, launch, nodes

__all__ = ["bank", "launch", "nodes"]
