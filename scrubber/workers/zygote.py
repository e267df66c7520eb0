"""The zygote: a process with everything loaded that worker children are forked from, so that none waits for imports.

It is a program of its own, started by name; its stdin is the socket to the service. It has one thread for all its life
and never calls a driver: only what was never begun can be forked. It ends with the service and its children end with
it, whoever is killed first and however: the next service must not meet the last one's workers.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from scrubber.cuda import warmth
from scrubber.devices import roster
from scrubber.workers import __main__ as worker
from scrubber.workers import zygote_wire

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
# Python itself ignores the last two: a write that fails is an error that can be told.
_LEFT_ALONE = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ})
_STANDARD = 3  # stdin, stdout, stderr


class Zygote:
    """Forks a child for every request. ``live`` is a child's whole life."""

    def __init__(self, live: Callable[[], None]) -> None:
        """It has no children yet."""
        self._live = live
        self._line = socket.socket(fileno=0)
        self._poll = select.poll()
        self._poll.register(self._line, select.POLLIN)
        self._children: dict[int, int] = {}  # pids, by their pidfds

    def serve(self, ready: zygote_wire.Ready) -> None:
        """Until the service hangs up; none of the children is left alive then."""
        with suppress(ConnectionError):  # it is gone, and that could not be heard yet
            self._say(ready)
            while self._turn():
                pass
        for handle in self._children:
            signal.pidfd_send_signal(handle, signal.SIGKILL)

    def _turn(self) -> bool:
        for ready, _ in self._poll.poll():
            if ready in self._children:
                self._collect(ready)
            elif not self._answer():
                return False
        return True

    def _answer(self) -> bool:
        """Answer a request; False when the service has hung up."""
        request, files = zygote_wire.receive(self._line, _STANDARD)
        if not request:
            return False
        said, held = self._fork(files)
        for file in files:
            os.close(file)  # before the answer: from then on the end of the child is the end of its pipes
        self._say(said, *held)
        return True

    def _fork(self, files: Sequence[int]) -> tuple[zygote_wire.Said, Sequence[int]]:
        if len(files) != _STANDARD:
            return zygote_wire.ForkFailed("its pipes did not come through: too many files are open"), ()
        mother = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            return zygote_wire.ForkFailed(f"no process can be made: {error.strerror}"), ()
        if pid == 0:
            self._line.detach()  # its number is about to be the child's stdin
            _be(files, mother, self._live)
        return self._adopt(pid)

    def _adopt(self, pid: int) -> tuple[zygote_wire.Said, Sequence[int]]:
        try:
            handle = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)  # ours until it is collected, so the number is still its own
            os.waitpid(pid, 0)
            return zygote_wire.ForkFailed(f"its process cannot be held: {error.strerror}"), ()
        self._children[handle] = pid
        self._poll.register(handle, select.POLLIN)
        return zygote_wire.Forked(pid), (handle,)

    def _collect(self, handle: int) -> None:
        pid = self._children.pop(handle)
        self._poll.unregister(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        self._say(zygote_wire.Ended(pid, os.waitstatus_to_exitcode(status)))

    def _say(self, said: zygote_wire.Said, *files: int) -> None:
        zygote_wire.send(self._line, zygote_wire.encode(said), files)


def end_with_parent() -> None:
    """The kernel kills this process as soon as its parent is gone; one that was gone before is not noticed."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _be(files: Sequence[int], mother: int, live: Callable[[], None]) -> NoReturn:
    """A child's life. Nothing leads back from here into the loop of the zygote."""
    status = 1
    try:
        _become(files)
        if os.getppid() == mother:  # else she died before we asked to end with her
            live()
            status = 0
    finally:
        try:
            if status:
                traceback.print_exc()
        finally:
            os._exit(status)


def _become(files: Sequence[int]) -> None:
    """Nothing of the zygote's is left: not its files, its session, or what it does with signals."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    # By what is open, not by what might be: a kernel without close_range(2) would be asked a million times.
    for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
        os.closerange(max(number, _STANDARD), number + 1)
    os.setsid()
    end_with_parent()
    for each in signal.valid_signals() - _LEFT_ALONE:
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _warmed() -> zygote_wire.Ready:
    """A CuPy that cannot be loaded is told: what needs none is done all the same."""
    roster.load_nvidia()
    try:
        return zygote_wire.Ready(warmth.warm())
    except warmth.UnusableError as error:
        return zygote_wire.Ready(lacks=str(error))


def main() -> NoReturn:
    """Load everything, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal is for the service
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever ignores it is not told how its children end
    end_with_parent()
    match sys.argv[1:]:
        case []:
            ready = zygote_wire.Ready()
        case ["--warm", "cuda"]:
            ready = _warmed()
        case _:
            raise SystemExit("usage: python -m scrubber.workers.zygote [--warm cuda]")
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise SystemExit("cannot fork workers: a library has started a thread while it was loaded")
    Zygote(worker.main).serve(ready)
    os._exit(0)  # no farewell of a library's own


if __name__ == "__main__":
    main()
