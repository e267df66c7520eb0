"""The only access to NVML in this process: the library, its sessions, and its errors as ours.

Rule 1: every call happens inside a session. The first session opens NVML, and NVML is never closed during a session.
Rule 2: a reset needs a driver that no process uses, not even this service: ``release_driver`` closes NVML, and
        ``reacquire_driver`` allows it again.
Rule 3: without persistence mode, the driver sets up a GPU when a process asks for the first handle of it. This takes
        seconds; more than 25 s were reported for eight GPUs. So the service asks for the first handle of every GPU in
        each opening, in threads of their own, and no session begins before these calls have returned.
Rule 4: every NVML error becomes one of the errors below. None of them is an answer, except "not supported" in
        ``ask_optional``, from a device that has not answered the question before (``about``).

A call may hang for ever, so the service calls through ``blocking_calls.Caller``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import pynvml

from scrubber.devices import shortage
from scrubber.devices.base import DeviceError, DeviceLostError, DriverClosedError, DriverOpeningError, ShortageError

ANSWER_TIMEOUT = 2.0  # seconds that a reset waits for running calls to return
# Seconds from an opening for which sessions wait for the first handles: with persistence mode they are ready at once.
SOON = 1.0
SET_UP_WITHIN = 50.0  # seconds from an opening; a GPU that has not returned its first handle by then does not answer

# Not supported by this device, this driver or this version of the library.
_NOT_SUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
_NO_FIELD = _NOT_SUPPORTED | {pynvml.NVML_ERROR_INVALID_ARGUMENT}  # an older driver's answer for a newer field
_GONE = frozenset({pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})

SLICE = "MIG-"  # how the UUIDs of MIG slices begin
_NUMBERS = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}

T = TypeVar("T")
Handle = Any  # pynvml's pointer to a device; valid only in its session


class RecoveryAction(IntEnum):
    """What the driver asks for before a GPU may be used again.

    By number, because releases of ``pynvml`` before 13.615 do not name all of them. Releases before 13.610 called
    number 5 a reset of the bus.
    """

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class NotSupportedError(DeviceError):
    """The device or its driver does not support this."""


class NotFoundError(DeviceLostError):
    """The device or slice does not exist, or does not exist any more."""


class ArgumentError(DeviceError):
    """NVML rejects the argument: an index past the end, or a handle of a destroyed device."""


class BufferTooSmallError(DeviceError):
    """The list grew while it was read and did not fit into the buffer."""


class NoPermissionError(DeviceError):
    """This process may not read or change this."""


class ResetRequiredError(DeviceError):
    """The device answers nothing until it is reset."""


class DriverGoneError(DeviceError):
    """The driver is not loaded, or was unloaded or replaced since NVML was opened."""


_KINDS: dict[int, type[DeviceError]] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: DeviceLostError,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: DeviceLostError,
    pynvml.NVML_ERROR_NOT_FOUND: NotFoundError,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: ArgumentError,
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: BufferTooSmallError,
    pynvml.NVML_ERROR_NO_PERMISSION: NoPermissionError,
    pynvml.NVML_ERROR_RESET_REQUIRED: ResetRequiredError,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: DriverGoneError,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverGoneError,
    **dict.fromkeys(_GONE, DriverGoneError),
    **dict.fromkeys(_NOT_SUPPORTED, NotSupportedError),
}
_REMEDIES: dict[int, str] = {
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was replaced: reboot the node, or load the new one",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not installed here",
    **dict.fromkeys(_GONE, "the driver is not loaded"),
}


class Library:
    """NVML, opened by the first session.

    ``sets_up_gpus``: each opening asks for the first handle of every GPU.
    """

    def __init__(self, *, sets_up_gpus: bool = False) -> None:
        self._sets_up_gpus = sets_up_gpus
        self._condition = threading.Condition()  # guards the next three; never held during a call to NVML
        self._active: list[str] = []  # the names of the threads in a session, or in the first call for a GPU
        self.awaited: set[int] = set()  # the indices of the GPUs that have not returned their first handle
        self._released = 0  # calls of release_driver without their reacquire_driver
        self._opening = threading.Lock()  # held while NVML is opened or closed, which may hang
        self._open = False
        self._opened_at = 0.0
        self._broken = False  # the driver was unloaded: close NVML as soon as no session is active
        self.handles: dict[str, Handle] = {}  # of whole GPUs, for the sessions
        self._openings = 0
        self.driver_version: tuple[int, ...] = ()  # of this opening, once a session has asked
        self.event_sets: list[Handle] = []  # event sets, each of which uses the driver while it exists
        self.supported: set[tuple[str, str]] = set()  # a device and a question that it answered since its last reset

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A time to call NVML. DriverClosedError while a device is being reset, or GPUs are set up."""
        with self._condition:
            if self._released:
                raise DriverClosedError("the driver is not asked while a device is being reset")
            self._active.append(threading.current_thread().name)
        try:
            with self._opening:
                # If the driver was unloaded, close NVML first, unless another session is active. A new one waits here.
                if self._broken and len(self._active) == 1:
                    self._close()
                self._open_it()
            if not self.wait_until_set_up(SOON) and time.monotonic() < self._opened_at + SET_UP_WITHIN:
                raise DriverOpeningError("the driver sets up its GPUs; it is asked as soon as each GPU has answered")
            yield Session(self, self._openings)
        finally:
            with self._condition:
                self._active.remove(threading.current_thread().name)
                self._condition.notify_all()

    def release_driver(self) -> None:
        """Close NVML until ``reacquire_driver``; calls may nest. DeviceError if a running call does not return."""
        with self._condition:
            self._released += 1
            if not self._condition.wait_for(lambda: not self._active, ANSWER_TIMEOUT):
                self._released -= 1
                asking = ", ".join(sorted({*self._active}))
                raise DeviceError(f"cannot release the driver: a call to it has not returned ({asking})")
            self.supported.clear()
        try:
            self.close()
        except DeviceError:
            self.reacquire_driver()
            raise

    def reacquire_driver(self, *, opened: bool = False) -> None:
        """Allow NVML again; the next session opens it.

        ``opened``: open NVML here, before a session may begin, unless another reset still needs it closed. Until then
        sessions fail at once and do not wait for the opening. Returns when every GPU is set up.
        """
        with self._opening:
            try:
                if opened and self._released == 1:
                    self._open_it()
            finally:
                with self._condition:
                    self._released -= 1
        self.wait_until_set_up(SET_UP_WITHIN)

    def wait_until_set_up(self, within: float) -> bool:
        """Wait until ``within`` seconds after the opening. Returns whether every GPU has returned its first handle."""
        with self._condition:
            left = self._opened_at + within - time.monotonic()
            return self._condition.wait_for(lambda: not self.awaited, max(0.0, left))

    def close(self) -> None:
        """Close NVML until the next session."""
        with self._opening:
            self._close()

    def renew(self) -> None:
        """Open NVML again as soon as no session is active: an open NVML does not see a device that returns."""
        self._broken = True

    def _open_it(self) -> None:
        if self._open:
            return
        _call("cannot open NVML", pynvml.nvmlInit)
        self._open = True
        self._opened_at = time.monotonic()
        self._openings += 1
        if self._sets_up_gpus:
            self._broken = True  # if not every GPU can be asked: the next session opens NVML again
            self._set_up_gpus()
            self._broken = False

    def _set_up_gpus(self) -> None:
        """Ask for the first handle of each GPU, in a thread for each.

        NVIDIA's reference says that NVML is thread-safe. One thread for all would not reach the GPUs behind a GPU that
        hangs.
        """
        count = _call("cannot count the GPUs", pynvml.nvmlDeviceGetCount)
        with self._condition:  # no thread ends before it is listed
            for index in range(count):
                thread = threading.Thread(
                    name=f"first handle of GPU {index}", target=self._set_up, args=(index,), daemon=True
                )
                thread.start()
                self._active.append(thread.name)
                self.awaited.add(index)

    def _set_up(self, index: int) -> None:
        try:
            with suppress(DeviceError):  # a GPU that refuses has answered; each later question hears the error as well
                handle = _call("no first handle", pynvml.nvmlDeviceGetHandleByIndex, index)
                self.handles[_call("no UUID", pynvml.nvmlDeviceGetUUID, handle)] = handle
        finally:
            with self._condition:
                self._active.remove(threading.current_thread().name)
                self.awaited.discard(index)
                self._condition.notify_all()

    def _close(self) -> None:
        self.handles, self._broken, self.driver_version = {}, False, ()
        if not self._open:
            return
        self._open = False
        sets, self.event_sets = self.event_sets, []
        failures = [*map(_failure, (partial(pynvml.nvmlEventSetFree, each) for each in sets))]
        for error in filter(None, (*failures, _failure(pynvml.nvmlShutdown))):
            raise _translate(error, "cannot close NVML") from error

    def failed(self, error: DeviceError) -> None:
        """For sessions: after an error the device may be lost, or destroyed and created again."""
        self.handles = {}
        if isinstance(error, DriverGoneError):
            self._broken = True
            self.supported.clear()


class Session:
    """Calls to an open NVML."""

    def __init__(self, library: Library, opening: int, device: str = "") -> None:
        self._library = library
        self.opening = opening  # a different number: earlier answers may be outdated
        self._device = device

    def about(self, device: str) -> Session:
        """The session for questions about one device. What it has answered since its last reset, it must support."""
        return Session(self._library, self.opening, device)

    def handle(self, uuid: str) -> Handle:
        """The handle of a GPU or MIG slice. A slice may have been created again, so its handle is never stored."""
        if uuid.startswith(SLICE):
            return self.ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        handles = self._library.handles  # an error in another thread may replace the dictionary
        if uuid not in handles:
            handles[uuid] = self.ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        return handles[uuid]

    def gpu(self, index: int) -> Handle:
        """The handle of a GPU by its index. DeviceError at once if the GPU has not answered since NVML was opened."""
        if index in self._library.awaited:
            raise DeviceError("it has not answered since NVML was opened")
        return self.ask(pynvml.nvmlDeviceGetHandleByIndex, index)

    def ask(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - depends on the function
        """The result of a pynvml function; DeviceError if it fails."""
        try:
            return _call(f"{function.__name__} failed", function, *arguments)
        except NotSupportedError:
            raise
        except DeviceError as error:
            self._library.failed(error)
            raise

    def driver_version(self) -> tuple[int, ...]:
        """The version of the loaded driver, asked once for each opening."""
        version = self._library.driver_version
        if not version:
            text = self.ask(pynvml.nvmlSystemGetDriverVersion)
            version = self._library.driver_version = tuple(int(part) for part in text.split(".") if part.isdecimal())
        return version

    def events(self) -> Handle:
        """A new event set, valid until it is freed or NVML is closed, which changes ``opening``."""
        self._library.event_sets.append(self.ask(pynvml.nvmlEventSetCreate))
        return self._library.event_sets[-1]

    def free(self, events: Handle) -> None:
        """Free an event set of this opening."""
        self._library.event_sets.remove(events)
        self.ask(pynvml.nvmlEventSetFree, events)

    def ask_optional(self, function: Callable[..., Any], *arguments: object) -> Any | None:  # noqa: ANN401 - see ``ask``
        """The result of a pynvml function; None if this device or driver does not support it."""
        try:
            return self._answered(function.__name__, self.ask(function, *arguments))
        except NotSupportedError as error:
            self._demand_never_supported(function.__name__, str(error))
            return None

    def field(self, handle: Handle, number: int) -> int | None:
        """A field value that is an integer; None if this device or driver does not support the field."""
        values = self.ask_optional(pynvml.nvmlDeviceGetFieldValues, handle, [number])
        if values is None or values[0].nvmlReturn in _NO_FIELD:
            self._demand_never_supported(f"field {number}", f"field {number} is not supported")
            return None
        if values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            raise _translate(pynvml.NVMLError(values[0].nvmlReturn), f"field {number} failed")
        kind = _NUMBERS.get(values[0].valueType)
        if kind is None:
            raise DeviceError(f"field {number} failed: it is not an integer")
        return self._answered(f"field {number}", int(getattr(values[0].value, kind)))

    def _answered(self, question: str, answer: T) -> T:
        if self._device:
            self._library.supported.add((self._device, question))
        return answer

    def _demand_never_supported(self, question: str, error: str) -> None:
        if (self._device, question) in self._library.supported:
            raise DeviceError(f"{error}, which it supported before")


def unless_silent(read: Callable[[], T], otherwise: T) -> T:
    """The result; ``otherwise`` if the device answers nothing until it is reset."""
    try:
        return read()
    except ResetRequiredError:
        return otherwise


def pci_address(info: Any) -> str:  # noqa: ANN401 - pynvml ships no types
    """The address as in sysfs. NVML writes the domain with eight digits and upper case."""
    function = info.busId.rpartition(".")[2] or "0"
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function}"


def _call(what: str, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - see ``ask``
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise _translate(error, what) from error


def _failure(close: Callable[[], object]) -> pynvml.NVMLError | None:
    """The error of closing; None if the driver was already closed or unloaded."""
    try:
        close()
    except pynvml.NVMLError as error:
        return None if error.value in _GONE else error
    return None


def _translate(error: pynvml.NVMLError, what: str) -> DeviceError:
    if (lack := shortage.of(error)) is not None:  # NVML does not say why it cannot open its files
        return ShortageError(lack)
    return _KINDS.get(error.value, DeviceError)(
        "; ".join(filter(None, (f"{what}: {error}", _REMEDIES.get(error.value))))
    )
