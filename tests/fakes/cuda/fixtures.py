"""The stand-in for the driver of CUDA in tests: its libraries, and this process as one that uses it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scrubber.cuda.cuda_card import ENVIRONMENT
from tests.fakes.cuda import emulation
from tests.fakes.cuda.driver import build as driver
from tests.fakes.cuda.machine import CudaMachine, Libraries

FORM = "sm_90"  # of the kernels: what the GPUs of the stand-in load, and tests/cuda/test_kernels.py shows to be right


def libraries() -> Libraries:
    """The driver, and the shipped machine code; the test is skipped where they cannot be compiled."""
    if lack := emulation.missing(FORM):
        pytest.skip(f"{lack}: the stand-in for the driver of CUDA is compiled, and runs the shipped machine code")
    return Libraries(driver.library(), emulation.library(FORM))


@contextmanager
def in_this_process(machine: CudaMachine) -> Iterator[CudaMachine]:
    """Let this process find the driver, as if nothing of CUDA had been called yet.

    The library stays mapped: a process that had it once never again misses it. Ask that of a child process.
    """
    with pytest.MonkeyPatch.context() as patch:
        unset = dict.fromkeys((*ENVIRONMENT, "CUDA_VISIBLE_DEVICES"), "")
        for name, value in (unset | machine.environment() | machine.machine.environment).items():
            patch.setenv(name, value)
        library = ctypes.CDLL(str(machine.libraries.driver), ctypes.RTLD_GLOBAL)
        library.cuForgetAll()
        try:
            yield machine
        finally:
            library.cuForgetAll()
