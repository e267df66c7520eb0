"""Searches all processes for holders of devices; says which could not be read, and why.

One pass over /proc reads each process, and finds the holders of all these devices. It ends with a listing that shows no
new process: a child of a holder may be one. It can miss a holder: a process that reopens the file all the time, or a
file that only a message or an io_uring keeps.

It takes long to read a process with very many files, or one whose threads end all the time. So each process and
each search has a time limit. A search that ends at a limit proves nothing: the holders of its devices are unknown.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from scrubber.core.model import Holder, holder_names
from scrubber.node import open_files
from scrubber.node.open_files import Search, Timer, TooSlowError
from scrubber.node.proc import (
    DEAD,
    ENDED,
    BlindError,
    descends,
    of_kernel,
    pids,
    sees_all,
    status,
)

_READINGS = 3  # a process that ended while it was read is read again: another process may have its pid now
_LISTINGS = 16  # of all processes in one pass, and of the threads of one, while there are new ones

EACH_WITHIN = 1.0  # seconds of processor time to read one process: about 150,000 open files

_PIN = os.O_PATH | os.O_DIRECTORY


def no_bystander(_holder: Holder) -> bool:
    """Accept no process as a bystander."""
    return False


class Processes:
    """Finds the holders of devices among the processes of this node."""

    def __init__(
        self,
        proc: Path,
        container_of: Callable[[int], str | None],
        *,
        whole_node: bool,
        namespace: int | None = None,
        on_pass: Callable[[], None] = lambda: None,
        each_within: float = EACH_WITHIN,
    ) -> None:
        """``whole_node``: the answer is None when any process is hidden.

        Without it, processes that we may not read are skipped. This is correct for simulated GPUs only: one user can
        read their files, so a process that we may not read cannot open them either (except root).
        ``container_of`` raises BlindError when the container is unknown: a process without a container may be ended.
        ``namespace``: the pid namespace that shows the whole node, if it is not the initial one. ``on_pass`` is called
        at the beginning of each pass over /proc. ``each_within``: the seconds of processor time in
        which one process must be read.
        """
        self._proc = proc
        self._container_of = container_of
        self._whole_node = whole_node
        self._namespace = namespace
        self._on_pass = on_pass
        self._each_within = each_within
        self._slowest = (0.0, 0)  # of the last pass: the seconds that one process took, and its pid
        self._reading: tuple[float, int] | None = None  # since when which process is read
        self.gave_up = False  # whether the last search ended at a time limit
        self.settled = True  # whether the last search ended with listings that showed nothing new
        self.missing: dict[str, str] = {}  # of the last search: why the files of a device cannot be looked for
        self.unreadable = ""  # the first process that the last search could not read, and why, for operators
        self.bystander_pods: dict[str, frozenset[str]] = {}  # of the last search: ``Sighting.bystander_pods``

    def holders(
        self,
        files: Mapping[str, Sequence[str]],
        exclude: Collection[int] = (),
        is_bystander: Callable[[Holder], bool] = no_bystander,
        listed: Mapping[str, Collection[int]] = MappingProxyType({}),
        within: float = math.inf,
    ) -> dict[str, tuple[Holder, ...] | None]:
        """The holders of each device, by its files; None if they cannot be proven. This process is never a holder.

        ``listed``: processes that the driver lists as holders, whether they show the device's files or not.
        ``is_bystander`` is called while the pid of the holder cannot pass to another process. ``within``: the time
        limit of the search in seconds.
        """
        until, self.gave_up, self.unreadable, self.missing = time.monotonic() + within, False, "", {}
        self.settled, self.bystander_pods = True, {}
        try:
            return self._pass(files, exclude, is_bystander, listed, until)
        except TooSlowError:
            self.gave_up = True
            return dict.fromkeys(files)

    def slowest(self) -> tuple[float, int]:
        """The seconds that one process took in the last pass, or takes until now, and its pid."""
        if self._reading is None:
            return self._slowest
        began, pid = self._reading
        return max(self._slowest, (time.monotonic() - began, pid))

    def _pass(
        self,
        files: Mapping[str, Sequence[str]],
        exclude: Collection[int],
        is_bystander: Callable[[Holder], bool],
        listed: Mapping[str, Collection[int]],
        until: float,
    ) -> dict[str, tuple[Holder, ...] | None]:
        """The holders that one pass over /proc finds; TooSlowError if one process takes too long, or if all do."""
        self._on_pass()
        self._slowest = (0.0, 0)
        search = Search(files)
        self.missing |= search.missing
        blind = self._whole_node and not sees_all(self._proc, self._namespace)
        by_device: dict[str, list[Holder]] = {device: [] for device in files}
        unknown = set(search.unknown)
        named: dict[int, frozenset[str]] = {}
        for device in files:
            named |= {user: named.get(user, frozenset()) | {device} for user in listed.get(device, ())}
        for pid in self._pids({os.getpid(), *exclude}):
            listing = named.get(pid, frozenset())
            if not listing and of_kernel(f"{self._proc}/{pid}"):
                continue
            read = self._read_timed(pid, search, listing, is_bystander, until)
            if read.blind and self._whole_node:
                blind = True
                self.unreadable = self.unreadable or f"{self.named(pid)} cannot be read: {read.blind}"
            if read.unsure:
                unknown |= read.devices
            for device in read.devices:
                by_device[device] += read.holder
                if read.bystander_pod:
                    pods = self.bystander_pods.get(device, frozenset())
                    self.bystander_pods[device] = pods | {read.bystander_pod}
        unproven = files.keys() if blind else unknown
        return {device: None if device in unproven else tuple(holders) for device, holders in by_device.items()}

    def _read_timed(
        self,
        pid: int,
        search: Search,
        named: frozenset[str],
        is_bystander: Callable[[Holder], bool],
        until: float,
    ) -> _ProcessReading:
        """One process, and how long it took."""
        began = time.monotonic()
        if began > until:
            raise TooSlowError
        self._reading = began, pid
        try:
            return self._read(pid, search, named, is_bystander, Timer(self._each_within, until))
        finally:
            self._reading = None
            self._slowest = max(self._slowest, (time.monotonic() - began, pid))

    def _pids(self, seen: set[int]) -> Iterator[int]:
        """All other pids, also of processes that started meanwhile; they are added to ``seen``."""
        for _ in range(_LISTINGS):
            new = [pid for pid in pids(self._proc) if pid not in seen]
            if not new:
                return
            seen.update(new)
            yield from new
        self.settled = False

    def named(self, pid: int) -> str:
        """A process for operators; its pid alone if it has ended or its container is unknown."""
        return holder_names(self.process(pid)) or f"pid {pid}"

    def process(self, pid: int) -> tuple[Holder, ...]:
        """A process, whether or not it holds a device; empty if it has ended or its container is unknown."""
        try:
            return (self._describe(pid, f"{self._proc}/{pid}"),)
        except (*ENDED, BlindError):
            return ()

    def lives(self, holder: Holder) -> bool:
        """Whether this process still runs."""
        try:
            now = status(f"{self._proc}/{holder.pid}")
        except ENDED:
            return False
        return now.started == holder.started and now.state not in DEAD

    def descends(self, pid: int, ancestors: Collection[int]) -> bool:
        """Whether a process is one of these, or a descendant of one that still runs."""
        return descends(self._proc, pid, ancestors)

    def _read(
        self,
        pid: int,
        search: Search,
        named: frozenset[str],
        is_bystander: Callable[[Holder], bool],
        timer: Timer,
    ) -> _ProcessReading:
        """One process: the devices that it holds, and the holder."""
        read = _HOLDS_NOTHING
        for _ in range(_READINGS):
            try:
                pin = os.open(f"{self._proc}/{pid}", _PIN)
            except ENDED:
                return _HOLDS_NOTHING
            try:
                read = self._read_files(pid, search, named, timer)
                if not read.devices:
                    return read
                holder = self._describe(pid, read.task)
                bystander = is_bystander(holder)
                os.stat("stat", dir_fd=pin)  # fails if the process has ended: all answers are about one process
            except ENDED:
                continue
            except BlindError:
                break
            finally:
                os.close(pin)
            if holder.state not in DEAD:  # once it is dead, threads that still hold files show in the next reading
                if bystander:
                    return replace(read, bystander_pod=holder.container or "")
                return replace(read, holder=(holder,))
        return replace(read, unsure=True)

    def _read_files(self, pid: int, search: Search, named: frozenset[str], timer: Timer) -> _ProcessReading:
        """The devices of a process, with those of its threads that have their own files."""
        process = f"{self._proc}/{pid}"
        held, holding, blind = frozenset[str](), process if named else "", ""
        read = set[str]()
        for _ in range(_LISTINGS):
            try:
                new = [task for task in open_files.separate_tables(process, timer) if task not in read]
            except PermissionError as error:
                return _ProcessReading(named, process, _why(error))
            for task in new:
                timer.count()
                try:
                    of_task = search.held_by(task, timer)
                except PermissionError as error:
                    blind = _why(error)
                    continue
                if of_task & search.devices and not holding:
                    holding = task
                held |= of_task
            read.update(new)
            if not new or read == {process}:  # no other thread has files of its own
                break
        else:
            self.settled = False
        if not (held or named or blind):
            return _HOLDS_NOTHING
        return _ProcessReading(held & search.devices | named, holding, blind)

    def _describe(self, pid: int, task: str) -> Holder:
        """The process as a holder. The state is that of the thread that holds the files."""
        process = f"{self._proc}/{pid}"
        started, state = status(process).started, status(task).state
        # The name alone: a command line may hold passwords, and would stay in the ledger for ever.
        name = Path(f"{process}/comm").read_bytes().decode(errors="replace").strip()
        # A process chooses its name: remove control characters, which would act on an operator's terminal.
        command = "".join(letter if letter.isprintable() else "?" for letter in name)
        return Holder(pid, started, command, self._container_of(pid), state)


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@dataclass(frozen=True, slots=True)
class _ProcessReading:
    """What was read of one process."""

    devices: frozenset[str] = frozenset()
    task: str = ""  # the first of its threads that holds a device
    blind: str = ""  # why it cannot be read
    unsure: bool = False  # the devices are held, but the holder is unknown
    holder: tuple[Holder, ...] = ()
    bystander_pod: str = ""  # the pod of a bystander, which is no holder; empty: it is in none, or is no bystander


_HOLDS_NOTHING = _ProcessReading()  # as most processes
