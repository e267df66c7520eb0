"""The zygote's own program: it has all modules loaded, forks workers, and reports the end of each.

The zygote is a program of its own. Its stdin is the socket to the service. It has one thread and never calls a driver,
because threads and open drivers do not survive a fork. It ends with the service, and its children end with it,
whichever process is killed first: the next service must not find workers of the last service.
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

from ground.documents import strict_json
from scrubber.cuda import cupy_loading
from scrubber.devices import roster
from scrubber.workers import __main__ as child_program
from scrubber.workers import wire

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
# Python itself ignores the last two, so that a write that fails raises an error.
_LEFT_ALONE = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ})
_STANDARD = 3  # stdin, stdout, stderr


class Zygote:
    """Forks a child for every request. ``run_child`` is everything that a child does."""

    def __init__(self, run_child: Callable[[], None]) -> None:
        self._run_child = run_child
        self._line = socket.socket(fileno=0)
        self._poll = select.poll()
        self._poll.register(self._line, select.POLLIN)
        self._children: dict[int, int] = {}  # pids, by their pidfds

    def serve(self, ready: wire.Ready) -> None:
        """Serve until the service closes the socket, then kill all children."""
        with suppress(ConnectionError):  # the service is gone, and the poll has not shown it yet
            self._send(wire.Packet(ready=ready))
            while self._turn():
                pass
        for handle in self._children:
            signal.pidfd_send_signal(handle, signal.SIGKILL)

    def _turn(self) -> bool:
        """Report the children that have ended, and answer a request; False when the service has closed the socket."""
        for ready, _ in self._poll.poll():
            if ready in self._children:
                pid = self._children.pop(ready)
                self._poll.unregister(ready)
                os.close(ready)
                _, status = os.waitpid(pid, 0)
                self._send(wire.Packet(ended=(pid, os.waitstatus_to_exitcode(status))))
                continue
            request, files = wire.receive(self._line, _STANDARD)
            if not request:
                return False
            packet, held = self._fork(files)
            for file in files:
                os.close(file)  # before the answer: the service must see the end of the pipes when the child ends
            self._send(packet, *held)
        return True

    def _fork(self, files: Sequence[int]) -> tuple[wire.Packet, Sequence[int]]:
        if len(files) != _STANDARD:
            return wire.Packet(failed="its pipes did not come through: too many files are open"), ()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            return wire.Packet(failed=f"no process can be made: {error.strerror}"), ()
        if pid == 0:
            self._line.detach()  # its number becomes the stdin of the child
            _run(files, parent, self._run_child)
        try:
            handle = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so that the pid is still that of the child
            os.waitpid(pid, 0)
            return wire.Packet(failed=f"its process cannot be held: {error.strerror}"), ()
        self._children[handle] = pid
        self._poll.register(handle, select.POLLIN)
        return wire.Packet(forked=pid), (handle,)

    def _send(self, packet: wire.Packet, *files: int) -> None:
        wire.send(self._line, strict_json.encode(packet), files)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. A parent that has already ended is not noticed."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(files: Sequence[int], parent: int, run_child: Callable[[], None]) -> NoReturn:
    """Run a child. Never returns to the loop of the zygote."""
    status = 1
    try:
        _detach(files)
        if os.getppid() == parent:  # otherwise the parent ended before ``end_with_parent``
            run_child()
            status = 0
    finally:
        try:
            if status:
                traceback.print_exc()
        finally:
            os._exit(status)


def _detach(files: Sequence[int]) -> None:
    """Drop the files, the session and the signal handlers of the zygote."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    # Only what is open: without close_range(2), closerange calls close(2) for each possible number.
    for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
        os.closerange(max(number, _STANDARD), number + 1)
    os.setsid()
    end_with_parent()
    for each in signal.valid_signals() - _LEFT_ALONE:
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main() -> NoReturn:
    """Load all modules, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal is for the service
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a process that ignores SIGCHLD cannot learn how its children end
    end_with_parent()
    ready = wire.Ready()
    if "--warm-cuda" in sys.argv:
        roster.load_nvidia()
        try:
            ready = wire.Ready(cupy_loading.warm())
        except cupy_loading.UnusableError as error:  # steps that do not need CuPy still run
            ready = wire.Ready(lacks=str(error))
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise SystemExit("cannot fork workers: a library has started a thread while it was loaded")
    Zygote(child_program.main).serve(ready)
    os._exit(0)  # no exit handler of a library runs


if __name__ == "__main__":
    main()
