"""The small files beside a simulated GPU's memory: replaced whole, read strictly.

A file that is missing, half written or not exactly as expected is a ``DeviceError``, never a healthy default. Only what
a later version added may be missing, where it is marked so: GPUs that were made before go on working.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum, EnumMeta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from scrubber.core.model import DeviceInfo, Sign
from scrubber.devices.base import DeviceError

T = TypeVar("T")
_PIECE = 64 * 1024  # bytes of one read
LATER = {"later": True}  # a field that documents of an older version do not have


@dataclass(frozen=True, slots=True)
class Driver:
    """The pretended driver: a new instance means that it was loaded anew."""

    instance: str
    version: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """What a tenant may have changed. The defaults are what a reset leaves behind."""

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
    """What the device measures of itself; GPUs of an older version have no such document, and do not tell."""

    celsius: float = 41.0
    slowdown_celsius: float = 90.0
    watts: float = 75.0


class Resetting(Enum):
    """What a reset does when it is asked for."""

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
    """What is broken on purpose."""

    lost: bool = False
    hang: bool = False
    stall_clears: bool = False
    skip_clears: bool = False  # a clear that reports success and writes nothing: the lie that verify is for
    reset: Resetting = Resetting.WORKS
    reset_seconds: float = 0.0
    stuck_bits: tuple[StuckBit, ...] = ()
    bad_units: tuple[int, ...] = field(default=(), metadata=LATER)  # these compute wrongly
    skip_scratch: bool = field(default=False, metadata=LATER)  # a scratch that reports success and does nothing
    signs: tuple[Sign, ...] = field(default=(), metadata=LATER)  # what is told of it until it is healed


Document = Driver | SimulatedSettings | Counters | Measured | Faults | DeviceInfo


def read(path: Path, kind: type[T]) -> T:
    """The document in a file, exactly as its kind describes it."""
    try:
        value = _decoded(cast("type", kind), contents(path))
    except (OSError, ValueError) as error:
        raise DeviceError(f"cannot read {path.name} of {path.parent.name}: {error}") from error
    assert isinstance(value, kind)  # noqa: S101 -- tells mypy what _decode has just done
    return value


def contents(path: Path) -> bytes:
    """All of a small file, in three calls of the kernel: the monitor reads many of them, again and again."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
    # The monitor reads every document every second. By its bytes, not its times: two writes within a tick of the
    # clock can leave the same inode, size and time behind, and then a fault would be read as healthy.
    return _decode(kind, json.loads(text))


def write(path: Path, document: Document) -> None:
    """Replace a document in one move: a reader sees the old one or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    aside.write_text(json.dumps(asdict(document), indent=2, default=_word) + "\n")
    aside.replace(path)


def _word(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{value!r} has no place in a document")


def _decode(kind: Any, value: object) -> object:  # noqa: ANN401 -- a kind is whatever an annotation can say
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_fields(kind, value)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"expected a list, got {value!r}")
        return tuple(_decode(get_args(kind)[0], item) for item in value)
    if isinstance(kind, EnumMeta):
        return kind(value)
    # In Python a bool is an int; in a document it is not.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"expected {kind}, got {value!r}")
    return value


def _decode_fields(kind: type, value: object) -> object:
    names = {it.name for it in fields(kind)}
    needed = {it.name for it in fields(kind) if not it.metadata.get("later")}
    if not isinstance(value, dict) or not needed <= value.keys() <= names:
        raise ValueError(f"expected exactly the fields {', '.join(sorted(names))}")
    hints = get_type_hints(kind)
    return kind(**{name: _decode(hints[name], said) for name, said in value.items()})
