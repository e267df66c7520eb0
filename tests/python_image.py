"""The files of an image that has this machine's Python, its libraries, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tarfile
from pathlib import Path

PYTHON = Path("/usr/bin/python3").resolve()
_STANDARD = 'import sysconfig; print(sysconfig.get_path("stdlib"))'
_LEFT_OUT = ("test", "idlelib", "__pycache__", "dist-packages", "site-packages")


def write_files(archive: Path) -> None:
    """Write them into a tar file."""
    linked = subprocess.run(["ldd", PYTHON], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    standard = subprocess.run([PYTHON, "-c", _STANDARD], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with tarfile.open(archive, "w", dereference=True) as file:
        file.add(PYTHON, "usr/bin/python3")
        for library in filter(os.path.isabs, linked):
            file.add(library, library[1:])
        for found in Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "").rglob("libffi.so.*"):
            file.add(found, str(found)[1:])
        file.add(standard, standard[1:], filter=lambda it: None if Path(it.name).name in _LEFT_OUT else it)
