"""Observes devices by the driver's list of holders alone, if ``core.observation`` says that this is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from scrubber.core import absence
from scrubber.core.model import Holder, Incarnation, Sighting, State
from scrubber.core.observation import Known, Listed, Look, Purpose, enough
from scrubber.core.record import Record
from scrubber.devices.base import DeviceError
from scrubber.devices.blocking_calls import in_turn
from scrubber.observe.driver_calls import DriverCalls, DriverList, HealthReports
from scrubber.observe.holder_search import HolderSearch
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.owner_ends import OwnerContainers


class ByList:
    """What the driver's list says about devices."""

    def __init__(
        self,
        driver: DriverCalls,
        health: HealthReports,
        holders: HolderSearch,
        owners: OwnerContainers,
        observed_since: ObservedSince,
    ) -> None:
        """The parts are the observer's."""
        self._driver = driver
        self._health = health
        self._holders = holders
        self._owners = owners
        self._observed_since = observed_since

    async def ask(self, uuid: str) -> DriverList | None:
        """The list; None during an orphaned reset. Raises DeviceError if the device does not answer."""
        driver = self._driver
        question = partial(self._ask, uuid, driver.read_incarnation, driver.backend.has_holders)
        return await driver.caller.ask(uuid, question, driver.patience)

    async def sighting(self, record: Record, driver_list: DriverList | None, purpose: Purpose) -> Sighting | None:
        """What the list shows.

        None if it is not enough, or if it takes too long, which is not a fault of the device.
        """
        question = partial(self._sighting, record, driver_list, purpose)
        try:
            return await self._driver.caller.ask(f"list {record.device.uuid}", question, self._driver.patience)
        except DeviceError:
            return None

    async def all(self, records: Sequence[Record]) -> dict[str, Sighting]:
        """``Observer.all_for_round``, before the facts are made of it."""
        incarnation = cache(self._driver.read_incarnation)  # the same for all devices
        asked = {record.device.uuid: record for record in records if not self._health.is_late(record.device.uuid)}
        questions = {uuid: partial(self._question, record, incarnation) for uuid, record in asked.items()}
        answers = await in_turn(self._driver.caller, "quick observation", questions, self._driver.patience)
        return {uuid: seen for uuid, seen in answers.items() if seen is not None}

    # -- in a thread

    def _question(self, record: Record, read_incarnation: Callable[[], Incarnation]) -> Sighting | None:
        uuid = record.device.uuid
        if self._driver.in_orphaned_reset(uuid):
            return None
        reported, held = self._driver.backend.quick_observation(uuid)
        vitals = self._health.in_layout(reported, record.device.parent)
        if vitals.lost and absence.taken_away(record):  # it has no holder, and no pod waits for it
            return Sighting(read_incarnation(), None, vitals=vitals)
        seen = self._sighting(record, self._ask(uuid, read_incarnation, lambda _uuid: held), Purpose.ROUND)
        return seen and replace(seen, vitals=vitals)

    def _ask(
        self, uuid: str, read_incarnation: Callable[[], Incarnation], has_holders: Callable[[str], bool | None]
    ) -> DriverList | None:  # fmt: skip
        """None during an orphaned reset: the driver must not be asked then."""
        if self._driver.in_orphaned_reset(uuid):
            return None
        at, incarnation, held = self._observed_since.now().uptime, read_incarnation(), has_holders(uuid)
        pids = None
        if held is not False:
            try:
                pids = self._driver.backend.listed_holders(uuid)
            except DeviceError:
                if held is None:
                    raise
        return DriverList(at, incarnation, held, pids)

    def _sighting(self, record: Record, driver_list: DriverList | None, purpose: Purpose) -> Sighting | None:
        """What the driver's list shows, or None if it is not enough."""
        if driver_list is None:
            return None
        uuid, container = record.device.uuid, record.tenancy.container
        listed = self._holders.named(uuid, driver_list.pids) if driver_list.pids else ()
        # The process has left, or holds the memory in a way that no list shows.
        if driver_list.held and not driver_list.pids:
            listed = None
        alive = None if container is None else self._owners.has_member(container)
        # Last: it counts a use that began and ended meanwhile.
        fence = self._observed_since.fence_tells(uuid, self._driver.read_uses(uuid))
        if listed is None and driver_list.held and record.state is not State.SCRUBBING:
            self._observed_since.used(uuid, driver_list.at)  # by a process that has left, perhaps
        known = Known(record, _answer(driver_list, listed), fence, alive, self._observed_since.searched_ago(uuid))
        return (
            None
            if enough(purpose, known) is Look.SEARCH
            else Sighting(driver_list.incarnation, listed, owner_alive=alive)
        )


def _answer(driver_list: DriverList, listed: tuple[Holder, ...] | None) -> Listed:
    if listed is None:
        return Listed.NOTHING
    return Listed.HOLDER if listed else Listed.UNSURE if driver_list.held is None else Listed.NO_HOLDER
