"""Compile the stand-in for NVIDIA's management library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.fakes.built import built

HERE = Path(__file__).parent
NAME = "libnvidia-ml.so.1"
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which("cc")


def library() -> Path:
    """The library, compiled when its sources have changed."""
    return built("nvml", HERE.glob("*.[ch]"), build) / NAME


def build(folder: Path, more: Iterable[Path] = ()) -> Path:
    """The library, in a folder of its own. ``more``: further sources."""
    folder.mkdir(parents=True, exist_ok=True)
    library, script = folder / NAME, folder / "symbols.map"
    script.write_text("{ global: nvml*; local: *; };\n")
    cc = compiler()
    assert cc is not None
    command = [cc, "-shared", "-fPIC", "-std=gnu11", *WARNINGS, "-pthread", "-fvisibility=hidden"]
    command += [f"-Wl,-soname,{NAME}", f"-Wl,--version-script={script}", "-o", str(library)]
    subprocess.run([*command, *map(str, [*sorted(HERE.glob("*.c")), *more])], check=True)
    return library
