"""Run driver calls, which may block for ever, in threads and with a deadline.

A thread that is stuck in a driver cannot be ended. So each key (usually a device) has at most one running call. Once
that call is overdue, each new call for the key fails at once, until the overdue call returns.

A late answer is the driver's fault only if this service could run meanwhile. If it could not, its node is short of
processors, which says nothing about a device. A thread that waits in the driver sleeps, or computes; a starved thread
can run and gets no processor. The kernel tells the two apart.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from scrubber.devices import shortage
from scrubber.devices.base import DeviceError, ShortageError

T = TypeVar("T")

_IDLE_THREADS = 4  # idle threads that are kept; more threads are started when needed
LOOK_EVERY = 0.25  # seconds between two looks while an answer is awaited
IN_PASSING = 0.2  # seconds that a service loses beside other programs, without being starved
_TASKS = Path("/proc/self/task")


class UnresponsiveError(DeviceError):
    """The driver did not answer in time: the state of the device is unknown."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call stays until its thread returns. If its answer is done before, the call is overdue: it is stuck."""

    answer: asyncio.Future[Any]
    began: float  # by ``Caller.time``
    deadline: float


class Caller:
    """Makes blocking calls for one event loop."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        self._idle: list[_Thread] = []
        self._lost = LostTime()
        self._looks = False

    async def ask(self, key: str, question: Callable[[], T], deadline: float) -> T:
        """The answer, or UnresponsiveError once this call or an earlier call for the key is overdue.

        ShortageError if the service or its node lacks something that the call needs: the device may be well. It comes
        in place of UnresponsiveError if the service could not run for all of that time.
        """
        ends = asyncio.get_running_loop().time() + deadline
        if key in self._calls:
            await self._wait_for_key(key, ends, deadline)
        # Shielded: a cancelled caller must not free the key while its thread is still in the driver.
        return cast("T", await asyncio.shield(self._begin(key, question, ends, deadline)))

    def time(self) -> float:
        """The seconds of a clock that stands still while the service cannot run, and an answer is awaited."""
        return asyncio.get_running_loop().time() - self._lost.seconds

    def could_run(self, since: float, seconds: float) -> bool:
        """Whether the service could run for this time since then, but for what is lost beside other programs."""
        return self.time() - since >= seconds - IN_PASSING

    async def _wait_for_key(self, key: str, ends: float, deadline: float) -> None:
        """Wait until no other call for the key runs."""
        began = self.time()
        try:
            async with asyncio.timeout_at(ends):
                while (earlier := self._calls.get(key)) is not None:
                    if earlier.answer.done():
                        raise self._late(
                            earlier.began, earlier.deadline, f"cannot ask {key}: an earlier call has not returned"
                        )
                    await asyncio.wait((earlier.answer,))
        except TimeoutError:
            why = f"cannot ask {key}: other calls took the whole {deadline:g} s"
            raise self._late(began, deadline, why) from None

    def _late(self, began: float, deadline: float, why: str) -> DeviceError:
        """What a late answer says: the driver does not answer, or nothing about it."""
        self._lost.look(asyncio.get_running_loop().time())
        return UnresponsiveError(why) if self.could_run(began, deadline) else ShortageError(shortage.NO_PROCESSOR)

    def _look(self) -> None:
        """Look at the time that is lost, for as long as an answer is awaited."""
        loop = asyncio.get_running_loop()
        self._looks = bool(self._calls)
        if self._looks:
            self._lost.look(loop.time())
            loop.call_later(LOOK_EVERY, self._look)

    def stuck(self) -> frozenset[str]:
        """The keys whose calls are overdue and have not returned."""
        return frozenset(key for key, call in self._calls.items() if call.answer.done())

    def _begin(self, key: str, question: Callable[[], object], ends: float, deadline: float) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        call: asyncio.Future[Any] = loop.create_future()
        # Read the error even if the caller was cancelled, or asyncio logs it as never retrieved.
        call.add_done_callback(lambda done: done.exception())
        try:
            thread = self._idle.pop() if self._idle else _Thread()
        except (RuntimeError, MemoryError) as error:
            raise shortage.judged(error)  # noqa: B904 - chained there
        if not self._looks:
            self._looks = True
            self._lost.begin(loop.time())
            loop.call_later(LOOK_EVERY, self._look)
        began = self.time()

        def overdue() -> None:
            call.set_exception(self._late(began, deadline, f"{key} did not answer within {deadline:g} s"))

        alarm = loop.call_at(ends, overdue)

        def returned(answer: object, error: BaseException | None) -> None:
            del self._calls[key]
            alarm.cancel()
            if len(self._idle) < _IDLE_THREADS:
                self._idle.append(thread)
            else:
                thread.jobs.put(None)
            if call.done():
                return
            if error is None:
                call.set_result(answer)
            else:
                call.set_exception(error)

        self._calls[key] = _Call(call, began, deadline)
        thread.jobs.put((question, lambda *outcome: loop.call_soon_threadsafe(returned, *outcome)))
        return call


async def in_turn(
    caller: Caller, key: str, questions: Mapping[str, Callable[[], T]], deadline: float
) -> dict[str, T]:  # fmt: skip
    """The answers to these questions, which one thread asks one after the other.

    A question that fails has no answer. At the deadline, the current question and all later ones have none.
    """
    answers: dict[str, T] = {}

    def ask() -> None:
        for name, question in questions.items():
            with suppress(DeviceError):
                answers[name] = question()

    if questions:
        with suppress(DeviceError):
            await caller.ask(key, ask, deadline)
    return answers.copy()  # an overdue thread still writes to ``answers``


_Job = tuple[Callable[[], object], Callable[[object, BaseException | None], object]]


class _Thread(threading.Thread):
    """Makes one call after another. A daemon thread: a stuck call does not delay the exit of the interpreter."""

    def __init__(self) -> None:
        super().__init__(name="device-call", daemon=True)
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        """Run the jobs until the queue holds None or the event loop is closed."""
        while (job := self.jobs.get()) is not None:
            question, report = job
            answer, error = _outcome(question)
            try:
                report(answer, error)
            except RuntimeError:  # the event loop is closed
                return


def _outcome(question: Callable[[], object]) -> tuple[object, BaseException | None]:
    try:
        return question(), None
    except BaseException as error:  # noqa: BLE001 -- not swallowed: the caller gets it
        return None, shortage.judged(error)


class ThreadTimes(NamedTuple):
    """What the kernel says of a thread. ``delayed`` grows at the end of a wait only."""

    waits: bool  # it can run now, and either runs or waits for a processor
    ran: int  # ns on a processor
    delayed: int  # ns of waits for a processor


def lost(seconds: float, before: Mapping[int, ThreadTimes], now: Mapping[int, ThreadTimes]) -> float:
    """How many of the seconds between two looks at the threads of this process were lost. By thread id.

    One starved thread may hold what all others wait for, so the thread that lost most counts. A look that comes late
    shows that the whole process stood still, also where the kernel says nothing about threads.
    """
    starved = max((_waited(seconds, before[each], now[each]) for each in before.keys() & now.keys()), default=0.0)
    return min(seconds, max(0.0, seconds - 2 * LOOK_EVERY) + starved)


def _waited(seconds: float, before: ThreadTimes, now: ThreadTimes) -> float:
    if before.waits and now.waits and before.ran == now.ran:
        return seconds
    return (now.delayed - before.delayed) / 1e9


def threads() -> dict[int, ThreadTimes]:
    """The threads of this process; nothing where the kernel does not say for how long they waited."""
    found, asking = {}, threading.get_native_id()
    try:
        tasks = [*_TASKS.iterdir()]
    except OSError:
        return {}
    for task in tasks:
        try:
            ran, delayed, _ = map(int, (task / "schedstat").read_text().split())
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):  # it has ended, or the kernel keeps no such account
            continue
        if ran:  # 0 also where the kernel keeps no such account
            found[int(task.name)] = ThreadTimes(state == "R" and int(task.name) != asking, ran, delayed)
    return found


class LostTime:
    """Adds up the seconds that were lost. ``look`` at least every ``LOOK_EVERY`` seconds."""

    def __init__(self, threads: Callable[[], Mapping[int, ThreadTimes]] = threads) -> None:
        """``threads``: what the kernel says of the threads of this process."""
        self.seconds = 0.0
        self._threads = threads
        self._at = 0.0
        self._before: Mapping[int, ThreadTimes] = {}

    def begin(self, now: float) -> None:
        """Begin without a look at the threads: most answers come before the first one."""
        self._at, self._before = now, {}

    def look(self, now: float) -> None:
        """Add what was lost since the last look, or since the beginning."""
        found = self._threads()
        self.seconds += lost(now - self._at, self._before, found)
        self._at, self._before = now, found
