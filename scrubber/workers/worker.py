"""A worker as the service sees it: its process (``Child``) on three pipes, steps, stderr, and blame for its end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from io import FileIO

from ground import process_status
from ground.documents import strict_json
from scrubber.core.model import Blame, Outcome, ScrubPath, Step, StepResult
from scrubber.devices.base import Progress
from scrubber.steps.orders import Order, Report
from scrubber.workers import wire

_LONGEST_LINE = 2**20
_TAIL = 4096
_REPORTED_WITHIN = 10.0  # seconds that the zygote has to report how a child ended
_ENDS_WITHIN = 2.0  # seconds to wait for a child that was killed and is not used again
_LEAVES_WITHIN = 10.0  # seconds for a child to end: the kernel takes all memory of a device back before that
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})


Describe = Callable[[], Awaitable[wire.Prepare]]


class BrokenError(Exception):
    """The worker process is gone, breaks the protocol, or could not be started."""


@dataclass(frozen=True, slots=True)
class ChildEnding:
    """How a child ended."""

    status: int | None  # negative: the signal that ended it. None: unknown
    orphaned: bool  # the zygote was lost first, and the child ended with it


class Pipes:
    """The pipes of a child: the ends of the service, and the ends of the child until the child has them."""

    def __init__(self) -> None:
        """Open all pipes, or raise OSError and leave none open."""
        with ExitStack() as made:
            (stdin, self.stdin), (self.stdout, stdout), (self.stderr, stderr) = (_pipe(made) for _ in range(3))
            made.pop_all()
        os.set_blocking(self.stdin.fileno(), False)
        self.of_child = (stdin, stdout, stderr)

    def hand_over(self) -> None:
        """Close the ends of the child: the child has its own copies."""
        for end in self.of_child:
            end.close()

    def close(self) -> None:
        """Close all ends of the pipes, because no worker was started."""
        self.hand_over()
        for end in (self.stdin, self.stdout, self.stderr):
            end.close()


class Child:
    """A child process on three pipes, for one event loop.

    The child belongs to the zygote. The service holds the child by its pidfd, and the zygote reports how the child
    ended. If the zygote cannot report it, the ending is unknown, not a success. A child that is stuck in a driver
    cannot be killed, and the service does not wait for it. Its pipes are closed as soon as the child has ended.
    """

    def __init__(self, pid: int, handle: int, pipes: Pipes) -> None:
        """``handle`` is the pidfd of the child. This object closes the handle and the pipes."""
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
        self.orphaned = False  # whether the zygote was lost before the child ended
        self._zygote_reaped = False
        self._ended: asyncio.Future[ChildEnding] = loop.create_future()
        loop.add_reader(handle, self._on_end)

    @property
    def has_ended(self) -> bool:
        """Whether the child has ended: the kernel has closed its files by then."""
        return not self._running

    async def connect(self) -> None:
        """Connect the pipes; BrokenError if the child was killed meanwhile. The caller then kills the child again."""
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
    def complaint(self) -> str:
        """The last line on stderr: usually the last line of a traceback."""
        return self._complaints.last_line

    def send(self, line: bytes) -> None:
        """Write one line. A pipe that does not take the line at once counts as broken."""
        try:
            if self._pipes.stdin.write(line) == len(line):
                return
        except (OSError, ValueError) as error:
            raise BrokenError("the worker is gone") from error
        raise BrokenError("the worker does not read its input")

    async def receive(self) -> bytes:
        """The next line from the child."""
        try:
            line = await self._lines.readline()
        except ValueError as error:
            raise BrokenError(f"the worker sent a line of more than {_LONGEST_LINE} bytes") from error
        if not line.endswith(b"\n"):
            raise BrokenError("the worker closed its output")
        return line

    def hang_up(self) -> None:
        """Close stdin: the child ends when it has nothing left to do."""
        self._pipes.stdin.close()

    def kill(self) -> None:
        """Kill the child, and read nothing more from it."""
        if self._running:
            with suppress(ProcessLookupError):  # the child has ended, and the loop has not noticed yet
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self._killed = True
        self._pipes.stdin.close()
        if self._connecting:
            return  # the loop is about to read from these pipes
        if self._out is None:
            self._pipes.stdout.close()
        else:
            self._out.close()
        if self._err is None:
            self._pipes.stderr.close()

    async def wait(self, seconds: float) -> None:
        """Wait until the child has ended and its output is read, at most so long."""
        await asyncio.wait((self._ended, self._complaints.complete), timeout=seconds)

    async def end(self, seconds: float) -> ChildEnding | None:
        """How the child ended; None if it has not ended within that time."""
        await self.wait(seconds)
        if not self._running:
            await asyncio.wait((self._ended,))  # the child has ended; the zygote has a time limit of its own
        return self._ended.result() if self._ended.done() else None

    def reaped(self, status: int) -> None:
        """Note that the zygote has reaped the child."""
        self._mark_ended()
        os.close(self._handle)
        self._settle(status)

    def orphan(self) -> None:
        """Kill the child: the zygote is lost, and will not report how the child ends."""
        self.orphaned = True
        self.kill()
        if not self._running:
            self._settle(None)

    def zygote_reaped(self) -> None:
        """Reap the child, now or when it ends, if the service is the first process of its pid namespace."""
        self._zygote_reaped = True
        if not self._running:
            self._reap()

    def _on_end(self) -> None:
        self._mark_ended()
        if self._zygote_reaped:
            self._reap()
        if self.orphaned:
            self._settle(None)
        else:
            asyncio.get_running_loop().call_later(_REPORTED_WITHIN, self._settle, None)

    def _mark_ended(self) -> None:
        if self._running:
            self._running = False
            asyncio.get_running_loop().remove_reader(self._handle)
            self._pipes.stdin.close()

    def _reap(self) -> None:
        with suppress(ChildProcessError):  # another process is the first one, and reaps the child
            os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG)
        os.close(self._handle)

    def _settle(self, status: int | None) -> None:
        if not self._ended.done():
            self._ended.set_result(ChildEnding(status, self.orphaned))


class Tail(asyncio.Protocol):
    """Keeps the end of an output of any length."""

    def __init__(self, complete: asyncio.Future[None]) -> None:
        """``complete`` is done at the end of the output."""
        self.complete = complete
        self._kept = b""

    @property
    def last_line(self) -> str:
        """The last line of the output."""
        return self._kept.decode(errors="replace").strip().rpartition("\n")[2]

    def data_received(self, data: bytes) -> None:
        """Keep the end of the output."""
        self._kept = (self._kept + data)[-_TAIL:]

    def connection_lost(self, _exc: Exception | None) -> None:
        """The output is complete."""
        self.complete.set_result(None)


class Worker:
    """A child that handles one device for one job.

    A step always ends with a result, in time. Only a report that the child itself sends can be PASSED. A child that is
    late, dies, or sends a line that is not a frame is killed, and that is the result.
    """

    def __init__(self, child: Child, assignment: wire.Assignment, describe: Describe | None = None) -> None:
        """Send the assignment. A child that is gone already is noticed by the first step.

        ``describe`` is asked for the device as it is when the child opens it. Without it, the first step opens it.
        """
        self._child = child
        self._describe_device = describe
        self.pid = child.pid  # not a holder of the device, although it has the device open
        self._tell(assignment)

    @property
    def has_ended(self) -> bool:
        """Whether the child has ended, and with it all that it had open."""
        return self._child.has_ended

    async def prepare(self) -> None:
        """Have the child open the device for its steps on memory, while the device is observed."""
        if self._describe_device is not None:
            self._tell(await self._describe_device())

    def _tell(self, message: wire.Assignment | wire.Prepare) -> None:
        try:
            self._child.send(strict_json.encode(message))
        except BrokenError:
            self._child.kill()

    async def do(self, step: Step, path: ScrubPath, order: Order, deadline: float, on_progress: Progress) -> StepResult:
        """Run one step in the child (``workers/__main__``), which calls the function of ``step_functions``.

        The worker can run another step only after a report of its child.
        """
        began = time.monotonic()
        report: Report | None = None
        try:
            async with asyncio.timeout(deadline):
                report = await self._converse(wire.StepRequest(step, order), on_progress)
        except TimeoutError:
            text = f"{step.value} was not done within {deadline:g} s"
            report = Report(Outcome.TIMED_OUT, f"{text}; {self._describe(await self._kill_and_wait())}", _blame(step))
        except BrokenError as error:
            ending = await self._kill_and_wait()
            text = f"{step.value} has no result: {error}; {self._describe(ending)}"
            report = Report(Outcome.DIED, text, self._blame(step, ending))
        finally:
            if report is None:  # cancelled, or the progress callback failed: the child is not used again
                await self.kill()
        seconds = time.monotonic() - began
        return StepResult(step, path, report.outcome, seconds, report.detail, report.blame, report.findings)

    async def finish(self, last: StepResult) -> StepResult:
        """Let the child end. Its last result stands only if the child then ends well and in time."""
        self._child.hang_up()
        ending: ChildEnding | None = None
        try:
            ending = await self._child.end(_LEAVES_WITHIN)
        finally:
            if ending is None:
                await self.kill()
        if ending is not None and ending.status == 0:
            return last
        how = self._describe(ending) if ending is not None else f"it was not gone within {_LEAVES_WITHIN:g} s"
        detail = f"its worker did not end well after {last.step.value}: {how}"
        return replace(last, outcome=Outcome.DIED, detail=detail, blame=self._blame(last.step, ending))

    async def kill(self) -> None:
        """Kill the child, and wait a moment for its end."""
        self._child.kill()
        await self._child.wait(_ENDS_WITHIN)

    async def _converse(self, request: wire.StepRequest, on_progress: Progress) -> Report:
        self._child.send(strict_json.encode(request))
        while True:
            line = await self._child.receive()
            try:
                answer = strict_json.decode(wire.Answer, line)
            except ValueError as error:  # without its words: they may quote what was on the device
                raise BrokenError("the worker sent a line that is not a frame") from error
            if (answer.progress is None) == (answer.report is None):
                raise BrokenError("the worker sent neither progress nor a report")
            if answer.report is not None:
                return answer.report
            if answer.progress is not None:
                on_progress(*answer.progress)

    async def _kill_and_wait(self) -> ChildEnding | None:
        self._child.kill()
        return await self._child.end(_LEAVES_WITHIN)

    def _describe(self, ending: ChildEnding | None) -> str:
        if ending is None:
            why = "its zygote was lost, and it is not gone yet" if self._child.orphaned else "it is stuck in the driver"
            return f"its worker (pid {self.pid}) cannot be killed: {why}"
        how = "with an unknown status" if ending.status is None else process_status.ending(ending.status)
        if ending.orphaned:
            how = "with the zygote that it was forked from"
        return " ".join(filter(None, (f"its worker ended {how}", self._child.complaint)))

    def _blame(self, step: Step, ending: ChildEnding | None) -> Blame:
        """Whose fault it is that a worker ended without a report, or was killed and has not ended."""
        if self._child.orphaned:
            return Blame.SERVICE
        # A failure of a device arrives as a report, unless the worker crashes in the library of the driver. A worker
        # that exits without a report has met a fault of the service or of the node: the kernel sends SIGKILL when
        # memory is short, a device does not.
        if ending is not None and (ending.status is None or -ending.status not in _CRASHES):
            return Blame.SERVICE
        return _blame(step)


def _blame(step: Step) -> Blame:
    """Whose fault it is that a step has no end."""
    # Evict waits for processes, not for the device: a process on a dead file system, for example, cannot end.
    return Blame.TENANT if step is Step.EVICT else Blame.DEVICE


def _pipe(made: ExitStack) -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return made.enter_context(FileIO(reading, "r")), made.enter_context(FileIO(writing, "w"))
