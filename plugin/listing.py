"""The device lists for the kubelet, which follow the scrub service's list as long as this process runs.

Rules that the kubelet requires:

* A device that was listed once stays in the list: the kubelet fails if a device vanishes while it allocates the
  device. A device that the service no longer lists is unhealthy. A device that was replaced before this process
  started, such as a MIG device of an older layout, is never listed.
* Every list is complete, and each ListAndWatch stream gets all lists: a second stream does not take lists from the
  first.

Rules that safety requires:

* If the service does not answer, the last list stays valid for as long as the service has said. Then every device is
  unhealthy until the service answers again.
* An open ``Watch`` stream does not prove that the service lives: after a while without a message, the plugin opens a
  new one. Its first message is the service's present list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

from ground import log
from ground.aio import Changed
from ground.errors import AutoclaveError, Reason, Unreachable
from plugin.devices import Device, SelectDevices
from scrub_api import client
from scrub_api.device_messages import ReportedDevice, ReportedDevices

logger = log.get("listing")

ASKED_AGAIN_AFTER = 4.0  # seconds without a message; the service sends its list every 2 s, changed or not
ANSWERS_WITHIN = 2.0  # seconds: a running service answers within milliseconds
PAUSES = wait_exponential(multiplier=0.05, max=0.5)  # seconds between two attempts to reach the service

A = TypeVar("A")
Shown = tuple[Device, ...]


@dataclass(eq=False, slots=True)
class _Stream:
    """One reader of a resource's list, and the last list that was sent to it."""

    resource: str
    sent: Shown | None = None


class Listing:
    """The lists of all resources."""

    def __init__(self, scrubber: client.ScrubberClient, select: SelectDevices) -> None:
        """``select`` says which of the service's devices are listed, and under which resource."""
        self._scrubber = scrubber
        self._select = select
        self._stored: tuple[ReportedDevice, ...] | None = None  # the service's last list
        self._known: dict[tuple[str, str], Device] = {}
        self._shown: dict[str, Shown] = {}
        self._silence = 0.0
        self.checkpoint = ""  # of the service's ledger, the newest signed one
        self._expired = False
        self._distrusts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._message_timeout: asyncio.Timeout | None = None
        self._changed = Changed()
        self._streams: set[_Stream] = set()
        self._warned = ""

    def resources(self) -> frozenset[str]:
        """Every resource that has, or had, a device."""
        return frozenset(resource for resource, _ in self._known)

    def shown(self, resource: str) -> Shown:
        """The list of a resource as the kubelet should see it now, in the order of the node."""
        if resource not in self._shown:  # cached until the next change: every call of the kubelet reads it
            devices = [device for (name, _), device in self._known.items() if name == resource]
            devices.sort(key=lambda device: (device.index, device.uuid))
            if self._expired:
                devices = [replace(device, healthy=False, clean=False) for device in devices]
            self._shown[resource] = tuple(devices)
        return self._shown[resource]

    async def until_known(self) -> None:
        """Wait for the first list of the service."""
        await self._changed.until(lambda: self._stored is not None)

    async def new_resources(self, known: AbstractSet[str]) -> frozenset[str]:
        """Wait until there are resources that are not among the known ones, and return them."""
        await self._changed.until(lambda: bool(self.resources() - known))
        return self.resources() - known

    def current(self) -> Shown | None:
        """Every device of every resource; None while the service's list is not valid."""
        return tuple(self._known.values()) if self._stored is not None and not self._expired else None

    def on_node(self) -> tuple[ReportedDevice, ...]:
        """Every device in the service's last list, offered or not."""
        return self._stored or ()

    def silence_reason(self) -> str:
        """Why the service's list is not valid; empty while it is valid."""
        return "" if self.current() is not None else self._warned or "it has not answered"

    def is_followed(self, resource: str) -> bool:
        """Whether a client, usually the kubelet, has a stream of this resource's list open."""
        return bool(self._streams_of(resource))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition is true. Each change of the lists is a reason to check it."""
        await self._changed.until(holds)

    async def until_differs(self, before: Shown | None) -> None:
        """Wait until ``current`` returns something else."""
        await self._changed.until(lambda: self.current() != before)

    async def changes(self, resource: str) -> AsyncGenerator[Shown, None]:
        """The list now and after each change. A list counts as sent when the caller asks for the next one."""
        stream = _Stream(resource)
        self._streams.add(stream)
        try:
            while True:
                await self._changed.until(
                    lambda: stream.sent is None or _kubelets_part(stream.sent) != _kubelets_part(self.shown(resource))
                )
                now = self.shown(resource)
                yield now
                stream.sent = now
                self._changed.notify()
        finally:
            self._streams.discard(stream)

    async def until_unhealthy(self, resource: str, ids: Collection[str], within: float) -> bool:
        """Wait until every open stream has sent a list in which one of these devices is unhealthy."""
        return await self._until_sent(
            resource, lambda sent: any(device.uuid in ids and not device.healthy for device in sent), within
        )

    async def until_healthy(self, resource: str, ids: Collection[str], within: float) -> bool:
        """Wait until every open stream has sent a list in which all these devices are healthy."""
        return await self._until_sent(
            resource, lambda sent: all(device.healthy for device in sent if device.uuid in ids), within
        )

    async def _until_sent(self, resource: str, wanted: Callable[[Shown], bool], within: float) -> bool:
        try:
            async with asyncio.timeout(within):
                await self._changed.until(
                    lambda: all(wanted(stream.sent or ()) for stream in self._streams_of(resource))
                )
        except TimeoutError:
            return False
        return True

    def distrust(self) -> None:
        """Make every device unhealthy until the service answers on a new stream: it did not answer a request."""
        self._distrusts += 1
        self._expire()
        if self._message_timeout is not None and not self._message_timeout.expired():
            self._message_timeout.reschedule(asyncio.get_running_loop().time())

    def begin_with(self, reported: ReportedDevices) -> None:
        """Show the list that an earlier service left, until the service answers or that list expires.

        This is done only if the fence holds all containers until the proof: otherwise the service must answer first.
        """
        if reported.devices and all(device.waits for device in reported.devices):
            logger.info("showing the last list of the service", valid_seconds=round(reported.silence_seconds, 1))
            self._silence = reported.silence_seconds
            self._store(reported.devices)
            self._expire_after(self._silence)

    async def follow(self) -> None:
        """Keep the lists up to date until cancelled, even while the service does not answer."""
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(AutoclaveError), wait=PAUSES, before_sleep=self._failed_attempt
        )
        while True:
            await attempts(self._follow_one_stream)
            self._warned = ""

    async def _follow_one_stream(self) -> None:
        """Read lists until no message arrives for a while: then a new stream is needed."""
        distrusts = self._distrusts
        self._expire_after(max(self._silence, ANSWERS_WITHIN))
        async with aclosing(self._scrubber.watch()) as lists:
            reported = await self._next(lists, ANSWERS_WITHIN)
            if reported is None:
                raise Unreachable("the scrub service does not send its list of devices", reason=Reason.TIMED_OUT)
            while reported is not None:
                self._silence, self.checkpoint = reported.silence_seconds, reported.checkpoint
                self._store(reported.devices)
                if distrusts != self._distrusts:
                    return  # this list is older than the request that was not answered: it proves nothing
                self._trust()
                reported = await self._next(lists, ASKED_AGAIN_AFTER)
                self._warned = ""  # the stream worked for a while: log its end, even if the cause was logged before

    async def _next(self, lists: AsyncIterator[A], within: float) -> A | None:
        """The next list; None if none arrives in time, or if ``distrust`` was called."""
        try:
            async with asyncio.timeout(within) as self._message_timeout:
                return await anext(lists)
        except TimeoutError:
            return None
        except StopAsyncIteration:
            raise Unreachable("the scrub service ended the list of devices") from None
        finally:
            self._message_timeout = None

    def _store(self, reported: tuple[ReportedDevice, ...]) -> None:
        """Keep the devices of this list. Devices of earlier lists stay known, as unhealthy."""
        if reported == self._stored:
            return  # a sign of life of the service
        first, self._stored = self._stored is None, reported
        self.offer_again()
        if first:
            logger.info("devices known", resources=sorted(self.resources()), devices=len(self._known))

    def offer_again(self) -> None:
        """Show what is offered now, after a change of the service's list or of the offer."""
        if self._stored is None:
            return
        listed: dict[tuple[str, str], Device] = {}
        for device in self._select(self._stored):
            key = device.resource, device.uuid
            # A device that was replaced before this process started would be listed for ever.
            if not device.replaced or key in self._known:
                listed[key] = device
        before = {
            key: listed[key] if key in listed else replace(device, healthy=False, clean=False, gone=True)
            for key, device in self._known.items()
        }
        self._known = before | listed
        self._lists_changed()

    def _trust(self) -> None:
        """The service has just sent a list."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expired:
            self._expired = False
            logger.info("the scrub service answers again")
            self._lists_changed()

    def _expire_after(self, seconds: float) -> None:
        """Let the last list expire after this time, unless it expires earlier."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._expire)

    def _expire(self) -> None:
        if self._expired or self._stored is None:
            return
        self._expired = True
        logger.error("every device is unhealthy: the scrub service does not answer")
        self._lists_changed()

    def _failed_attempt(self, attempt: RetryCallState) -> None:
        """Let the last list expire in time, and log each cause once, not each attempt."""
        self._expire_after(self._silence)
        error = attempt.outcome and attempt.outcome.exception()
        if isinstance(error, AutoclaveError) and str(error) != self._warned:
            self._warned = str(error)
            event = "the scrub service does not answer" if self._stored is not None else "waiting for the scrub service"
            logger.warning(event, reason=error.reason.value, error=str(error))

    def _lists_changed(self) -> None:
        self._shown.clear()
        self._changed.notify()

    def _streams_of(self, resource: str) -> list[_Stream]:
        return [stream for stream in self._streams if stream.resource == resource]


def _kubelets_part(shown: Shown) -> list[tuple[str, bool, int | None, bytes]]:
    """The fields that the kubelet sees: a change of any other field sends no list."""
    return [(device.uuid, device.healthy, device.numa_node, device.entry) for device in shown]
