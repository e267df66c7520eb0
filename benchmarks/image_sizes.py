"""The files of a whole image by part, and its packages, as JSON. Benchmarks.image runs it inside, as ``python -c``."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

# Where Debian and the official image of Python have the interpreter and what belongs to it.
PYTHON = ("/usr/local", "/usr/lib/python3", "/usr/share/python-wheels", "/usr/share/python3")
PRODUCT = ("/opt/autoclave", "/usr/share/doc/autoclave")


def sizes() -> dict[str, object]:
    """Bytes of all files by part, and of each package with what was compiled of it."""
    interpreter = (*PYTHON, sysconfig.get_path("stdlib"), os.path.realpath(sys.base_prefix + "/bin/python3"))
    parts = {"base": 0, "Python": 0, "Autoclave and its packages": 0}
    for path, size in _files():
        if path.startswith(PRODUCT):
            parts["Autoclave and its packages"] += size
        else:
            parts["Python" if path.startswith(interpreter) else "base"] += size
    packages = {
        it.metadata["Name"]: _package(it) for it in metadata.distributions(path=[sysconfig.get_path("purelib")])
    }
    return {"python": sys.version.split()[0], "parts": parts, "packages": packages}


def _files() -> Iterator[tuple[str, int]]:
    for directory, below, names in os.walk("/"):
        below[:] = [name for name in below if not os.path.ismount(os.path.join(directory, name))]  # noqa: PTH118 - fast
        for name in names:
            path = os.path.join(directory, name)  # noqa: PTH118 - fast
            found = os.lstat(path)
            if not os.path.ismount(path):
                yield path, found.st_size


def _package(distribution: metadata.Distribution) -> int:
    total = 0
    for file in distribution.files or ():
        path = Path(str(file.locate()))
        compiled = Path(importlib.util.cache_from_source(str(path))) if path.suffix == ".py" else path
        total += sum(it.stat().st_size for it in {path, compiled} if it.exists())
    return total


if __name__ == "__main__":
    print(json.dumps(sizes()))
