"""Who uses the memory of a simulated GPU: the list that its driver keeps.

The kernel says whether a process has the memory open (``open_check``), and a search of /proc says which. While one of
those that were found has it open, another process that opens it meanwhile may be missing from the list. Only a list
that names nobody but workers of this service is complete: a worker must not hide who comes beside it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import open_check
from scrubber.node.open_files import Search, Timer, separate_tables
from scrubber.node.proc import ENDED, descends, user
from scrubber.node.processes import Processes

_LOOKS = 4  # while the memory is open and no process shows it: a user may fork all the time


class Users:
    """The users of each GPU. This process is none."""

    def __init__(self, proc: Path) -> None:
        """None is known yet."""
        self._proc = proc
        self._known: dict[str, frozenset[int]] = {}  # by GPU
        self._processes = Processes(proc, lambda _pid: None, whole_node=False)
        self._turn = threading.Lock()  # one search at a time

    def listed(self, uuid: str, files: Sequence[str]) -> frozenset[int]:
        """Workers as well; DeviceError if a process has the memory open and none shows it. No file: no user."""
        files = [file for file in files if os.path.exists(file)]  # noqa: PTH110 -- backends return paths as text
        pids = self._those_with(files, self._known.get(uuid, ()))
        if not self._names_others(pids):
            pids = self._search(uuid, files)
        self._known[uuid] = pids
        return pids

    def _search(self, uuid: str, files: Sequence[str]) -> frozenset[int]:
        for _ in range(_LOOKS):
            if not open_check.is_open(files):
                return frozenset()
            with self._turn:
                holders = self._processes.holders({uuid: files})[uuid]
            if holders:
                return frozenset(holder.pid for holder in holders)
        hidden = f"that user {user(os.getpid())} may not inspect " if os.geteuid() else ""
        raise DeviceError(f"a process {hidden}has the memory of {uuid} open: `fuser -v {files[0]}`, as root, names it")

    def _names_others(self, pids: Iterable[int]) -> bool:
        return any(not descends(self._proc, pid, {os.getpid()}) for pid in pids)

    def _those_with(self, files: Sequence[str], among: Iterable[int]) -> frozenset[int]:
        search = Search({"": files})
        return frozenset(pid for pid in among if pid != os.getpid() and self._has_open(search, pid))

    def _has_open(self, search: Search, pid: int) -> bool:
        with suppress(*ENDED, PermissionError):  # a process that we may not read cannot open the files either
            return any(search.held_by(task, Timer()) for task in separate_tables(f"{self._proc}/{pid}"))
        return False
