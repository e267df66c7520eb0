"""The stand-in for NVML, for its own tests."""

import pynvml
import pytest

from tests.fakes.nvml.fixtures import nvml, nvml_build, stage

__all__ = ["nvml", "nvml_build", "session", "stage"]


@pytest.fixture
def session(nvml):
    """The machine, and NVML open."""
    pynvml.nvmlInit()
    return nvml
