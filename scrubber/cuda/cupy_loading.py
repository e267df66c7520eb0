"""Load CuPy ahead of its use. Loading does not open or call the driver, so the process can still fork safely.

CuPy is optional, and only the zygote and its children may load it. So it is loaded by name on request.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from types import ModuleType

from scrubber.words import nvidia_advice

_CUPY = "cupy"
# numpy's libraries start threads while they are loaded, and a process with threads cannot fork safely.
_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# CuPy creates a cache folder in the home directory while it is loaded; a service may have no home directory. We compile
# nothing, so use a folder that exists and cannot be written.
_CACHE = {"CUPY_CACHE_DIR": "/proc"}
_MOST_SHOWN = 300  # characters of an error


class UnusableError(Exception):
    """CuPy cannot be used. The message says why."""


def missing() -> str | None:
    """What to install if CuPy is missing. It does not load CuPy, so a broken installation counts as installed."""
    spec = importlib.util.find_spec(_CUPY)
    if spec is not None and spec.origin is not None:  # without an origin it is a folder, not a package
        return None
    return f"CuPy is not installed: {nvidia_advice.INSTALL}"


def warm() -> str:
    """Load CuPy; returns its version, with our extra that installed it."""
    return _with_extra(str(load().__version__))


def installed() -> str:
    """Our extra that installed CuPy, as ``warm`` names it, without loading CuPy; empty if no extra did, or both."""
    return _with_extra("").strip()


def _with_extra(version: str) -> str:
    """By the folders of packages beside CuPy. To ask for the metadata of packages takes longer than to load them."""
    spec = importlib.util.find_spec(_CUPY)
    folders = Path(spec.origin).parents[:2] if spec is not None and spec.origin is not None else ()
    extras = [
        extra for extra in nvidia_advice.SINCE for folder in folders if any(folder.glob(f"cupy_{extra}x-*.dist-info"))
    ]
    return f"{version} ({extras[0]})" if len(extras) == 1 else version


def load() -> ModuleType:
    """Load CuPy; UnusableError if it is not installed or cannot be loaded."""
    if (why := missing()) is not None:
        raise UnusableError(why)
    os.environ.update(_THREADS | _CACHE)
    try:
        return importlib.import_module(_CUPY)
    except Exception as error:  # a package for another numpy can raise any exception
        raise UnusableError(f"CuPy is installed but cannot be loaded: {_first_cause(error)}") from error


def _first_cause(error: BaseException) -> str:
    """The first cause, in one line: CuPy wraps it in a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:_MOST_SHOWN]
