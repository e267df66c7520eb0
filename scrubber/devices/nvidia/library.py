"""The one owner of NVML in this process: everything that is asked of the driver's library is asked here.

Rule 1: whoever asks does so inside a session. NVML is opened for the first one and closed under nobody's feet.
Rule 2: a reset needs a device without any user, us included: ``let_go`` closes NVML, ``take_up`` allows it again.
Rule 3: an error of the library is one of ours: what a device cannot tell, what is lost, what wants a reset, and what
        nobody can say. None of them is an answer.

A call may hang for ever; whoever asks does so through ``calls.Caller``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        pynvml.NVML_ERROR_NO_DATA,
    }
)
_GONE = frozenset({pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})

Handle = Any  # pynvml's pointer to a device; worth nothing outside its session


class UntoldError(DeviceError):
    """The device, or its driver, does not know this."""


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
        self._turn = threading.Condition()
        self._open = False
        self._broken = False  # the driver went away under us: to be closed as soon as nobody asks
        self._inside = 0
        self._away = 0
        self._handles: dict[str, Handle] = {}

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Some questions. DriverClosedError while somebody resets a device."""
        self._enter()
        try:
            yield Session(self)
        finally:
            with self._turn:
                self._inside -= 1
                self._turn.notify_all()

    def let_go(self) -> None:
        """Close NVML until ``take_up``; may be said several times. DeviceError when a question does not come back."""
        with self._turn:
            self._away += 1
            if self._turn.wait_for(lambda: self._inside == 0, LEAVES_WITHIN):
                self._close()
                return
            self._away -= 1
        raise DeviceError("cannot let go of the driver: an earlier question to it has not been answered")

    def take_up(self) -> None:
        """Allow NVML again; it is opened by the next question."""
        with self._turn:
            self._away -= 1

    def close(self) -> None:
        """For good, at the end of the process; a question that hangs is left behind."""
        with self._turn:
            if self._inside == 0:
                self._close()

    def _enter(self) -> None:
        with self._turn:
            if self._away:
                raise DriverClosedError("the driver is not asked while a device is being reset")
            if self._broken and self._inside == 0:
                self._close()
            if not self._open:
                _translated("cannot open NVML", pynvml.nvmlInit)
                self._open = True
            self._inside += 1

    def _close(self) -> None:
        self._handles, self._broken = {}, False
        if not self._open:
            return
        self._open = False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            if error.value not in _GONE:  # then there was nothing left to close
                raise _ours(error, "cannot close NVML") from error

    def ask(self, question: Callable[..., Any], *about: object) -> Any:  # noqa: ANN401 - as many answers as questions
        """For sessions."""
        try:
            return _translated(f"{question.__name__} failed", question, *about)
        except DeviceError as error:
            self._handles = {}  # of a device that is gone, or a slice that was laid out anew
            self._broken |= isinstance(error, DriverGoneError)
            raise

    def handle(self, uuid: str) -> Handle:
        """For sessions."""
        if uuid not in self._handles:
            self._handles[uuid] = self.ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        return self._handles[uuid]


class Session:
    """Questions to an open NVML."""

    def __init__(self, library: Library) -> None:
        """See ``Library.session``."""
        self._library = library

    def handle(self, uuid: str) -> Handle:
        """A device or a MIG slice by its UUID."""
        return self._library.handle(uuid)

    def ask(self, question: Callable[..., Any], *about: object) -> Any:  # noqa: ANN401 - as many answers as questions
        """The answer of a pynvml function, or a DeviceError."""
        return self._library.ask(question, *about)

    def told(self, question: Callable[..., Any], *about: object) -> Any | None:  # noqa: ANN401 - same
        """The same, or None where this device or driver does not know such a thing."""
        try:
            return self.ask(question, *about)
        except UntoldError:
            return None


def _translated(what: str, question: Callable[..., Any], *about: object) -> Any:  # noqa: ANN401 - see ``ask``
    try:
        return question(*about)
    except pynvml.NVMLError as error:
        raise _ours(error, what) from error


def _ours(error: pynvml.NVMLError, what: str) -> DeviceError:
    """What an error of the library means to us."""
    told = f"{what}: {error}"
    match error.value:
        case pynvml.NVML_ERROR_GPU_IS_LOST | pynvml.NVML_ERROR_GPU_NOT_FOUND:
            return DeviceLostError(told)
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
