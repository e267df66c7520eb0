"""Who uses the memory of a simulated GPU: the list that its driver keeps.

The kernel says whether a process has the memory open (``open_check``), and a search of /proc says which. While those
that were found have it open, they are the list: another process that opens it meanwhile is missing from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import open_check
from scrubber.node.open_files import Search, Timer, separate_tables
from scrubber.node.proc import ENDED, pids

_LOOKS = 4  # while the memory is open and no process shows it: a user may fork all the time


class Users:
    """The users of each GPU. This process is none."""

    def __init__(self, proc: Path) -> None:
        """None is known yet."""
        self._proc = proc
        self._known: dict[str, frozenset[int]] = {}  # by GPU

    def listed(self, uuid: str, files: Sequence[str]) -> frozenset[int]:
        """Workers as well; DeviceError if a process has the memory open and none shows it. No file: no user."""
        files = [file for file in files if os.path.exists(file)]  # noqa: PTH110 -- backends return paths as text
        found = self._those_with(files, self._known.get(uuid, ()))
        for _ in range(_LOOKS):
            if found or not open_check.is_open(files):
                self._known[uuid] = found
                return found
            found = self._those_with(files, pids(self._proc))
        raise DeviceError(f"cannot tell who uses {uuid}: a process has its memory open, and none shows it")

    def _those_with(self, files: Sequence[str], among: Iterable[int]) -> frozenset[int]:
        search = Search({"": files})
        return frozenset(pid for pid in among if pid != os.getpid() and self._has_open(search, pid))

    def _has_open(self, search: Search, pid: int) -> bool:
        with suppress(*ENDED, PermissionError):  # a process that we may not read cannot open the files either
            return any(search.held_by(task, Timer()) for task in separate_tables(f"{self._proc}/{pid}"))
        return False
