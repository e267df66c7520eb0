"""Asks the simulated driver on the event loop, with the deadlines of ``scrubber.devices.calls.Caller``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from scrubber.devices.calls import UnresponsiveError
from tests.service.node import HungError

T = TypeVar("T")
LOOK_AGAIN = 0.25  # how soon a call that hung returns after its cause was healed


class PretendCaller:
    """One call a key at a time. Answers take some turns of the loop, never the same number, so that things cross."""

    def __init__(self, chance: random.Random) -> None:
        """``chance`` decides how many turns."""
        self._chance = chance
        self._under_way: dict[str, asyncio.Task[object]] = {}

    async def ask(self, key: str, question: Callable[[], T], deadline: float) -> T:
        """The answer, or UnresponsiveError when it is late."""
        ends = asyncio.get_running_loop().time() + deadline
        while (earlier := self._under_way.get(key)) is not None and not earlier.done():
            if earlier.get_name() == "overdue":
                raise UnresponsiveError(f"cannot ask {key}: an earlier call has not returned")
            await asyncio.wait({earlier}, timeout=max(0.0, ends - asyncio.get_running_loop().time()))
            if not earlier.done():
                raise UnresponsiveError(f"cannot ask {key}: other calls took the whole {deadline:g} s")
        call = asyncio.create_task(self._answer(question))
        call.add_done_callback(lambda it: it.cancelled() or it.exception())  # its asker may be gone
        self._under_way[key] = call
        await asyncio.wait({call}, timeout=ends - asyncio.get_running_loop().time())
        if not call.done():
            call.set_name("overdue")
            raise UnresponsiveError(f"{key} did not answer within {deadline:g} s")
        return call.result()

    async def _answer(self, question: Callable[[], T]) -> T:
        await self._slots()
        while True:
            try:
                answer = question()
            except HungError:
                await asyncio.sleep(LOOK_AGAIN)
                continue
            await self._slots()
            return answer

    async def _slots(self) -> None:
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
