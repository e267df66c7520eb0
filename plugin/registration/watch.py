"""Notifies when files appear, vanish or move in some directories, and every few seconds in case an event was missed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from asyncinotify import Inotify, Mask

from scrubber.ground import log
from scrubber.ground.aio import Changed

logger = log.get("registration")

CHANGES = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM | Mask.DELETE_SELF | Mask.MOVE_SELF
POLL_EVERY = 5.0  # seconds; also the longest time that a replaced directory is not watched


class FileWatch(Changed):
    """Notifies about changes of files while ``run`` runs."""

    def __init__(self, *directories: Path) -> None:
        super().__init__()
        self._directories = directories

    async def run(self) -> None:
        """Watch until cancelled."""
        blind = False
        while True:
            self.notify()  # waiting tasks run only when this task waits: by then the watch is in place
            try:
                with Inotify() as inotify:
                    await self._watch(inotify)
            except OSError as error:  # the node has too many watches: poll instead
                if not blind:
                    logger.warning("cannot watch files, polling every few seconds instead", error=str(error))
                blind = True
                await asyncio.sleep(POLL_EVERY)

    async def _watch(self, inotify: Inotify) -> None:
        """Add each directory again at every poll: it may have been replaced meanwhile.

        One inotify instance serves all the time: the kernel may close one slowly, and that would block the event loop.
        """
        while True:
            for directory in self._directories:
                with suppress(FileNotFoundError):  # it may appear later: the next poll adds it
                    inotify.add_watch(directory, CHANGES)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_EVERY):
                    async for _ in inotify:
                        self.notify()
            self.notify()
