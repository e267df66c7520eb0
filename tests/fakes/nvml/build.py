"""Compile the stand-in for NVIDIA's management library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.fakes.built import folder_for, made

HERE = Path(__file__).parent
NAME = "libnvidia-ml.so.1"
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which("cc")


def library() -> Path:
    """The library, compiled when its sources have changed."""
    return made(folder_for(HERE.glob("*.*")) / NAME, _compile)


def build(folder: Path, more: Iterable[Path] = ()) -> Path:
    """The library, in a folder of its own. ``more``: further sources."""
    folder.mkdir(parents=True, exist_ok=True)
    _compile(folder / NAME, more)
    return folder / NAME


def compile_library(path: Path, name: str, symbols: str, sources: Iterable[Path]) -> None:
    """A library of C with this name for the loader, which gives these symbols alone."""
    cc, script = compiler(), path.with_suffix(".map")
    assert cc is not None
    script.write_text(f"{{ global: {symbols}; local: *; }};\n")
    command = [cc, "-shared", "-fPIC", "-std=gnu11", *WARNINGS, "-pthread", "-fvisibility=hidden", f"-I{HERE}"]
    command += [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-o", str(path)]
    subprocess.run([*command, *map(str, sources), "-ldl"], check=True)


def _compile(path: Path, more: Iterable[Path] = ()) -> None:
    compile_library(path, NAME, "nvml*", [*sorted(HERE.glob("*.c")), *more])
