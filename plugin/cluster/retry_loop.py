"""One thing that is told the cluster: done when it is due, and tried again after a pause that fits the failure.

A pause is never cut short: what changes meanwhile is told by the next try, which takes the state as it is then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from plugin.changed import Changed
from plugin.cluster.base import Failure, ObjectKind

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="cluster")

NEVER = float("inf")
_SLOWLY = {ObjectKind.FORBIDDEN, ObjectKind.MISSING, ObjectKind.REFUSED}  # a person has to mend these

Deed = Callable[[], Awaitable[None]]
Due = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long, in seconds."""

    heartbeat: float = 300.0  # the condition is written again, changed or not
    breath: float = 0.5  # between two words on one strand: what changes faster is told as one
    first: float = 0.5  # the shortest pause after a failure
    longest: float = 60.0  # the longest one; all are random, so that a fleet does not come back in step
    slow: float = 300.0  # where a person has to mend something; also the longest that the API server may ask for
    patience: float = 30.0  # for the first list of the scrub service
    farewell: float = 2.0  # for the last words


class RetryLoop:
    """Does one deed, for ever."""

    def __init__(self, about: str, due: Due, deed: Deed, bell: Changed, pace: Pace) -> None:
        """``due`` says in how many seconds the deed has to be done; it may change with every ring of the bell."""
        self._about = about
        self._due = due
        self._deed = deed
        self._bell = bell
        self._pace = pace
        self._growing = wait_random_exponential(multiplier=pace.first * 2, max=pace.longest, min=pace.first)
        self._warned = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._until_due()
            await self._insist()
            await asyncio.sleep(self._pace.breath)

    async def _until_due(self) -> None:
        while (left := self._due()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if left == NEVER else left):
                    await self._bell.until(lambda: self._due() <= 0)

    async def _insist(self) -> None:
        again = AsyncRetrying(retry=retry_if_exception_type(Failure), wait=self._pause, before_sleep=self._warn)
        async for attempt in again:
            with attempt:
                if self._due() <= 0:  # it may have come to nothing while we paused
                    await self._deed()
        if self._warned:
            self._warned = ""
            logger.info("reporting to the cluster again", about=self._about)

    def _pause(self, state: RetryCallState) -> float:
        """What the API server asks for is kept, within reason; who always asks for a moment is asked less often."""
        failure = _failure(state)
        if failure.kind in _SLOWLY:
            return self._pace.slow * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        growing: float = self._growing(state)
        if failure.retry_after is None:
            return growing
        asked = min(failure.retry_after, self._pace.slow) + random.uniform(0, self._pace.first)  # noqa: S311 - jitter
        return max(asked, growing)

    def _warn(self, state: RetryCallState) -> None:
        """Once for each cause, not for each try; what a person has to mend is an error."""
        failure = _failure(state)
        if failure.message == self._warned:
            return
        self._warned = failure.message
        log = logger.error if failure.kind in _SLOWLY else logger.warning
        log("cannot report to the cluster", about=self._about, reason=failure.kind.value, error=failure.message)


def _failure(state: RetryCallState) -> Failure:
    """The one that is being retried: nothing else is."""
    error = state.outcome.exception() if state.outcome is not None else None
    return error if isinstance(error, Failure) else Failure(ObjectKind.AWAY, str(error))
