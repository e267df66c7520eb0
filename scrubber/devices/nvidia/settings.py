"""The settings of a device: how to read, write and print each one, and those that the device was first seen with.

The first worker of a device stores them in a file; ``restore`` uses them where the driver gives no value. To change
such a setting on purpose, an operator changes the device and removes the file, which is then written again, or names
the setting in ``settings.leave`` of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from ground import private_files
from ground.documents import strict_json
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import slices
from scrubber.devices.nvidia.nvml import Handle, NotSupportedError, Session

Clocks = tuple[int, int]  # memory and graphics, in MHz
Read = Callable[[Session, Handle], Any]

DEFAULT_MODE, PROHIBITED = "default", "prohibited"  # compute modes; no CUDA program can open a prohibited device
_COMPUTE_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: DEFAULT_MODE,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive-thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive-process",
}


def on_or_off(value: object) -> str:
    """The text for a switch."""
    return "on" if value else "off"


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. ``read`` and ``default`` return None if the device has none."""

    name: str
    read: Read
    write: Callable[[Session, Handle, Any], None]
    default: Read = lambda _session, _device: None
    word: Callable[[Any], str] = on_or_off
    in_force: Read | None = None  # for settings that change at the next reset


def _switch(question: Callable[..., Any], which: int | None = None) -> Read:
    """``which`` of a pair: 0 is the mode in force, 1 the mode after the next reset."""

    def read(session: Session, device: Handle) -> bool | None:
        state = session.ask_optional(question, device)
        if state is None:
            return None
        return bool((state if which is None else state[which]) == pynvml.NVML_FEATURE_ENABLED)

    return read


def _set(function: Callable[..., Any]) -> Callable[[Session, Handle, Any], None]:
    def write(session: Session, device: Handle, value: bool | int) -> None:  # noqa: FBT001 - a value, not a flag
        session.ask(function, device, int(value))

    return write


def _clocks(question: Callable[..., Any]) -> Read:
    def read(session: Session, device: Handle) -> Clocks | None:
        memory = session.ask_optional(question, device, pynvml.NVML_CLOCK_MEM)
        graphics = session.ask_optional(question, device, pynvml.NVML_CLOCK_GRAPHICS)
        return None if memory is None or graphics is None else (memory, graphics)

    return read


_read_clocks = _clocks(pynvml.nvmlDeviceGetApplicationsClock)


def _set_clocks(session: Session, device: Handle, clocks: Clocks) -> None:
    """Try the driver's default first: setting the same clocks explicitly would disable its boost."""
    try:
        session.ask(pynvml.nvmlDeviceResetApplicationsClocks, device)
    except NotSupportedError:  # then only explicitly
        session.ask(pynvml.nvmlDeviceSetApplicationsClocks, device, *clocks)
        return
    if _read_clocks(session, device) != clocks:
        session.ask(pynvml.nvmlDeviceSetApplicationsClocks, device, *clocks)


def _read_compute_mode(session: Session, device: Handle) -> str | None:
    mode = session.ask_optional(pynvml.nvmlDeviceGetComputeMode, device)
    return None if mode is None else _COMPUTE_MODES.get(mode, f"mode {mode}")


def _set_compute_mode(session: Session, device: Handle, word: str) -> None:
    modes = [mode for mode, name in _COMPUTE_MODES.items() if name == word]
    if not modes:
        raise DeviceError(f"there is no compute mode called {word!r}")
    session.ask(pynvml.nvmlDeviceSetComputeMode, device, modes[0])


LOCKED_CLOCKS = "locked_clocks"
# For each domain of clocks: its name, and how to unlock it.
LOCKS = (
    ("graphics", pynvml.nvmlDeviceResetGpuLockedClocks),
    ("memory", pynvml.nvmlDeviceResetMemoryLockedClocks),
)
MIG = Knob(
    "mig",
    _switch(pynvml.nvmlDeviceGetMigMode, 1),
    _set(pynvml.nvmlDeviceSetMigMode),
    in_force=_switch(pynvml.nvmlDeviceGetMigMode, 0),
)
COMPUTE_MODE = Knob("compute_mode", _read_compute_mode, _set_compute_mode, lambda _session, _device: DEFAULT_MODE, str)
# Persistence first: without it the driver loses the other settings when the last process closes the device.
KNOBS = (
    Knob("persistence", _switch(pynvml.nvmlDeviceGetPersistenceMode), _set(pynvml.nvmlDeviceSetPersistenceMode)),
    Knob(
        "ecc",
        _switch(pynvml.nvmlDeviceGetEccMode, 1),
        _set(pynvml.nvmlDeviceSetEccMode),
        in_force=_switch(pynvml.nvmlDeviceGetEccMode, 0),
    ),
    COMPUTE_MODE,
    Knob(
        "power_limit",
        lambda session, device: session.ask_optional(pynvml.nvmlDeviceGetPowerManagementLimit, device),
        _set(pynvml.nvmlDeviceSetPowerManagementLimit),
        lambda session, device: session.ask_optional(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, device),
        lambda milliwatts: f"{milliwatts / 1000:g} W",
    ),
    Knob(
        "application_clocks",
        _read_clocks,
        _set_clocks,
        _clocks(pynvml.nvmlDeviceGetDefaultApplicationsClock),
        lambda clocks: f"memory {clocks[0]} MHz, graphics {clocks[1]} MHz",
    ),
)


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """The settings of a device. None: not supported."""

    persistence: bool | None = None
    ecc: bool | None = None  # after the next reset
    compute_mode: str | None = None
    power_limit: int | None = None  # milliwatts
    application_clocks: Clocks | None = None
    mig: bool | None = None  # after the next reset
    layout: tuple[str, ...] | None = None  # of the slices


def capture(session: Session, uuid: str) -> StoredSettings:
    """The settings now."""
    device = session.handle(uuid)
    values = {knob.name: knob.read(session, device) for knob in (*KNOBS, MIG)}
    layout = None if values[MIG.name] is None else slices.describe(slices.layout(session, uuid))
    return StoredSettings(**values, layout=layout)


def first_seen(path: Path, session: Session, uuid: str) -> StoredSettings:
    """The settings that the device was first seen with; without a file, store the settings now."""
    try:
        if not path.exists():
            _keep(path, strict_json.encode(capture(session, uuid), indent=2))
        # Another worker may have written the file first.
        return strict_json.decode(StoredSettings, private_files.content(path))
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"cannot read the settings that {uuid} was first seen with: {error}; set it right and remove {path}"
        ) from error


def _keep(path: Path, text: bytes) -> None:
    """Write the file atomically, unless it exists: a hard link never replaces a file."""
    try:
        private_files.make_folder(path.parent)
        with private_files.beside(path, text) as aside, suppress(FileExistsError):
            path.hardlink_to(aside)
        private_files.sync_directory(path.parent)
    except OSError as error:
        raise DeviceError(f"cannot keep the settings that a device was first seen with: {error}") from error
