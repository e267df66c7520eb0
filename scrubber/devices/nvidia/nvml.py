"""The one owner of NVML in this process: everything that is asked of the driver's library is asked here.

Rule 1: whoever asks does so inside a session. NVML is opened for the first one and closed under nobody's feet.
Rule 2: a reset needs a driver that no process uses, this service included: ``release_driver`` closes NVML, and
        ``reacquire_driver`` allows it again.
Rule 3: an error of the library is one of ours: what a device cannot tell, what is lost, what wants a reset, and what
        nobody can say. None of them is an answer.

A call may hang for ever; whoever asks does so through ``calls.Caller``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError, DriverClosedError

LEAVES_WITHIN = 2.0  # seconds that a reset waits for questions that are being answered

# Not known to this device, this driver, or this version of the library: a newer or older one may tell.
_UNTOLD = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
_NO_FIELD = _UNTOLD | {pynvml.NVML_ERROR_INVALID_ARGUMENT}  # what an older driver says of a field of a newer one
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

Handle = Any  # pynvml's pointer to a device; worth nothing outside its session


class UntoldError(DeviceError):
    """The device, or its driver, does not know this."""


class AbsentError(DeviceLostError):
    """There is no such device or slice, or there is none any more."""


class ArgumentError(DeviceError):
    """The library does not take this argument: past the end of a list, or a handle to what was taken away."""


class CrowdedError(DeviceError):
    """There is more to tell than there was room for: it grew while it was asked for."""


class BusyError(DeviceError):
    """Somebody uses what was to be changed: nothing was done."""


class ForbiddenError(DeviceError):
    """It is not told to us."""


class ResetRequiredError(DeviceError):
    """The device answers nothing more before it has been reset."""


class DriverGoneError(DeviceError):
    """The driver is not loaded, or was unloaded under us."""


class VersionSkewError(DeviceError):
    """The library and the kernel's driver are of two versions: one was replaced while the other ran."""


class Library:
    """NVML, opened when it is needed."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self._turn = threading.Condition()  # guards the next two; never held while the driver is asked
        self._inside: list[str] = []  # the threads that ask, by name
        self._away = 0
        self._opening = threading.Lock()  # opens and closes, which may hang
        self._open = False
        self._broken = False  # the driver went away under us: to be closed as soon as nobody asks
        self._handles: dict[str, Handle] = {}
        self._openings = 0
        self._sets: list[Handle] = []  # of events, each of which is a user of the driver while it is there

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Some questions. DriverClosedError while somebody resets a device."""
        with self._turn:
            if self._away:
                raise DriverClosedError("the driver is not asked while a device is being reset")
            self._inside.append(threading.current_thread().name)
        try:
            self._make_ready()
            yield Session(self, self._openings)
        finally:
            with self._turn:
                self._inside.remove(threading.current_thread().name)
                self._turn.notify_all()

    def release_driver(self) -> None:
        """Close NVML until ``reacquire_driver``; may be called often. DeviceError when a call does not return."""
        with self._turn:
            self._away += 1
            if not self._turn.wait_for(lambda: not self._inside, LEAVES_WITHIN):
                self._away -= 1
                asking = ", ".join(sorted({*self._inside}))
                raise DeviceError(f"cannot let go of the driver: a question to it has not been answered ({asking})")
        try:
            self.close()
        except DeviceError:
            self.reacquire_driver()
            raise

    def reacquire_driver(self, *, opened: bool = False) -> None:
        """Allow NVML again; it is opened by the next question.

        Or before anybody may ask (``opened``), unless another reset still needs it closed: then whoever asks meanwhile
        is told that it is closed, and not kept waiting.
        """
        with self._opening:
            try:
                if opened and self._away == 1:
                    self._open_it()
            finally:
                with self._turn:
                    self._away -= 1

    def close(self) -> None:
        """Until the next question."""
        with self._opening:
            self._close()

    def renew(self) -> None:
        """Open NVML anew as soon as nobody is inside: a device that comes back is not seen by those that are open."""
        self._broken = True

    def _make_ready(self) -> None:
        """Open; and where the driver went away, anew, as soon as nobody else is inside."""
        with self._opening:
            if self._broken and len(self._inside) == 1:  # whoever comes now waits behind us
                self._close()
            self._open_it()

    def _open_it(self) -> None:
        if self._open:
            return
        _translated("cannot open NVML", pynvml.nvmlInit)
        self._open = True
        self._openings += 1

    def _close(self) -> None:
        self._handles, self._broken = {}, False
        if not self._open:
            return
        self._open = False
        sets, self._sets = self._sets, []
        failures = [*map(_failure, (partial(pynvml.nvmlEventSetFree, each) for each in sets))]
        for error in filter(None, (*failures, _failure(pynvml.nvmlShutdown))):
            raise _ours(error, "cannot close NVML") from error

    def ask(self, question: Callable[..., Any], *about: object) -> Any:  # noqa: ANN401 - as many answers as questions
        """For sessions."""
        try:
            return _translated(f"{question.__name__} failed", question, *about)
        except UntoldError:
            raise
        except DeviceError as error:
            self._handles = {}  # of a device that is gone, or taken away and given back
            self._broken |= isinstance(error, DriverGoneError)
            raise

    def events(self) -> Handle:
        """For sessions."""
        self._sets.append(self.ask(pynvml.nvmlEventSetCreate))
        return self._sets[-1]

    def free(self, events: Handle) -> None:
        """For sessions."""
        self._sets.remove(events)
        self.ask(pynvml.nvmlEventSetFree, events)

    def handle(self, uuid: str) -> Handle:
        """For sessions. A slice may be another by now, so that its handle is never kept."""
        if uuid.startswith(SLICE):
            return self.ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        handles = self._handles  # another thread's error may put new ones in their place meanwhile
        if uuid not in handles:
            handles[uuid] = self.ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        return handles[uuid]


class Session:
    """Questions to an open NVML."""

    def __init__(self, library: Library, opening: int) -> None:
        """See ``Library.session``."""
        self._library = library
        self.opening = opening  # another number: what was learnt before may not hold any more

    def handle(self, uuid: str) -> Handle:
        """A device or a MIG slice by its UUID."""
        return self._library.handle(uuid)

    def ask(self, question: Callable[..., Any], *about: object) -> Any:  # noqa: ANN401 - as many answers as questions
        """The answer of a pynvml function, or a DeviceError."""
        return self._library.ask(question, *about)

    def events(self) -> Handle:
        """A new set of events, which holds until it is freed or NVML is closed: then ``opening`` is another number."""
        return self._library.events()

    def free(self, events: Handle) -> None:
        """Such a set of this opening is not needed any more."""
        self._library.free(events)

    def told(self, question: Callable[..., Any], *about: object) -> Any | None:  # noqa: ANN401 - same
        """The same, or None where this device or driver does not know such a thing."""
        try:
            return self.ask(question, *about)
        except UntoldError:
            return None

    def field(self, handle: Handle, number: int) -> int | None:
        """A field value that is a whole number, or None where this device or driver does not know such a field."""
        values = self.told(pynvml.nvmlDeviceGetFieldValues, handle, [number])
        if values is None or values[0].nvmlReturn in _NO_FIELD:
            return None
        if values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            raise _ours(pynvml.NVMLError(values[0].nvmlReturn), f"field {number} failed")
        kind = _NUMBERS.get(values[0].valueType)
        if kind is None:
            raise DeviceError(f"field {number} failed: it is no whole number")
        return int(getattr(values[0].value, kind))


def _translated(what: str, question: Callable[..., Any], *about: object) -> Any:  # noqa: ANN401 - see ``ask``
    try:
        return question(*about)
    except pynvml.NVMLError as error:
        raise _ours(error, what) from error


def _failure(close: Callable[[], object]) -> pynvml.NVMLError | None:
    """Why it did not close; nothing where there was nothing left to close."""
    try:
        close()
    except pynvml.NVMLError as error:
        return None if error.value in _GONE else error
    return None


def _ours(error: pynvml.NVMLError, what: str) -> DeviceError:
    """What an error of the library means to us."""
    told = f"{what}: {error}"
    match error.value:
        case pynvml.NVML_ERROR_GPU_IS_LOST | pynvml.NVML_ERROR_GPU_NOT_FOUND:
            return DeviceLostError(told)
        case pynvml.NVML_ERROR_NOT_FOUND:
            return AbsentError(told)
        case pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return ArgumentError(told)
        case pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            return CrowdedError(told)
        case pynvml.NVML_ERROR_IN_USE:
            return BusyError(told)
        case pynvml.NVML_ERROR_NO_PERMISSION:
            return ForbiddenError(told)
        case pynvml.NVML_ERROR_RESET_REQUIRED:
            return ResetRequiredError(told)
        case pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return VersionSkewError(f"{told}; the driver was replaced: reboot the node, or load the new one")
        case pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return DriverGoneError(f"{told}; libnvidia-ml.so.1 is not installed here")
        case code if code in _GONE:
            return DriverGoneError(f"{told}; the driver is not loaded")
        case code if code in _UNTOLD:
            return UntoldError(told)
        case _:
            return DeviceError(told)
