"""The two ports to hardware.

``Backend`` is sight: it lives in the service and only answers questions. Every call may block for ever (drivers do),
so the service asks through ``calls.Caller`` with a deadline. ``Gpu`` is touch: it exists only inside a worker child
that can be killed, and acts on one device that was proven free.
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
    """It was not begun, for something on the node is in the way: no fault of the device."""


class DriverClosedError(DeviceError):
    """Nobody may ask just now: a device is being reset, which needs a driver without users. No news of any device."""


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
    """Which devices there are, and how they are. Asks, never changes anything."""

    name: str
    lists_users: bool  # whether ``listed`` is worth asking
    one_driver: bool  # a reset needs a driver that no worker uses, on whatever device
    pace: float  # seconds between two rounds over all devices: what a round costs is the driver's to say

    def lacks(self, device: DeviceInfo) -> str | None:
        """What is missing to overwrite its memory, and what to do; nothing is begun on it then. Asks nobody."""
        ...

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """Every device that can be named, also one that is lost but was there when the service started.

        While let go those that are known already.
        """
        ...

    def driver(self) -> str:
        """Names this driver instance: another value means that the driver was loaded anew. Answers while let go."""
        ...

    def in_use(self, uuid: str) -> bool | None:
        """A quick look, good enough to say no: True or None (cannot tell) call for a full look at the processes."""
        ...

    def listed(self, uuid: str) -> frozenset[int]:
        """Processes that the driver names as users, whatever files they show; it may leave some out."""
        ...

    def vitals(self, uuid: str) -> Vitals:
        """Health as the device reports it now."""
        ...

    def look(self, uuid: str) -> tuple[Vitals, bool | None]:
        """``vitals`` and ``in_use`` in one, for what both ask is asked once: the monitor does nothing else all day."""
        ...

    def heard(self, uuid: str) -> Vitals | None:
        """What was told unasked alone, as partial vitals; None without a log. Answers while let go; asks no driver."""
        ...

    def readings(self) -> Mapping[str, Readings]:
        """What whole GPUs measure, sliced or not, by UUID; one that cannot be read is left out, and no other with it.

        Nothing is judged by it. Need not answer while let go.
        """
        ...

    def files(self, uuid: str) -> tuple[str, ...]:
        """Paths that a process has open or mapped when it uses the device. Answers while let go."""
        ...

    def reach(self, uuid: str, care: Care) -> tuple[str, ...]:
        """Paths that are open in whoever a reset would hit: its own, and those of all that go down with it."""
        ...

    def address(self, uuid: str, care: Care) -> Address:
        """Where a worker child finds the device, and how it is to handle it."""
        ...

    def container_of(self, pid: int) -> str | None:
        """The live container that a process belongs to."""
        ...

    def living(self) -> Mapping[str, int]:
        """All containers of which anything still runs, each with a process of it."""
        ...

    def owed(self) -> Mapping[str, Address]:
        """What resets that were cut off still owe, unless one is under way: whole devices, offered or not, by name.

        A worker child at that address does nothing in its settings step but to bring that back. Answers while let go.
        """
        ...

    def in_reset(self, uuid: str) -> bool:
        """Whether a reset that takes it down is under way, whoever began it and whoever has ended meanwhile."""
        ...

    def alarm(self) -> int | None:
        """Listen from now on to what is told unasked: a file that is readable when there is news; None: it never is.

        Nothing is learnt by reading it: what happened stands in the vitals. Does not ask the driver.
        """
        ...

    def hush(self) -> None:
        """The alarm was heard: it is silent until there is more."""
        ...

    def close(self) -> None:
        """Listen no more, for good."""
        ...

    def let_go(self) -> None:
        """Use the driver no more: a reset needs it without users, us included. May be said several times."""
        ...

    def take_up(self) -> None:
        """The reset is over; said once for each ``let_go``. Opens the driver again, which may take its time."""
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
