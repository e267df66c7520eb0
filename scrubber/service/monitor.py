"""The level-triggered loop: compares what is seen with what the ledger says, and asks the service.

Rounds are the safety net. What has just been heard of a device, or who has just left it, calls for a look at once.
Most devices need nothing most of the time: they are asked all together, and where they are many, in turn.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

from scrubber.core.model import Facts, Moment, Record, State
from scrubber.devices.base import DeviceError
from scrubber.ground import log
from scrubber.ground.errors import AutoclaveError, LedgerUnavailable
from scrubber.node.process_ends import ProcessEnds
from scrubber.observe.observer import Observer
from scrubber.service.service import Service

logger = log.get("monitor")

PACE = 0.004  # seconds between the beginnings of two looks: whoever asks a hook meanwhile gets in between
BREATH, LONGEST_BREATH = 0.05, 0.4  # seconds at least between a round and the next that an alarm calls for
LONGEST_PAUSE = 2.0  # seconds at most between two looks that an end calls for and that change nothing
AT_ONCE = 8  # devices looked after at the same time: more, and whoever asks a hook waits behind all of them
RESTS = 5.0  # seconds at most between two looks at a device that was at rest; with no more than AT_ONCE, every round
RESTING = frozenset({State.CLEAN, State.QUARANTINED})  # in other states somebody is there, or a deed is due soon


class Monitor:
    """One round a second is enough: hooks look for themselves, this is for what nobody asks about."""

    def __init__(
        self,
        service: Service,
        observer: Observer,
        interval: float = 1.0,
        ends: ProcessEnds | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """``interval`` is the pause between two rounds; ``ends`` names devices that somebody has just left.

        ``failed`` is told of each look that came to nothing.
        """
        self._failed = failed
        self._service = service
        self._observer = observer
        self._interval = interval
        self._ends = ends
        self._few = asyncio.Semaphore(AT_ONCE)
        self._complaint = ""
        self._left: dict[str, bool] = {}  # devices that are looked after, and whether somebody has left since
        self._pauses: dict[str, float] = {}  # before the next of these looks
        self._resting: dict[str, Record] = {}  # as they were at the last look; the oldest look first
        self._meets = 0.0  # when the inventory is due
        self.ended: Moment | None = None  # the last round

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
        loop = asyncio.get_running_loop()
        rested = loop.time() + breath
        if not await _readable(alarm, max(self._interval, breath)):
            return BREATH
        await asyncio.sleep(rested - loop.time())
        self._observer.backend.clear_alarm()  # before we look: what comes later rings again
        self._wake()
        return min(2 * breath, LONGEST_BREATH)

    async def _departures(self, ends: ProcessEnds) -> None:
        """Look after a device as soon as somebody has left it, whatever becomes of the looks at others."""
        async with asyncio.TaskGroup() as looks:
            while True:
                for device in sorted(await ends.next()):
                    if device not in self._left:  # else whoever looks after it looks once more
                        looks.create_task(self._look_after(device))
                    self._left[device] = True

    async def _look_after(self, device: str) -> None:
        """Until nobody has left it since the last look.

        Whose processes come and go for no change, as a tenant may choose, gets looks at a slower pace.
        """
        while self._left[device]:
            self._left[device] = False
            before = self._since(device)
            for failure in await self._tend_all([device], PACE):
                self._complain(failure)
            pause = self._pauses.get(device, 0.0)
            pause = min(max(2 * pause, BREATH), LONGEST_PAUSE) if before == self._since(device) else 0.0
            self._pauses[device] = pause
            await asyncio.sleep(pause)
        del self._left[device]

    def _since(self, device: str) -> Moment | None:
        record = self._service.ledger.records.get(device)
        return record.since if record is not None else None

    async def round(self, pace: float = 0.0) -> None:
        """Meet every device, then tend those that need it; what fails for one, or hangs, keeps no other waiting."""
        attempts = [await _attempt(chore) for chore in (self._service.try_ledger, *self._chores())]
        if any(attempts):
            self._meets = 0.0
        due = self._due()
        seen = await self._observer.quick_all(due)
        restless = [record.device.uuid for record in due if not self._at_rest(record, seen.get(record.device.uuid))]
        results = await self._tend_all(restless, pace)
        failures = [failure for failure in (*attempts, *results) if failure is not None]
        for failure in failures:
            self._complain(failure)
        if not failures:
            self._complaint = ""
        self.ended = self._service.now()

    def _wake(self) -> None:
        """Something was heard, of whichever device: none is at rest any more."""
        self._resting.clear()
        self._meets = 0.0

    def _chores(self) -> Iterable[Callable[[], Awaitable[None]]]:
        now = asyncio.get_running_loop().time()
        if now < self._meets:
            return ()
        self._meets = now + RESTS - self._interval / 2
        return self._meet, self._service.bring_back

    def _due(self) -> list[Record]:
        """All but those at rest, and of these the ones whose last look is the oldest."""
        records = self._service.ledger.records
        self._resting = {device: record for device, record in self._resting.items() if records.get(device) is record}
        rounds = max(1, int(RESTS / self._interval))
        turn = max(AT_ONCE, math.ceil(len(self._resting) / rounds))
        spared = frozenset([*self._resting][turn:])
        return [record for device, record in records.items() if device not in spared]

    def _at_rest(self, record: Record, seen: Facts | None) -> bool:
        try:
            rests = seen is not None and self._service.at_rest(record, seen)
        except Exception:  # noqa: BLE001 - it is met again, and told, where the device is tended by itself
            rests = False
        self._note_rest(record.device.uuid, record if rests else None)
        return rests

    def _note_rest(self, device: str, record: Record | None) -> None:
        """``record`` is None where the device is not at rest."""
        self._resting.pop(device, None)  # what was looked at last stands last
        if record is not None and record.state in RESTING:
            self._resting[device] = record

    async def _tend_all(self, devices: Sequence[str], pace: float) -> list[BaseException]:
        """What failed."""
        tending = (self._tend(device, number * pace) for number, device in enumerate(devices))
        results = await asyncio.gather(*tending, return_exceptions=True)
        return [failure for failure in results if failure is not None]

    async def _tend(self, device: str, after: float) -> None:
        await asyncio.sleep(after)
        async with self._few:
            self._note_rest(device, await self._service.tend(device))

    async def _meet(self) -> None:
        incarnation = await self._observer.incarnation()
        for device in await self._observer.inventory():
            await self._service.meet(device, incarnation)

    def _complain(self, error: BaseException) -> None:
        """Say it once, not once a second."""
        self._failed()
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
