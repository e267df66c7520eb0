"""Whose turn it is to be registered, where two plugins of one node run during an update.

The last plugin lets the next one register before it stops. From Kubernetes 1.37 on, the kubelet then has a plugin all
the time. Two locks in the plugin's directory say it: the present plugin holds one, and a plugin on standby holds the
other one until it has registered. The kernel releases the locks of a plugin that was killed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from plugin.registration import sockets

NEXT = "next"  # the lock of the plugin on standby
TRIES_EVERY = 0.02  # seconds
WITHIN = 2.0  # seconds for the next plugin to register: it has all its preparations done


class Turn:
    """The turn of this process."""

    def __init__(self, kubelet_dir: Path) -> None:
        self._directory = kubelet_dir
        self._held: dict[str, int] = {}

    async def begin(self, waits: Callable[[], None]) -> None:
        """Wait until no other plugin has the turn. ``waits`` is called if one has."""
        if self._take():
            return
        self._take(NEXT)
        waits()
        while not self._take():
            await asyncio.sleep(TRIES_EVERY)
            self._take(NEXT)

    def registered(self) -> None:
        """The kubelet knows this plugin: the last one may stop."""
        self._release(NEXT)

    async def hand_over(self) -> None:
        """Let a plugin on standby register, if there is one. This one goes on serving meanwhile."""
        self._release(NEXT)
        if self._take(NEXT):
            return  # there is none
        self._release()
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN):
                while not self._take(NEXT):  # noqa: ASYNC110 - the lock of a file has no event
                    await asyncio.sleep(TRIES_EVERY)

    def end(self) -> None:
        """Give up what this process has."""
        for name in list(self._held):
            self._release(name)

    def _take(self, name: str = sockets.PRESENT) -> bool:
        if name not in self._held and (lock := sockets.lock(self._directory, name)) is not None:
            self._held[name] = lock
        return name in self._held

    def _release(self, name: str = sockets.PRESENT) -> None:
        if name in self._held:
            os.close(self._held.pop(name))
