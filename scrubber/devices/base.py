"""The two ports to hardware.

``Backend`` is sight: it lives in the service and only answers questions. Every call may block for ever (drivers do),
so the service asks through ``calls.Caller`` with a deadline. ``Gpu`` is touch: it exists only inside a worker child
that can be killed, and acts on one device that was proven free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from scrubber.core.model import DeviceInfo, Mismatch, Vitals

Progress = Callable[[int, int], None]  # bytes done, bytes in all


class DeviceError(Exception):
    """The device, or its driver, refused or failed: the message is for operators."""


class DeviceLostError(DeviceError):
    """The device does not answer on its bus any more."""


class DriverClosedError(DeviceError):
    """Nobody may ask just now: a device is being reset, which needs a driver without users. No news of any device."""


@dataclass(frozen=True, slots=True)
class Address:
    """How a worker child finds a device: which backend, and where."""

    backend: str
    place: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a clear wrote, and what it found before it wrote."""

    covered_bytes: int
    allocatable_bytes: int
    residue_bytes: int
    mismatch: Mismatch | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read back."""

    covered_bytes: int
    allocatable_bytes: int
    mismatch: Mismatch | None = None


class Backend(Protocol):
    """Which devices there are, and how they are. Asks, never changes anything."""

    name: str

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """Every device that can be named, also one that is lost but was there when the service started."""
        ...

    def driver(self) -> str:
        """Names this driver instance: another value means that the driver was loaded anew."""
        ...

    def in_use(self, uuid: str) -> bool | None:
        """A quick look, good enough to say no: True or None (cannot tell) call for a full look at the processes."""
        ...

    def vitals(self, uuid: str) -> Vitals:
        """Health as the device reports it now."""
        ...

    def files(self, uuid: str) -> tuple[str, ...]:
        """Paths that a process has open or mapped when it uses the device."""
        ...

    def address(self, uuid: str) -> Address:
        """Where a worker child finds the device."""
        ...

    def container_of(self, pid: int) -> str | None:
        """The live container that a process belongs to."""
        ...

    def container_alive(self, container: str) -> bool:
        """Whether anything of a container still runs."""
        ...


class Gpu(Protocol):
    """One device, inside a worker child. Every method is safe to run twice."""

    def reset(self) -> None:
        """Reset it and wait until it is back."""
        ...

    def clear(self, key: bytes, patterns: Iterable[str], progress: Progress) -> Cleared:
        """Census of what is there, then each pattern (``random`` keyed by ``key``, ``zero``) written and read back."""
        ...

    def verify(self, progress: Progress) -> Verified:
        """Read all of the memory: every byte must be zero."""
        ...

    def restore_settings(self) -> tuple[str, ...]:
        """Bring settings back to the baseline; says what had drifted, old and new value."""
        ...

    def vitals(self) -> Vitals:
        """Health as the device reports it now."""
        ...
