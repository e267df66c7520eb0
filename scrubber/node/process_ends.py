"""Tells when a process ends, so that nobody has to ask again and again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from scrubber.ground import log

logger = log.get("ends")


class ProcessEnds:
    """One process for each name, by a pidfd. Level-triggered: a name says "look again", never what happened."""

    def __init__(self) -> None:
        """Nobody is waited for."""
        self._followed: dict[str, tuple[int, int]] = {}  # pid and pidfd
        self._rung: set[str] = set()
        self._bell = asyncio.Event()
        self._told = False  # that a process could not be followed

    def follow(self, name: str, pid: int, same: Callable[[], bool]) -> None:
        """Wait for the end of this process under this name, and for no other's any more.

        ``same`` is asked once the process cannot give its number to another unseen: whether it is still the one meant.
        """
        if self._followed.get(name, (None,))[0] == pid:
            return
        self.forget(name)
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self._ring(name)
            return
        except OSError as error:  # no right to it, or no more files: rounds find out what happens then
            self._complain(error)
            return
        if not same():
            os.close(handle)
            self._ring(name)
            return
        self._followed[name] = (pid, handle)
        asyncio.get_running_loop().add_reader(handle, self._over, name)

    def forget(self, name: str) -> None:
        """Wait for nobody under this name."""
        followed = self._followed.pop(name, None)
        if followed is not None:
            asyncio.get_running_loop().remove_reader(followed[1])
            os.close(followed[1])

    async def next(self) -> frozenset[str]:
        """The names under which somebody has ended since the last call, as soon as there is one."""
        await self._bell.wait()
        self._bell.clear()
        rung, self._rung = frozenset(self._rung), set()
        return rung

    def close(self) -> None:
        """Wait for nobody."""
        for name in tuple(self._followed):
            self.forget(name)

    def _complain(self, error: OSError) -> None:
        """Once: it would be told at every look."""
        if not self._told:
            logger.warning("cannot wait for the end of a process; rounds look for it", error=error.strerror)
        self._told = True

    def _over(self, name: str) -> None:
        self.forget(name)
        self._ring(name)

    def _ring(self, name: str) -> None:
        self._rung.add(name)
        self._bell.set()
