"""Whose turn it is to be registered, if several plugins run on one node.

One of them is present: the kubelet knows it. Another one stands by, with all its preparations done. It registers as
soon as the present one has ended, however it ended. A plugin that stops lets the next one register first: from
Kubernetes 1.37 on, the kubelet then has a plugin all the time. More plugins may wait, as in an update.

Locks in the plugin's directory decide this. The present plugin holds the first lock. The plugin whose turn is next
holds the second lock until it has registered, and no other plugin may take the first lock. All plugins that stand by
share the third lock. The kernel releases the locks of a plugin that was killed, and wakes the one that waits. All
plugins watch the holders of the first two locks, and kill a holder that hangs.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ground import private_files
from plugin.registration import other_plugins, sockets
from plugin.registration.sockets import PRESENT

NEXT = "next"  # the lock of the plugin whose turn is next
STANDBY = "standby"  # the lock that plugins share from when they stand by until they have registered
LOOKS_EVERY = 0.02  # seconds
WITHIN = 5.0  # seconds for the next plugin to register: it has all its preparations done


class Turn:
    """The turn of this process."""

    def __init__(self, kubelet_dir: Path) -> None:
        self._directory = kubelet_dir
        self._name = secrets.token_hex(8).encode()
        self._held: dict[str, int] = {}
        self._answers: dict[str, other_plugins.Answers] = {}
        self._changing = threading.Lock()
        self._over = self._leaving = False
        self.took_over = False  # another plugin had the turn until this one got it

    async def watch(self) -> None:
        """Until cancelled, kill a plugin that holds the lock, or is next in turn, whenever it hangs."""
        async with asyncio.TaskGroup() as tasks:
            for name in (NEXT, PRESENT):
                tasks.create_task(other_plugins.watch_hung(sockets.answers(self._directory, name)))

    async def begin(self, waits: Callable[[], None]) -> None:
        """Wait until no other plugin holds the lock. ``waits`` is called if one does."""
        if self._take(NEXT) and self._take(PRESENT):
            return
        self.took_over = True
        # Held alone for a moment only: by a plugin that stops, and asks whether anybody stands by.
        self._held[STANDBY] = sockets.await_lock(self._directory, STANDBY, shared=True)
        waits()
        for name in (NEXT, PRESENT):
            if name not in self._held:
                await asyncio.to_thread(self._await, name)
                self._answer(name)

    def registered(self) -> None:
        """The kubelet knows this plugin: the last one may stop.

        If this plugin stops on its own, the last one continues to wait.
        """
        if self._leaving:
            return
        if PRESENT in self._held:
            os.pwrite(self._held[PRESENT], self._name, 0)
        for name in (NEXT, STANDBY):
            self._release(name)

    async def hand_over(self) -> None:
        """Let a plugin on standby register, if there is one. This plugin continues to serve during that time."""
        self._leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN):
                while self._registered_last() and self._stood_by():
                    self._release(PRESENT)
                    await asyncio.sleep(LOOKS_EVERY)

    def end(self) -> None:
        """Give up what this process has, and what it waits for."""
        with self._changing:
            self._over = True
        for name in list(self._held):
            self._release(name)

    def _registered_last(self) -> bool:
        """Whether this plugin is the last one that the kubelet got to know."""
        with suppress(OSError):
            return private_files.content(self._directory / sockets.SUBDIRECTORY / PRESENT) == self._name
        return False

    def _stood_by(self) -> bool:
        """Whether a plugin stands by, or has the turn and is not registered yet."""
        alone = self._take(STANDBY)
        self._release(STANDBY)
        return not alone

    def _take(self, name: str) -> bool:
        if name not in self._held and (lock := sockets.lock(self._directory, name)) is not None:
            self._held[name] = lock
            if name != STANDBY:
                self._answer(name)
        return name in self._held

    def _await(self, name: str) -> None:
        """Hold a lock as soon as it is free. The thread may outlive a stop, but then keeps no lock."""
        lock = sockets.await_lock(self._directory, name)
        with self._changing:
            if self._over:
                os.close(lock)
            else:
                self._held[name] = lock

    def _answer(self, name: str) -> None:
        """Answer on the socket beside a lock, as long as this process holds it."""
        self._answers[name] = other_plugins.Answers(sockets.answers(self._directory, name))

    def _release(self, name: str) -> None:
        if name in self._answers:
            self._answers.pop(name).close()
        if name in self._held:
            os.close(self._held.pop(name))
