"""The settings that a device was first seen with.

The first worker of a device stores them in a file; ``restore`` uses them as the baseline. To change a setting on
purpose, an operator names it in the policy, or changes the device and removes the file, which is then written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import durable_files
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.nvml import Session
from scrubber.devices.nvidia.settings.knobs import KNOBS, MIG, ClockLocks, Clocks
from scrubber.ground import private_files


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The settings of a device. None: not supported, or not named by the policy."""

    persistence: bool | None = None
    ecc: bool | None = None  # after the next reset
    accounting: bool | None = None
    compute_mode: str | None = None
    power_limit: int | None = None  # milliwatts
    application_clocks: Clocks | None = None
    mig: bool | None = None  # after the next reset
    layout: tuple[str, ...] | None = None  # of the slices


LOCKED_CLOCKS = "locked_clocks"  # not among the stored settings, because it cannot be read
_NAMED = frozenset(knob.name for knob in KNOBS)  # not the MIG mode: operators lay out slices, not policies


def capture(session: Session, uuid: str) -> StoredSettings:
    """The settings now."""
    device = session.handle(uuid)
    values = {knob.name: knob.read(session, device) for knob in (*KNOBS, MIG)}
    layout = None if values[MIG.name] is None else slices.describe(slices.layout(session, uuid))
    return StoredSettings(**values, layout=layout)


def baseline(path: Path, session: Session, uuid: str) -> StoredSettings:
    """The settings that the device was first seen with; without a file, store the settings now."""
    try:
        if not path.exists():
            _keep(path, encode(capture(session, uuid), uuid))
        return decode(private_files.content(path), uuid)  # another worker may have written the file first
    except (OSError, ValueError) as error:
        raise DeviceError(f"cannot read the baseline of {uuid}: {error}; set it right and remove {path}") from error


def locks(values: Mapping[str, Any]) -> ClockLocks:
    """The locked clocks that a policy names."""
    try:
        ranges = {name: (int(it["min"]), int(it["max"])) for name, it in values.get(LOCKED_CLOCKS, {}).items()}
        return ClockLocks(**ranges)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DeviceError(
            f"cannot restore settings: the policy's {LOCKED_CLOCKS} is {values[LOCKED_CLOCKS]!r}"
        ) from error


def named(values: Mapping[str, Any]) -> StoredSettings:
    """The settings that a policy names, without locks, converted from its units. DeviceError for an unknown setting."""
    values = {name: value for name, value in values.items() if name != LOCKED_CLOCKS}
    if unknown := sorted(values.keys() - _NAMED):
        raise DeviceError(f"cannot restore settings: the policy names {', '.join(unknown)}, which is no setting")
    try:
        return _typed({name: _POLICY_UNITS.get(name, _unchanged)(value) for name, value in values.items()})
    except ValueError as error:
        raise DeviceError(f"cannot restore settings: the policy's {error}") from error


def _milliwatts(watts: object) -> object:
    return watts * 1000 if _is_positive(watts) else watts


def _pair(clocks: object) -> object:
    if isinstance(clocks, dict) and clocks.keys() == {"memory", "graphics"}:
        return clocks["memory"], clocks["graphics"]
    raise ValueError(f"application_clocks is {clocks!r}")


def _unchanged(value: object) -> object:
    return value


_POLICY_UNITS: dict[str, Callable[[object], object]] = {"power_limit": _milliwatts, "application_clocks": _pair}


def encode(settings: StoredSettings, uuid: str) -> bytes:
    """The document to store, with the UUID of the device."""
    return json.dumps({"uuid": uuid, "settings": asdict(settings)}, indent=2).encode() + b"\n"


def decode(text: bytes, uuid: str) -> StoredSettings:
    """Parse a stored document. ValueError for anything that ``encode`` would not write for this device."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.keys() != {"uuid", "settings"} or document["uuid"] != uuid:
        raise ValueError("these are not the settings of this device")
    values = document["settings"]
    if not isinstance(values, dict) or values.keys() != {field.name for field in fields(StoredSettings)}:
        raise ValueError("these are not exactly the settings that are kept")
    return _typed(values)


def _typed(values: Mapping[str, Any]) -> StoredSettings:
    for name, value in values.items():
        if value is not None and not _fits(name, value):
            raise ValueError(f"{name} is {value!r}")
    tuples: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list | tuple) else value for name, value in values.items()
    }
    return StoredSettings(**tuples)


def _fits(name: str, value: object) -> bool:
    match name:
        case "power_limit":
            return _is_positive(value)
        case "compute_mode":
            return isinstance(value, str)
        case "application_clocks":
            return isinstance(value, list | tuple) and [_is_positive(clock) for clock in value] == [True, True]
        case "layout":
            return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        case _:
            return isinstance(value, bool)


def _is_positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _keep(path: Path, text: bytes) -> None:
    """Write the file atomically, unless it exists: a hard link never replaces a file."""
    try:
        with durable_files.beside(path, text) as aside, suppress(FileExistsError):
            path.hardlink_to(aside)
    except OSError as error:
        raise DeviceError(f"cannot keep the settings that a device was first seen with: {error}") from error
