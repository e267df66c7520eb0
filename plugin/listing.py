"""What is shown to the kubelet: the scrub service's list, followed for as long as this process lives.

Rules that the kubelet demands:

* A device that was shown once stays in the list: the kubelet falls over a device that vanishes while it is being
  allocated. What the service does not name any more is unhealthy. What was taken away before this process began, such
  as the slices of an older layout, was never shown by it.
* Every list is a full one, and each stream gets its own: a second reader takes nothing away from the first.

Rules that safety demands:

* The last list is believed for a while after the service fell silent (the service says for how long), then everything
  is unhealthy until it speaks again. Nothing is remembered beyond that: a new stream starts with the service's word.
* A stream that is open is no proof of life: a service that has said nothing for a while is asked anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from plugin import devices
from plugin.changed import Changed
from plugin.devices import GONE, LEFT, Device, MigStrategy
from scrubber.api import client
from scrubber.ground.errors import AutoclaveError, NotReady, Reason, Unreachable

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="listing")

ASKED_AGAIN_EVERY = 4.0  # seconds without a word: the service tells its list every two, changed or not
ANSWERS_WITHIN = 2.0  # seconds: a service that lives answers within milliseconds
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5  # seconds between two tries to reach a service that is away

A = TypeVar("A")
Shown = tuple[Device, ...]


@dataclass(eq=False, slots=True)
class _Stream:
    """One reader of a resource's list, and the last list that it was handed."""

    resource: str
    handed: Shown | None = None


class Listing:
    """The lists of all resources."""

    def __init__(self, scrubber: client.ScrubberClient, prefix: str, strategy: MigStrategy) -> None:
        """Nothing is known before ``follow`` runs."""
        self._scrubber = scrubber
        self._prefix = prefix
        self._strategy = strategy
        self._known: dict[tuple[str, str], Device] = {}
        self._shown: dict[str, Shown] = {}
        self._silence = 0.0
        self._doubted = False
        self._doubts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.Timeout | None = None
        self._bell = Changed()
        self._first = asyncio.Event()
        self._streams: set[_Stream] = set()
        self._warned = ""

    def resources(self) -> frozenset[str]:
        """Every resource that has, or had, a device."""
        return frozenset(resource for resource, _ in self._known)

    def shown(self, resource: str) -> Shown:
        """The list of a resource as the kubelet may see it now, in the order of the node."""
        if resource not in self._shown:  # made once a change: every hook asks
            self._shown[resource] = self._show(resource)
        return self._shown[resource]

    def _show(self, resource: str) -> Shown:
        found = [device for (name, _), device in self._known.items() if name == resource]
        found.sort(key=lambda device: (device.index, device.uuid))
        return tuple(replace(device, healthy=False, clean=False) if self._doubted else device for device in found)

    async def first(self) -> None:
        """Wait until the service has said for the first time which devices there are."""
        await self._first.wait()

    async def more(self, than: AbstractSet[str]) -> frozenset[str]:
        """Wait until there are resources that are not among these, and return them."""
        await self._bell.until(lambda: bool(self.resources() - than))
        return self.resources() - than

    def standing(self) -> Shown | None:
        """Every device of every resource as the service told of it; None while nothing is believed."""
        return tuple(self._known.values()) if self._first.is_set() and not self._doubted else None

    def silent(self) -> str:
        """Why the service's word is not believed; nothing while it is."""
        return "" if self.standing() is not None else self._warned or "it has not answered"

    def followed(self, resource: str) -> bool:
        """Whether somebody, who can only be the kubelet, has a stream of this resource's list open."""
        return bool(self._of(resource))

    async def moved(self, since: Shown | None) -> None:
        """Wait until the devices stand otherwise than they did."""
        await self._bell.until(lambda: self.standing() != since)

    async def changes(self, resource: str) -> AsyncGenerator[Shown, None]:
        """The list at once and again whenever it differs; asking for the next one says that the last one was sent."""
        stream = _Stream(resource)
        self._streams.add(stream)
        try:
            while True:
                await self._bell.until(lambda: _differ(stream.handed, self.shown(resource)))
                now = self.shown(resource)
                yield now
                stream.handed = now
                self._bell.ring()
        finally:
            self._streams.discard(stream)

    async def until_unhealthy(self, resource: str, ids: Collection[str], within: float) -> bool:
        """Wait until every open stream was handed a list with one of these as unhealthy, at most for a while."""
        try:
            async with asyncio.timeout(within):
                await self._bell.until(lambda: all(_sick(stream.handed, ids) for stream in self._of(resource)))
        except TimeoutError:
            return False
        return True

    def unanswered(self) -> None:
        """The service did not answer when a pod asked: believe nothing until it has spoken on a new stream."""
        self._doubts += 1
        self._doubt()
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def follow(self) -> None:
        """Keep the lists up to date until cancelled, whatever becomes of the service."""
        pauses = wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE)
        while True:
            async for attempt in AsyncRetrying(retry=retry_if_exception_type(AutoclaveError), wait=pauses):
                with attempt:
                    await self._follow_while_it_answers()

    async def _follow_while_it_answers(self) -> None:
        """Stream after stream; a failure after a good while counts as the first one of its kind."""
        steady = False
        while True:
            try:
                await self._follow_one_stream()
            except AutoclaveError as error:
                self._warn(error)
                self._fall_silent(self._silence)
                if steady:
                    return
                raise
            steady, self._warned = True, ""

    async def _follow_one_stream(self) -> None:
        """Take what the service says until it has said nothing for a while: then it is time to ask anew."""
        doubts = self._doubts
        self._fall_silent(max(self._silence, ANSWERS_WITHIN))
        async with aclosing(self._scrubber.watch()) as lists:
            adverts = await self._next(lists, ANSWERS_WITHIN)
            if adverts is None:
                raise NotReady(Reason.TIMED_OUT, "the scrub service does not say which devices there are")
            while adverts is not None:
                self._silence = adverts.silence_seconds
                self._take(adverts.devices)
                if doubts != self._doubts:
                    return  # said before a pod found no answer: it proves nothing
                self._believe()
                adverts = await self._next(lists, ASKED_AGAIN_EVERY)
                self._warned = ""  # it went on for a while: what ends it is told, also where that was told before

    async def _next(self, lists: AsyncIterator[A], within: float) -> A | None:
        """The next list; None when there is none in time, or when somebody demands a new stream."""
        try:
            async with asyncio.timeout(within) as self._patience:
                return await anext(lists)
        except TimeoutError:
            return None
        except StopAsyncIteration:
            raise Unreachable("the scrub service ended the list of devices") from None
        finally:
            self._patience = None

    def _take(self, adverts: Iterable[devices.OfferedDevice]) -> None:
        """Keep what is said now, and as unhealthy what was said before."""
        named = {(device.resource, device.uuid): device for device in self._offered(adverts)}
        before = {key: named[key] if key in named else _gone(device) for key, device in self._known.items()}
        self._known = before | named
        if not self._first.is_set():
            self._first.set()
            logger.info("devices known", resources=sorted(self.resources()), devices=len(self._known))
        self._changed()

    def _offered(self, adverts: Iterable[devices.OfferedDevice]) -> Iterator[Device]:
        """What the service names. What had left before we came need not be shown: it would count as there for ever."""
        for device in devices.offered(adverts, self._prefix, self._strategy):
            if device.reason not in LEFT or (device.resource, device.uuid) in self._known:
                yield device

    def _believe(self) -> None:
        """The service has just spoken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._doubted:
            self._doubted = False
            logger.info("the scrub service answers again")
            self._changed()

    def _fall_silent(self, after: float) -> None:
        """Believe the last list only for so long, unless it is doubted earlier."""
        loop = asyncio.get_running_loop()
        due = loop.time() + after
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._doubt)

    def _doubt(self) -> None:
        if self._doubted or not self._first.is_set():
            return
        self._doubted = True
        logger.error("every device is unhealthy: the scrub service does not answer")
        self._changed()

    def _warn(self, error: AutoclaveError) -> None:
        """Once for each cause, not for each try."""
        if error.message != self._warned:
            self._warned = error.message
            event = "the scrub service is away" if self._first.is_set() else "waiting for the scrub service"
            logger.warning(event, reason=error.reason.value, error=error.message)

    def _changed(self) -> None:
        self._shown.clear()
        self._bell.ring()

    def _of(self, resource: str) -> list[_Stream]:
        return [stream for stream in self._streams if stream.resource == resource]


def _gone(device: Device) -> Device:
    return replace(device, healthy=False, clean=False, reason=GONE)


def _differ(handed: Shown | None, now: Shown) -> bool:
    return handed is None or _told_of(handed) != _told_of(now)


def _told_of(shown: Shown) -> list[tuple[str, bool, int | None]]:
    """The part of a list that the kubelet can see: it is told of nothing else."""
    return [(device.uuid, device.healthy, device.numa_node) for device in shown]


def _sick(handed: Shown | None, ids: Collection[str]) -> bool:
    return handed is not None and any(device.uuid in ids and not device.healthy for device in handed)
