"""How a device is set, as it was when it was first seen.

Kept once per device, by whoever sees it first; ``restoring`` says what becomes of it. What an operator changes on
purpose later belongs into the policy; or the file is removed once the device is set right, and made anew.
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
from scrubber.devices.nvidia.settings.knobs import KNOBS, MIG, Clocks


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The settings of a device. None: it does not know such a thing, or nobody names a value."""

    persistence: bool | None = None
    ecc: bool | None = None  # as it is after the next reset
    accounting: bool | None = None
    compute_mode: str | None = None
    power_limit: int | None = None  # milliwatts
    application_clocks: Clocks | None = None
    mig: bool | None = None  # as it is after the next reset
    layout: tuple[str, ...] | None = None  # of its slices


_NAMED = frozenset(knob.name for knob in KNOBS)  # a policy names no MIG mode: that is for whoever lays slices out


def capture(session: Session, uuid: str) -> StoredSettings:
    """As they are now."""
    device = session.handle(uuid)
    values = {knob.name: knob.read(session, device) for knob in (*KNOBS, MIG)}
    layout = None if values[MIG.name] is None else slices.words(slices.layout(session, uuid))
    return StoredSettings(**values, layout=layout)


def baseline(path: Path, session: Session, uuid: str) -> StoredSettings:
    """As they were when the device was first seen; that is now, where there is no such file yet."""
    try:
        if not path.exists():
            _keep(path, encode(capture(session, uuid), uuid))
        return decode(path.read_bytes(), uuid)  # another may have been first: what is in the file is what counts
    except (OSError, ValueError) as error:
        raise DeviceError(f"cannot read the baseline of {uuid}: {error}; set it right and remove {path}") from error


def named(values: Mapping[str, Any]) -> StoredSettings:
    """What a policy names, in its words: watts, and clocks by name. DeviceError for what is no setting."""
    if unknown := sorted(values.keys() - _NAMED):
        raise DeviceError(f"cannot restore settings: the policy names {', '.join(unknown)}, which is no setting")
    try:
        return _typed({name: _POLICY_WORDS.get(name, _as_it_is)(value) for name, value in values.items()})
    except ValueError as error:
        raise DeviceError(f"cannot restore settings: the policy's {error}") from error


def _milliwatts(watts: object) -> object:
    return watts * 1000 if _counts(watts) else watts


def _pair(clocks: object) -> object:
    if isinstance(clocks, dict) and clocks.keys() == {"memory", "graphics"}:
        return clocks["memory"], clocks["graphics"]
    raise ValueError(f"application_clocks is {clocks!r}")


def _as_it_is(value: object) -> object:
    return value


_POLICY_WORDS: dict[str, Callable[[object], object]] = {"power_limit": _milliwatts, "application_clocks": _pair}


def encode(settings: StoredSettings, uuid: str) -> bytes:
    """As a document that says whose settings it holds."""
    return json.dumps({"uuid": uuid, "settings": asdict(settings)}, indent=2).encode() + b"\n"


def decode(text: bytes, uuid: str) -> StoredSettings:
    """Read strictly. ValueError for anything that ``encode`` would not have written of this device."""
    said = json.loads(text)
    if not isinstance(said, dict) or said.keys() != {"uuid", "settings"} or said["uuid"] != uuid:
        raise ValueError("these are not the settings of this device")
    values = said["settings"]
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
            return _counts(value)
        case "compute_mode":
            return isinstance(value, str)
        case "application_clocks":
            return isinstance(value, list | tuple) and [_counts(clock) for clock in value] == [True, True]
        case "layout":
            return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        case _:
            return isinstance(value, bool)


def _counts(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _keep(path: Path, text: bytes) -> None:
    """Whole or not at all, and never over another's: linking to a name that is taken fails."""
    try:
        with durable_files.beside(path, text) as aside, suppress(FileExistsError):
            path.hardlink_to(aside)
    except OSError as error:
        raise DeviceError(f"cannot keep the settings that a device was first seen with: {error}") from error
