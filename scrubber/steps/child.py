"""A child process on three pipes, for one event loop: lines in, lines out, a certain end.

A child that is told to end and does not is killed; one that cannot be killed (stuck in a driver) is not waited for, and
is collected when the kernel lets go of it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from typing import IO, Self, cast

_LONGEST_LINE = 2**20
_TAIL = 4096


class BrokenError(Exception):
    """The child is gone, or does not keep to lines."""


class Child:
    """A running child. It is collected, and its pipes are closed, as soon as it has ended, whoever waits or not."""

    def __init__(self, program: Sequence[str]) -> None:
        """Start it, in a session of its own: signals to the service's group are not for the child."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # the loop is held for the milliseconds of an exec
            program, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        os.set_blocking(self._stdin.fileno(), False)
        loop = asyncio.get_running_loop()
        self._lines = asyncio.StreamReader(limit=_LONGEST_LINE)
        self._complaints = _Tail(loop.create_future())
        self._out: asyncio.BaseTransport | None = None
        self._ended: asyncio.Future[int] = loop.create_future()
        self._handle = os.pidfd_open(self.pid)
        loop.add_reader(self._handle, self._collect)

    @classmethod
    async def start(cls, program: Sequence[str]) -> Self:
        """A child that can be talked to; none is left behind if this is cancelled."""
        child = cls(program)
        connected = False
        try:
            await child._connect()
            connected = True
        finally:
            if not connected:
                child.kill()
                child._stdout.close()
                child._stderr.close()
        return child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def complaint(self) -> str:
        """The last thing it said on stderr: the last line of a traceback, as a rule."""
        return self._complaints.text.strip().rpartition("\n")[2]

    def say(self, line: bytes) -> None:
        """Give it one line; a pipe that does not take it at once is as good as broken."""
        try:
            if self._stdin.write(line) == len(line):
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
        self._stdin.close()

    def kill(self) -> None:
        """End it. What it still says is of no interest."""
        if not self._ended.done():
            self._process.kill()
        self._stdin.close()
        if self._out is not None:
            self._out.close()

    async def end(self, seconds: float) -> int | None:
        """Its exit status, and all of its complaints, once it has ended; None if it has not by then."""
        await asyncio.wait((self._ended, self._complaints.complete), timeout=seconds)
        return self._ended.result() if self._ended.done() else None

    @property
    def _stdin(self) -> IO[bytes]:
        return cast("IO[bytes]", self._process.stdin)

    @property
    def _stdout(self) -> IO[bytes]:
        return cast("IO[bytes]", self._process.stdout)

    @property
    def _stderr(self) -> IO[bytes]:
        return cast("IO[bytes]", self._process.stderr)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._out, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._lines), self._stdout)
        await loop.connect_read_pipe(lambda: self._complaints, self._stderr)

    def _collect(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._stdin.close()
        self._ended.set_result(self._process.wait())


class _Tail(asyncio.Protocol):
    """The end of what was said, however much that was."""

    def __init__(self, complete: asyncio.Future[None]) -> None:
        self.complete = complete
        self._kept = b""

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    def data_received(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-_TAIL:]

    def connection_lost(self, _exc: Exception | None) -> None:
        self.complete.set_result(None)
