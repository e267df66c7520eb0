"""Observations of simulated GPUs, and control groups."""

from tests.devices.conftest import bank, launch, nodes
from tests.node.control_groups import enter, group

__all__ = ["bank", "enter", "group", "launch", "nodes"]
