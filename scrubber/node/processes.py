"""Who has a device's files open or mapped: one look through /proc for all devices at once.

What this look cannot see: a file in flight on a unix socket, or kept only by an io_uring. Both need a live process
that means to take it back, and a process that does is seen again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from scrubber.core.model import Holder
from scrubber.node import threads
from scrubber.node.open_files import Search
from scrubber.node.proc import DEAD, ENDED, BlindError, descends, of_kernel, pids, sees_all, status

_LOOKS = 3  # a process that ended while it was looked at is looked at again: its number may be another one's now
_PIN = os.O_PATH | os.O_DIRECTORY


def nobody(_holder: Holder) -> bool:
    """Leaves nobody out of the answer."""
    return False


class Processes:
    """Sight of the processes of this node."""

    def __init__(
        self,
        proc: Path,
        container_of: Callable[[int], str | None],
        *,
        full_sight: bool,
        namespace: int | None = None,
    ) -> None:
        """``full_sight``: an answer that some process was hidden from is no answer.

        Without it, processes that may not be looked into are passed over. That is right for simulated GPUs only: their
        files are readable by one user, so that whoever may not be looked into may not open them either (root may).
        ``container_of`` raises BlindError where it cannot tell: a process without a container may be ended.
        ``namespace``: the one that shows the whole node, if that is not the machine's first.
        """
        self._proc = proc
        self._container_of = container_of
        self._full_sight = full_sight
        self._namespace = namespace

    def holders(
        self,
        files: Mapping[str, Sequence[str]],
        exclude: Collection[int] = (),
        ignored: Callable[[Holder], bool] = nobody,
        listed: Mapping[str, Collection[int]] = MappingProxyType({}),
    ) -> dict[str, tuple[Holder, ...] | None]:
        """Who uses each device, by its files; None where that cannot be proven. This process is never a holder.

        ``listed`` are processes that the driver names for a device, whether they show its files or not. ``ignored`` is
        asked while the process it is asked about cannot give its number to another one.
        """
        search = Search(files)
        blind = self._full_sight and not sees_all(self._proc, self._namespace)
        found: dict[str, list[Holder]] = {device: [] for device in files}
        unknown = set(search.unknown)
        skipped = {os.getpid(), *exclude}
        named = _by_pid({device: listed.get(device, ()) for device in files})
        for pid in pids(self._proc):
            if pid in skipped or (pid not in named and of_kernel(f"{self._proc}/{pid}")):
                continue
            look = self._look(pid, search, named.get(pid, frozenset()), ignored)
            blind = blind or (self._full_sight and look.blind)
            if look.unsure:
                unknown |= look.devices
            for device in look.devices:
                found[device] += look.holder
        unproven = files.keys() if blind else unknown
        return {device: None if device in unproven else tuple(holders) for device, holders in found.items()}

    def witness(self, pid: int) -> tuple[Holder, ...]:
        """A process, whether or not it holds anything; nobody when it has ended, or it cannot be told whose it is."""
        try:
            return (self._describe(pid, f"{self._proc}/{pid}"),)
        except (*ENDED, BlindError):
            return ()

    def lives(self, holder: Holder) -> bool:
        """Whether this very process still runs."""
        try:
            now = status(f"{self._proc}/{holder.pid}")
        except ENDED:
            return False
        return now.started == holder.started and now.state not in DEAD

    def descends(self, pid: int, ancestors: Collection[int]) -> bool:
        """Whether a process is one of these, or was started by one that still runs."""
        return descends(self._proc, pid, ancestors)

    def _look(self, pid: int, search: Search, named: frozenset[str], ignored: Callable[[Holder], bool]) -> _Look:
        """One process: what it holds, and who it is."""
        look = _Look()
        for _ in range(_LOOKS):
            try:
                pin = os.open(f"{self._proc}/{pid}", _PIN)
            except ENDED:
                return _Look()
            try:
                look = self._glance(pid, search, named)
                if not look.devices:
                    return look
                holder = self._describe(pid, look.task)
                left_out = ignored(holder)
                os.stat("stat", dir_fd=pin)  # still there, so all of this was about one process
            except ENDED:
                continue
            except BlindError:
                break
            finally:
                os.close(pin)
            if holder.state not in DEAD:  # else others of its threads may hold on, which show only once it is dead
                return _Look(blind=look.blind) if left_out else replace(look, holder=(holder,))
        return replace(look, unsure=True)

    def _glance(self, pid: int, search: Search, named: frozenset[str]) -> _Look:
        """A process, with those of its threads that hold files of their own."""
        devices = named
        holding = f"{self._proc}/{pid}" if named else ""
        blind = False
        for task in threads.apart(f"{self._proc}/{pid}"):
            try:
                held = search.devices(task)
            except PermissionError:
                blind = True
                continue
            if held and not holding:
                holding = task
            devices |= held
        return _Look(devices, holding, blind)

    def _describe(self, pid: int, task: str) -> Holder:
        """The process as it stands. The state is that of the thread that holds the files."""
        process = f"{self._proc}/{pid}"
        started, state = status(process).started, status(task).state
        return Holder(pid, started, _command(process), self._container_of(pid), state)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one process showed."""

    devices: frozenset[str] = frozenset()
    task: str = ""  # the first of its threads that holds any
    blind: bool = False
    unsure: bool = False  # somebody holds them, and it cannot be told who
    holder: tuple[Holder, ...] = ()


def _by_pid(listed: Mapping[str, Collection[int]]) -> dict[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    for device, users in listed.items():
        found |= {pid: found.get(pid, frozenset()) | {device} for pid in users}
    return found


def _command(process: str) -> str:
    """The name alone: a command line is a tenant's, may hold passwords, and would stay in the ledger for ever."""
    text = Path(f"{process}/comm").read_bytes().decode(errors="replace").strip()
    # A name is chosen by its tenant too: it must not be able to write to an operator's terminal.
    return "".join(letter if letter.isprintable() else "?" for letter in text)
