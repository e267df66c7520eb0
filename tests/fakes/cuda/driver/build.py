"""Compile the stand-in for the driver of CUDA."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.fakes.built import built
from tests.fakes.nvml import build as nvml

HERE = Path(__file__).parent
NAME = "libcuda.so.1"
OF_NVML = [nvml.HERE / name for name in ("state.c", "claims.c", "clock.c", "nodes.c")]  # what both read


def library() -> Path:
    """The library, compiled when its sources have changed."""
    return built("cuda", [*HERE.glob("*.*"), HERE.parent / "launch.h", *nvml.HERE.glob("*.[ch]")], _build) / NAME


def _build(folder: Path) -> None:
    folder.mkdir()
    script = folder / "cuda.map"
    script.write_text("{ global: cu*; local: *; };\n")
    cc = nvml.compiler()
    assert cc is not None
    command = [cc, "-shared", "-fPIC", "-std=gnu11", *nvml.WARNINGS, "-pthread", "-fvisibility=hidden"]
    command += [f"-I{nvml.HERE}", f"-Wl,-soname,{NAME}", f"-Wl,--version-script={script}", "-o", str(folder / NAME)]
    subprocess.run([*command, *map(str, [*sorted(HERE.glob("*.c")), *OF_NVML]), "-ldl"], check=True)
