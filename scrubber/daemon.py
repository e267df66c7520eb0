"""Starts the service and stops it. All long-running tasks of the program are named in ``_serve``."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from asyncinotify import Inotify, Mask
from prometheus_client import CollectorRegistry, ProcessCollector

from policies.faults import PolicyError
from scrubber import app
from scrubber.api import server
from scrubber.config import LogFormat, ScrubberConfig
from scrubber.devices.base import Backend
from scrubber.ground import http_server, log, unix_sockets
from scrubber.ground.errors import FatalError, LedgerUnavailable
from scrubber.ledger.ledger import Ledger
from scrubber.metrics.collector import ServiceCollector
from scrubber.metrics.counters import ServiceCounters
from scrubber.policy import ActivePolicy

logger = log.get("daemon")

LEDGER_RETRY = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds between tries to open the ledger; the last one repeats
FILE_CHANGES = Mask.CREATE | Mask.MOVED_TO | Mask.CLOSE_WRITE


def run(config: ScrubberConfig) -> int:
    """Serve until told to stop; 0 is a clean stop."""
    fmt = None if config.log_format is LogFormat.AUTO else config.log_format is LogFormat.JSON
    log.configure(config.log_level.value, json=fmt)
    os.umask(0o077)
    try:
        active_policy = ActivePolicy(config.policy)
    except PolicyError as error:
        raise FatalError(str(error)) from error
    lock = unix_sockets.prepare(config.run_dir)
    try:
        return asyncio.run(_serve(config, app.build_backend(config), active_policy))
    finally:
        os.close(lock)


async def _serve(config: ScrubberConfig, backend: Backend, active_policy: ActivePolicy) -> int:
    """Show how it stands, if that is wanted, from before the first step to after the last."""
    shown = _Shown()
    if not config.metrics_address:
        return await _live(config, backend, active_policy, shown)
    ProcessCollector(registry=shown.registry)
    async with http_server.HttpServer(shown.registry, shown.obstacles).serve(config.metrics_address):
        return await _live(config, backend, active_policy, shown)


class _Shown:
    """What there is to show: little at first, and all once there is a service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counters = ServiceCounters(self.registry)
        self.not_yet = "the service is starting"
        self._figures: ServiceCollector | None = None

    def show(self, built: app.App) -> None:
        """From now on what is true is looked up."""
        self._figures = built.figures
        self.registry.register(built.figures)

    def obstacles(self) -> Sequence[str]:
        """What is in the way of handing anything out."""
        return self._figures.obstacles() if self._figures is not None else (self.not_yet,)


async def _live(config: ScrubberConfig, backend: Backend, active_policy: ActivePolicy, shown: _Shown) -> int:
    """Recover, open the doors, look after the devices; undo it all in the reverse order."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    changed = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, changed.set)
    ledger = await _ledger(config, stop, shown)
    if ledger is None:
        return 0
    built = app.build(config, backend, active_policy, ledger, shown.counters)
    alarm = backend.alarm()  # before the first look, which shall see what was told before us as well
    await built.nursery.start()  # before there are doors: it warms up while we recover
    with suppress(LedgerUnavailable):  # told by the ledger; the monitor closes what is left open
        await built.service.upkeep.recover()
    await built.monitor.round()
    doors = server.GrpcServers(built.service, built.reporter, shown.counters, config.run_dir)
    await doors.open()
    shown.show(built)
    logger.info("serving", run_dir=str(config.run_dir), policy=active_policy.name, devices=len(ledger.records))
    tasks = [
        asyncio.create_task(built.monitor.run(alarm), name="monitor"),
        asyncio.create_task(_watch_policy(active_policy, changed), name="policy file"),
        asyncio.create_task(_follow_policy(active_policy, changed), name="policy"),
    ]
    if config.metrics_address:
        tasks.append(asyncio.create_task(built.board_sampler.run(), name="readings"))
    stopped = asyncio.create_task(stop.wait(), name="stop signal")
    done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
    await _shut_down(built, doors, tasks)
    backend.close()
    for task in done - {stopped}:
        task.result()  # a task that ended by itself failed: its error ends the program
    return 0


async def _shut_down(built: app.App, doors: server.GrpcServers, tasks: list[asyncio.Task[None]]) -> None:
    """Stopping is not failing: jobs are cut off and recorded as such."""
    logger.info("stopping")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await built.service.stop()
    await built.nursery.close()
    await doors.close()
    await built.ledger.close()
    logger.info("stopped", ledger_row=built.ledger.seq)


async def _ledger(config: ScrubberConfig, stop: asyncio.Event, shown: _Shown) -> Ledger | None:
    """The ledger, as soon as it can be opened. Until then the doors say why nothing is granted."""
    closed: server.RefusingServers | None = None
    attempt = 0
    try:
        while not stop.is_set():
            try:
                return app.open_ledger(config, shown.counters)
            except LedgerUnavailable as error:
                pause = LEDGER_RETRY[min(attempt, len(LEDGER_RETRY) - 1)]
                closed = closed or await server.RefusingServers.open(config.run_dir)
                closed.message = shown.not_yet = error.message
                logger.error("no ledger: nothing is granted", error=error.message, next_try_seconds=pause)  # noqa: TRY400 - expected
            attempt += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)
        return None
    finally:
        if closed is not None:
            await closed.close()


async def _watch_policy(active_policy: ActivePolicy, changed: asyncio.Event) -> None:
    """Tell when the policy's file changes. A ConfigMap is changed by moving a link in its directory."""
    if active_policy.path is None:
        await asyncio.Event().wait()
        return
    with Inotify() as inotify:
        inotify.add_watch(active_policy.path.parent, FILE_CHANGES)
        changed.set()  # what changed before we watched
        async for _ in inotify:
            changed.set()


async def _follow_policy(active_policy: ActivePolicy, changed: asyncio.Event) -> None:
    """Load it again, one time after the other: of two at once the older one might be the last word."""
    while True:
        await changed.wait()
        changed.clear()
        await _reload(active_policy)


async def _reload(active_policy: ActivePolicy) -> None:
    """Say what came of it, once: an editor touches a file several times when it saves."""
    before = active_policy.fault
    if await asyncio.to_thread(active_policy.reload):
        logger.info("policy loaded", policy=active_policy.name, source=active_policy.source)
    elif active_policy.fault and active_policy.fault != before:
        logger.error(
            "policy not loaded, the old one stays in force", source=active_policy.source, faults=active_policy.fault
        )
    elif before and not active_policy.fault:
        logger.info("policy file mended: it says what is in force already", source=active_policy.source)
