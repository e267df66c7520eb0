"""The level-triggered loop: in each round it observes the devices, and reconciles those that need an action.

What one round misses, the next round finds. The alarm of the backend starts a round at once, and the end of an owner or
of a holder starts an observation of its device at once. A round observes most devices together. On a node with many
idle devices, only one round in several observes those.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from ground import log
from ground.errors import AutoclaveError, LedgerUnavailable
from scrubber.core.model import Facts, Moment, State
from scrubber.core.record import Record
from scrubber.devices.base import DeviceError
from scrubber.observe.observed_since import OBSERVED_WITHIN
from scrubber.observe.observer import Observer
from scrubber.observe.owner_ends import Ends
from scrubber.service.service import Service

logger = log.get("monitor")

STAGGER = 0.004  # seconds between the starts of two observations, so that a request waits behind few of them
ALARM_PAUSE, MAX_ALARM_PAUSE = 0.05, 0.4  # shortest and longest pause in seconds before a round that an alarm starts
MAX_END_PAUSE = 2.0  # longest pause in seconds while a device's processes keep ending and its state stays the same
CONCURRENT = 8  # devices observed at the same time, so that a request waits behind few of them
QUIET_STATES = frozenset({State.CLEAN, State.QUARANTINED})  # in other states a holder may end, or a scrub may be due


class Monitor:
    """Observes the devices in rounds. Requests do not wait for a round: they observe their devices themselves."""

    def __init__(
        self,
        service: Service,
        observer: Observer,
        interval: float = 1.0,
        ends: Ends | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """``interval`` is the pause between two rounds, in seconds.

        ``ends`` names the devices whose owner or holder has ended: ``OwnerContainers`` has it watch them.
        ``on_failure`` is called after each failed observation or action.
        """
        self._on_failure = on_failure
        self._context = service.context
        self._upkeep = service.upkeep
        self._observer = observer
        self._interval = interval
        self._ends = ends
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._logged_failure = ""
        # Devices that are reconciled because a process ended. True: another process has ended since.
        self._process_ended: dict[str, bool] = {}
        self._end_pauses: dict[str, float] = {}  # seconds before the next of these observations
        self._quiet: dict[str, Record] = {}  # devices that needed nothing, with their records
        self._quiet_observed = 0.0  # when the quiet devices were last observed together
        self._inventory_due = 0.0
        self.ended: Moment | None = None  # the end of the last round

    async def run(self, alarm: int | None = None) -> None:
        """Run rounds until cancelled.

        A failed round is logged once for each cause, and tried again. ``alarm`` is a descriptor of the backend: when it
        is readable, the next round starts at once.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rounds(alarm))
            if self._ends is not None:
                tasks.create_task(self._reconcile_at_ends(self._ends))

    async def round(self, stagger: float = 0.0) -> None:
        """Observe the devices and reconcile those that need an action.

        A device that fails does not delay the others.
        """
        first = (self._context.ledger.try_again, self._upkeep.name_pods, self._observer.driver.renew_fence)
        errors = [await _attempt(work) for work in first]
        now = asyncio.get_running_loop().time()
        if now >= self._inventory_due:
            self._inventory_due = now + OBSERVED_WITHIN - self._interval / 2
            errors += [await _attempt(work) for work in (self._register_all, self._context.jobs.start_restores)]
        if any(errors):
            self._inventory_due = 0.0
        due = self._due()
        seen = await self._observer.look_at_all(due)
        unsettled = [record.device.uuid for record in due if not self._needs_nothing(record, seen)]
        results = await self._reconcile_all(unsettled, stagger)
        failures = [failure for failure in (*errors, *results) if failure is not None]
        for failure in failures:
            self._report(failure)
        if not failures:
            self._logged_failure = ""
        self.ended = self._context.now()

    async def _rounds(self, alarm: int | None) -> None:
        pause = ALARM_PAUSE
        while True:
            await self.round(STAGGER)
            if alarm is None:
                await asyncio.sleep(self._interval)
            else:
                pause = await self._wait_for_alarm(alarm, pause)

    async def _wait_for_alarm(self, alarm: int, pause: float) -> float:
        """Wait until the next round is due: after the interval or an alarm, never before ``pause``.

        Returns the next ``pause``. It grows while alarms follow each other: a pod can cause as many driver errors as
        it wants.
        """
        loop = asyncio.get_running_loop()
        earliest = loop.time() + pause
        if not await _readable(alarm, max(self._interval, pause)):
            return ALARM_PAUSE
        await asyncio.sleep(earliest - loop.time())
        self._observer.driver.backend.clear_alarm()  # before the observation: a later report raises the alarm again
        # The alarm names no device, so the next round observes all of them and reads the inventory.
        self._quiet.clear()
        self._inventory_due = 0.0
        return min(2 * pause, MAX_ALARM_PAUSE)

    async def _reconcile_at_ends(self, ends: Ends) -> None:
        """Reconcile a device as soon as its owner or holder has ended, independently of the other devices."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for device in sorted(await ends.next()):
                    if device not in self._process_ended:  # otherwise the task of this device reconciles it once more
                        tasks.create_task(self._reconcile_after_ends(device))
                    self._process_ended[device] = True

    async def _reconcile_after_ends(self, device: str) -> None:
        """Reconcile until no further process has ended.

        The pause grows while the state does not change: a pod can start and end processes as often as it wants.
        """
        while self._process_ended[device]:
            self._process_ended[device] = False
            before = self._since(device)
            for failure in await self._reconcile_all([device], STAGGER):
                self._report(failure)
            pause = self._end_pauses.get(device, 0.0)
            pause = min(max(2 * pause, ALARM_PAUSE), MAX_END_PAUSE) if before == self._since(device) else 0.0
            self._end_pauses[device] = pause
            await asyncio.sleep(pause)
        del self._process_ended[device]

    def _since(self, device: str) -> Moment | None:
        record = self._context.ledger.records.get(device)
        return record.since if record is not None else None

    async def _register_all(self) -> None:
        incarnation = await self._observer.driver.incarnation()
        for device in await self._observer.driver.inventory():
            await self._upkeep.register(device, incarnation)

    def _due(self) -> list[Record]:
        """The devices that this round observes: all of them, or all except the quiet ones.

        Only one round in several observes the quiet devices, and it observes all of them: this costs less than a part
        of them in each round.
        """
        records, now = self._context.ledger.records, asyncio.get_running_loop().time()
        quiet = {device: record for device, record in self._quiet.items() if records.get(device) is record}
        rounds = min(int(OBSERVED_WITHIN / self._interval), math.ceil(len(quiet) / CONCURRENT))
        if now < self._quiet_observed + (rounds - 0.5) * self._interval:
            return [record for device, record in records.items() if device not in quiet]
        self._quiet_observed = now
        return [*records.values()]

    def _needs_nothing(self, record: Record, seen: dict[str, Facts]) -> bool:
        facts = seen.get(record.device.uuid)
        try:
            quiet = facts is not None and self._upkeep.needs_nothing(record, facts)
        except Exception:  # noqa: BLE001 - reconcile meets the same fault, and its caller logs it
            quiet = False
        self._remember(record.device.uuid, record if quiet else None)
        return quiet

    def _remember(self, device: str, record: Record | None) -> None:
        """Remember the record of a device that needs nothing; None forgets the device."""
        if record is not None and record.state in QUIET_STATES:
            self._quiet[device] = record
        else:
            self._quiet.pop(device, None)

    async def _reconcile_all(self, devices: Sequence[str], stagger: float) -> list[BaseException]:
        """Reconcile the devices concurrently. Returns the failures."""
        work = (self._reconcile(device, number * stagger) for number, device in enumerate(devices))
        results = await asyncio.gather(*work, return_exceptions=True)
        return [failure for failure in results if failure is not None]

    async def _reconcile(self, device: str, delay: float) -> None:
        await asyncio.sleep(delay)
        async with self._slots:
            self._remember(device, await self._upkeep.reconcile(device))

    def _report(self, error: BaseException) -> None:
        """Count each failure, and log it unless it is the same as the last one."""
        self._on_failure()
        text = repr(error)
        if text == self._logged_failure:
            return
        self._logged_failure = text
        if isinstance(error, LedgerUnavailable):
            logger.error("cannot write the ledger: no device is granted until it can be written", error=str(error))
        elif isinstance(error, (AutoclaveError, DeviceError)):
            logger.warning("cannot reconcile the devices", error=str(error))
        else:
            logger.error("internal error in a round", exc_info=error)


async def _attempt(work: Callable[[], Awaitable[None]]) -> BaseException | None:
    try:
        await work()
    except (AutoclaveError, DeviceError) as error:
        return error
    return None


async def _readable(descriptor: int, within: float) -> bool:
    """Whether the descriptor is readable before ``within`` seconds have passed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        async with asyncio.timeout(within):
            return await readable.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)  # it may stay readable for long, and would wake the loop each time
