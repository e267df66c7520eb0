"""The level-triggered loop: compares what is seen with what the ledger says, and asks the service.

Rounds are the safety net. What has just been heard of a device, or who has just left it, calls for a look at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from scrubber import log
from scrubber.core.model import Moment
from scrubber.devices.base import DeviceError
from scrubber.errors import AutoclaveError, LedgerUnavailable
from scrubber.node.ends import Ends
from scrubber.service import Service
from scrubber.sight import Sight

logger = log.get("monitor")

PACE = 0.004  # seconds between the beginnings of two looks: whoever asks a hook meanwhile gets in between
BREATH, LONGEST_BREATH = 0.05, 0.4  # seconds at least between a round and the next that an alarm calls for
LONGEST_PAUSE = 2.0  # seconds at most between two looks that an end calls for and that change nothing
AT_ONCE = 8  # devices looked after at the same time: more, and whoever asks a hook waits behind all of them


class Monitor:
    """One round a second is enough: hooks look for themselves, this is for what nobody asks about."""

    def __init__(self, service: Service, sight: Sight, interval: float = 1.0, ends: Ends | None = None) -> None:
        """``interval`` is the pause between two rounds; ``ends`` names devices that somebody has just left."""
        self._service = service
        self._sight = sight
        self._interval = interval
        self._ends = ends
        self._few = asyncio.Semaphore(AT_ONCE)
        self._complaint = ""

    async def run(self, alarm: int | None = None) -> None:
        """Rounds until cancelled. A round that fails is told once and tried again.

        ``alarm`` is the backend's: when it rings, the next round begins at once.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rounds(alarm))
            if self._ends is not None:
                tasks.create_task(self._departures(self._ends))

    async def _rounds(self, alarm: int | None) -> None:
        breath = BREATH
        while True:
            await self.round(PACE)
            if alarm is None:
                await asyncio.sleep(self._interval)
            else:
                breath = await self._rest(alarm, breath)

    async def _rest(self, alarm: int, breath: float) -> float:
        """Until it is time for a round, or something was heard; how long the next rest must be at least.

        Who makes a device cry out all the time, as a tenant may, gets rounds at a slower pace than who does so once.
        """
        await asyncio.sleep(breath)
        heard = await _readable(alarm, max(self._interval - breath, breath))
        if heard:
            self._sight.backend.hush()  # before we look: what comes later rings again
        return min(2 * breath, LONGEST_BREATH) if heard else BREATH

    async def _departures(self, ends: Ends) -> None:
        """Look after a device as soon as somebody has left it.

        Whose processes come and go for no change, as a tenant may choose, gets looks at a slower pace.
        """
        pause = 0.0
        while True:
            left = sorted(await ends.next())
            before = [self._since(device) for device in left]
            for failure in await self._tend_all(left, PACE):
                self._complain(failure)
            in_vain = before == [self._since(device) for device in left]
            pause = min(max(2 * pause, BREATH), LONGEST_PAUSE) if in_vain else 0.0
            await asyncio.sleep(pause)

    def _since(self, device: str) -> Moment | None:
        record = self._service.ledger.records.get(device)
        return record.since if record is not None else None

    async def round(self, pace: float = 0.0) -> None:
        """Meet every device, then tend each; what fails for one, or hangs, keeps no other waiting."""
        chores = (self._service.try_ledger, self._meet, self._service.bring_back)
        attempts = [await _attempt(chore) for chore in chores]
        results = await self._tend_all(tuple(self._service.ledger.records), pace)
        failures = [failure for failure in (*attempts, *results) if failure is not None]
        for failure in failures:
            self._complain(failure)
        if not failures:
            self._complaint = ""

    async def _tend_all(self, devices: Sequence[str], pace: float) -> list[BaseException]:
        """What failed."""
        tending = (self._tend(device, number * pace) for number, device in enumerate(devices))
        results = await asyncio.gather(*tending, return_exceptions=True)
        return [failure for failure in results if failure is not None]

    async def _tend(self, device: str, after: float) -> None:
        await asyncio.sleep(after)
        async with self._few:
            await self._service.tend(device)

    async def _meet(self) -> None:
        incarnation = await self._sight.incarnation()
        for device in await self._sight.inventory():
            await self._service.meet(device, incarnation)

    def _complain(self, error: BaseException) -> None:
        """Say it once, not once a second."""
        text = repr(error)
        if text == self._complaint:
            return
        self._complaint = text
        if isinstance(error, LedgerUnavailable):
            logger.error("cannot record what is seen; nothing is granted until this is mended", error=error.message)
        elif isinstance(error, (AutoclaveError, DeviceError)):
            logger.warning("cannot tend the devices", error=str(error))
        else:
            logger.error("fault in a round", exc_info=error)


async def _attempt(work: Callable[[], Awaitable[None]]) -> BaseException | None:
    try:
        await work()
    except (AutoclaveError, DeviceError) as error:
        return error
    return None


async def _readable(descriptor: int, within: float) -> bool:
    """Whether it can be read before that time is over. It is watched no longer: it may stay so for long."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        async with asyncio.timeout(within):
            return await readable.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
