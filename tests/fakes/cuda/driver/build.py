"""Compile the stand-in for the driver of CUDA."""

from __future__ import annotations

import subprocess
from pathlib import Path

from scrubber.cuda.images import FOLDER
from tests.fakes.cuda import emulation
from tests.fakes.nvml import build as nvml

HERE = Path(__file__).parent
NAME = "libcuda.so.1"
KERNELS = "scrub.sm_90.cubin.so"  # by the name of the file that a device of compute capability 9.0 loads
OF_NVML = [nvml.HERE / name for name in ("state.c", "claims.c", "nodes.c")]  # what both read


def sources() -> list[Path]:
    """Whatever the libraries are made of."""
    return [*HERE.glob("*.*"), *HERE.parent.glob("*.*"), *nvml.HERE.glob("*.[ch]"), *FOLDER.glob("*.cu*")]


def build(folder: Path) -> None:
    """The driver and the kernels, in a folder of their own."""
    folder.mkdir(parents=True)
    emulation.build(folder / KERNELS)
    script = folder / "cuda.map"
    script.write_text("{ global: cu*; local: *; };\n")
    cc = nvml.compiler()
    assert cc is not None
    command = [cc, "-shared", "-fPIC", "-std=gnu11", *nvml.WARNINGS, "-pthread", "-fvisibility=hidden"]
    command += [f"-I{nvml.HERE}", f"-Wl,-soname,{NAME}", f"-Wl,--version-script={script}", "-o", str(folder / NAME)]
    subprocess.run([*command, *map(str, [*sorted(HERE.glob("*.c")), *OF_NVML]), "-ldl"], check=True)
