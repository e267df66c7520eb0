"""Load CuPy's bindings of the CUDA driver ahead of their use.

Loading does not open or call the driver, so the process can still fork safely. CuPy is optional, and only the zygote
and its children may load it. So it is loaded by name on request. The rest of CuPy and numpy are not loaded, and the
image has neither.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from scrubber.words import nvidia_advice

_CUPY = "cupy_backends"
_BINDINGS = f"{_CUPY}.cuda.api.driver"
# All that the bindings want of the rest of CuPy: a log of the functions that they find.
_REST: Any = SimpleNamespace(_environment=SimpleNamespace(_log=lambda _message: None))
_PACKAGE = re.compile(r"cupy(?:_(\w+)x)?-(.+)\.dist-info")
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
    """Load them; returns what ``installed`` says."""
    load()
    return installed() or "of an unknown version"


def installed() -> str:
    """The version of CuPy, with our extra that installed it; without the extra if none did, or both.

    By the folders of packages beside CuPy. To ask for the metadata of packages takes longer than to load them.
    """
    spec = importlib.util.find_spec(_CUPY)
    folders = Path(spec.origin).parents[:2] if spec is not None and spec.origin is not None else ()
    matches = [_PACKAGE.fullmatch(path.name) for folder in folders for path in folder.glob("cupy*.dist-info")]
    packages = [package.groups() for package in matches if package]
    versions = " or ".join(sorted({version for _, version in packages}))
    extras = [extra for extra, _ in packages if extra in nvidia_advice.SINCE]
    return f"{versions} ({extras[0]})" if len(extras) == 1 else versions


def load() -> ModuleType:
    """The bindings; UnusableError if CuPy is not installed or cannot be loaded."""
    if (why := missing()) is not None:
        raise UnusableError(why)
    sys.modules.setdefault("cupy", _REST)
    try:
        return importlib.import_module(_BINDINGS)
    except Exception as error:  # a package for another Python can raise any exception
        raise UnusableError(f"CuPy is installed but cannot be loaded: {_in_one_line(error)}") from error


def _in_one_line(error: BaseException) -> str:
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:_MOST_SHOWN]
