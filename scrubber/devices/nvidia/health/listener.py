"""Receives errors of the driver with two threads: one reads the kernel log, one waits for NVML events.

Both threads store what they read, and make the alarm file readable, which wakes the monitor. If one thread is stuck in
the driver, the other one goes on.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from scrubber.core.model import AilmentKind, Sign, Xid
from scrubber.devices.base import DeviceError, DriverClosedError
from scrubber.devices.nvidia.health import kernel_messages, xid_log
from scrubber.devices.nvidia.health.kernel_messages import GpuError, SwitchError
from scrubber.devices.nvidia.health.nvml_events import NvmlEvents
from scrubber.devices.nvidia.health.xid_log import XidLog
from scrubber.devices.nvidia.nvml import Library
from scrubber.ground import log

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


class Lines(Protocol):
    """The kernel log."""

    def open(self) -> str:
        """Open the log; returns why it cannot be read, or an empty string."""

    def fileno(self) -> int:
        """The file that is readable when there are new messages."""

    def messages(self) -> Iterable[tuple[int, str]]:
        """The new messages, each with its time in microseconds."""

    def close(self) -> None:
        """Close the log."""


class Listener:
    """The errors of every GPU.

    ``clock`` must stop while the machine is suspended, as the clock of kernel messages does. Both clocks still differ;
    each message that is read when it is logged shows by how much.
    """

    def __init__(
        self,
        library: Library,
        kernel: Lines | None,
        clock: Callable[[], float],
        whole: Callable[[int], bool] = xid_log.always,
    ) -> None:
        self._nvml_events = NvmlEvents(library)
        self._kernel = kernel
        self._clock = clock
        self._lock = threading.Lock()  # guards the next six, and the alarm
        self._xids = XidLog(whole)
        self._fatal: tuple[float, SwitchError] | None = None  # the last one, and its time
        self._logged = False  # whether the kernel log is read
        self._behind = 0.0  # seconds by which the clock of its messages is behind ``clock``
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
        self._count_waiting()
        with self._lock:
            return self._xids.of(pci_address.rpartition(".")[0], instance)

    def switches(self) -> tuple[Sign, ...]:
        """The recent fatal errors of the NVSwitches of this node."""
        now = self._clock()
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
        self._logged = True
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
                for microseconds, text in self._kernel.messages():
                    self._read(microseconds, text, live=caught_up.is_set())
                caught_up.set()
        except (OSError, EOFError) as error:
            logger.warning("cannot read the kernel's log any more", error=str(error), unseen=UNSEEN)
        finally:
            with self._lock:
                self._logged = False
                self._due.pop(LOG, None)
            caught_up.set()
            self._kernel.close()

    def _read(self, microseconds: int, text: str, *, live: bool) -> None:
        error = kernel_messages.read(text)
        now = self._clock()
        behind = now - microseconds / 1e6
        with self._lock:
            self._behind = behind if live else min(behind, self._behind)  # no message is from the future
            if isinstance(error, GpuError):
                if self._xids.add_logged(error, microseconds, now):
                    self._raise_alarm()
            elif error is not None and error.fatal:
                self._fatal = (microseconds / 1e6 + self._behind, error)
                self._raise_alarm()

    def _read_events(self) -> None:
        pause, logged = FIRST_PAUSE, set[str]()
        while not _readable(self._end, 0.0):
            self._report_alive()
            try:
                event = self._nvml_events.next()
            except DriverClosedError:
                self._pause(RELEASED_PAUSE)
                continue
            except DeviceError as error:
                if str(error) not in logged:
                    logger.warning("cannot receive the driver's events; the kernel log is still read", error=str(error))
                logged.add(str(error))
                self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            logged.clear()
            if event is not None:
                self._received(event.xid)
            self._count_waiting()
        with self._lock:
            self._due.pop(EVENTS, None)

    def _received(self, xid: GpuError | None) -> None:
        now = self._clock()
        with self._lock:
            if xid is None:
                self._raise_alarm()
            else:
                self._xids.add_reported(xid, int((now - self._behind) * 1e6), now)

    def _pause(self, pause: float) -> None:
        self._count_waiting()
        self._report_alive(pause)
        _readable(self._end, pause)

    def _count_waiting(self) -> None:
        """Count waiting NVML events. Every thread does this, because the event thread may be stuck in the driver."""
        with self._lock:
            if self._xids.settle(self._clock(), xid_log.GRACE if self._logged else 0.0):
                self._raise_alarm()

    def _report_alive(self, pause: float = 0.0) -> None:
        """Report that this thread is alive, and will be after the pause."""
        with self._lock:
            self._due[threading.current_thread().name] = self._clock() + pause + OVERDUE_SECONDS

    def _check_threads(self) -> None:
        """Log each overdue thread once."""
        now = self._clock()
        with self._lock:
            overdue = {name for name, due in self._due.items() if now > due}
            new, self._overdue = overdue - self._overdue, overdue
        for name in sorted(new):
            logger.error("a listener thread does not return", thread=name, means=_MEANS[name])

    def _raise_alarm(self) -> None:
        """Make the alarm file readable. Call with the lock held, so that the file is still open."""
        if self._alarm >= 0:
            os.eventfd_write(self._alarm, 1)


def _thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """A daemon thread: the interpreter does not wait for it at exit, even if it is stuck."""
    return threading.Thread(name=name, target=work, daemon=True)


def _readable(descriptor: int, within: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within * 1000))
