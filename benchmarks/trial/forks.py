"""Forked processes that take turns: each says when it is ready, and waits until it may go on."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from scrubber.workers.zygote import end_with_parent

_FORKING = multiprocessing.get_context("fork")
WITHIN = 60.0  # seconds for any word of a fork

Life = Callable[[Connection], None]


class Fork:
    """One of them. Whoever forks has loaded CuPy at most, and never called CUDA."""

    def __init__(self, life: Life) -> None:
        self.began = time.perf_counter()  # the same clock in all processes
        self._line, theirs = _FORKING.Pipe()
        self._process = _FORKING.Process(target=_live, args=(life, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self) -> Any:  # noqa: ANN401 - whatever it says
        """Its next word; an error where it failed or says nothing."""
        try:
            if not self._line.poll(WITHIN):
                raise RuntimeError(f"cannot measure: a process said nothing for {WITHIN:g} s")
            word, failed = self._line.recv()
        except EOFError:
            self._process.join(WITHIN)
            raise RuntimeError(f"cannot measure: a process ended with status {self._process.exitcode}") from None
        if failed:
            raise RuntimeError(word)
        return word

    def tell(self) -> None:
        """It may go on."""
        self._line.send(None)

    def end(self, *, by_force: bool = False) -> float:
        """Wait until it is gone, or end it; the moment when it was."""
        if by_force:
            self._process.kill()
        self._process.join(WITHIN)
        if self._process.is_alive():
            raise RuntimeError("cannot measure: a process does not end")
        if not by_force and self._process.exitcode:
            raise RuntimeError(f"cannot measure: a process ended with status {self._process.exitcode}")
        return time.perf_counter()


def say(line: Connection, word: object = None) -> None:
    """To whoever has forked this process."""
    line.send((word, False))


def in_a_fork(deed: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the deed returns
    """Do something in a process of its own, and return what it returns."""
    fork = Fork(lambda line: say(line, deed()))
    word = fork.hear()
    fork.end()
    return word


def _live(life: Life, line: Connection) -> None:
    end_with_parent()
    try:
        life(line)
    except Exception as error:  # noqa: BLE001 - told to whoever waits for a figure
        line.send((f"{type(error).__name__}: {error}", True))
