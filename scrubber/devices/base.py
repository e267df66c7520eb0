"""The protocols ``Backend`` (the node) and ``Gpu`` (what a worker does to one), their values, and device errors.

``Backend`` is used by the service and only reads: the devices, and by a port each, who uses them, how they are, the
driver that they share, and the containers of the node. Each call may block for ever, because drivers do, so the
service calls it through ``blocking_calls.Caller`` with a deadline. ``Gpu`` exists only in a worker process that can
be killed. It changes one device that is proven to have no holder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from scrubber.core.measured import Cleared, Restored, Scratched, Tested, Verified
from scrubber.core.model import DeviceInfo, DeviceNumber, Holder, Vitals
from scrubber.core.use_counter import UseReading

Progress = Callable[[int, int], None]  # bytes done, bytes in total
Counts = tuple[int, int, int]  # of a device's memory: total, reserved and used bytes
Users = Callable[[], tuple[Holder, ...] | None]  # the holders of a device; None: they cannot be proven


class DeviceError(Exception):
    """The device or its driver refused or failed. The message is for operators."""


class DeviceLostError(DeviceError):
    """The device no longer answers on its bus."""


class NotNowError(DeviceError):
    """The step did not begin, because something else on the node prevents it. The device is not at fault."""


class NodeOrDeviceError(DeviceError):
    """The device cannot be used: a fault of the node, if no other device can be used either, or of the device."""


class ProgramFailedError(DeviceError):
    """A program of ours failed on the device: a fault of the program, or of the device."""


class ShortageError(DeviceError):
    """The service or its node lacks something, so nothing is known of the device. ``shortage`` decides which errors."""


class DriverClosedError(DeviceError):
    """The driver is released, because a device is being reset. This says nothing about any device."""


class DriverOpeningError(DriverClosedError):
    """The driver was just opened and sets up its GPUs, within a time limit. This says nothing about any device."""


@dataclass(frozen=True, slots=True)
class Address:
    """How a worker child finds a device: the backend, and the backend's own address of the device."""

    backend: str
    place: str


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """What a ``Gpu`` can ask about the processes of its node."""

    users: Users  # the holders of all devices that a reset of this device affects
    runs: Callable[[str], bool]  # whether a bystander with that program name runs
    memory: Counts | None = None  # as the service read it before the steps on memory


@dataclass(frozen=True, slots=True)
class DeviceHandling:
    """The parts of the policy that a backend needs, as plain values."""

    left: tuple[str, ...] = ()  # settings that are neither restored nor judged
    reset_seconds: float = 60.0  # the time limit of the reset step


@dataclass(frozen=True, slots=True)
class Readings:
    """The sensor values of a whole GPU; None for a value that the GPU does not report."""

    index: int  # the number of the GPU, also while it is sliced
    celsius: float | None
    slowdown_celsius: float | None  # the GPU slows down from this temperature on
    watts: float | None


UNSHOWN = (
    "it is open, and no process shows it: the open file waits in the queue of a socket or in an io_uring; end the pod "
    "that keeps it: `grep -ls '^scm_fds:.*[1-9]' /proc/[0-9]*/fdinfo/*`, as root, lists the sockets in which files wait"
)


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """What the kernel's count of the open files of a device says beside /proc."""

    unshown: int | None  # so many at least, of which no process shows any; None: not known
    shown_by: frozenset[int]  # the processes that were found to show one


class LivingContainers(Protocol):
    """The containers of this node."""

    def container_of(self, pid: int) -> str | None:
        """The container of a process, None if it is in none."""

    def living(self, wanted: Collection[str] = ()) -> Mapping[str, int]:
        """All containers that have a live process, each with one of its processes.

        ``wanted``: these are enough, if all of them live.
        """

    def member(self, container: str) -> int | None:
        """A live process of the container, if one is found without going through all processes."""

    def has_ended(self, container: str) -> bool:
        """Whether the kernel says that no process of the container is left. False proves nothing."""


class Uses(Protocol):
    """Who uses a device, as far as the driver knows."""

    def has_holders(self, uuid: str) -> bool | None:
        """Whether the driver knows a holder. After True or None (unknown), do a full observation."""

    def listed_holders(self, uuid: str) -> frozenset[int]:
        """The processes that the driver lists as holders, also workers. The list may be incomplete."""

    def read_uses(self, uuid: str) -> UseReading:
        """How often other processes have used the device, up to now, and whether nothing was missed.

        A use counts at the latest when its process has left. The service's workers do not count, except those that were
        killed. Not asked where the fence guards the device.
        """

    def open_files(self, uuid: str) -> OpenFiles:
        """How many files of the device are open that no process shows. Asked after a search that has found no holder.

        Such a file waits in the queue of a socket or in an io_uring. Who receives it uses the device and opens nothing,
        so no fence is asked.
        """

    def numbers(self, uuid: str) -> frozenset[DeviceNumber]:
        """The numbers of the nodes that lead to this device alone. Empty where its nodes have none of their own."""

    def memory(self, uuid: str) -> Counts | None:
        """The counts of the device's memory now; None if its driver keeps none."""


class Signs(Protocol):
    """The health and the sensors of the devices."""

    def vitals(self, uuid: str) -> Vitals:
        """The health that the device reports now."""

    def quick_observation(self, uuid: str) -> tuple[Vitals, bool | None]:
        """``vitals`` and ``has_holders`` in one call, which calls the driver once for values that both need."""

    def reported(self, uuid: str) -> Vitals | None:
        """The logged signs, as partial vitals; None without a log. Answers while released; no driver call."""

    def readings(self) -> Mapping[str, Readings]:
        """The sensor values of whole GPUs, sliced or not, by UUID, without GPUs that cannot be read.

        For metrics only. May fail while the driver is released.
        """

    def alarm(self) -> int | None:
        """A file that becomes readable when a device logs a sign; None if the backend has no such file.

        Call ``vitals`` to read the sign. No driver call.
        """

    def clear_alarm(self) -> None:
        """Reset the alarm file: it becomes readable at the next sign."""


class DriverInstance(Protocol):
    """The running driver, which all devices share."""

    def driver(self) -> str:
        """The id of this driver instance; it changes when the driver is loaded again. Answers while released."""

    def in_reset(self, uuid: str) -> bool:
        """Whether a reset that affects the device is running, even if the worker that began it has ended."""

    def pending_restores(self) -> Mapping[str, Address]:
        """The whole devices, offered or not, with a pending restore, without those that are being reset.

        The settings step of a worker at that address does only this restore. Answers while released.
        """

    def release_driver(self) -> None:
        """Stop using the driver: a reset needs a driver that no process uses. May be called several times."""

    def reacquire_driver(self) -> None:
        """Open the driver again; called once for each ``release_driver``. May take long."""


class Backend(LivingContainers, Uses, Signs, DriverInstance, Protocol):
    """Lists the devices and reads their state. Never changes a device."""

    name: str
    pace: float  # seconds between two rounds over all devices; the cost of a round depends on the driver

    def lacks(self, device: DeviceInfo) -> str | None:
        """What is missing to overwrite the device's memory, and what to do; None if nothing. No driver call."""

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """All devices that are present or were present since the service started.

        While the driver is released: the devices that are already known.
        """

    def files(self, uuid: str) -> tuple[str, ...]:
        """The paths that a holder of the device has open or mapped. Answers while the driver is released."""

    def reach(self, uuid: str) -> tuple[str, ...]:
        """The paths of all devices that a reset of this device affects, with its own paths."""

    def address(self, uuid: str, handling: DeviceHandling) -> Address:
        """The address of the device for a worker, with the policy values that the worker needs."""

    def close(self) -> None:
        """Close what is open, such as the alarm."""


class Gpu(Protocol):
    """One device, in a worker child. Each method can be repeated."""

    def reset(self) -> str:
        """Reset the device and wait until it is back; returns how it was reset, in a few words for operators."""

    def prepare(self) -> None:
        """Open what the steps on memory need, ahead of them. Runs nothing on the device."""

    def clear(self, key: bytes, patterns: Iterable[str], progress: Progress, census: int = 1) -> Cleared:
        """Count the bytes that are not zero, then write each pattern; ``key`` makes the random data.

        Each pattern but the last is read back; ``verify`` reads the last one. ``census``: at least one part in so many
        is searched.
        """

    def verify(self, progress: Progress) -> Verified:
        """Read all memory: each byte must be as it was last written. NotNowError if this object has not written it.

        The finding names the pattern that was compared.
        """

    def scratch(self, key: bytes) -> Scratched:
        """Overwrite the memory on the chip, read it back, and leave zeros."""

    def selftest(self, key: bytes, seconds: float, progress: Progress) -> Tested:
        """Test memory and arithmetic for at most ``seconds``, then write zeros and read them back."""

    def restore_settings(self) -> Restored:
        """Restore the settings; returns each changed setting, and the locks that are not supported."""

    def vitals(self) -> Vitals:
        """The health that the device reports now."""
