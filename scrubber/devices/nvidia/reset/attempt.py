"""How one attempt at a reset ended. Only ``Done`` is a yes, and it too is looked at afterwards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """Whoever did it says that it was done."""


@dataclass(frozen=True, slots=True)
class InUse:
    """Nothing was done: the driver knows a client that we do not see, so nobody else may try either."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Nothing was done: this cannot be done to this device, or not from here."""

    why: str


@dataclass(frozen=True, slots=True)
class NoPermission:
    """Nothing was done: it takes more rights."""


@dataclass(frozen=True, slots=True)
class ResetFailed:
    """It was tried; what it did is not known."""

    why: str


@dataclass(frozen=True, slots=True)
class Stuck:
    """It was tried and cannot be ended: it is still at it."""

    why: str


Attempt = Done | InUse | Unsupported | NoPermission | ResetFailed | Stuck
