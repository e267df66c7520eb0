"""The service's hand on its zygote: a child for whoever asks, from a zygote that is replaced when it fails.

A child that cannot be had is an error in time, never a wait without end. A zygote that is lost takes its children with
it; whatever they did counts for nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import FileIO
from typing import TypeVar, cast

from scrubber.ground import log
from scrubber.workers import zygote_wire
from scrubber.workers.child import BrokenError, Child, Pipes, Tail

T = TypeVar("T")

logger = log.get("nursery")

PROGRAM = (sys.executable, "-P", "-m", "scrubber.workers.zygote")
_WARM_WITHIN = 60.0  # seconds from the start of a zygote to its first word: it may have to load CuPy from a slow disk
_FORKS_WITHIN = 10.0
_GONE_WITHIN = 2.0
_MOST_SAID = 65536


class LostError(BrokenError):
    """The zygote died before it answered: another one may do better."""


class Nursery:
    """Where workers come from. Used by one event loop."""

    def __init__(self, *, warm_cuda: bool, program: Sequence[str] = PROGRAM) -> None:
        """Nothing is started yet. ``warm_cuda``: children are to find CuPy loaded."""
        self._program = (*program, *(("--warm", "cuda") if warm_cuda else ()))
        self._zygote: _Zygote | None = None
        self._closed = False
        self.cupy = zygote_wire.Ready()  # what the last zygote that got warm said of it

    async def start(self) -> None:
        """Start the zygote, and do not wait until it is warm: the first who needs it does."""
        try:
            self._living()
        except BrokenError as error:  # told again to everybody who asks for a child
            logger.error("no zygote", error=str(error))  # noqa: TRY400 -- expected

    async def spawn(self) -> Child:
        """A child that can be talked to; BrokenError if there is none, and no child is left behind then."""
        try:
            return await self._living().bear()
        except LostError:  # it had died unnoticed, or another one's question was its end
            return await self._living().bear()

    async def close(self) -> None:
        """End the zygote, and with it whatever it has forked."""
        self._closed = True
        if self._zygote is not None:
            await self._zygote.dismiss()

    def _living(self) -> _Zygote:
        if self._closed:
            raise BrokenError("cannot start a worker: the service is stopping")
        if self._zygote is None or self._zygote.lost:
            try:
                self._zygote = _Zygote(self._program, self._note)
            except OSError as error:
                raise BrokenError(f"cannot start a worker: its zygote does not start: {error.strerror}") from error
        return self._zygote

    def _note(self, said: zygote_wire.Ready) -> None:
        self.cupy = said


class _Zygote:
    """One life of the zygote. Questions are answered in the order in which they were asked."""

    def __init__(self, program: Sequence[str], note: Callable[[zygote_wire.Ready], None]) -> None:
        loop = asyncio.get_running_loop()
        self._process, self._line, self._handle = _start(program)
        self._stderr = cast("FileIO", self._process.stderr)
        os.set_blocking(self._stderr.fileno(), False)
        self._note = note
        self._began = loop.time()
        self._ready: asyncio.Future[None] = _answer()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._asked: deque[tuple[asyncio.Future[Child], Pipes]] = deque()
        self._children: dict[int, Child] = {}
        self._orphans: list[Child] = []  # those that it had when it was lost
        self._why = ""  # why it is lost
        self._dismissed = False
        self._tail = Tail(loop.create_future())
        loop.add_reader(self._line, self._hear)
        loop.add_reader(self._stderr, self._overhear)
        loop.add_reader(self._handle, self._collect)

    @property
    def lost(self) -> bool:
        """Whether it is of no use any more."""
        return bool(self._why)

    async def bear(self) -> Child:
        """A child that can be talked to."""
        await self._in_time(self._ready, self._began, _WARM_WITHIN)
        asked, asked_at = self._ask(), asyncio.get_running_loop().time()
        wanted = False
        try:
            child = await self._in_time(asked, asked_at, _FORKS_WITHIN)
            await self._connect(child)
            wanted = True
            return child
        finally:
            if not wanted:
                asked.add_done_callback(_kill)  # now, or as soon as it is there

    async def _connect(self, child: Child) -> None:
        try:
            await child.connect()
        except BrokenError as error:  # it was orphaned meanwhile: nobody else has it yet
            raise LostError(f"cannot start a worker: its zygote is lost: {self._why}") from error
        except OSError as error:
            raise BrokenError(f"cannot start a worker: it cannot be listened to: {error.strerror}") from error

    async def dismiss(self) -> None:
        """Hang up; whoever does not go then is killed."""
        self._dismissed = True
        self._lose("it was dismissed")
        if self._ready.done():  # before that it does not listen
            await asyncio.wait((self._gone,), timeout=_GONE_WITHIN)
        if not self._gone.done():
            self._process.kill()
            await asyncio.wait((self._gone,), timeout=_GONE_WITHIN)

    async def _in_time(self, answer: asyncio.Future[T], began: float, seconds: float) -> T:
        left = began + seconds - asyncio.get_running_loop().time()
        await asyncio.wait((answer,), timeout=max(0.0, left))
        if not answer.done():
            self._condemn(f"it did not answer within {seconds:g} s")
            raise BrokenError(f"cannot start a worker: its zygote is replaced, for {self._why}; try again")
        return answer.result()

    def _ask(self) -> asyncio.Future[Child]:
        if self.lost:  # while it was waited for: nobody would answer any more
            raise LostError(f"cannot start a worker: its zygote is lost: {self._why}")
        try:
            pipes = Pipes()
        except OSError as error:
            raise BrokenError(f"cannot start a worker: no pipes to it: {error.strerror}") from error
        asked: asyncio.Future[Child] = _answer()
        self._asked.append((asked, pipes))
        try:
            zygote_wire.send(self._line, zygote_wire.FORK, [end.fileno() for end in pipes.theirs])
        except OSError as error:
            self._condemn(f"it cannot be asked: {error.strerror}")
        finally:
            pipes.hand_over()
        return asked

    def _hear(self) -> None:
        try:
            packet, files = zygote_wire.receive(self._line, 1)
        except OSError as error:
            self._condemn(f"it cannot be heard: {error.strerror}")
            return
        if not packet:
            self._condemn("it hung up")
            return
        match zygote_wire.decode(packet), files:
            case zygote_wire.Ready() as said, ():
                self._welcome(said)
            case zygote_wire.Forked(pid), (handle,):
                asked, pipes = self._asked.popleft()
                self._children[pid] = Child(pid, handle, pipes)
                asked.set_result(self._children[pid])
            case zygote_wire.ForkFailed(why), ():
                asked, pipes = self._asked.popleft()
                pipes.close()
                asked.set_exception(BrokenError(f"cannot start a worker: {why}"))
            case zygote_wire.Ended(pid, status), ():
                self._children.pop(pid).tell(status)
            case _:
                self._condemn("a child's pidfd did not come through: too many files are open")

    def _welcome(self, said: zygote_wire.Ready) -> None:
        seconds = round(asyncio.get_running_loop().time() - self._began, 3)
        logger.info("zygote ready", pid=self._process.pid, cupy=said.cupy, seconds=seconds)
        if said.lacks:
            logger.error("no memory of a real GPU can be cleared", why=said.lacks)
        self._note(said)
        self._ready.set_result(None)

    def _condemn(self, why: str) -> None:
        """It is not to be trusted any more, whatever it is doing."""
        self._lose(why)
        self._process.kill()

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self._why = why
        asyncio.get_running_loop().remove_reader(self._line)
        self._line.close()
        for child in self._children.values():
            child.orphan()
        self._orphans = list(self._children.values())
        self._children.clear()

    def _collect(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._handle)
        os.close(self._handle)
        status = self._process.wait()
        self._lose("it died")
        for child in self._orphans:
            child.inherit()
        self._overhear()
        loop.remove_reader(self._stderr)
        self._stderr.close()
        said = " ".join(filter(None, (f"{self._why} (status {status})", self._tail.last_line)))
        if not self._dismissed:
            logger.warning("zygote lost", pid=self._process.pid, why=said)
        lost = LostError(f"cannot start a worker: its zygote is lost: {said}")
        for asked, pipes in self._asked:
            pipes.close()
            asked.set_exception(lost)
        if not self._ready.done():
            self._ready.set_exception(lost)
        self._gone.set_result(None)

    def _overhear(self) -> None:
        said = self._stderr.read(_MOST_SAID)
        if said:
            self._tail.data_received(said)
        elif said is not None:
            asyncio.get_running_loop().remove_reader(self._stderr)


def _start(program: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """The process, the socket to it, its pidfd. It dies with the thread that starts it: the one that runs the loop."""
    with ExitStack() as undo:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.enter_context(ours)
        ours.settimeout(0)
        with theirs:
            process = subprocess.Popen(  # the loop is held for the milliseconds of an exec
                program,
                bufsize=0,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        undo.enter_context(process)
        undo.callback(process.kill)
        handle = os.pidfd_open(process.pid)
        undo.pop_all()
    return process, ours, handle


def _answer() -> asyncio.Future[T]:
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    answer.add_done_callback(lambda done: done.exception())  # if nobody waits for it any more, that is no news
    return answer


def _kill(asked: asyncio.Future[Child]) -> None:
    if asked.exception() is None:
        asked.result().kill()
