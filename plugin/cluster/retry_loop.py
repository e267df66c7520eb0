"""One kind of report to the cluster: written when it is due, and retried after a pause that fits the failure.

A pause always runs to its end: the next attempt reports the state at that time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from ground import log
from ground.aio import Changed

logger = log.get("cluster")


class FailureKind(Enum):
    """Why a call failed, which decides when the next attempt follows."""

    AWAY = "away"  # no valid answer: retried soon, with growing pauses
    BUSY = "busy"  # the API server says when to retry
    STALE = "stale"  # another client changed the object meanwhile, or it exists already
    FORBIDDEN = "forbidden"  # an operator has to change rights or credentials: retried after long pauses
    MISSING = "missing"  # the object does not exist
    REFUSED = "refused"  # the API server refuses the object: a retry does not help


class Failure(Exception):
    """A call that failed, with a message for the log."""

    def __init__(self, kind: FailureKind, message: str, retry_after: float | None = None) -> None:
        """``retry_after`` is the pause that the API server asks for, in seconds."""
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after


NEVER = float("inf")
_RETRIED_SLOWLY = {FailureKind.FORBIDDEN, FailureKind.MISSING, FailureKind.REFUSED}  # an operator has to change these

Action = Callable[[], Awaitable[None]]
Due = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long, in seconds."""

    heartbeat: float = 300.0  # the condition is written again, changed or not
    spread: float = 0.0  # the first report follows within so long, by chance: all nodes may start at once
    spacing: float = 0.5  # between two reports of a loop: faster changes are one report
    first: float = 0.5  # the shortest pause after a failure
    longest: float = 60.0  # the longest one; all are random, so that a fleet does not retry at once
    slow: float = 300.0  # while an operator has to act; also the longest pause that the API server may ask for
    first_list_within: float = 30.0  # to wait for the first list of the scrub service
    stop_within: float = 2.0  # for the last reports


class RetryLoop:
    """Runs one action whenever it is due."""

    def __init__(self, about: str, due: Due, action: Action, changed: Changed, pace: Pace) -> None:
        """``about``: what is sent, for the log.

        ``due`` returns the seconds until the action is due; it may change with every notification of ``changed``.
        """
        self._about = about
        self._due = due
        self._action = action
        self._changed = changed
        self._pace = pace
        self._growing = wait_random_exponential(multiplier=pace.first * 2, max=pace.longest, min=pace.first)
        self._warned = ""

    async def run(self) -> None:
        """Run until cancelled."""
        await asyncio.sleep(random.uniform(0, self._pace.spread))  # noqa: S311 - jitter
        attempts = AsyncRetrying(retry=retry_if_exception_type(Failure), wait=self._pause, before_sleep=self._warn)
        while True:
            while (left := self._due()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if left == NEVER else left):
                        await self._changed.until(lambda: self._due() <= 0)
            await attempts(self._act)
            if self._warned:
                self._warned = ""
                logger.info("sending again", about=self._about)
            await asyncio.sleep(self._pace.spacing)

    async def _act(self) -> None:
        if self._due() <= 0:  # a change during the pause may have made it unnecessary
            await self._action()

    def _pause(self, state: RetryCallState) -> float:
        """The pause that the API server asks for, within limits, and at least the growing pause."""
        failure = _failure(state)
        if failure.kind in _RETRIED_SLOWLY:
            return self._pace.slow * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        growing: float = self._growing(state)
        if failure.retry_after is None:
            return growing
        asked = min(failure.retry_after, self._pace.slow) + random.uniform(0, self._pace.first)  # noqa: S311 - jitter
        return max(asked, growing)

    def _warn(self, state: RetryCallState) -> None:
        """Log each cause once, not each attempt; a cause that an operator has to change is an error."""
        failure = _failure(state)
        if failure.message == self._warned:
            return
        self._warned = failure.message
        log = logger.error if failure.kind in _RETRIED_SLOWLY else logger.warning
        log("cannot send", about=self._about, reason=failure.kind.value, error=failure.message)


async def guarded(work: Action, pace: Pace) -> None:
    """Run the work again after a fault. A fault delays the reports and does not stop the plugin."""
    while True:
        try:
            await work()
        except Exception:  # logged with its traceback: nothing else records it
            logger.exception("a fault inside what is sent")
        await asyncio.sleep(pace.slow)


def _failure(state: RetryCallState) -> Failure:
    """The failure of the attempt: only a Failure is retried."""
    error = state.outcome.exception() if state.outcome is not None else None
    return error if isinstance(error, Failure) else Failure(FailureKind.AWAY, str(error))
