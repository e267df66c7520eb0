"""What NVML tells unasked: errors, and that a device wants another recovery than before.

A set of events belongs to one opening of NVML. The library frees it before it closes, so that a reset finds nobody on
the driver; here a new one is made when NVML is open again.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field

import pynvml

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.health import kernel_messages
from scrubber.devices.nvidia.health.kernel_messages import GpuError
from scrubber.devices.nvidia.nvml import DriverGoneError, Handle, Library, Session, UntoldError
from scrubber.ground import log

logger = log.get("events")

WAIT_MS = 250  # a reset waits that long for us at most, and so does the end of the service
REFUSED_FOR = 60.0  # seconds until a GPU that did not let us listen is asked again

_XID = pynvml.nvmlEventTypeXidCriticalError
_WANTED = _XID | pynvml.nvmlEventTypeGpuRecoveryAction
_NO_INSTANCE = 2**32 - 1


@dataclass(slots=True)
class _Listening:
    """One set, and who is in it: by handles, for a GPU that is lost says nothing more about itself."""

    opening: int
    events: Handle
    tried: float = 0.0
    places: dict[int, str] = field(default_factory=dict)
    refused: bool = False


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """Something that NVML told: an XID, or anything else, for which the device is to be looked at."""

    xid: GpuError | None


class NvmlEvents:
    """The events of all GPUs. For one thread."""

    def __init__(self, library: Library) -> None:
        """Listen to nothing yet."""
        self._library = library
        self._listening: _Listening | None = None
        self._told: frozenset[str] = frozenset()

    def next(self) -> NvmlEvent | None:
        """What happens within a moment, if anything does; DeviceError when that cannot be told."""
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
            self._listening = found = None  # it went when NVML was closed
        if found is None:
            self._listening = found = _Listening(nvml.opening, nvml.events())
            self._register(nvml, found)
        elif found.refused and time.monotonic() > found.tried + REFUSED_FOR:
            self._register(nvml, found)
        if not found.places:
            raise UntoldError("no GPU tells of its events")
        return found

    def _end(self, nvml: Session) -> None:
        ended, self._listening = self._listening, None  # whatever comes of it: a new one is made
        if ended is not None:
            nvml.free(ended.events)

    def _register(self, nvml: Session, listening: _Listening) -> None:
        """Every GPU that is not in it; one that refuses keeps no other out."""
        listening.tried = time.monotonic()
        notes = set()
        for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
            try:
                self._add(nvml, listening, index)
            except DriverGoneError:
                raise
            except DeviceError as error:
                notes.add(f"cannot hear the events of GPU {index}, only what the kernel logs of it: {error}")
        listening.refused = bool(notes)
        for note in sorted(notes - self._told):
            logger.warning(note)
        self._told = self._told | notes if notes else frozenset()

    def _add(self, nvml: Session, listening: _Listening, index: int) -> None:
        handle = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if _number(handle) in listening.places:
            return
        place = _place(nvml, handle)
        kinds = nvml.ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle) & _WANTED
        if not kinds & _XID:
            raise UntoldError("it tells of no XID")
        nvml.ask(pynvml.nvmlDeviceRegisterEvents, handle, kinds, listening.events)
        listening.places[_number(handle)] = place

    def _read(self, nvml: Session, listening: _Listening, data: pynvml.c_nvmlEventData_t) -> NvmlEvent:
        if data.eventType != _XID:
            return NvmlEvent(None)
        place = listening.places.get(_number(data.device)) or _place(nvml, data.device)
        instance = None if data.gpuInstanceId == _NO_INSTANCE else data.gpuInstanceId
        return NvmlEvent(GpuError(place, data.eventData, instance))


def _event(events: Handle) -> pynvml.c_nvmlEventData_t | None:
    try:
        return pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_TIMEOUT:  # nothing happened
            return None
        raise


def _place(nvml: Session, handle: Handle) -> str:
    info = nvml.ask(pynvml.nvmlDeviceGetPciInfo_v3, handle)
    return kernel_messages.place(info.domain, info.bus, info.device)


def _number(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
