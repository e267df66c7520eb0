"""How one attempt at a reset ended. Only ``Done`` is a success, and the caller checks the GPU even then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """The tool reports a reset."""


@dataclass(frozen=True, slots=True)
class InUse:
    """Nothing was done: the driver has a client that no observation shows."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Nothing was done: the tool does not work for this device, or is not there."""

    why: str


@dataclass(frozen=True, slots=True)
class NoPermission:
    """Nothing was done: the service needs more rights."""


@dataclass(frozen=True, slots=True)
class ResetFailed:
    """The attempt failed; what it did to the device is not known."""

    why: str


@dataclass(frozen=True, slots=True)
class Stuck:
    """The attempt still runs and cannot be killed."""

    why: str


Attempt = Done | InUse | Unsupported | NoPermission | ResetFailed | Stuck
