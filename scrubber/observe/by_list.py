"""Observes devices by the driver's list of holders alone, and says when only a search of /proc can tell.

The list is enough for a round, and before a use where the fence proves the rest. A process that only has a device open
is not on it: a search finds such a process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from scrubber.core import fencing, presence
from scrubber.core.ailment_traits import AILMENTS, Lasts
from scrubber.core.fencing import OpenTo
from scrubber.core.model import Facts, Holder, Incarnation, State
from scrubber.core.record import Record
from scrubber.devices.base import DeviceError
from scrubber.devices.blocking_calls import in_turn
from scrubber.observe.driver_calls import DriverCalls, DriverList
from scrubber.observe.health_reports import HealthReports
from scrubber.observe.holder_search import HolderSearch
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.owner_containers import OwnerContainers

_NEWS_WITHIN = 10.0  # seconds after a search in which a round looks for nobody else who opens a device in use
_IDLE_WITHIN = 60.0  # seconds after a search in which an owner that is on no list may be idle, or hang


class ByList:
    """What the driver's list tells of devices."""

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
        """The list; None during an orphaned reset. Raises DeviceError when the device does not answer."""
        driver = self._driver
        question = partial(self._ask, uuid, driver.read_incarnation, driver.backend.has_holders)
        return await driver.caller.ask(uuid, question, driver.patience)

    async def facts(self, record: Record, said: DriverList | None) -> Facts | None:
        """Facts by the list; None if only a search can tell, or if it takes too long: no fault of the device."""
        question = partial(self._facts, record, said)
        try:
            return await self._driver.caller.ask(f"list {record.device.uuid}", question, self._driver.patience)
        except DeviceError:
            return None

    async def all(self, records: Sequence[Record]) -> dict[str, Facts]:
        """``Observer.quick_all``, without the times of the facts."""
        incarnation = cache(self._driver.read_incarnation)  # the same for all devices
        asked = {it.device.uuid: it for it in records if not self._health.is_late(it.device.uuid)}
        questions = {uuid: partial(self._question, record, incarnation) for uuid, record in asked.items()}
        answers = await in_turn(self._driver.caller, "quick observation", questions, self._driver.patience)
        return {uuid: facts for uuid, facts in answers.items() if facts is not None}

    # -- in a thread

    def _question(self, record: Record, read_incarnation: Callable[[], Incarnation]) -> Facts | None:
        uuid = record.device.uuid
        if self._driver.in_orphaned_reset(uuid):
            return None
        reported, held = self._driver.backend.quick_observation(uuid)
        vitals = self._health.in_layout(reported, record.device.parent)
        if vitals.lost and presence.taken_away(record):  # it has no holder, and no pod waits for it
            return Facts(read_incarnation(), None, vitals=vitals)
        facts = self._facts(record, self._ask(uuid, read_incarnation, lambda _uuid: held))
        return facts and replace(facts, vitals=vitals)

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

    def _facts(self, record: Record, said: DriverList | None) -> Facts | None:
        """Facts by the driver's list, or None if only a search can tell."""
        if said is None:
            return None
        uuid, container = record.device.uuid, record.tenancy.container
        listed = self._holders.named(uuid, said.pids) if said.pids else ()
        if said.held and not said.pids:  # it has left, or holds the memory in a way that no list shows
            listed = None
        alive = None if container is None else self._owners.has_member(container)
        # Last: it counts a use that began and ended meanwhile.
        self._observed_since.testified(uuid, self._driver.witness(uuid))
        if listed is None and said.held and record.state is not State.SCRUBBING:
            self._observed_since.used(uuid, said.at)  # by a process that has left, perhaps
        if listed is None or alive is False or not self._is_enough(record, said, listed, alive=alive):
            return None
        return Facts(said.incarnation, listed, owner_alive=alive)

    def _is_enough(self, record: Record, said: DriverList, listed: tuple[Holder, ...], *, alive: bool | None) -> bool:
        """Whether the list says enough for a round. What takes a device from its user, or begins a scrub, is searched.

        A search finds a process that has the device open and is on no list.
        """
        uuid, owner, since = record.device.uuid, record.tenancy.owner, self._observed_since
        news = since.has_news(uuid) and fencing.open_to(record) is not OpenTo.ALL
        match record.state:
            case State.SCRUBBING:
                return True
            case State.IN_USE:
                if news and not since.searched_within(uuid, _NEWS_WITHIN):
                    return False
                unannounced = owner is not None and owner.unannounced
                return bool(listed) or (alive is True and not unannounced and since.searched_within(uuid, _IDLE_WITHIN))
            case State.DIRTY | State.UNKNOWN:
                return bool(listed) or (said.held is not None and since.is_alone(uuid))
            case State.QUARANTINED if _is_stuck(record):
                return bool(listed)
            case State.GRANTED if record.tenancy.until_release:
                return not news and (
                    bool(listed) or (said.held is not None and since.searched_within(uuid, _IDLE_WITHIN))
                )
            case State.CLEAN | State.GRANTED | State.QUARANTINED:
                return not news and (bool(listed) or said.held is not None)


def _is_stuck(record: Record) -> bool:
    """Whether the device waits for the end of a process, which the driver may list no more."""
    present = record.health.quarantine
    return present is not None and AILMENTS[present.ailment.kind].lasts is Lasts.HELD
