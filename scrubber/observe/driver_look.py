"""The look at a device that is cheap: the driver's list, the fence's count, and what tells at once about the owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from scrubber.core import absence
from scrubber.core.model import Holder, Incarnation, Sighting, State
from scrubber.core.observation import Known, Listed, Look, Purpose, enough
from scrubber.core.record import Record
from scrubber.core.use_counter import UseReading
from scrubber.devices.base import DeviceError
from scrubber.devices.blocking_calls import in_turn
from scrubber.observe.driver_calls import DriverCalls, HealthReports
from scrubber.observe.holder_search import HolderSearch
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.owner_ends import OwnerContainers


class DriverList(NamedTuple):
    """What the driver said about a device."""

    at: float  # the uptime before it was asked
    reading: UseReading  # the use counter before that
    incarnation: Incarnation
    held: bool | None  # whether it knows a holder
    pids: frozenset[int] | None  # those on its list; None: it knows none
    workers: frozenset[int]  # those of the service by then

    @property
    def others(self) -> frozenset[int]:
        """Those on the list that are no workers."""
        return (self.pids or frozenset()) - self.workers


class Seen(NamedTuple):
    """What this look has seen, and what is known by it."""

    sighting: Sighting
    known: Known


class DriverLook:
    """Looks at devices by the driver's list."""

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

    async def at(self, record: Record, *, briefly: bool) -> tuple[DriverList | None, Seen | None]:
        """What the driver says, None during an orphaned reset; and what that shows.

        Raises DeviceError if the device does not answer. Nothing is shown if it takes too long to tell who it is, which
        is no fault of the device. ``briefly``: a driver that knows of no holder is not asked for its list.
        """
        driver, uuid = self._driver, record.device.uuid
        question = partial(self._ask, uuid, driver.read_incarnation, driver.backend.has_holders, briefly=briefly)
        said = await driver.caller.ask(uuid, question, driver.patience)
        if said is None or (not said.pids and record.tenancy.owner is None):  # there is nothing to read
            return said, self._at(record, said) if said is not None else None
        try:
            return said, await driver.caller.ask(f"list {uuid}", partial(self._at, record, said), driver.patience)
        except DeviceError:
            return said, None

    async def at_all(self, records: Sequence[Record]) -> dict[str, Sighting]:
        """What the list shows of the devices for which it is enough in a round, and their health.

        One thread asks about all of them. If a device hangs, it and all devices after it are missing.
        """
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
        said = self._ask(uuid, read_incarnation, lambda _uuid: held, briefly=True)
        seen = self._at(record, said) if said is not None else None
        if seen is None or enough(Purpose.ROUND, seen.known) is Look.SEARCH:
            return None
        return replace(seen.sighting, vitals=vitals)

    def _ask(
        self, uuid: str, read_incarnation: Callable[[], Incarnation], has_holders: Callable[[str], bool | None],
        *, briefly: bool,
    ) -> DriverList | None:  # fmt: skip
        """None during an orphaned reset: the driver must not be asked then."""
        if self._driver.in_orphaned_reset(uuid):
            return None
        at, workers, reading = self._observed_since.now().uptime, self._holders.workers, self._driver.read_uses(uuid)
        incarnation, held, pids = read_incarnation(), has_holders(uuid), None
        if held is not False or not briefly:
            try:
                pids = self._driver.backend.listed_holders(uuid)
            except DeviceError:
                if held is None or not briefly:
                    raise
        return DriverList(at, reading, incarnation, held, pids, workers | self._holders.workers)

    def _at(self, record: Record, said: DriverList) -> Seen:
        uuid, container, others = record.device.uuid, record.tenancy.container, said.others
        holders = self._holders.named(uuid, others) if others else ()
        if said.held and not said.pids:  # the process has left, or holds the memory in a way that no list shows
            holders = None
        if holders is None and said.held and record.state is not State.SCRUBBING:
            self._observed_since.used(uuid, said.at)  # by a process that has left, perhaps
        alive = None if container is None else self._owners.by_groups(container)
        fence = self._observed_since.fence_tells(uuid, said.reading)
        known = Known(record, _listed(record, said, holders, others), fence, alive)
        return Seen(Sighting(said.incarnation, holders, owner_alive=alive, use_reading=said.reading), known)


def _listed(
    record: Record, said: DriverList, holders: tuple[Holder, ...] | None, others: frozenset[int]
) -> Listed:  # fmt: skip
    if holders is None:
        return Listed.NOTHING
    if holders:
        return Listed.HOLDER
    if said.held is False or (record.state is State.SCRUBBING and not others):
        return Listed.NO_HOLDER
    return Listed.UNSURE if said.held is None else Listed.IGNORED
