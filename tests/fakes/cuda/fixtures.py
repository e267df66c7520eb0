"""The stand-in for the driver of CUDA in tests: its libraries, and this process as one that uses it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scrubber.cuda.device import ENVIRONMENT
from tests.fakes.built import built
from tests.fakes.cuda import emulation
from tests.fakes.cuda.driver import build as driver
from tests.fakes.cuda.machine import CudaMachine


def libraries() -> Path:
    """The folder with the driver and the kernels; the test is skipped where they cannot be compiled."""
    if emulation.compiler() is None:
        pytest.skip("needs a C++ compiler and x86-64: the stand-in for the driver is compiled")
    return built("cuda", driver.sources(), driver.build)


@contextmanager
def in_this_process(machine: CudaMachine) -> Iterator[CudaMachine]:
    """Let this process find the driver, as if nothing of CUDA had been called yet.

    The library stays mapped: a process that had it once never again misses it. Ask that of a child process.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in machine.environment().items():
            patch.setenv(name, value)
        for name in (*ENVIRONMENT, "CUDA_VISIBLE_DEVICES"):
            patch.setenv(name, "")
        for name, value in machine.machine.environment.items():
            patch.setenv(name, value)
        library = ctypes.CDLL(str(machine.libraries / driver.NAME), ctypes.RTLD_GLOBAL)
        library.cuForgetAll()
        try:
            yield machine
        finally:
            library.cuForgetAll()
