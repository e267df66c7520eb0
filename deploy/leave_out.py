"""Delete from an environment what no program of ours loads, then import every module of ours, and what we load of CuPy.

``python deploy/leave_out.py PREFIX``: the Dockerfile runs this after all packages are installed. The packages stay
named in the environment, so `uv pip check` and the bill of materials see each of them. A module that cannot be imported
afterwards ends the build.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Omission:
    """Files or directories by a pattern below site-packages, but for a few names."""

    pattern: str
    keeps: frozenset[str] = frozenset()


OMISSIONS = (
    # rich needs Pygments to colour source code, and we show none. The languages that a traceback of Python needs stay.
    Omission("pygments/lexers/*.py", frozenset({"__init__.py", "_mapping.py", "python.py", "special.py"})),
    # A faster loader of YAML. lightkube and we call safe_load alone, which uses the one written in Python.
    Omission("yaml/_yaml.*.so"),
    # The interface of pydantic 1, and a part of the type checker mypy.
    Omission("pydantic/v1"),
    Omission("pydantic/mypy.py"),
    # Certificates for TLS: our gRPC stays on unix sockets. An interface of gRPC that it has replaced.
    Omission("grpc/_cython/_credentials"),
    Omission("grpc/beta"),
    # For the event loop of trio.
    Omission("anyio/_backends/_trio.py"),
    # Types for type checkers.
    Omission("**/*.pyi"),
)
# Where CuPy is: all but its bindings of the driver, which need nothing else (scrubber/cuda/cupy_loading.py).
BESIDE_BINDINGS = (
    Omission("cupy"),
    Omission("cupyx"),
    Omission("cupy_backends/cuda/libs"),
    Omission("cupy_backends/cuda/stream.*.so"),
    Omission("cupy_backends/cuda/api/*runtime*.so"),
    # What only the rest of CuPy requires.
    Omission("numpy"),
    Omission("numpy.libs"),
    Omission("cuda"),
)
IMPORT_ALL = """
import importlib, pkgutil
for house in ("access", "autoclave", "containers", "ground", "plugin", "policies", "remnant", "scrub_api", "scrubber"):
    for found in pkgutil.walk_packages(importlib.import_module(house).__path__, house + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
from scrubber.cuda import cupy_loading
if cupy_loading.missing() is None:
    cupy_loading.load()
"""


def leave_out(packages: Path) -> None:
    """Delete each omission from this site-packages. One that matches nothing is an error: its package has changed."""
    for omission in (*OMISSIONS, *(BESIDE_BINDINGS if (packages / "cupy_backends").exists() else ())):
        found = [path for path in packages.glob(omission.pattern) if path.name not in omission.keeps]
        if not found:
            raise SystemExit(f"cannot leave out {omission.pattern}: {packages} has no such file")
        for path in found:
            _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        return
    path.unlink()
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)  # this Python has compiled it


def main(prefix: Path) -> None:
    """Leave out, then import all modules from what is left."""
    (packages,) = (prefix / "lib").glob("python*/site-packages")
    leave_out(packages)
    for command in (prefix / "bin").iterdir():
        if command.name != "autoclave" and not command.name.startswith("python"):
            command.unlink()  # a command of a package
    subprocess.run([prefix / "bin" / "python", "-I", "-B", "-c", IMPORT_ALL], check=True, cwd="/")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
