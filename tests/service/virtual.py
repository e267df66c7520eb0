"""An event loop with virtual time: time stands still while anything can run, and jumps when nothing can.

Work for threads runs on the loop at a later turn: the same calls give the same history every time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")
TICK = 1e-6


class KilledError(BaseException):
    """SIGKILL: no handler of errors may see it as one."""


def is_kill(error: BaseException | None) -> bool:
    """Whether the pretended SIGKILL is all that it is; tasks that ran beside each other make a group of it."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_kill, error.exceptions))
    return isinstance(error, KilledError)


class StuckError(AssertionError):
    """Somebody waits for what will never happen."""


class _Selector(selectors.DefaultSelector):
    """Passes the time instead of waiting for it."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:  # something can be done as it is: the kernel is asked when nothing can
            return []
        ready = super().select(0)
        if not ready:
            self.loop.pass_time(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """``advance`` runs it for some virtual seconds; ``run_until_complete`` takes as many as are needed."""

    def __init__(self) -> None:
        """Time begins at zero."""
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._now = 0.0
        self._until: float | None = None
        self.complaints: list[str] = []  # what tasks died of without anybody asking
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        """Seconds since the loop was made, by its own reckoning."""
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Any wait takes a microsecond at least, or a wait for less than a float can hold would never be over."""
        return super().call_at(max(when, self._now + TICK), callback, *args, context=context)

    def advance(self, seconds: float) -> None:
        """Everything that happens within these seconds, the last instant included; the caller is not on the loop."""
        self._until = self._now + seconds
        try:
            self.run_forever()
        finally:
            self._until = None

    def pass_time(self, timeout: float | None) -> None:
        """Nothing can be done before ``timeout``: go there, or to where ``advance`` ends."""
        then = None if timeout is None else self._now + timeout
        if self._until is not None and (then is None or then > self._until):
            self._now = self._until
            self.stop()
        elif then is None:
            raise StuckError("nothing will ever happen on this loop again")
        else:
            self._now = then

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not is_kill(error):
            self.complaints.append(f"{context['message']}: {error!r}")

    def run_in_executor(self, _executor: object, func: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Done at the next turn, whether or not anybody still waits for it: as a thread would."""
        answer: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - raised at the caller, like that of a thread
                if not answer.cancelled():
                    answer.set_exception(error)
            else:
                if not answer.cancelled():
                    answer.set_result(result)

        self.call_soon(work)
        return answer
