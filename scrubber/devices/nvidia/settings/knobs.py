"""Each setting of a device: how to read, write and print it, and whether the driver has a default for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.nvml import Handle, NotSupportedError, Session

Clocks = tuple[int, int]  # memory and graphics, in MHz
Value = bool | int | str | Clocks

DEFAULT_MODE, PROHIBITED = "default", "prohibited"  # compute modes; no CUDA program can open a prohibited device
_COMPUTE_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: DEFAULT_MODE,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive-thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive-process",
}


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. ``read`` returns None if the device does not support it."""

    name: str
    read: Callable[[Session, Handle], Any]
    write: Callable[[Session, Handle, Any], None]
    default: Callable[[Session, Handle], Any]
    word: Callable[[Any], str]
    in_force: Callable[[Session, Handle], Any] | None = None  # for settings that change at the next reset


def on_or_off(value: object) -> str:
    """The text for a switch."""
    return "on" if value else "off"


def _no_default(_session: Session, _device: Handle) -> None:
    return None


def _switch(question: Callable[..., Any]) -> Callable[[Session, Handle], bool | None]:
    def read(session: Session, device: Handle) -> bool | None:
        state = session.ask_optional(question, device)
        return None if state is None else state == pynvml.NVML_FEATURE_ENABLED

    return read


def _set(function: Callable[..., Any]) -> Callable[[Session, Handle, Any], None]:
    def write(session: Session, device: Handle, value: bool | int) -> None:  # noqa: FBT001 - a value, not a flag
        session.ask(function, device, int(value))

    return write


def _of_pair(question: Callable[..., Any], which: int) -> Callable[[Session, Handle], bool | None]:
    """One of a pair: the mode in force, and the mode after the next reset."""

    def read(session: Session, device: Handle) -> bool | None:
        modes = session.ask_optional(question, device)
        return None if modes is None else modes[which] == pynvml.NVML_FEATURE_ENABLED

    return read


def _clocks(question: Callable[..., Any]) -> Callable[[Session, Handle], Clocks | None]:
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


@dataclass(frozen=True, slots=True)
class ClockLocks:
    """The lowest and highest clock that each domain is locked to, in MHz; None unlocks it."""

    graphics: Clocks | None = None
    memory: Clocks | None = None


NO_LOCKS = ClockLocks()

LOCKED_CLOCKS = "locked_clocks"
# For each domain of clocks: its name in ``ClockLocks``, how to lock it, how to unlock it.
LOCKS = (
    ("graphics", pynvml.nvmlDeviceSetGpuLockedClocks, pynvml.nvmlDeviceResetGpuLockedClocks),
    ("memory", pynvml.nvmlDeviceSetMemoryLockedClocks, pynvml.nvmlDeviceResetMemoryLockedClocks),
)
MIG = Knob(
    "mig",
    _of_pair(pynvml.nvmlDeviceGetMigMode, 1),
    _set(pynvml.nvmlDeviceSetMigMode),
    _no_default,
    on_or_off,
    _of_pair(pynvml.nvmlDeviceGetMigMode, 0),
)
COMPUTE_MODE = Knob(
    "compute_mode",
    _read_compute_mode,
    _set_compute_mode,
    lambda _session, _device: DEFAULT_MODE,
    str,
)
# Persistence first: without it the driver loses the other settings when the last process closes the device.
KNOBS = (
    Knob(
        "persistence",
        _switch(pynvml.nvmlDeviceGetPersistenceMode),
        _set(pynvml.nvmlDeviceSetPersistenceMode),
        _no_default,
        on_or_off,
    ),
    Knob(
        "ecc",
        _of_pair(pynvml.nvmlDeviceGetEccMode, 1),
        _set(pynvml.nvmlDeviceSetEccMode),
        _no_default,
        on_or_off,
        _of_pair(pynvml.nvmlDeviceGetEccMode, 0),
    ),
    Knob(
        "accounting",
        _switch(pynvml.nvmlDeviceGetAccountingMode),
        _set(pynvml.nvmlDeviceSetAccountingMode),
        lambda _session, _device: False,
        on_or_off,
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
