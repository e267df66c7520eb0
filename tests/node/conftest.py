"""Processes that end with the test, as in the tests of the devices."""

from tests.devices.conftest import launch

__all__ = ["launch"]
