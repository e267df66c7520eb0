"""The settings that a device was first seen with.

The first worker of a device stores them in a file; ``restore`` uses them as the baseline. To change a setting on
purpose, an operator names it in the policy, or changes the device and removes the file, which is then written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.inventory import slices
from scrubber.devices.nvidia.nvml import Session
from scrubber.devices.nvidia.settings.knobs import KNOBS, LOCKED_CLOCKS, MIG, NO_LOCKS, ClockLocks, Clocks
from scrubber.ground import private_files
from scrubber.ground.documents import strict_json


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


@dataclass(frozen=True, slots=True)
class PolicySettings(StoredSettings):
    """The settings that a policy names, and those that it leaves as they are."""

    locks: ClockLocks = NO_LOCKS
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stored:
    """The document of one device."""

    uuid: str
    settings: StoredSettings


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


def of_policy(values: Mapping[str, Any]) -> PolicySettings:
    """The settings that a policy names, which are valid, converted from its units."""
    values = dict(values)
    left = tuple(values.pop("leave", ()))
    ranges = values.pop(LOCKED_CLOCKS, {})  # not among the stored settings, because they cannot be read
    if "power_limit" in values:
        values["power_limit"] = round(1000 * values["power_limit"])
    if "application_clocks" in values:
        clocks = values["application_clocks"]
        values["application_clocks"] = clocks["memory"], clocks["graphics"]
    locks = ClockLocks(**{name: (it["min"], it["max"]) for name, it in ranges.items()})
    return PolicySettings(**values, locks=locks, left=left)


def encode(settings: StoredSettings, uuid: str) -> bytes:
    """The document to store, with the UUID of the device."""
    return strict_json.encode(_Stored(uuid, settings), indent=2)


def decode(text: bytes, uuid: str) -> StoredSettings:
    """Parse a stored document. ValueError for anything that ``encode`` would not write for this device."""
    stored = strict_json.decode(_Stored, text)
    if stored.uuid != uuid:
        raise ValueError("these are not the settings of this device")
    numbers = (stored.settings.power_limit, *(stored.settings.application_clocks or ()))
    if any(number is not None and number <= 0 for number in numbers):
        raise ValueError("a power limit or a clock is not above 0")
    return stored.settings


def _keep(path: Path, text: bytes) -> None:
    """Write the file atomically, unless it exists: a hard link never replaces a file."""
    try:
        with private_files.beside(path, text) as aside, suppress(FileExistsError):
            path.hardlink_to(aside)
    except OSError as error:
        raise DeviceError(f"cannot keep the settings that a device was first seen with: {error}") from error
