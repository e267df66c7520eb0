"""GPUs that NVML and CUDA tell the same of, in this process or in those that a test starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scrubber.cuda.device import ENVIRONMENT
from tests.fakes.cuda.gpu import PAGE
from tests.fakes.cuda.machine import SITE, CudaGpu, CudaMachine
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Gpu

SIZE = 8 * PAGE
RESERVED = 2 * PAGE


def equip(folder: Path, gpus: Iterable[Gpu], root: Root, size: int = SIZE) -> CudaMachine:
    """Give GPUs of the stand-in for NVML a memory that CUDA can reach."""
    folder.mkdir(parents=True)
    machine = CudaMachine(folder / "gpus.json")
    machine.write({gpu.uuid: _equipped(folder / gpu.uuid, gpu, root, size) for gpu in gpus})
    return machine


def _equipped(folder: Path, gpu: Gpu, root: Root, size: int) -> CudaGpu:
    claims, memory = folder / "claims", folder / "memory"
    claims.mkdir(parents=True)
    memory.touch()
    os.truncate(memory, size)
    os.mkfifo(folder / "stop")
    books = {"total": size + RESERVED, "reserved": RESERVED, "used": 0, "idle": 0, "claims": claims}
    gpu.set({f"memory.{name}": value for name, value in books.items()})
    return CudaGpu(str(memory), str(claims), gpu.pci, str(root.node(gpu)))


@contextmanager
def in_this_process(machine: CudaMachine) -> Iterator[CudaMachine]:
    """Let ``import cupy`` find the stand-in, as if nothing of CUDA had been called yet."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (machine.environment() | dict.fromkeys((*ENVIRONMENT, "CUDA_VISIBLE_DEVICES"), "")).items():
            patch.setenv(name, value)
        patch.syspath_prepend(SITE)
        _forget()
        try:
            yield machine
        finally:
            _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        del sys.modules[name]
