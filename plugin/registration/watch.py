"""Rings when files come, go or move in some directories, and every few seconds in case that was missed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import structlog
from asyncinotify import Inotify, Mask

from plugin.changed import Changed

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="registration")

CHANGES = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM | Mask.DELETE_SELF | Mask.MOVE_SELF
SLOW_LOOK = 5.0  # seconds; also how long a directory that was replaced goes unwatched


class FileWatch(Changed):
    """A bell that the file system rings while ``run`` runs."""

    def __init__(self, *directories: Path) -> None:
        """Nothing is watched before ``run``."""
        super().__init__()
        self._directories = directories

    async def run(self) -> None:
        """Until cancelled."""
        blind = False
        while True:
            self.ring()  # who waits looks only when we wait too: with the watch in place, so nothing falls between
            try:
                with Inotify() as inotify:
                    await self._listen(inotify)
            except OSError as error:  # too many watches on this node: the slow look has to do
                if not blind:
                    logger.warning("cannot watch files, looking every few seconds instead", error=str(error))
                blind = True
                await asyncio.sleep(SLOW_LOOK)

    async def _listen(self, inotify: Inotify) -> None:
        """Every directory is watched anew at each slow look: it may have been replaced meanwhile.

        The same instance serves all along: the kernel may take its time to close one, and the loop would wait for it.
        """
        while True:
            for directory in self._directories:
                with suppress(FileNotFoundError):  # it may come back: seen at the next slow look
                    inotify.add_watch(directory, CHANGES)
            with suppress(TimeoutError):
                async with asyncio.timeout(SLOW_LOOK):
                    async for _ in inotify:
                        self.ring()
            self.ring()
