"""Stands in for CuPy where there is no GPU: as much of it as Autoclave uses, over GPUs of numpy arrays.

What GPUs there are stands in the file that AUTOCLAVE_FAKE_CUDA names; see ``tests/fakes/cuda/machine.py``. As with the
real one, nothing is asked of a device before the first call.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from cupy import cuda
from cupy.cuda import runtime
from tests.fakes.cuda.device import Device, OutOfMemoryError
from tests.fakes.cuda.gpu import BrokenError

__version__ = "14.2.0"
uint32, uint64 = np.uint32, np.uint64

__all__ = ["RawModule", "cuda", "uint32", "uint64"]

MEMORY = {"write", "check", "invert"}


class RawModule:
    """Kernels by their names; a file must be there, and is not read. What is compiled must be saved, as with CuPy."""

    def __init__(self, *, path: str = "", code: str = "", **_how: object) -> None:
        self.path, self.code = path, code
        if code and os.environ.get("CUPY_CACHE_IN_MEMORY") != "1":
            TemporaryFile(dir=os.environ["CUPY_CACHE_DIR"]).close()

    def get_function(self, name: str) -> RawKernel:
        if not self.code and not Path(self.path).is_file():
            raise cuda.driver.CUDADriverError(301, "CUDA_ERROR_FILE_NOT_FOUND: file not found")
        return RawKernel(name)


class RawKernel:
    """A kernel, called as the real ones are, with arguments of exactly their types."""

    local_size_bytes = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self._place = runtime.device().place
        self.shared_size_bytes = STATIC.get(name, 0) + runtime.SHARED_OF_THE_SYSTEM * self._place.names_reserved
        self._dynamic = 48 * 1024

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._dynamic

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        if self._place.counts_reserved != "launch":
            self._demand_room(size)
        self._dynamic = size

    def __call__(
        self, grid: tuple[int], block: tuple[int], args: tuple[np.generic, ...], *, shared_mem: int = 0
    ) -> None:
        if grid[0] < 1 or not 0 < block[0] <= 1024 or shared_mem > self.max_dynamic_shared_size_bytes:
            raise cuda.driver.CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE: invalid argument")
        if [type(it) for it in args] != SIGNATURES[self.name]:
            raise TypeError(f"{self.name} takes other arguments than {args}")
        words: list[Any] = [int(it) for it in args]
        try:
            self._run(words, grid[0], shared_mem)
        except BrokenError as error:
            raise cuda.driver.CUDADriverError(self._place.fails_with, f"CUDA_ERROR_LAUNCH_FAILED: {error}") from error

    def _run(self, words: list[Any], blocks: int, shared: int) -> None:
        device = runtime.device()
        self._load(device)
        if self.name in MEMORY:
            device.sweep(self.name, words)
        else:
            self._demand_whole_units(shared)
            device.program(self.name, words[0], words[-1], blocks, shared)

    def _demand_room(self, shared: int) -> None:
        """A block takes no more than there is for one."""
        reserved = runtime.SHARED_OF_THE_SYSTEM if self._place.counts_reserved else 0
        if STATIC.get(self.name, 0) + reserved + shared > runtime.SHARED_OF_A_BLOCK:
            raise cuda.driver.CUDADriverError(
                self._place.refuses_size_with, "CUDA_ERROR_INVALID_VALUE: invalid argument"
            )

    def _demand_whole_units(self, shared: int) -> None:
        """No two blocks find room on a multiprocessor."""
        self._demand_room(shared)
        block = STATIC.get(self.name, 0) + shared
        if 2 * (block + runtime.SHARED_OF_THE_SYSTEM) <= runtime.SHARED_OF_A_UNIT:
            raise AssertionError(f"two blocks of {self.name} fit on a multiprocessor: each takes {block} bytes")

    def _load(self, device: Device) -> None:
        try:
            device.load(self.name)
        except OutOfMemoryError as error:
            raise cuda.driver.CUDADriverError(2, "CUDA_ERROR_OUT_OF_MEMORY: out of memory") from error


STATIC = {"registers": 1024, "plant_registers": 1024, "listen_registers": 4, "exact": 8}  # bytes of shared memory
_AREA = [uint64, uint64, uint64, uint32, uint64, uint64]
SIGNATURES: dict[str, list[Any]] = {
    "write": _AREA,
    "check": [*_AREA, uint64],
    "invert": [*_AREA, uint32, uint64],
    "scratch": [uint64, uint64],
    "registers": [uint64, uint64],
    "exact": [uint64, uint32, uint64],
    **{name: [uint32, uint64] for name in ("plant", "listen", "plant_registers", "listen_registers")},
}
