"""NVML events: XIDs, and changes of the recovery action of a device.

An event set belongs to one opening of NVML. ``Library`` frees the set before it closes NVML, so that a reset finds the
driver unused. This module creates a new set when NVML is open again.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field

import pynvml

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.health import kernel_messages
from scrubber.devices.nvidia.health.kernel_messages import GpuError
from scrubber.devices.nvidia.nvml import DriverGoneError, Handle, Library, NotSupportedError, Session
from scrubber.ground import log

logger = log.get("events")

WAIT_MS = 250  # a reset, and the end of the service, wait up to this long
REFUSED_FOR = 60.0  # seconds until a GPU that refused its events is asked again

_XID = pynvml.nvmlEventTypeXidCriticalError
_KINDS = _XID | pynvml.nvmlEventTypeGpuRecoveryAction
_NO_INSTANCE = 2**32 - 1


@dataclass(slots=True)
class _Listening:
    """One event set and its GPUs, by handle: a lost GPU does not answer what its address is."""

    opening: int
    events: Handle
    tried: float = 0.0
    places: dict[int, str] = field(default_factory=dict)
    refused: bool = False


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """An event: an XID, or None for any other event, after which the caller reads the vitals."""

    xid: GpuError | None


class NvmlEvents:
    """The events of all GPUs. For one thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._listening: _Listening | None = None
        self._logged_notes: frozenset[str] = frozenset()

    def next(self) -> NvmlEvent | None:
        """Wait briefly for an event; None without one. DeviceError if NVML cannot report events."""
        with self._library.session() as nvml:
            try:
                listening = self._begin(nvml)
                data = nvml.ask(_event, listening.events)
            except DeviceError:
                self._end(nvml)
                raise
            return None if data is None else self._read(nvml, listening, data)

    def _begin(self, nvml: Session) -> _Listening:
        found = self._listening
        if found is not None and found.opening != nvml.opening:
            self._listening = found = None  # NVML was closed, which freed the set
        if found is None:
            self._listening = found = _Listening(nvml.opening, nvml.events())
            self._register(nvml, found)
        elif found.refused and time.monotonic() > found.tried + REFUSED_FOR:
            self._register(nvml, found)
        if not found.places:
            raise NotSupportedError("no GPU reports events")
        return found

    def _end(self, nvml: Session) -> None:
        ended, self._listening = self._listening, None  # even if freeing fails: the next call creates a new set
        if ended is not None:
            nvml.free(ended.events)

    def _register(self, nvml: Session, listening: _Listening) -> None:
        """Add every GPU that is not in the set; a GPU that refuses does not prevent the others."""
        listening.tried = time.monotonic()
        notes = set()
        for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
            try:
                self._add(nvml, listening, index)
            except DriverGoneError:
                raise
            except DeviceError as error:
                notes.add(f"cannot receive the events of GPU {index}, only its kernel messages: {error}")
        listening.refused = bool(notes)
        for note in sorted(notes - self._logged_notes):
            logger.warning(note)
        self._logged_notes = self._logged_notes | notes if notes else frozenset()

    def _add(self, nvml: Session, listening: _Listening, index: int) -> None:
        handle = nvml.gpu(index)
        if _pointer(handle) in listening.places:
            return
        place = _place(nvml, handle)
        kinds = nvml.ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle) & _KINDS
        if not kinds & _XID:
            raise NotSupportedError("it reports no XIDs")
        nvml.ask(pynvml.nvmlDeviceRegisterEvents, handle, kinds, listening.events)
        listening.places[_pointer(handle)] = place

    def _read(self, nvml: Session, listening: _Listening, data: pynvml.c_nvmlEventData_t) -> NvmlEvent:
        if data.eventType != _XID:
            return NvmlEvent(None)
        place = listening.places.get(_pointer(data.device)) or _place(nvml, data.device)
        instance = None if data.gpuInstanceId == _NO_INSTANCE else data.gpuInstanceId
        return NvmlEvent(GpuError(place, data.eventData, instance))


def _event(events: Handle) -> pynvml.c_nvmlEventData_t | None:
    try:
        return pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_TIMEOUT:  # no event
            return None
        raise


def _place(nvml: Session, handle: Handle) -> str:
    info = nvml.ask(pynvml.nvmlDeviceGetPciInfo_v3, handle)
    return kernel_messages.place(info.domain, info.bus, info.device)


def _pointer(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
