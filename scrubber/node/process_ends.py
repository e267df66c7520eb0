"""Report the end of processes without polling."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ground import log
from ground.aio import Changed

logger = log.get("ends")


class ProcessEnds:
    """Follows one process for each name, by a pidfd. A reported name means "observe again", not what happened."""

    def __init__(self) -> None:
        self._followed: dict[str, tuple[int, int]] = {}  # pid and pidfd
        self._ended: set[str] = set()
        self._changed = Changed()
        self._warned = False  # that a process could not be followed

    def follow(self, name: str, pid: int, same: Callable[[], bool]) -> None:
        """Report the name when this process ends; this replaces an earlier process of the same name.

        ``same`` is called once the pidfd is open: whether the pid still belongs to the intended process.
        """
        if self._followed.get(name, (None,))[0] == pid:
            return
        self.forget(name)
        try:
            handle = _opened(pid, same)
        except ProcessLookupError:
            self._report(name)
        except OSError as error:  # not permitted, or too many open files: the monitor's rounds notice the end
            if not self._warned:  # once, not at every observation
                logger.warning("cannot wait for the end of a process; the monitor polls for it", error=error.strerror)
            self._warned = True
        else:
            self._followed[name] = (pid, handle)
            asyncio.get_running_loop().add_reader(handle, self._on_end, name)

    def forget(self, name: str) -> None:
        """Follow no process under this name."""
        followed = self._followed.pop(name, None)
        if followed is not None:
            asyncio.get_running_loop().remove_reader(followed[1])
            os.close(followed[1])

    async def next(self) -> frozenset[str]:
        """Wait for the end of a process; returns all names whose process has ended since the last call."""
        await self._changed.until(lambda: bool(self._ended))
        ended, self._ended = frozenset(self._ended), set()
        return ended

    def close(self) -> None:
        """Follow no process any more."""
        for name in tuple(self._followed):
            self.forget(name)

    def _on_end(self, name: str) -> None:
        self.forget(name)
        self._report(name)

    def _report(self, name: str) -> None:
        self._ended.add(name)
        self._changed.notify()


def _opened(pid: int, same: Callable[[], bool]) -> int:
    """A pidfd of the intended process; ProcessLookupError if that process has ended."""
    handle = os.pidfd_open(pid)
    try:
        if not same():
            raise ProcessLookupError(pid)
    except OSError:
        os.close(handle)
        raise
    return handle
