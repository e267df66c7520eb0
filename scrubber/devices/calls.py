"""Questions to hardware that may never be answered, asked off the event loop and with a deadline.

A thread that is stuck in a driver cannot be ended, only left behind. So every key (a device, usually) has at most one
call under way: once that call is overdue, everyone who asks for the key is told at once, until it returns after all.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast

from scrubber.devices.base import DeviceError

T = TypeVar("T")

_IDLE_THREADS = 4  # how many are kept for the next call; more are made whenever more are needed


class UnresponsiveError(DeviceError):
    """The driver did not answer in time: nothing is known of the device."""


class Caller:
    """Asks blocking questions for one event loop."""

    def __init__(self) -> None:
        """Start no thread before the first question."""
        # A call stays here until its thread returns. A future that is done before that was given up: it is stuck.
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._idle: list[_Thread] = []

    async def ask(self, key: str, question: Callable[[], T], deadline: float) -> T:
        """The answer, or UnresponsiveError as soon as it is late or an earlier call for this key already is."""
        ends = asyncio.get_running_loop().time() + deadline
        if key in self._calls:
            await self._turn(key, ends, deadline)
        # Shielded: a cancelled asker must not free the key while its thread is still in the driver.
        return cast("T", await asyncio.shield(self._begin(key, question, ends, deadline)))

    async def _turn(self, key: str, ends: float, deadline: float) -> None:
        """Wait until nobody else asks for the key."""
        try:
            async with asyncio.timeout_at(ends):
                while (earlier := self._calls.get(key)) is not None:
                    if earlier.done():
                        raise UnresponsiveError(f"cannot ask {key}: an earlier call has not returned")
                    await asyncio.wait((earlier,))
        except TimeoutError:
            raise UnresponsiveError(f"cannot ask {key}: no turn within {deadline:g} s") from None

    def stuck(self) -> frozenset[str]:
        """The keys whose calls are overdue and have not returned."""
        return frozenset(key for key, call in self._calls.items() if call.done())

    def _begin(self, key: str, question: Callable[[], object], ends: float, deadline: float) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        call: asyncio.Future[Any] = loop.create_future()
        # If the asker is gone, nobody else will look at the error; that is no leak worth a log line.
        call.add_done_callback(lambda done: done.exception())
        alarm = loop.call_at(ends, _give_up, call, UnresponsiveError(f"{key} did not answer within {deadline:g} s"))
        thread = self._idle.pop() if self._idle else _Thread()

        def returned(answer: object, error: BaseException | None) -> None:
            del self._calls[key]
            alarm.cancel()
            self._keep(thread)
            if call.done():
                return
            if error is None:
                call.set_result(answer)
            else:
                call.set_exception(error)

        self._calls[key] = call
        thread.jobs.put((question, lambda *outcome: loop.call_soon_threadsafe(returned, *outcome)))
        return call

    def _keep(self, thread: _Thread) -> None:
        if len(self._idle) < _IDLE_THREADS:
            self._idle.append(thread)
        else:
            thread.jobs.put(None)


async def in_turn(
    caller: Caller, key: str, questions: Mapping[str, Callable[[], T]], deadline: float
) -> dict[str, T]:  # fmt: skip
    """The answers to all of these questions, which one thread asks one after the other.

    A question that fails has none; nor have one that is not answered before the deadline, and all behind it.
    """
    found: dict[str, T] = {}

    def ask() -> None:
        for name, question in questions.items():
            with suppress(DeviceError):
                found[name] = question()

    if questions:
        with suppress(UnresponsiveError):
            await caller.ask(key, ask, deadline)
    return found.copy()  # a thread that is late goes on


def _give_up(call: asyncio.Future[Any], error: UnresponsiveError) -> None:
    call.set_exception(error)


_Job = tuple[Callable[[], object], Callable[[object, BaseException | None], object]]


class _Thread(threading.Thread):
    """Does one call after another. A daemon: the interpreter does not wait for it at exit, stuck or not."""

    def __init__(self) -> None:
        """Run at once."""
        super().__init__(name="device-call", daemon=True)
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        """Work until told to end, or until nobody is left to tell."""
        while (job := self.jobs.get()) is not None:
            question, tell = job
            answer, error = _outcome(question)
            try:
                tell(answer, error)
            except RuntimeError:  # the event loop has closed meanwhile
                return


def _outcome(question: Callable[[], object]) -> tuple[object, BaseException | None]:
    try:
        return question(), None
    except BaseException as error:  # noqa: BLE001 -- not swallowed: handed to whoever asked
        return None, error
