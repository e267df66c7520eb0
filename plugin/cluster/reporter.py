"""Keeps the cluster's picture of the devices true for as long as the plugin runs, and gets in nobody's way.

Three strands, each with pauses of its own: the condition, the taint, the Events. What one may not do does not hold up
the others. Of the condition and the taint only the latest state counts; Events wait in a bounded outbox. No hook of the
kubelet ever waits for anything here, and no failure leaves this room.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import structlog

from plugin.changed import Changed
from plugin.cluster import base, judging, words
from plugin.cluster.base import Failure, ObjectKind
from plugin.cluster.judging import Condition, Outlook, Verdicts
from plugin.cluster.outbox import Outbox, PendingEvent
from plugin.cluster.retry_loop import NEVER, Deed, Pace, RetryLoop
from plugin.devices import Device

logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(room="cluster")


class DeviceSource(Protocol):
    """Where the devices are known: the plugin's own list."""

    async def first(self) -> None:
        """Wait until anything is known."""

    def standing(self) -> tuple[Device, ...] | None:
        """Every device; None while nothing is believed."""

    async def moved(self, since: tuple[Device, ...] | None) -> None:
        """Wait until the devices stand otherwise."""


class ClusterReporter:
    """Tells the API server of one node."""

    def __init__(
        self, server: base.Server, node: str, *, taint: bool, pace: Pace, clock: Callable[[], float] = time.time
    ) -> None:
        """Nothing is sent before ``run``; ``clock`` is the wall's."""
        self._server = server
        self._node = node
        self._taint = taint
        self._pace = pace
        self._clock = clock
        self._bell = Changed()
        self._outbox = Outbox(lambda: f"{node[:230].rstrip('-.')}.{secrets.token_hex(8)}")
        self._verdicts: Verdicts = {}
        self._seen: tuple[Device, ...] | None = None
        self._outlook: Outlook | None = None
        self._since = 0.0
        self._known: base.ClusterNode | None = None
        self._written: Condition | None = None
        self._tainted = False

    async def run(self, source: DeviceSource) -> None:
        """Until cancelled; then a last word, within a bound."""
        bell, pace = self._bell, self._pace
        strands = [
            RetryLoop("the condition", self._condition_due, self._write_condition, bell, pace),
            RetryLoop("the taint", self._taint_due, self._write_taint, bell, pace),
            RetryLoop("Events", self._event_due, self._send_event, bell, pace),
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._guarded(lambda: self._follow(source)))
                for strand in strands:
                    tasks.create_task(self._guarded(strand.run))
        finally:
            # In a task of its own: within one that is cancelled, early releases of Python 3.11 know no timeouts.
            await asyncio.create_task(self._say_farewell())

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """A fault of ours costs the cluster its picture for a while, and the plugin nothing."""
        while True:
            try:
                await work()
            except Exception:  # told in full: nothing else holds it
                logger.exception("a fault inside the reports to the cluster")
            await asyncio.sleep(self._pace.slow)

    async def _follow(self, source: DeviceSource) -> None:
        """Judge the devices at every change, and when one has been out of use for long."""
        try:
            self._verdicts = judging.unseen(self._verdicts)  # nobody looked since a fault
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.patience):
                    await source.first()
            await self._watch(source)
        except Exception:  # whatever it is, and handed on: else each heartbeat would repeat the last verdict
            self._seen = None
            self._tell(judging.FAULT)
            raise

    async def _watch(self, source: DeviceSource) -> None:
        while True:
            self._look(source.standing())
            with suppress(TimeoutError):
                async with asyncio.timeout(judging.next_look(self._verdicts, _steady())):
                    await source.moved(self._seen)

    def _look(self, devices: tuple[Device, ...] | None) -> None:
        self._seen = devices
        if devices is None:
            self._verdicts = judging.unseen(self._verdicts)
            self._tell(judging.SILENT)
            return
        found = judging.judge(self._verdicts, devices, _steady())
        for happening in judging.happenings(self._verdicts, found):
            self._put(happening, self._clock())
        self._verdicts = found
        self._tell(judging.outlook(self._verdicts))

    def _tell(self, outlook: Outlook) -> None:
        if self._outlook is None or self._outlook.status is not outlook.status:
            self._since = self._clock()
        self._outlook = outlook
        self._bell.ring()

    def _put(self, happening: judging.NodeEvent, now: float) -> None:
        dropped = self._outbox.dropped
        self._outbox.put(happening, now)
        if self._outbox.dropped and not dropped:
            logger.warning("Events are dropped, the oldest first: too many wait for the API server")

    def _condition_due(self) -> float:
        if self._outlook is None:
            return NEVER
        return judging.due(self._written, self._outlook, self._clock(), self._pace.heartbeat)

    async def _write_condition(self) -> None:
        if self._known is None:
            node = await self._server.read()
            self._written = node.condition  # whoever wrote it: its time of transition stays true
            self._take(node)
        if self._outlook is not None and self._condition_due() <= 0:
            await self._write(self._outlook, self._since)

    async def _write(self, outlook: Outlook, since: float) -> None:
        wanted = judging.condition(self._written, outlook, since, self._clock())
        try:
            node = await self._server.put_condition(wanted)
        except Failure as failure:
            if failure.kind is ObjectKind.MISSING:
                self._known = None  # a node of that name that comes later is another one
            raise
        self._written = wanted
        self._take(node)

    def _take(self, node: base.ClusterNode) -> None:
        """What the API server says of the node: who it is, and whether somebody touched our taint."""
        if self._known is None and node.taint is not None and not self._taint:
            hint = f"kubectl taint node {self._node} {words.TAINT}-"
            logger.warning("the node bears our taint, which is not asked for: it stays", remove=hint)
        self._known, self._tainted = node, node.taint is not None
        self._bell.ring()

    def _taint_due(self) -> float:
        if not self._taint or self._known is None or self._outlook is None:
            return NEVER
        return NEVER if self._wants_taint() is self._tainted else 0.0

    def _wants_taint(self) -> bool:
        return judging.tainted(self._verdicts if self._seen is not None else None, self._tainted)

    async def _write_taint(self) -> None:
        node = await self._server.read()  # always afresh: the patch holds for the node as it was read
        self._tainted = node.taint is not None
        wanted = self._wants_taint()
        if wanted is self._tainted:
            return
        await (self._server.put_taint(node) if wanted else self._server.drop_taint(node))
        self._tainted = wanted
        log = logger.warning if wanted else logger.info
        log("the node is tainted" if wanted else "the node is not tainted any more", taint=words.TAINT)

    def _event_due(self) -> float:
        return NEVER if self._outbox.first() is None else 0.0

    async def _send_event(self) -> None:
        letter = self._outbox.first()
        if letter is None:
            return
        try:
            known = await self._post(letter) or await self._bump(letter)
        except Failure as failure:
            if failure.kind is not ObjectKind.REFUSED:
                raise
            logger.warning("an Event is dropped: the API server will not take it", error=failure.message)
            known = True
        if not known:
            self._outbox.lost(letter)
            return
        self._outbox.sent(letter)
        if self._outbox.dropped and not self._outbox.waiting():
            logger.warning("Events were dropped while the API server was away", dropped=self._outbox.dropped)
            self._outbox.dropped = 0

    async def _post(self, letter: PendingEvent) -> bool:
        """Whether the API server was told all: not of an Event that it knows, also by an answer that was lost."""
        if letter.told:
            return False
        try:
            await self._server.post(letter, self._known.uid if self._known is not None else "")
        except Failure as failure:
            if failure.kind is ObjectKind.STALE:
                return False
            raise
        return True

    async def _bump(self, letter: PendingEvent) -> bool:
        """Whether the API server still knew the Event: it keeps them for an hour."""
        try:
            await self._server.bump(letter)
        except Failure as failure:
            if failure.kind is ObjectKind.MISSING:
                return False
            raise
        return True

    async def _say_farewell(self) -> None:
        """Nobody looks any more, says the condition; then the last Events go out, as far as there is time."""
        end = _steady() + self._pace.farewell
        await self._say_last("the condition", self._write_end, end)  # first: left as it is, it would mislead for ever
        await self._say_last("Events", self._empty_outbox, end)
        try:
            async with asyncio.timeout_at(end):
                await self._server.close()
        except Exception as error:  # noqa: BLE001 - the process ends, and its connections with it
            logger.warning("cannot close the connection to the API server", error=str(error) or "no time left")

    async def _say_last(self, about: str, deed: Deed, end: float) -> None:
        """What comes to nothing here costs the next word nothing but time."""
        try:
            async with asyncio.timeout_at(end):
                await deed()
        except (Failure, TimeoutError) as error:
            why, untold = str(error) or "no time left", self._outbox.waiting() + self._outbox.dropped
            logger.warning("the cluster was not told of the end", about=about, error=why, events_untold=untold)
        except Exception:  # told in full: the end of the plugin must not become a failure
            logger.exception("a fault inside the reports to the cluster")

    async def _write_end(self) -> None:
        if self._known is not None:
            await self._write(judging.STOPPED, self._clock())

    async def _empty_outbox(self) -> None:
        while self._outbox.waiting():
            await self._send_event()


def _steady() -> float:
    return asyncio.get_running_loop().time()
