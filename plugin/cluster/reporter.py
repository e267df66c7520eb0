"""Sends the reports about devices (condition, Events, NVSentinel) as long as the plugin runs.

Two loops, each with its own pauses, write the condition and the Events. A failure of one loop does not delay the other.
Only the latest state of the condition is written; Events wait in a bounded outbox. No call of the kubelet waits for a
report, and no failure here stops the plugin. ``make_reporter`` decides before the plugin serves whether it reports at
all.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ground import log
from ground.aio import Changed
from ground.errors import FatalError
from plugin.cluster import credentials, node_report
from plugin.cluster.credentials import Unusable
from plugin.cluster.node_report import Condition, ConditionContent, DeviceReports, Outbox
from plugin.cluster.report_choice import NvsentinelAction, ReportChoice, Reports
from plugin.cluster.retry_loop import NEVER, Action, Failure, FailureKind, Pace, RetryLoop, guarded
from plugin.listing import Listing, Shown

if TYPE_CHECKING:
    from plugin.cluster.apiserver import ApiServer, ClusterNode
    from plugin.cluster.nvsentinel import HealthEvents

logger = log.get("cluster")

CALL_WITHIN = 5.0  # seconds for a whole call
SPREAD = 10.0  # seconds: of 300 nodes that start at once, 30 report each second
_CLIENT, _NVSENTINEL = "plugin.cluster.apiserver", "plugin.cluster.nvsentinel"


class ClusterReporter:
    """Reports the devices of one node."""

    def __init__(
        self, server: ApiServer, node: str, *, pace: Pace, clock: Callable[[], float] = time.time,
        annotates: bool = False,
    ) -> None:  # fmt: skip
        """Send nothing before ``run``; ``clock`` is the wall clock. ``annotates``: with the ledger's checkpoint."""
        self._server = server
        self._pace = pace
        self._clock = clock
        self._annotates = annotates
        self._newest: Callable[[], str] = lambda: ""  # checkpoint of the ledger
        self._changed = Changed()
        self._outbox = Outbox(lambda: f"{node[:230].rstrip('-.')}.{secrets.token_hex(8)}")
        self._reports: DeviceReports = {}
        self._seen: Shown | None = None
        self._content: ConditionContent | None = None
        self._since = 0.0
        self._known: ClusterNode | None = None
        self._written: Condition | None = None

    async def run(self, listing: Listing) -> None:
        """Report until cancelled, then report the stop within a time limit."""
        changed, pace = self._changed, self._pace
        if self._annotates:
            self._newest = lambda: listing.checkpoint
        loops = [
            RetryLoop("the condition of the node", self._condition_due, self._write_condition, changed, pace),
            RetryLoop("Events", self._event_due, self._send_event, changed, pace),
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(guarded(lambda: self._follow(listing), pace))
                for loop in loops:
                    tasks.create_task(guarded(loop.run, pace))
        finally:
            # In its own task: in a cancelled task, timeouts do not work in early releases of Python 3.11.
            await asyncio.create_task(self._report_stop())

    async def _follow(self, listing: Listing) -> None:
        """Report the devices at every change, and when a device has been unhealthy for long."""
        try:
            self._reports = node_report.after_silence(self._reports)  # no observation since a fault
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.first_list_within):
                    await listing.until_known()
            await self._watch(listing)
        except Exception:  # any fault, raised again: otherwise each heartbeat would repeat the last report
            self._seen = None
            self._set_content(node_report.FAULT)
            raise

    async def _watch(self, listing: Listing) -> None:
        while True:
            self._update(listing.current())
            with suppress(TimeoutError):
                async with asyncio.timeout(node_report.next_change(self._reports, _steady())):
                    await listing.until_differs(self._seen)

    def _update(self, devices: Shown | None) -> None:
        self._seen = devices
        if devices is None:
            self._reports = node_report.after_silence(self._reports)
            self._set_content(node_report.SILENT)
            return
        reports = node_report.report(self._reports, devices, _steady())
        for event in node_report.node_events(self._reports, reports):
            dropped = self._outbox.dropped
            self._outbox.put(event, self._clock())
            if self._outbox.dropped and not dropped:
                logger.warning("Events are dropped, the oldest first: too many wait for the API server")
        self._reports = reports
        self._set_content(node_report.condition_content(self._reports))

    def _set_content(self, content: ConditionContent) -> None:
        if self._content is None or self._content.status is not content.status:
            self._since = self._clock()
        self._content = content
        self._changed.notify()

    def _condition_due(self) -> float:
        if self._content is None:
            return NEVER
        return node_report.due(self._written, self._content, self._clock(), self._pace.heartbeat)

    async def _write_condition(self) -> None:
        if self._known is None:
            self._known = await self._server.read()
            self._written = self._known.condition  # also of an earlier plugin: its transition time stays valid
        if self._content is not None and self._condition_due() <= 0:
            await self._write(self._content, self._since)

    async def _write(self, content: ConditionContent, since: float) -> None:
        wanted = node_report.condition(self._written, content, since, self._clock())
        try:
            self._known = await self._server.put_condition(wanted, self._newest())
        except Failure as failure:
            if failure.kind is FailureKind.MISSING:
                self._known = None  # a later Node of this name is another Node
            raise
        self._written = wanted

    def _event_due(self) -> float:
        return NEVER if self._outbox.first() is None else 0.0

    async def _send_event(self) -> None:
        event = self._outbox.first()
        if event is None:
            return
        try:
            await self._server.create_event(event, self._known.uid if self._known is not None else "")
        except Failure as failure:
            if failure.kind is not FailureKind.REFUSED:
                raise
            logger.warning("an Event is dropped: the API server refuses it", error=failure.message)
        self._outbox.sent(event)
        if self._outbox.dropped and not self._outbox.waiting():
            logger.warning("Events were dropped while the API server was away", dropped=self._outbox.dropped)
            self._outbox.dropped = 0

    async def _report_stop(self) -> None:
        """Write that the plugin has stopped, then send the last Events while there is time."""
        end = _steady() + self._pace.stop_within
        await self._last_report("the condition", self._write_end, end)  # first: an old condition would stay for ever
        await self._last_report("Events", self._empty_outbox, end)
        try:
            async with asyncio.timeout_at(end):
                await self._server.close()
        except Exception as error:  # noqa: BLE001 - the process ends, and its connections with it
            logger.warning("cannot close the connection to the API server", error=str(error) or "no time left")

    async def _last_report(self, about: str, action: Action, end: float) -> None:
        """Run the action; a failure does not prevent the next one."""
        try:
            async with asyncio.timeout_at(end):
                await action()
        except (Failure, TimeoutError) as error:
            why, unsent = str(error) or "no time left", self._outbox.waiting() + self._outbox.dropped
            logger.warning("the stop was not reported to the cluster", about=about, error=why, events_unsent=unsent)
        except Exception:  # logged only: the plugin must still stop without an error
            logger.exception("a fault inside what is sent")

    async def _write_end(self) -> None:
        if self._known is not None:
            await self._write(node_report.STOPPED, self._clock())

    async def _empty_outbox(self) -> None:
        while self._outbox.waiting():
            await self._send_event()


def _steady() -> float:
    return asyncio.get_running_loop().time()


def connect(path: Path, node: str, within: float) -> ApiServer:
    """A client that has sent nothing yet, or Unusable. ``within``: the time limit of a call, in seconds.

    The client library is imported here: it is optional, and a plugin without reports stays small without it.
    """
    try:
        module = importlib.import_module(_CLIENT)
    except Exception as error:  # a broken library must not stop the plugin
        raise Unusable(f"the client library cannot be loaded ({error}): install autoclave[cluster]") from error
    server: ApiServer = module.ApiServer(path, node, within)
    return server


def make_reporter(choice: ReportChoice) -> ClusterReporter | None:
    """A reporter that is ready to run; None if there are no reports or no credentials."""
    if choice.reports is Reports.OFF:
        return None
    path = credentials.find(choice, os.environ)
    why = credentials.missing(choice, os.environ)
    try:
        # Before the plugin serves: to load the library takes longer than a call of the kubelet should wait.
        server = connect(path, choice.node, CALL_WITHIN) if path is not None and not why else None
    except Unusable as error:
        server, why = None, str(error)
    if server is not None:
        logger.info("reporting to the cluster", node=choice.node)
        return ClusterReporter(server, choice.node, pace=Pace(spread=SPREAD), annotates=choice.checkpoint)
    if choice.reports is Reports.ON:
        raise FatalError(f"cannot report to the cluster: {why}")
    if path is not None:  # otherwise nothing asks for reports
        logger.warning("nothing is reported to the cluster", why=why)
    return None


def make_health_events(choice: ReportChoice) -> HealthEvents | None:
    """The reporter to NVSentinel, ready to run. None if no socket is named: then its module is not loaded."""
    if choice.nvsentinel_socket is None:
        return None
    module, remediate = importlib.import_module(_NVSENTINEL), choice.nvsentinel_action is NvsentinelAction.REMEDIATE
    logger.info("reporting to NVSentinel", socket=str(choice.nvsentinel_socket), action=choice.nvsentinel_action.value)
    made: HealthEvents = module.HealthEvents(choice.nvsentinel_socket, choice.node, remediate=remediate, pace=Pace())
    return made
