"""The stand-in for NVML in tests: import the fixtures that a conftest wants to give."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from tests.fakes.nvml.build import compiler, library
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Machine
from tests.fakes.nvml.nvidia_smi import install


@pytest.fixture(scope="session")
def nvml_build() -> Path:
    """The compiled library."""
    if compiler() is None:
        pytest.skip("there is no C compiler here, and the stand-in for NVML is a C library")
    return library()


@dataclass(frozen=True)
class Stage:
    """A machine, its library, its host's files and its nvidia-smi."""

    machine: Machine
    library: Path
    root: Root
    programs: Path  # the folder that holds nvidia-smi

    def environment(self, path: str = "/usr/bin:/bin") -> dict[str, str]:
        """For a child process that shall see all of it; to be added to what it has."""
        return self.machine.environment | {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "PATH": f"{self.programs}:{path}",
        }


@pytest.fixture
def stage(tmp_path: Path, nvml_build: Path) -> Stage:
    """Eight H200. Nothing of this process is changed: see ``nvml`` for that."""
    machine = Machine.h200(tmp_path / "nvml" / "machine")
    programs = install(tmp_path / "nvml" / "bin")
    return Stage(machine, nvml_build, Root.of(machine, tmp_path / "nvml" / "root"), programs)


@contextmanager
def on_stage(stage: Stage) -> Iterator[Machine]:
    """Let pynvml in this process, and its children, see the machine; NVML is not opened yet, and closed at the end.

    The library stays mapped: a thread that was left behind in it must not fall into nothing. So a process that had it
    once never again misses ``libnvidia-ml.so.1``: ask that of a child process.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stage.environment(os.environ["PATH"]).items():
            patch.setenv(name, value)
        patch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(stage.library)))
        patch.setattr(pynvml, "_nvmlLib_refcount", 0)
        pynvml._nvmlGetFunctionPointer_cache.clear()
        try:
            yield stage.machine
        finally:
            _close(stage.machine)
            pynvml._nvmlGetFunctionPointer_cache.clear()


def _close(machine: Machine) -> None:
    """However often it was opened. Faults that a test ordered for the end of a session end with the test."""
    if machine.path.exists():
        machine.set({key: None for key in machine.read() if key.startswith(("fail.", "hang."))})
    try:
        while True:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError_Uninitialized:
        return


@pytest.fixture
def nvml(stage: Stage) -> Iterator[Machine]:
    """The machine, seen by this process's pynvml and by its children; not yet opened."""
    with on_stage(stage) as machine:
        yield machine
