"""A child process on three pipes, for one event loop: lines in, lines out, a certain end.

A child that is told to end and does not is killed; one that cannot be killed (stuck in a driver) is not waited for. It
is the zygote's child, not ours: we hold it by its pidfd, and the zygote tells how it ended. If the zygote cannot,
nobody can, and what is not known is no success.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO

_LONGEST_LINE = 2**20
_TAIL = 4096
_TOLD_WITHIN = 10.0  # seconds from the end of a child to the zygote's word on it; one that is dead is noticed at once


class BrokenError(Exception):
    """The child is gone, does not keep to lines, or could not be had at all."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended."""

    status: int | None  # negative: the signal that ended it. None: nobody can tell
    orphaned: bool  # its zygote was lost first, and took it along


class Pipes:
    """The pipes of a child: our ends, and its own until it has them."""

    def __init__(self) -> None:
        """Open them; OSError, and none is left open, when that fails."""
        with ExitStack() as made:
            (stdin, self.stdin), (self.stdout, stdout), (self.stderr, stderr) = (_pipe(made) for _ in range(3))
            made.pop_all()
        os.set_blocking(self.stdin.fileno(), False)
        self.theirs = (stdin, stdout, stderr)

    def hand_over(self) -> None:
        """The child has its ends."""
        for end in self.theirs:
            end.close()

    def close(self) -> None:
        """There is no child."""
        self.hand_over()
        for end in (self.stdin, self.stdout, self.stderr):
            end.close()


class Child:
    """A running child. It is collected, and its pipes are closed, as soon as it has ended, whoever waits or not."""

    def __init__(self, pid: int, handle: int, pipes: Pipes) -> None:
        """``handle``: its pidfd, which is ours to close from now on, as the pipes are."""
        loop = asyncio.get_running_loop()
        self.pid = pid
        self._handle = handle
        self._pipes = pipes
        self._lines = asyncio.StreamReader(limit=_LONGEST_LINE)
        self._complaints = Tail(loop.create_future())
        self._out: asyncio.BaseTransport | None = None
        self._err: asyncio.BaseTransport | None = None
        self._connecting = False
        self._killed = False
        self._running = True
        self._orphaned = False
        self._inherited = False
        self._ended: asyncio.Future[Ending] = loop.create_future()
        loop.add_reader(handle, self._leave)

    async def connect(self) -> None:
        """Listen to it; BrokenError if it is killed by then. Whoever is told so kills it once more."""
        loop, pipes = asyncio.get_running_loop(), self._pipes
        self._connecting = True
        try:
            if not self._killed:
                lines = asyncio.StreamReaderProtocol(self._lines)
                self._out, _ = await loop.connect_read_pipe(lambda: lines, pipes.stdout)
                self._err, _ = await loop.connect_read_pipe(lambda: self._complaints, pipes.stderr)
        finally:
            self._connecting = False
        if self._killed:
            raise BrokenError("it was killed before it could be heard")

    @property
    def orphaned(self) -> bool:
        """Whether its zygote was lost before it, whether or not it has ended."""
        return self._orphaned

    @property
    def complaint(self) -> str:
        """The last thing it said on stderr: the last line of a traceback, as a rule."""
        return self._complaints.last_line

    def say(self, line: bytes) -> None:
        """Give it one line; a pipe that does not take it at once is as good as broken."""
        try:
            if self._pipes.stdin.write(line) == len(line):
                return
        except (OSError, ValueError) as error:
            raise BrokenError("it is gone") from error
        raise BrokenError("it does not listen")

    async def hear(self) -> bytes:
        """Its next line."""
        try:
            line = await self._lines.readline()
        except ValueError as error:
            raise BrokenError(f"it said a line of more than {_LONGEST_LINE} bytes") from error
        if not line.endswith(b"\n"):
            raise BrokenError("it hung up")
        return line

    def hang_up(self) -> None:
        """Tell it that nothing more will be asked."""
        self._pipes.stdin.close()

    def kill(self) -> None:
        """End it. What it still says is of no interest."""
        if self._running:
            with suppress(ProcessLookupError):  # it is gone, and the loop has not heard of it yet
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self._killed = True
        self._pipes.stdin.close()
        if self._connecting:
            return  # the loop is about to read from what would be closed
        if self._out is None:
            self._pipes.stdout.close()
        else:
            self._out.close()
        if self._err is None:
            self._pipes.stderr.close()

    async def leave(self, seconds: float) -> None:
        """Wait until it has ended and all is said, but no longer than that."""
        await asyncio.wait((self._ended, self._complaints.complete), timeout=seconds)

    async def end(self, seconds: float) -> Ending | None:
        """How it ended, with all of its complaints said; None if it has not ended by then."""
        await self.leave(seconds)
        if not self._running:
            await asyncio.wait((self._ended,))  # it has ended, and its zygote has its own time to tell how
        return self._ended.result() if self._ended.done() else None

    def tell(self, status: int) -> None:
        """The zygote has collected it."""
        self._let_go()
        os.close(self._handle)
        self._settle(status)

    def orphan(self) -> None:
        """The zygote is gone and will tell nothing: the kernel ends the child, and we do too."""
        self._orphaned = True
        self.kill()
        if not self._running:
            self._settle(None)

    def inherit(self) -> None:
        """Its zygote has died, and was collected: if we are the first process of all, the child is ours to collect."""
        self._inherited = True
        if not self._running:
            self._bury()

    def _leave(self) -> None:
        self._let_go()
        if self._inherited:
            self._bury()
        if self._orphaned:
            self._settle(None)
        else:
            asyncio.get_running_loop().call_later(_TOLD_WITHIN, self._settle, None)

    def _let_go(self) -> None:
        if self._running:
            self._running = False
            asyncio.get_running_loop().remove_reader(self._handle)
            self._pipes.stdin.close()

    def _bury(self) -> None:
        with suppress(ChildProcessError):  # another process is the first one, and sees to it
            os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG)
        os.close(self._handle)

    def _settle(self, status: int | None) -> None:
        if not self._ended.done():
            self._ended.set_result(Ending(status, self._orphaned))


class Tail(asyncio.Protocol):
    """The end of what was said, however much that was."""

    def __init__(self, complete: asyncio.Future[None]) -> None:
        """``complete`` is done when nothing more will be said."""
        self.complete = complete
        self._kept = b""

    @property
    def last_line(self) -> str:
        """What a traceback ends with."""
        return self._kept.decode(errors="replace").strip().rpartition("\n")[2]

    def data_received(self, data: bytes) -> None:
        """Keep the end of it."""
        self._kept = (self._kept + data)[-_TAIL:]

    def connection_lost(self, _exc: Exception | None) -> None:
        """That was all."""
        self.complete.set_result(None)


def _pipe(made: ExitStack) -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return made.enter_context(FileIO(reading, "r")), made.enter_context(FileIO(writing, "w"))
