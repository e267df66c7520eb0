"""Receives errors of the driver with two threads: one reads the kernel log, one waits for NVML events.

Both threads store what they read, and make the alarm file readable, which wakes the monitor. If one thread is stuck in
the driver, the other one goes on.

XIDs come from the kernel log where it can be read, else from NVML. So NVML's XIDs wait until the log has been read to a
later moment, and are then dropped: the log had them. They count if the log ends before that, if its thread is stuck, or
if the kernel has overwritten unread messages. Then an XID may count twice, but none is lost.

An event set belongs to one opening of NVML. ``Library`` frees the set before it closes NVML, so that a reset finds the
driver unused. The thread creates a new set when NVML is open again.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pynvml

from ground import log
from scrubber.core.model import AilmentKind, Sign, Xid
from scrubber.devices.base import DeviceError, DriverClosedError
from scrubber.devices.nvidia.health import xid_messages
from scrubber.devices.nvidia.health.xid_messages import GpuError, SwitchError, XidLog
from scrubber.devices.nvidia.nvml import DriverGoneError, Handle, Library, NotSupportedError, Session
from scrubber.node.kernellog import KernelLog

logger = log.get("listener")

UNSEEN = "XIDs from before the start of the service, and SXids"
CATCH_UP_SECONDS = 2.0  # that the start waits until the stored messages of the kernel are read
RELEASED_PAUSE = 0.1  # seconds between two tries while the driver is released
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds after an error of NVML, which may fail at once every time
JOIN_TIMEOUT = 1.0  # seconds that ``close`` waits for each thread
# Seconds that an SXid, which is an event, is reported as a sign: long enough for every observation. The core remembers
# the ailment that follows from it.
FATAL_SECONDS = 600.0
POLL_SECONDS = 2.0  # after which the log thread reports that it is alive
OVERDUE_SECONDS = 30.0  # without a report of a thread; opening the driver takes long on a node with many GPUs

LOG, EVENTS = "kernel-log", "nvml-events"  # the threads
_MEANS = {LOG: f"not seen: {UNSEEN}", EVENTS: "no device can be reset until it comes back or the service is restarted"}

APART = 0.25  # seconds at most between the two reports of one XID, whichever is first
MOST_REPORTED = 256  # XIDs of NVML that wait for the log

WAIT_MS = 250  # a reset, and the end of the service, wait up to this long for the event thread
REFUSED_FOR = 60.0  # seconds until a GPU that refused its events is asked again
_XID = pynvml.nvmlEventTypeXidCriticalError
_KINDS = _XID | pynvml.nvmlEventTypeGpuRecoveryAction
_NO_INSTANCE = 2**32 - 1


class Listener:
    """The errors of every GPU. ``whole`` says which XIDs concern every slice of a GPU, even if they name one slice."""

    def __init__(
        self, library: Library, kernel: KernelLog | None, whole: Callable[[int], bool] = xid_messages.always
    ) -> None:
        self._nvml_events = NvmlEvents(library)
        self._kernel = kernel
        self._lock = threading.Lock()  # guards the next seven, and the alarm
        self._xids = XidLog(whole)
        self._reported: deque[tuple[float, GpuError]] = deque()  # by NVML and not counted yet, with their times
        self._overwritten = -math.inf  # until when the kernel log may lack messages
        self._fatal: tuple[float, SwitchError] | None = None  # the last one, and its time
        # Seconds by which the clock of kernel messages is behind ours; a message that is read at once shows it.
        self._behind = 0.0
        self._due: dict[str, float] = {}  # when each thread must report that it is alive
        self._overdue: set[str] = set()  # threads that did not
        self._alarm = self._end = -1
        self._threads: tuple[threading.Thread, ...] = ()

    def open(self) -> int:
        """Start both threads, read the stored kernel messages, and return the alarm file."""
        if self._alarm >= 0:
            return self._alarm
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._end = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        events = _thread(EVENTS, self._read_events)
        self._threads = (*self._follow(), events)
        events.start()  # from now on both sources report events; earlier ones only the kernel log
        return self._alarm

    def clear_alarm(self) -> None:
        """Make the alarm file unreadable until the next event."""
        if self._alarm >= 0 and _readable(self._alarm, 0.0):
            os.eventfd_read(self._alarm)

    def close(self) -> None:
        """Stop both threads."""
        if self._alarm < 0:
            return
        os.eventfd_write(self._end, 1)
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT)
        if any(thread.is_alive() for thread in self._threads):
            logger.warning("a listener thread does not end: it is stuck in the driver")
            return  # without closing the files, because the thread still uses their numbers
        with self._lock:  # another thread may use the alarm file just now
            os.close(self._alarm)
            os.close(self._end)
            self._alarm = self._end = -1

    def xids(self, pci_address: str, instance: int | None) -> tuple[Xid, ...]:
        """The XIDs of a GPU, or of the slice with this GPU instance, also those read before a thread got stuck."""
        self._check_threads()
        with self._lock:
            self._count_reported()  # here too, because the event thread may be stuck in the driver
            return self._xids.of(pci_address.rpartition(".")[0], instance)

    def switches(self) -> tuple[Sign, ...]:
        """The recent fatal errors of the NVSwitches of this node."""
        now = _steady()
        with self._lock:
            fatal = self._fatal
        if fatal is None or now - fatal[0] >= FATAL_SECONDS:
            return ()
        return (Sign(AilmentKind.SWITCH, f"{fatal[1].switch} of this node: {fatal[1].detail}"),)

    def _follow(self) -> tuple[threading.Thread, ...]:
        if self._kernel is None:
            return ()
        why_not = self._kernel.open()
        if why_not:
            logger.warning("cannot read the kernel's log", error=why_not, unseen=UNSEEN)
            return ()
        caught_up = threading.Event()
        thread = _thread(LOG, lambda: self._read_log(caught_up))
        thread.start()
        caught_up.wait(CATCH_UP_SECONDS)
        return (thread,)

    def _read_log(self, caught_up: threading.Event) -> None:
        assert self._kernel is not None  # noqa: S101 -- for mypy: there is a thread only where there is a log
        poll = select.poll()
        poll.register(self._kernel.fileno(), select.POLLIN)
        poll.register(self._end, select.POLLIN)
        try:
            while self._end not in dict(poll.poll(0 if not caught_up.is_set() else POLL_SECONDS * 1000)):
                self._report_alive()
                began, overwritten = _steady(), self._kernel.overwritten
                for microseconds, text in self._kernel.messages():
                    self._read(microseconds, text, live=caught_up.is_set())
                self._drop_reported(began - APART, complete=self._kernel.overwritten == overwritten)
                caught_up.set()
        except (OSError, EOFError) as error:
            logger.warning("cannot read the kernel's log any more", error=str(error), unseen=UNSEEN)
        finally:
            with self._lock:
                self._due.pop(LOG, None)
                self._count_reported()
            caught_up.set()
            self._kernel.close()

    def _read(self, microseconds: int, text: str, *, live: bool) -> None:
        error = xid_messages.read(text)
        now = _steady()
        behind = now - microseconds / 1e6
        with self._lock:
            self._behind = behind if live else min(behind, self._behind)  # no message is from the future
            if isinstance(error, GpuError):
                self._xids.add(error, microseconds)
                self._raise_alarm()
            elif error is not None:
                self._fatal = (microseconds / 1e6 + self._behind, error)
                self._raise_alarm()

    def _drop_reported(self, before: float, *, complete: bool) -> None:
        """Drop NVML's XIDs from before a moment to which the kernel log was read. Those that it may lack count."""
        with self._lock:
            if not complete:
                self._overwritten = _steady() + APART
            self._count_reported()
            while self._reported and self._reported[0][0] < before:
                self._reported.popleft()

    def _read_events(self) -> None:
        pause, logged = FIRST_PAUSE, set[str]()
        while not _readable(self._end, 0.0):
            self._report_alive()
            try:
                events = self._nvml_events.next()
            except DriverClosedError:
                self._pause(RELEASED_PAUSE)
                continue
            except DeviceError as error:
                if str(error) not in logged:
                    with self._lock:
                        source = "the kernel log" if self._is_log_read() else "nothing: no XID is seen"
                    logger.warning("cannot receive the driver's events", error=str(error), still_read=source)
                logged.add(str(error))
                self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            logged.clear()
            for xid in events:
                self._received(xid)
        with self._lock:
            self._due.pop(EVENTS, None)

    def _received(self, xid: GpuError | None) -> None:
        with self._lock:
            if xid is None:
                self._raise_alarm()
            else:
                self._reported.append((_steady(), xid))
                self._count_reported()

    def _pause(self, pause: float) -> None:
        self._report_alive(pause)
        _readable(self._end, pause)

    def _count_reported(self) -> None:
        """Count NVML's XIDs that the kernel log may never show. Call with the lock held."""
        is_read = self._is_log_read()
        while self._reported and (
            not is_read or self._reported[0][0] < self._overwritten or len(self._reported) > MOST_REPORTED
        ):
            received, xid = self._reported.popleft()
            self._xids.add(xid, int((received - self._behind) * 1e6))
            self._raise_alarm()

    def _is_log_read(self) -> bool:
        """Whether the thread of the kernel log is alive and not stuck. Call with the lock held."""
        return _steady() <= self._due.get(LOG, -math.inf)

    def _report_alive(self, pause: float = 0.0) -> None:
        """Report that this thread is alive, and will be after the pause."""
        with self._lock:
            self._due[threading.current_thread().name] = _steady() + pause + OVERDUE_SECONDS

    def _check_threads(self) -> None:
        """Log each overdue thread once."""
        now = _steady()
        with self._lock:
            overdue = {name for name, due in self._due.items() if now > due}
            new, self._overdue = overdue - self._overdue, overdue
        for name in sorted(new):
            logger.error("a listener thread does not return", thread=name, means=_MEANS[name])

    def _raise_alarm(self) -> None:
        """Make the alarm file readable. Call with the lock held, so that the file is still open."""
        if self._alarm >= 0:
            os.eventfd_write(self._alarm, 1)


@dataclass(slots=True)
class _EventSet:
    """One event set and its GPUs, by handle: a lost GPU does not answer what its address is."""

    opening: int
    events: Handle
    places: dict[int, str] = field(default_factory=dict)
    ask_again_at: float = float("inf")  # for the GPUs that refused


class NvmlEvents:
    """The events of all GPUs: XIDs, and changes of the recovery action. For one thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._set: _EventSet | None = None
        self._logged_notes: frozenset[str] = frozenset()

    def next(self) -> tuple[GpuError | None, ...]:
        """Wait briefly for an event. The result is empty if none came. DeviceError if NVML cannot report events.

        A None in it stands for an event that is not an XID: the caller reads the vitals.
        """
        with self._library.session() as nvml:
            try:
                current = self._begin(nvml)
                data = nvml.ask(_event, current.events)
            except DeviceError:
                self._end(nvml)
                raise
            if data is None:
                return ()
            if data.eventType != _XID:
                return (None,)
            place = current.places.get(_pointer(data.device)) or _place(nvml, data.device)
            instance = None if data.gpuInstanceId == _NO_INSTANCE else data.gpuInstanceId
            return (GpuError(place, data.eventData, instance),)

    def _begin(self, nvml: Session) -> _EventSet:
        current = self._set
        if current is None or current.opening != nvml.opening:  # NVML was closed, which freed the set
            self._set = None
            self._set = current = _EventSet(nvml.opening, nvml.events())
            self._register(nvml, current)
        elif time.monotonic() > current.ask_again_at:
            self._register(nvml, current)
        if not current.places:
            raise NotSupportedError("no GPU reports events")
        return current

    def _end(self, nvml: Session) -> None:
        ended, self._set = self._set, None  # even if freeing fails: the next call creates a new set
        if ended is not None:
            nvml.free(ended.events)

    def _register(self, nvml: Session, current: _EventSet) -> None:
        """Add every GPU that is not in the set; a GPU that refuses does not prevent the others."""
        notes = set()
        for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
            try:
                _add(nvml, current, nvml.gpu(index))
            except DriverGoneError:
                raise
            except DeviceError as error:
                notes.add(f"cannot receive the events of GPU {index}, only its kernel messages: {error}")
        current.ask_again_at = time.monotonic() + REFUSED_FOR if notes else float("inf")
        for note in sorted(notes - self._logged_notes):
            logger.warning(note)
        self._logged_notes = self._logged_notes | notes if notes else frozenset()


def _add(nvml: Session, current: _EventSet, gpu: Handle) -> None:
    if _pointer(gpu) in current.places:
        return
    place = _place(nvml, gpu)
    kinds = nvml.ask(pynvml.nvmlDeviceGetSupportedEventTypes, gpu) & _KINDS
    if not kinds & _XID:
        raise NotSupportedError("it reports no XIDs")
    nvml.ask(pynvml.nvmlDeviceRegisterEvents, gpu, kinds, current.events)
    current.places[_pointer(gpu)] = place


def _event(events: Handle) -> pynvml.c_nvmlEventData_t | None:
    try:
        return pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_TIMEOUT:  # no event
            return None
        raise


def _place(nvml: Session, handle: Handle) -> str:
    info = nvml.ask(pynvml.nvmlDeviceGetPciInfo_v3, handle)
    return xid_messages.place(info.domain, info.bus, info.device)


def _pointer(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _steady() -> float:
    """A clock that stops during suspend and is never adjusted, like the clock of kernel messages."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def _thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """A daemon thread: the interpreter does not wait for it at exit, even if it is stuck."""
    return threading.Thread(name=name, target=work, daemon=True)


def _readable(descriptor: int, within: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within * 1000))
