"""Compile the stand-in for the driver of CUDA."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.fakes.nvml import build as nvml

HERE = Path(__file__).parent
NAME = "libcuda.so.1"
OF_NVML = [nvml.HERE / name for name in ("state.c", "claims.c", "nodes.c")]  # what both read


def build(folder: Path) -> Path:
    """The library, in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    library, script = folder / NAME, folder / "cuda.map"
    script.write_text("{ global: cu*; local: *; };\n")
    cc = nvml.compiler()
    assert cc is not None
    command = [cc, "-shared", "-fPIC", "-std=gnu11", *nvml.WARNINGS, "-pthread", "-fvisibility=hidden", f"-I{nvml.HERE}"]
    command += [f"-Wl,-soname,{NAME}", f"-Wl,--version-script={script}", "-o", str(library)]
    subprocess.run([*command, *map(str, [*sorted(HERE.glob("*.c")), *OF_NVML]), "-ldl"], check=True)
    return library
