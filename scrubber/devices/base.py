"""The two ports to hardware.

``Backend`` lives in the service and only answers questions. Each call may block for ever, because drivers do, so the
service asks through ``calls.Caller`` with a deadline. ``Gpu`` exists only inside a worker process that can be killed,
and changes one device that was proven free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from scrubber.core.measurements import Mismatch, Scratched, Tested, Uncovered
from scrubber.core.model import DeviceInfo, Holder, Vitals

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Users = Callable[[], tuple[Holder, ...] | None]  # who has a device open; None: it cannot be proven


class DeviceError(Exception):
    """The device, or its driver, refused or failed: the message is for operators."""


class DeviceLostError(DeviceError):
    """The device does not answer on its bus any more."""


class NotNowError(DeviceError):
    """The step was not begun, because something on the node is in the way: no fault of the device."""


class DriverClosedError(DeviceError):
    """The driver is released, because a device is being reset. This says nothing about any device."""


@dataclass(frozen=True, slots=True)
class Address:
    """How a worker child finds a device: which backend, and where."""

    backend: str
    place: str


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """What a device's hands may ask of the node that they are on: looking at processes is not theirs."""

    users: Users  # who has open what a reset of the device would hit
    runs: Callable[[str], bool]  # whether a program of that name runs, and is the node's own


@dataclass(frozen=True, slots=True)
class Care:
    """How a device is to be handled, as plain values: backends know no policy."""

    means: tuple[str, ...] = ()  # of a reset, in the order in which they are tried
    slices: str = "wait"  # what the reset of a slice is
    settings: Mapping[str, object] = field(default_factory=dict)  # what is to be set, beside the baseline
    reset_seconds: float = 60.0  # until the step is ended from without


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a clear wrote, and what it found before it wrote."""

    covered_bytes: int
    allocatable_bytes: int
    residue_bytes: int
    mismatch: Mismatch | None = None
    residue_at: tuple[int, ...] = ()  # where the first bytes of the last user were, not what they were
    uncovered: tuple[Uncovered, ...] = ()  # allocatable, but not covered


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read back."""

    covered_bytes: int
    allocatable_bytes: int
    mismatch: Mismatch | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """What a whole GPU measures of itself; None is what it does not tell, which is not zero."""

    index: int  # what people call it, also while it is sliced
    celsius: float | None
    slowdown_celsius: float | None  # from here on it slows itself down
    watts: float | None


class Backend(Protocol):
    """Which devices there are, and how they are. Never changes a device."""

    name: str
    lists_holders: bool  # whether ``listed_holders`` is worth asking
    one_driver: bool  # a reset needs a driver that no worker uses, not even a worker of another device
    pace: float  # seconds between two rounds over all devices; what a round costs depends on the driver

    def lacks(self, device: DeviceInfo) -> str | None:
        """What is missing to overwrite the memory of the device, and what to do about it. Does not ask the driver."""
        ...

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """Every device that is there, and every device that was there since the service started.

        While the driver is released: the devices that are known already.
        """
        ...

    def driver(self) -> str:
        """Names this driver instance: another value means a driver that was loaded anew. Answers while released."""
        ...

    def has_holders(self, uuid: str) -> bool | None:
        """Whether a process holds the device, by the driver alone. True or None (unknown): observe the device fully."""
        ...

    def listed_holders(self, uuid: str) -> frozenset[int]:
        """The processes that the driver lists as holders. The list may be incomplete."""
        ...

    def vitals(self, uuid: str) -> Vitals:
        """Health as the device reports it now."""
        ...

    def quick_observation(self, uuid: str) -> tuple[Vitals, bool | None]:
        """``vitals`` and ``has_holders`` in one call, which asks the driver once for what both need."""
        ...

    def reported(self, uuid: str) -> Vitals | None:
        """The logged signs alone, as partial vitals; None without a log. Answers while released; asks no driver."""
        ...

    def readings(self) -> Mapping[str, Readings]:
        """What whole GPUs measure, sliced or not, by UUID. A GPU that cannot be read is left out.

        For metrics only. Need not answer while the driver is released.
        """
        ...

    def files(self, uuid: str) -> tuple[str, ...]:
        """The paths that a holder of the device has open or mapped. Answers while the driver is released."""
        ...

    def reach(self, uuid: str, care: Care) -> tuple[str, ...]:
        """The paths of all devices that a reset of this one takes down, its own included."""
        ...

    def address(self, uuid: str, care: Care) -> Address:
        """Where a worker finds the device, and how the worker is to handle it."""
        ...

    def container_of(self, pid: int) -> str | None:
        """The live container that a process belongs to."""
        ...

    def living(self) -> Mapping[str, int]:
        """All containers that still have a process, each with one of its processes."""
        ...

    def pending_restores(self) -> Mapping[str, Address]:
        """The whole devices, offered or not, that a cancelled reset still has to restore; none that is being reset.

        The settings step of a worker at that address does that restore and nothing else. Answers while released.
        """
        ...

    def in_reset(self, uuid: str) -> bool:
        """Whether a reset that takes the device down is under way, even if the worker that began it has ended."""
        ...

    def alarm(self) -> int | None:
        """A file that becomes readable when a device logs a sign; None if the backend has no such file.

        The file says only that something happened; ``vitals`` says what. Does not ask the driver.
        """
        ...

    def clear_alarm(self) -> None:
        """Make the alarm file unreadable until the next sign."""
        ...

    def close(self) -> None:
        """Close the alarm for good."""
        ...

    def release_driver(self) -> None:
        """Stop using the driver: a reset needs a driver that no process uses. May be called several times."""
        ...

    def reacquire_driver(self) -> None:
        """Open the driver again; called once for each ``release_driver``. May take long."""
        ...


class Gpu(Protocol):
    """One device, inside a worker child. Every method is safe to run twice."""

    def reset(self) -> str:
        """Reset it and wait until it is back; says how, in a few words for operators."""
        ...

    def clear(self, key: bytes, patterns: Iterable[str], progress: Progress) -> Cleared:
        """Census of what is there, then each pattern (``random`` keyed by ``key``, ``zero``) written and read back."""
        ...

    def verify(self, progress: Progress) -> Verified:
        """Read all of the memory: every byte must be zero."""
        ...

    def scratch(self, key: bytes) -> Scratched:
        """Overwrite the memory on the chip, read it back, and leave zeros."""
        ...

    def selftest(self, key: bytes, seconds: float, progress: Progress) -> Tested:
        """Test memory and arithmetic for no longer than that; the memory is zero, and read back, afterwards."""
        ...

    def restore_settings(self) -> tuple[str, ...]:
        """Bring settings back to the baseline; says what had drifted, old and new value."""
        ...

    def vitals(self) -> Vitals:
        """Health as the device reports it now."""
        ...
