"""Listens to what the driver says unasked, with two threads: to the kernel's log, and to NVML's events.

Both only write down; whoever wants to know asks for what was written, and is woken by a file that becomes readable. A
thread that is stuck in the driver is left behind, as everywhere; the other one goes on.
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

logger = log.get("ears")

UNHEARD = "XIDs from before the start of the service, and SXids"
CAUGHT_UP = 2.0  # seconds for which a start waits until all that the kernel still remembers was read
AWAY = 0.1  # seconds between two tries while NVML is closed for a reset
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds after an error of NVML: waiting may fail at once, time after time
LEAVES_WITHIN = 1.0  # seconds that the end waits for each thread
# An SXid is something that happened, and is told as something that is. Long enough to be seen by whoever looks; what
# follows from it is remembered elsewhere.
FATAL_FOR = 600.0
TURN = 2.0  # seconds after which the thread that reads the log shows that it is there
SILENT = 30.0  # seconds; to open the driver takes some, one device after the other

LOG, EVENTS = "kernel-log", "nvml-events"  # the threads
_MEANS = {LOG: f"not seen: {UNHEARD}", EVENTS: "no device can be reset until it comes back or the service is restarted"}


class Lines(Protocol):
    """The kernel's log."""

    def open(self) -> str:
        """Why it cannot be read; nothing where it can."""
        ...

    def fileno(self) -> int:
        """What is readable when there is more."""
        ...

    def messages(self) -> Iterable[tuple[int, str]]:
        """What is new, each with its time in microseconds."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


class Listener:
    """What was heard of every GPU.

    ``clock`` is one that stands still while the machine is suspended, as that of the kernel's messages does. The two
    differ all the same; by how much, each message tells that is heard when it is said.
    """

    def __init__(
        self,
        library: Library,
        kernel: Lines | None,
        clock: Callable[[], float],
        whole: Callable[[int], bool] = xid_log.always,
    ) -> None:
        """Hear nothing yet."""
        self._happenings = NvmlEvents(library)
        self._kernel = kernel
        self._clock = clock
        self._lock = threading.Lock()  # guards the next six, and the bell
        self._xids = XidLog(whole)
        self._fatal: tuple[float, SwitchError] | None = None  # the last one, and when it was
        self._logged = False  # whether the kernel's log is read
        self._behind = 0.0  # seconds by which the clock of its messages is behind ours
        self._due: dict[str, float] = {}  # when each thread shows at the latest that it is there
        self._silent: set[str] = set()  # those that did not
        self._bell = self._end = -1
        self._threads: tuple[threading.Thread, ...] = ()

    def open(self) -> int:
        """Begin. What the kernel remembers is known when this returns. A file that is readable when there is news."""
        if self._bell >= 0:
            return self._bell
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._end = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        events = _thread(EVENTS, self._hear_events)
        self._threads = (*self._follow(), events)
        events.start()  # now: what happens from here on is told by both, and before only by the kernel
        return self._bell

    def clear_alarm(self) -> None:
        """The news is known now."""
        if self._bell >= 0 and _readable(self._bell, 0.0):
            os.eventfd_read(self._bell)

    def close(self) -> None:
        """Hear nothing more."""
        if self._bell < 0:
            return
        os.eventfd_write(self._end, 1)
        for thread in self._threads:
            thread.join(LEAVES_WITHIN)
        if any(thread.is_alive() for thread in self._threads):
            logger.warning("a thread is left behind in the driver")
            return  # with its files, whose numbers must not become those of others
        with self._lock:  # whoever asks what was heard may ring just now
            os.close(self._bell)
            os.close(self._end)
            self._bell = self._end = -1

    def xids(self, pci_address: str, instance: int | None) -> tuple[Xid, ...]:
        """The errors of a GPU or of the slice with that GPU instance; also what a thread heard before it was stuck."""
        self._miss()
        self._settle()
        with self._lock:
            return self._xids.of(pci_address.rpartition(".")[0], instance)

    def switches(self) -> tuple[Sign, ...]:
        """What is wrong with the switches that join the GPUs of this node."""
        now = self._clock()
        with self._lock:
            fatal = self._fatal
        if fatal is None or now - fatal[0] >= FATAL_FOR:
            return ()
        return (Sign(AilmentKind.SWITCH, f"{fatal[1].switch} of this node: {fatal[1].detail}"),)

    def _follow(self) -> tuple[threading.Thread, ...]:
        if self._kernel is None:
            return ()
        why_not = self._kernel.open()
        if why_not:
            logger.warning("cannot read the kernel's log", error=why_not, unseen=UNHEARD)
            return ()
        caught_up = threading.Event()
        thread = _thread(LOG, lambda: self._read_log(caught_up))
        self._logged = True
        thread.start()
        caught_up.wait(CAUGHT_UP)
        return (thread,)

    def _read_log(self, caught_up: threading.Event) -> None:
        assert self._kernel is not None  # noqa: S101 -- for mypy: there is a thread only where there is a log
        poll = select.poll()
        poll.register(self._kernel.fileno(), select.POLLIN)
        poll.register(self._end, select.POLLIN)
        try:
            while self._end not in dict(poll.poll(0 if not caught_up.is_set() else TURN * 1000)):
                self._shows()
                for microseconds, text in self._kernel.messages():
                    self._read(microseconds, text, live=caught_up.is_set())
                caught_up.set()
        except (OSError, EOFError) as error:
            logger.warning("cannot read the kernel's log any more", error=str(error), unseen=UNHEARD)
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
            self._behind = behind if live else min(behind, self._behind)  # none of them is of the future
            if isinstance(error, GpuError):
                if self._xids.logged(error, microseconds, now):
                    self._ring()
            elif error is not None and error.fatal:
                self._fatal = (microseconds / 1e6 + self._behind, error)
                self._ring()

    def _hear_events(self) -> None:
        pause, told = FIRST_PAUSE, set[str]()
        while not _readable(self._end, 0.0):
            self._shows()
            try:
                happening = self._happenings.next()
            except DriverClosedError:
                self._rest(AWAY)
                continue
            except DeviceError as error:
                if str(error) not in told:
                    logger.warning("cannot hear the driver's events; what the kernel logs is heard", error=str(error))
                told.add(str(error))
                self._rest(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            told.clear()
            if happening is not None:
                self._happened(happening.xid)
            self._settle()
        with self._lock:
            self._due.pop(EVENTS, None)

    def _happened(self, xid: GpuError | None) -> None:
        now = self._clock()
        with self._lock:
            if xid is None:
                self._ring()
            else:
                self._xids.told(xid, int((now - self._behind) * 1e6), now)

    def _rest(self, pause: float) -> None:
        self._settle()
        self._shows(pause)
        _readable(self._end, pause)

    def _settle(self) -> None:
        """Whoever comes by does so: the thread that heard it may be stuck in the driver by now."""
        with self._lock:
            if self._xids.settle(self._clock(), xid_log.GRACE if self._logged else 0.0):
                self._ring()

    def _shows(self, pause: float = 0.0) -> None:
        """This thread is there, and will be after the pause."""
        with self._lock:
            self._due[threading.current_thread().name] = self._clock() + pause + SILENT

    def _miss(self) -> None:
        """Say once of each thread that it does not come back: it cannot say so itself."""
        now = self._clock()
        with self._lock:
            missed = {name for name, due in self._due.items() if now > due}
            news, self._silent = missed - self._silent, missed
        for name in sorted(news):
            logger.error("a thread that listens has not come back", thread=name, means=_MEANS[name])

    def _ring(self) -> None:
        """With the lock: nobody rings by the number of a file that was closed."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)


def _thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """A daemon: the interpreter does not wait for it at exit, stuck or not."""
    return threading.Thread(name=name, target=work, daemon=True)


def _readable(descriptor: int, within: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within * 1000))
