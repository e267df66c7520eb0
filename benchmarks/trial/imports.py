"""Imports everything that a part needs, and says in which releases: what is missing here is known at once."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from benchmarks.trial import needs
from benchmarks.trial.card import Where
from benchmarks.trial.driver import MeasuringDriver
from benchmarks.trial.figures import Measured, Unproven, remark
from scrubber.cuda import cupy_loading

OURS = ("autoclave.__main__", "scrubber.daemon", "scrubber.workers.zygote", "tests.gpu.inside")
PROGRAMS = ("ncu", "compute-sanitizer", "cuobjdump")


def measure(_where: Where) -> Iterator[Measured]:
    """The releases; Unproven if something cannot be imported."""
    yield remark("Python", f"{platform.python_version()} on {platform.platform()}")
    yield remark("CuPy", _cupy())
    yield remark("driver", _first_line(Path("/proc/driver/nvidia/version")))
    yield remark("packages", ", ".join(f"{name} {needs.installed(name)}" for name in needs.pinned()))
    yield remark("packages of another release than the list", ", ".join(_others()) or "none")
    yield remark("programs", ", ".join(f"{name}: {shutil.which(name) or 'not here'}" for name in PROGRAMS))
    yield remark("pidfd_open", pidfd_refused() or "works")
    if failed := [why for name in (*_modules(), *OURS) if (why := _import(name))]:
        raise Unproven(f"cannot be imported: {'; '.join(failed)}")


def pidfd_refused() -> str | None:
    """Why the kernel gives no pidfd, without which the service can hold no worker; None: it gives one."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"this kernel refuses pidfd_open: {error.strerror}"
    return None


def _cupy() -> str:
    """CuPy with the CUDA that it was built for and the newest that the driver knows; no device is opened."""
    bindings = cupy_loading.load()
    built, knows = bindings.get_build_version(), MeasuringDriver(bindings).version()
    return f"{cupy_loading.installed()}, built for CUDA {built}, CUDA of the driver {knows}"


def _first_line(file: Path) -> str:
    try:
        return file.read_text().partition("\n")[0]
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _others() -> list[str]:
    here = {name: needs.installed(name) for name in needs.pinned()}
    return [
        f"{name} {here[name]} instead of {release}" for name, release in needs.pinned().items() if here[name] != release
    ]


def _modules() -> list[str]:
    """The modules of the packages on the list."""
    ours = {name.replace("-", "_").lower() for name in needs.pinned()}
    found = metadata.packages_distributions().items()
    return [
        module for module, names in found if ours & {name.replace("-", "_").replace(".", "_").lower() for name in names}
    ]


def _import(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken package can raise anything
        return f"{name} ({type(error).__name__}: {error})"
    return None
