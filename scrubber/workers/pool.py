"""The service's side of the zygote: asks it to fork workers, and starts another one when it is lost.

A worker that cannot be started is an error within a time limit. The children of a lost zygote end with the zygote, and
the service does not use their results.
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

from ground import log
from ground.documents import strict_json
from scrubber.workers import wire
from scrubber.workers.wire import Assignment
from scrubber.workers.worker import BrokenError, Child, Describe, Pipes, Tail, Worker

T = TypeVar("T")
OnProcess = Callable[[int], None]

logger = log.get("pool")

PROGRAM = (sys.executable, "-P", "-m", "scrubber.workers.zygote")
_WARM_WITHIN = 60.0  # seconds from the start of a zygote until it is ready: it may load CuPy from a slow disk
_FORKS_WITHIN = 10.0
_GONE_WITHIN = 2.0
_LONGEST_READ = 65536


class ZygoteLostError(BrokenError):
    """The zygote died before it answered: the next zygote may answer."""


class WorkerPool:
    """Starts workers for one event loop."""

    def __init__(self, *, warm_cuda: bool, program: Sequence[str] = PROGRAM) -> None:
        """Nothing is started yet. ``warm_cuda``: the zygote loads CuPy, so that its children need not."""
        self._program = (*program, *(("--warm-cuda",) if warm_cuda else ()))
        self._zygote: _Zygote | None = None
        self._closed = False
        self.cupy = wire.Ready()  # what the last zygote that was ready said about CuPy
        self.on_started: OnProcess = _nothing  # is called with each worker before it has a task ...
        self.on_ended: OnProcess = _nothing  # ... and after its end

    async def start(self) -> None:
        """Start the zygote, and do not wait until it is ready: the first worker does."""
        try:
            self._current_zygote()
        except BrokenError as error:  # raised again for each worker
            logger.error("no zygote", error=str(error))  # noqa: TRY400 -- expected

    async def start_worker(self, assignment: Assignment, describe: Describe | None = None) -> Worker:
        """A worker with this assignment; BrokenError if none can be started."""
        return Worker(await self.spawn(), assignment, describe)

    async def spawn(self) -> Child:
        """A connected child; BrokenError if none can be started, and no child is left behind then."""
        try:
            return await self._current_zygote().fork()
        except ZygoteLostError:  # the zygote had died unnoticed, or died of the request of another caller
            return await self._current_zygote().fork()

    async def close(self) -> None:
        """End the zygote and its children."""
        self._closed = True
        if self._zygote is not None:
            await self._zygote.stop()

    def _current_zygote(self) -> _Zygote:
        if self._closed:
            raise BrokenError("cannot start a worker: the service is stopping")
        if self._zygote is None or self._zygote.lost:
            try:
                self._zygote = _Zygote(self._program, self._on_ready, self.on_started, self.on_ended)
            except OSError as error:
                raise BrokenError(f"cannot start a worker: its zygote does not start: {error.strerror}") from error
        return self._zygote

    def _on_ready(self, ready: wire.Ready) -> None:
        self.cupy = ready


class _Zygote:
    """One zygote process. It answers requests in their order."""

    def __init__(
        self, program: Sequence[str], on_ready: Callable[[wire.Ready], None], on_started: OnProcess, on_ended: OnProcess
    ) -> None:
        loop = asyncio.get_running_loop()
        self._process, self._line, self._handle = _start(program)
        self._stderr = cast("FileIO", self._process.stderr)
        os.set_blocking(self._stderr.fileno(), False)
        self._on_ready, self._on_started, self._on_ended = on_ready, on_started, on_ended
        self._began = loop.time()
        self._ready: asyncio.Future[None] = _answer()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._asked: deque[tuple[asyncio.Future[Child], Pipes]] = deque()
        self._children: dict[int, Child] = {}
        self._orphans: list[Child] = []  # its children when it was lost
        self._why = ""  # why it is lost
        self._stopped = False
        self._tail = Tail(loop.create_future())
        loop.add_reader(self._line, self._on_packet)
        loop.add_reader(self._stderr, self._on_stderr)
        loop.add_reader(self._handle, self._on_exit)

    @property
    def lost(self) -> bool:
        return bool(self._why)

    async def fork(self) -> Child:
        await self._in_time(self._ready, self._began, _WARM_WITHIN)
        asked, asked_at = self._ask(), asyncio.get_running_loop().time()
        try:
            child = await self._in_time(asked, asked_at, _FORKS_WITHIN)
            await self._connect(child)
        except BaseException:  # a cancellation too: nobody will use the child
            asked.add_done_callback(_kill)  # now, or as soon as the child is forked
            raise
        return child

    async def _connect(self, child: Child) -> None:
        try:
            await child.connect()
        except BrokenError as error:  # the zygote was lost meanwhile: only this call has the child
            raise ZygoteLostError(f"cannot start a worker: its zygote is lost: {self._why}") from error
        except OSError as error:
            raise BrokenError(f"cannot start a worker: it cannot be listened to: {error.strerror}") from error

    async def stop(self) -> None:
        """Close the socket. A zygote that does not end then is killed."""
        self._stopped = True
        self._lose("it was stopped")
        if self._ready.done():  # a zygote that is not ready does not read its socket
            await asyncio.wait((self._gone,), timeout=_GONE_WITHIN)
        if not self._gone.done():
            self._process.kill()
            await asyncio.wait((self._gone,), timeout=_GONE_WITHIN)

    async def _in_time(self, answer: asyncio.Future[T], began: float, seconds: float) -> T:
        left = began + seconds - asyncio.get_running_loop().time()
        await asyncio.wait((answer,), timeout=max(0.0, left))
        if not answer.done():
            self._discard(f"it did not answer within {seconds:g} s")
            raise BrokenError(f"cannot start a worker: its zygote is being replaced, because {self._why}; try again")
        return answer.result()

    def _ask(self) -> asyncio.Future[Child]:
        if self.lost:  # while this call waited: the zygote will not answer
            raise ZygoteLostError(f"cannot start a worker: its zygote is lost: {self._why}")
        try:
            pipes = Pipes()
        except OSError as error:
            raise BrokenError(f"cannot start a worker: no pipes to it: {error.strerror}") from error
        asked: asyncio.Future[Child] = _answer()
        self._asked.append((asked, pipes))
        try:
            wire.send(self._line, wire.FORK, [end.fileno() for end in pipes.of_child])
        except OSError as error:
            self._discard(f"it cannot be asked: {error.strerror}")
        finally:
            pipes.hand_over()
        return asked

    def _on_packet(self) -> None:
        try:
            packet, files = wire.receive(self._line, 1)
        except OSError as error:
            self._discard(f"it cannot be heard: {error.strerror}")
            return
        if not packet:
            self._discard("it closed its socket")
            return
        message = strict_json.decode(wire.Packet, packet)
        if len(files) != (message.forked is not None):
            self._discard("a child's pidfd did not come through: too many files are open")
            return
        if message.ready is not None:
            seconds = round(asyncio.get_running_loop().time() - self._began, 3)
            logger.info("zygote ready", pid=self._process.pid, cupy=message.ready.cupy, seconds=seconds)
            if message.ready.lacks:
                logger.error("no memory of a real GPU can be cleared", why=message.ready.lacks)
            self._on_ready(message.ready)
            self._ready.set_result(None)
        elif message.ended is not None:
            pid, status = message.ended
            self._children.pop(pid).reaped(status)
            self._on_ended(pid)
        else:
            asked, pipes = self._asked.popleft()
            if message.forked is None:
                pipes.close()
                asked.set_exception(BrokenError(f"cannot start a worker: {message.failed}"))
                return
            self._on_started(message.forked)
            child = self._children[message.forked] = Child(message.forked, files[0], pipes)
            asked.set_result(child)

    def _discard(self, why: str) -> None:
        """Kill a zygote that cannot be trusted any more."""
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

    def _on_exit(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._handle)
        os.close(self._handle)
        status = self._process.wait()
        self._lose("it died")
        for child in self._orphans:
            child.zygote_reaped()
            self._on_ended(child.pid)
        self._on_stderr()
        loop.remove_reader(self._stderr)
        self._stderr.close()
        why = " ".join(filter(None, (f"{self._why} (status {status})", self._tail.last_line)))
        if not self._stopped:
            logger.warning("zygote lost", pid=self._process.pid, why=why)
        lost = ZygoteLostError(f"cannot start a worker: its zygote is lost: {why}")
        for asked, pipes in self._asked:
            pipes.close()
            asked.set_exception(lost)
        if not self._ready.done():
            self._ready.set_exception(lost)
        self._gone.set_result(None)

    def _on_stderr(self) -> None:
        output = self._stderr.read(_LONGEST_READ)
        if output:
            self._tail.data_received(output)
        elif output is not None:
            asyncio.get_running_loop().remove_reader(self._stderr)


def _nothing(_pid: int) -> None:
    """No fence admits the workers."""


def _start(program: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a zygote: the process, the socket to it, its pidfd.

    It ends with the thread that started it, which is the event loop's.
    """
    with ExitStack() as undo:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.enter_context(ours)
        ours.settimeout(0)
        with theirs:
            process = subprocess.Popen(  # the loop waits some milliseconds for the exec
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
    answer.add_done_callback(lambda done: done.exception())  # its caller may be gone when it fails
    return answer


def _kill(asked: asyncio.Future[Child]) -> None:
    if asked.exception() is None:
        asked.result().kill()
