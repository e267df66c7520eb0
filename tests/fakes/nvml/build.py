"""Compile the stand-in for NVIDIA's management library, whole or as an older driver's that lacks some functions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
NAME = "libnvidia-ml.so.1"
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which("cc")


def build(folder: Path, without: Iterable[str] = (), more: Iterable[Path] = ()) -> Path:
    """The library, in a folder of its own. ``without`` names functions that it does not have; ``more``: sources."""
    folder.mkdir(parents=True, exist_ok=True)
    library, script = folder / NAME, folder / "symbols.map"
    hidden = "".join(f" {symbol};" for symbol in without)
    script.write_text(f"{{ global: nvml*; local:{hidden} *; }};\n")
    cc = compiler()
    assert cc is not None
    command = [cc, "-shared", "-fPIC", "-std=gnu11", *WARNINGS, "-pthread", "-fvisibility=hidden"]
    command += [f"-Wl,-soname,{NAME}", f"-Wl,--version-script={script}", "-o", str(library)]
    subprocess.run([*command, *map(str, [*sorted(HERE.glob("*.c")), *more])], check=True)
    return library
