"""Loads CuPy before anybody needs it. Loading opens no driver and calls none: that is what makes it safe to fork after.

CuPy is an extra that a node may lack, and no process but the zygote and its children may hold it. So it is named here
and loaded on request, instead of being imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

_CUPY = "cupy"
# numpy's libraries start a pool of threads while they are loaded, and who has threads cannot be forked.
_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# CuPy makes a folder for what it compiles while it is loaded, in a home that a service need not have. We compile
# nothing: this one is there, and nothing can be put into it.
_CACHE = {"CUPY_CACHE_DIR": "/proc"}
_MOST_TOLD = 300  # letters of an error


class UnusableError(Exception):
    """There is no CuPy to be had: the message says why."""


def missing() -> str | None:
    """What to install, if CuPy is not there. Asked without loading it, so that one that is broken counts as there."""
    spec = importlib.util.find_spec(_CUPY)
    if spec is not None and spec.origin is not None:  # without an origin it is a folder of that name, and no package
        return None
    return "CuPy is not installed: install autoclave[cuda13], or autoclave[cuda12] for a driver of CUDA 12"


def warm() -> str:
    """CuPy's version once it is loaded."""
    return str(load().__version__)


def load() -> ModuleType:
    """CuPy itself; UnusableError where it is not installed, or does not load with the libraries that are there."""
    if (lacks := missing()) is not None:
        raise UnusableError(lacks)
    os.environ.update(_THREADS | _CACHE)
    try:
        return importlib.import_module(_CUPY)
    except Exception as error:  # a package that was made for another numpy raises whatever it meets
        raise UnusableError(f"CuPy is installed but cannot be loaded: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """The first cause, in one line: CuPy wraps it in a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:_MOST_TOLD]
