"""Compile the stand-in for the driver of CUDA."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.built import folder_for, made
from tests.fakes.nvml import build as nvml

HERE = Path(__file__).parent
NAME = "libcuda.so.1"
OF_NVML = [nvml.HERE / name for name in ("state.c", "claims.c", "clock.c", "nodes.c")]  # what both read


def library() -> Path:
    """The library, compiled when its sources have changed."""
    folder = folder_for([*HERE.glob("*.*"), HERE.parent / "launch.h", *nvml.HERE.glob("*.*")])
    return made(folder / NAME, _compile)


def _compile(path: Path) -> None:
    nvml.compile_library(path, NAME, "cu*", [*sorted(HERE.glob("*.c")), *OF_NVML])
