"""Forked processes that take turns: each reports that it is ready, and waits until it may go on."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pynvml

from scrubber.workers.zygote import end_with_parent

_FORKING = multiprocessing.get_context("fork")
WITHIN = 60.0  # seconds to wait for a message of a fork

Life = Callable[[Connection], None]


class Fork:
    """One forked process. The process that forks may have loaded CuPy, but must not have called CUDA."""

    def __init__(self, life: Life) -> None:
        if pynvml._nvmlLib_refcount:  # noqa: SLF001 - NVML itself cannot be asked
            raise RuntimeError("cannot measure: a process that has NVML open must not be forked")
        self.began = time.perf_counter()  # the same clock in all processes
        self._line, theirs = _FORKING.Pipe()
        self._process = _FORKING.Process(target=_live, args=(life, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self) -> Any:  # noqa: ANN401 - depends on the process
        """Its next message; RuntimeError if it failed or sends none."""
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
        """Let it go on."""
        self._line.send(None)

    def end(self, *, by_force: bool = False) -> float:
        """Wait until it has ended, or kill it; returns the time of its end."""
        if by_force:
            self._process.kill()
        self._process.join(WITHIN)
        if self._process.is_alive():
            raise RuntimeError("cannot measure: a process does not end")
        if not by_force and self._process.exitcode:
            raise RuntimeError(f"cannot measure: a process ended with status {self._process.exitcode}")
        return time.perf_counter()


def say(line: Connection, word: object = None) -> None:
    """Send a message to the process that has forked this one."""
    line.send((word, False))


def in_a_fork(deed: Callable[[], Any]) -> Any:  # noqa: ANN401 - depends on the deed
    """Do something in a process of its own, and return what it returns."""
    fork = Fork(lambda line: say(line, deed()))
    word = fork.hear()
    fork.end()
    return word


def _live(life: Life, line: Connection) -> None:
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the process that forks has a handler of its own
    try:
        life(line)
    except Exception as error:  # noqa: BLE001 - sent to the process that waits for a figure
        line.send((f"{type(error).__name__}: {error}", True))
