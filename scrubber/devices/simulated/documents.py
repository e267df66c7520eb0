"""The documents of a simulated GPU: small JSON files that are replaced atomically and read strictly.

A file that is missing, incomplete or unexpected is a ``DeviceError``, never a healthy default.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum, EnumMeta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from scrubber.core.model import DeviceInfo, Sign
from scrubber.devices.base import DeviceError

T = TypeVar("T")
_PIECE = 64 * 1024  # bytes for each read


@dataclass(frozen=True, slots=True)
class Driver:
    """The simulated driver; it gets a new instance id when it is loaded again."""

    instance: str
    version: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """The settings that a pod may have changed. The defaults are the settings after a reset."""

    graphics_clock_mhz: int = 1410
    memory_clock_mhz: int = 1593
    power_limit_watts: int = 400
    compute_mode: str = "default"
    persistence: bool = False
    ecc: bool = True


@dataclass(frozen=True, slots=True)
class Counters:
    """What the device has counted since its last reset."""

    ecc_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    leaked_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The sensor values of the device."""

    celsius: float = 41.0
    slowdown_celsius: float = 90.0
    watts: float = 75.0


class Resetting(Enum):
    """How a reset behaves."""

    WORKS = "works"
    REFUSED = "refused"
    SLOW = "slow"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class StuckBit:
    """A memory cell that always reads one."""

    offset: int
    bit: int


@dataclass(frozen=True, slots=True)
class Faults:
    """The injected faults."""

    lost: bool = False
    hang: bool = False
    stall_clears: bool = False
    skip_clears: bool = False  # a clear reports success and writes nothing; verify must find it
    reset: Resetting = Resetting.WORKS
    reset_seconds: float = 0.0
    stuck_bits: tuple[StuckBit, ...] = ()
    bad_units: tuple[int, ...] = ()  # units that compute wrong results
    skip_scratch: bool = False  # scratch reports success and does nothing
    signs: tuple[Sign, ...] = ()  # reported until the device is healed


Document = Driver | SimulatedSettings | Counters | Measured | Faults | DeviceInfo


def read(path: Path, kind: type[T]) -> T:
    """The document in a file; DeviceError unless it has exactly the fields of ``kind``."""
    try:
        value = _decoded(cast("type", kind), contents(path))
    except (OSError, ValueError) as error:
        raise DeviceError(f"cannot read {path.name} of {path.parent.name}: {error}") from error
    assert isinstance(value, kind)  # noqa: S101 -- tells mypy what _decode has just done
    return value


def contents(path: Path) -> bytes:
    """The content of a small file, with three system calls: the monitor reads many of them often."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        text = part = os.read(handle, _PIECE)
        while len(part) == _PIECE:
            part = os.read(handle, _PIECE)
            text += part
        return text
    finally:
        os.close(handle)


@lru_cache(maxsize=4096)
def _decoded(kind: type, text: bytes) -> object:
    # The monitor reads each document each second. The cache key is the content, not the times: two writes within one
    # clock tick can leave the same inode, size and time, and then a fault would be read as healthy.
    return _decode(kind, json.loads(text))


def write(path: Path, document: Document) -> None:
    """Replace a document atomically: a reader sees either the old or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(json.dumps(asdict(document), indent=2, default=_word) + "\n")
    aside.replace(path)


def _word(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{value!r} cannot be stored in a document")


def _decode(kind: Any, value: object) -> object:  # noqa: ANN401 -- a kind is whatever an annotation can say
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_fields(kind, value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {value!r}")
        return tuple(_decode(get_args(kind)[0], item) for item in value)
    if isinstance(kind, EnumMeta):
        return kind(value)
    # A bool is an int in Python, but not in a document.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"expected {kind}, got {value!r}")
    return value


def _decode_fields(kind: type, value: object) -> object:
    names = {it.name for it in fields(kind)}
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"expected exactly the fields {', '.join(sorted(names))}")
    hints = get_type_hints(kind)
    return kind(**{name: _decode(hints[name], said) for name, said in value.items()})
