"""Starts and stops the service and its tasks: standby, servers, metrics, policy reload, signed checkpoints.

``_run_service`` has the phases, and ``_start_tasks`` names all long-running tasks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from asyncinotify import Inotify, Mask
from prometheus_client import CollectorRegistry, ProcessCollector

from ground import aio, http_server, log, paths, private_files, threads, unix_sockets
from ground.documents.faults import DocumentError
from ground.errors import ErrorWithRemedies, FatalError, LedgerUnavailable
from scrubber import __version__, assembly, systemd
from scrubber.api import server
from scrubber.config import ScrubberConfig
from scrubber.core import events as ev
from scrubber.devices.base import Backend, DeviceError
from scrubber.ledger import ledger_rows
from scrubber.ledger.entry_queries import Window
from scrubber.ledger.ledger import Ledger
from scrubber.metrics.counters import ServiceCounters
from scrubber.metrics.gauges import ServiceCollector
from scrubber.node import clock
from scrubber.policy import ActivePolicy
from scrubber.service.service import Readiness
from scrubber.workers.pool import WorkerPool

logger = log.get("daemon")

STOPS = (signal.SIGTERM, signal.SIGINT)
STANDBY_TRIES_EVERY = 0.02  # seconds: until the next service has the lock, no device is handed out
STANDBY_REPORTS_EVERY = 60.0  # seconds between two lines of the log
STANDBY_READY_FOR = 600.0  # seconds on standby that count as ready: by then an update has ended the other service
STARTING = "the service is starting"
CHECKPOINT_EVERY = 600.0  # seconds; each receipt has one, too
LEDGER_RETRY = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds between attempts to open the ledger; the last one repeats
POLICY_EVERY = 5.0  # seconds between two looks at the policy file while it cannot be watched
FILE_CHANGES = Mask.CREATE | Mask.MOVED_TO | Mask.CLOSE_WRITE
FILE_GONE = Mask.DELETE | Mask.MOVED_FROM
SAVES_WITHIN = 1.0  # seconds that an editor may take between a removal of the old file and the new one


def run(config: ScrubberConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    log.configure(config.log_level, json=None if config.log_format == "auto" else config.log_format == "json")
    os.umask(0o077)
    faulthandler.enable(2)  # a crash, or the end by systemd's watchdog, shows what each thread did
    lock = unix_sockets.lock_run_dir(config.run_dir)
    if lock is None and not config.standby:
        directory = config.run_dir
        raise FatalError(
            f"cannot start: another autoclave scrubber runs in {directory}",
            "`autoclave doctor` says whether it answers",
            "stop that service first, or use --standby",
        )
    with ExitStack() as turn:  # ends after the threads of the event loop
        if lock is not None:
            turn.enter_context(_turn(config.run_dir, lock))
        if lack := threads.shortage():
            raise FatalError(f"cannot start: {lack[0]}", *lack[1:])
        return asyncio.run(_serve(config, turn, alone=lock is not None))


@contextmanager
def _turn(run_dir: Path, lock: int) -> Iterator[None]:
    """Be the one service of the run directory within the context.

    After an error, the end of the process releases the lock, together with everything else that the service holds.
    """
    try:
        yield
    except Exception as error:
        _leave(error, paths.last_error(run_dir))
        raise
    os.close(lock)


def _leave(error: Exception, path: Path) -> None:
    """Leave the error that ends the service where ``autoclave doctor`` finds it."""
    match error:
        case ErrorWithRemedies():
            left = {"message": error.message, "remedies": error.remedies}
        case DeviceError():
            left = {"message": str(error)}
        case _:
            remedies = "restart the service", "report the error: the end of its log has the report, or names its file"
            left = {"message": f"unexpected error: {type(error).__name__}: {error}", "remedies": remedies}
    try:
        with os.fdopen(private_files.opened(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), "w") as file:
            json.dump(left, file)
    except OSError as fault:
        logger.warning("the error is not left for the doctor", error=str(fault))


def _active_policy(config: ScrubberConfig) -> ActivePolicy:
    kept = paths.last_policy(config.state_dir)
    return ActivePolicy(config.policy, kept, config.fence, config.exempt_unit, config.operator_namespace)


async def _serve(config: ScrubberConfig, turn: ExitStack, *, alone: bool) -> int:
    """Serve the metrics, if an address is configured; on standby, wait for the turn; then run the service."""
    try:
        active_policy = _active_policy(config)
    except DocumentError as error:
        raise FatalError(str(error)) from error
    metrics, pool = _Metrics(), assembly.build_pool(config, fences=active_policy.fences)
    async with _metrics_served(config.metrics_address, metrics):
        if not alone:
            turn.enter_context(_turn(config.run_dir, await _stand_by(config.run_dir, pool, metrics)))
        private_files.make_directory(config.state_dir, "state", private_files.NOT_TO_CHANGE)
        if not alone:
            await _reload(active_policy)
            if active_policy.fault:  # the other service may have had a newer one without faults
                with suppress(DocumentError):
                    active_policy = _active_policy(config)
        if config.metrics_address:  # only now: the rules of Prometheus count the devices of the newest process
            ProcessCollector(registry=metrics.registry)
        if not active_policy.fault:
            await asyncio.to_thread(active_policy.keep)
            _say_if_not_kept(active_policy)
        elif alone:  # otherwise the reload has said it
            _say_fault(active_policy)
        # In a thread: the driver may need minutes to open, and the probes are answered meanwhile.
        backend = await asyncio.to_thread(assembly.open_gpus, config, fences=active_policy.fences)
        return await _run_service(config, backend, active_policy, metrics, pool)


async def _stand_by(run_dir: Path, pool: WorkerPool, metrics: _Metrics) -> int:
    """The lock of the run directory, as soon as another service has released it. A stop ends the process meanwhile.

    The next service of a rolling update waits here with all imports done, so that it serves at once. It touches no GPU,
    no socket and no ledger. It counts as ready, because the update stops the other service only then.
    """
    clock = asyncio.get_running_loop().time
    began, reports = clock(), 0
    with _exit_on_stop():
        await pool.start()
        while (lock := unix_sockets.lock_run_dir(run_dir)) is None:
            waited = clock() - began
            if waited >= STANDBY_REPORTS_EVERY * reports:
                pid = private_files.lock_holder(run_dir / unix_sockets.LOCK)
                if reports:
                    logger.warning(
                        "another scrub service has not stopped", directory=str(run_dir), pid=pid, seconds=round(waited)
                    )
                else:
                    logger.info("waiting for another scrub service to stop", directory=str(run_dir), pid=pid)
                reports += 1
            late = waited >= STANDBY_READY_FOR
            metrics.start_obstacle = f"another scrub service has not stopped for {waited:.0f} s" if late else ""
            await asyncio.sleep(STANDBY_TRIES_EVERY)
    metrics.start_obstacle = STARTING
    return lock


@contextmanager
def _exit_on_stop() -> Iterator[None]:
    """SIGTERM and SIGINT end the process at once with exit code 0 within the context.

    An exception would end it only after the tasks, and may be lost: the signal can arrive anywhere.
    """
    before = {number: signal.signal(number, lambda *_: os._exit(0)) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@asynccontextmanager
async def _metrics_served(address: str, metrics: _Metrics) -> AsyncIterator[None]:
    """Serve the metrics, if there is an address."""
    if not address:
        yield
        return
    async with http_server.HttpServer(metrics.registry, metrics.obstacles, notes=metrics.notes).serve(address):
        yield


class _Metrics:
    """What the HTTP server reads: only counters at first, everything once the service runs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counters = ServiceCounters(self.registry)
        self.start_obstacle = STARTING  # empty: it is ready, because it waits on standby
        self._readiness: Readiness | None = None

    def register(self, collector: ServiceCollector, readiness: Readiness) -> None:
        """Serve the state of the service from now on."""
        self._readiness = readiness
        self.registry.register(collector)

    def obstacles(self) -> Sequence[str]:
        """What prevents the service from granting any device."""
        if self._readiness is not None:
            return self._readiness.obstacles()
        return (self.start_obstacle,) if self.start_obstacle else ()

    def notes(self) -> Sequence[str]:
        """What people should know although the service grants devices."""
        return self._readiness.notes() if self._readiness is not None else ()


@dataclass(frozen=True, slots=True)
class _Recovered:
    """The service, before anybody can ask it: earlier jobs are closed, and each device was observed."""

    parts: assembly.Assembly
    alarm: int | None  # of the backend
    chronicle: asyncio.Task[None]


@dataclass(frozen=True, slots=True)
class _Serving:
    """The service, from the first request on."""

    recovered: _Recovered
    servers: server.GrpcServers


async def _run_service(
    config: ScrubberConfig, backend: Backend, active_policy: ActivePolicy, metrics: _Metrics, pool: WorkerPool
) -> int:
    """Run the service until the stop, in phases. Each phase takes what the phase before it has returned."""
    stop, policy_changed = asyncio.Event(), asyncio.Event()
    for number in STOPS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    aio.on_hangup(policy_changed.set)
    life = asyncio.create_task(systemd.show_life(), name="signs of life")
    ledger = await _open_ledger(config, stop, metrics)
    if ledger is None:
        try:
            await pool.close()
        finally:
            backend.close()  # the next service may open the GPUs before this process has ended
        return 0
    await _record_start(ledger)
    parts = assembly.build(config, backend, active_policy, ledger, metrics.counters, pool)
    serving = await _open_sockets(await _recover(parts, backend), metrics)
    tasks = _start_tasks(serving, policy_changed)
    stopped = asyncio.create_task(stop.wait(), name="stop signal")
    done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
    await _shut_down(serving, [*tasks, life])
    backend.close()
    for task in done - {stopped}:
        task.result()  # no task ends by itself without an error, and that error ends the program
    return 0


async def _recover(parts: assembly.Assembly, backend: Backend) -> _Recovered:
    """Close what the last run left open, and observe each device."""
    alarm = backend.alarm()  # before the first observation, so that no report falls between the two
    await parts.chronicle.write()  # under which policy the next grants are given
    chronicle = asyncio.create_task(parts.chronicle.run(), name="chronicle")
    await parts.pool.start()  # early, because the zygote loads CuPy while the service recovers
    with suppress(LedgerUnavailable):  # the ledger has logged it; the monitor closes the open jobs later
        await parts.service.upkeep.recover()
    await parts.monitor.round()
    if parts.openers is not None:
        await parts.openers.write()  # earlier lives have named some
    return _Recovered(parts, alarm, chronicle)


async def _open_sockets(recovered: _Recovered, metrics: _Metrics) -> _Serving:
    """Answer requests from now on."""
    parts, run_dir = recovered.parts, recovered.parts.config.run_dir
    servers = server.GrpcServers(parts.service, parts.reporter, metrics.counters, run_dir)
    await servers.open()
    metrics.register(parts.collector, parts.readiness)
    paths.last_error(run_dir).unlink(missing_ok=True)
    devices, policy = len(parts.ledger.records), parts.active_policy.name
    systemd.tell(systemd.READY, systemd.status(f"serving, devices: {devices}"))
    logger.info("serving", run_dir=str(run_dir), policy=policy, devices=devices)
    return _Serving(recovered, servers)


def _start_tasks(serving: _Serving, policy_changed: asyncio.Event) -> list[asyncio.Task[None]]:
    """The tasks that run until the stop. If one of them ends, the service ends."""
    recovered, parts = serving.recovered, serving.recovered.parts
    if parts.guard is None:
        paths.last_list(parts.config.run_dir).unlink(missing_ok=True)  # it may say that containers wait
    work = {
        "monitor": parts.monitor.run(recovered.alarm),
        "policy file": _watch_policy(parts.active_policy, policy_changed),
        "policy": _reload_policy(parts.active_policy, policy_changed),
        "checkpoints": _sign_checkpoints(parts.ledger),
    }
    if parts.openers is not None:
        work["openers"] = parts.openers.run()
    if parts.guard is not None:
        work["last list"] = serving.servers.keep_last_list()
    if parts.config.metrics_address:
        work["board sampler"] = parts.board_sampler.run()
    return [recovered.chronicle, *(asyncio.create_task(each, name=name) for name, each in work.items())]


async def _record_start(ledger: Ledger) -> None:
    """Record the start, and whether the last run was cut off."""
    runs = frozenset({ledger_rows.KINDS[ev.ServiceStarted], ledger_rows.KINDS[ev.ServiceStopped]})
    with suppress(LedgerUnavailable):  # a service without this row is better than none
        last = (await ledger.history(None, None, 1, Window(kinds=runs))).entries
        cut_off = any(isinstance(entry.event, ev.ServiceStarted) for entry in last)
        await ledger.append_of_node(ev.ServiceStarted(__version__, cut_off))


async def _shut_down(serving: _Serving, tasks: list[asyncio.Task[None]]) -> None:
    """Stop all parts. Running jobs are cancelled and recorded as interrupted, not as failed."""
    parts = serving.recovered.parts
    logger.info("stopping")
    systemd.tell(systemd.STOPPING)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await parts.service.stop()
    await parts.pool.close()
    await serving.servers.close()
    if parts.guard is not None:  # before the next service reads the open attempts
        await asyncio.to_thread(parts.guard.close)
    try:
        if parts.openers is not None:
            await parts.openers.write(ends=True)
        with suppress(LedgerUnavailable):  # then the next start says that this run was cut off
            await parts.ledger.append_of_node(ev.ServiceStopped())
    finally:
        await parts.ledger.close()
    logger.info("stopped", ledger_row=parts.ledger.seq)


async def _open_ledger(config: ScrubberConfig, stop: asyncio.Event, metrics: _Metrics) -> Ledger | None:
    """The ledger, as soon as it can be opened; None after a stop. Until then the sockets answer with the reason."""
    refusing: server.RefusingServers | None = None
    attempt, began, first_fault = 0, clock.now(), ""
    try:
        while not stop.is_set():
            try:
                ledger = assembly.open_ledger(config, metrics.counters)
            except LedgerUnavailable as error:
                pause = LEDGER_RETRY[min(attempt, len(LEDGER_RETRY) - 1)]
                first_fault = first_fault or str(error)
                if refusing is None:
                    refusing = server.RefusingServers(config.run_dir)
                    await refusing.open()
                refusing.fault, metrics.start_obstacle = error, str(error)
                systemd.tell(systemd.READY, systemd.status(f"grants nothing: {error}"))
                logger.error("no ledger: nothing is granted", error=str(error), next_try_seconds=pause)  # noqa: TRY400 - expected
            else:
                if first_fault:
                    ledger.was_unavailable(began, first_fault)
                return ledger
            attempt += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)
        return None
    finally:
        if refusing is not None:
            await refusing.close(0)


async def _watch_policy(active_policy: ActivePolicy, changed: asyncio.Event) -> None:
    """Set ``changed`` after each change in the directory of the policy file.

    The kubelet updates a ConfigMap by moving a link in that directory. All containers of a node that run as root share
    the inotify instances of root: while none is left, the file is read every few seconds.
    """
    if active_policy.path is None:
        await asyncio.Event().wait()
        return
    fault = ""
    while True:
        try:
            with Inotify() as inotify:
                inotify.add_watch(active_policy.path.parent, FILE_CHANGES | FILE_GONE)
                changed.set()  # the file may have changed before the watch began
                async for event in inotify:
                    if event.mask & FILE_GONE:
                        await asyncio.sleep(SAVES_WITHIN)
                    changed.set()
        except OSError as error:
            if str(error) != fault:
                fault = str(error)
                logger.warning("cannot watch the policy file; it is read every few seconds", error=fault)
        changed.set()
        await asyncio.sleep(POLICY_EVERY)


async def _reload_policy(active_policy: ActivePolicy, changed: asyncio.Event) -> None:
    """Reload the policy after each change. Two reloads never run at the same time, because the older text could win.

    A file that could not be read, perhaps for want of a descriptor, is read again: its change is not reported twice.
    """
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLICY_EVERY if active_policy.unread else None):
                await changed.wait()
        changed.clear()
        await _reload(active_policy)


async def _reload(active_policy: ActivePolicy) -> None:
    """Reload the policy. The same result is logged once: an editor changes a file several times when it saves."""
    before = active_policy.fault
    loaded, source = await asyncio.to_thread(active_policy.reload), active_policy.source
    if loaded:
        logger.info("policy loaded", policy=active_policy.name, source=source)
        _say_if_not_kept(active_policy)
    elif active_policy.fault and active_policy.fault != before:
        _say_fault(active_policy)
    elif before and not active_policy.fault:
        logger.info("policy file corrected; it equals the policy in force", source=source)


def _say_fault(active_policy: ActivePolicy) -> None:
    level, faults = logging.WARNING if active_policy.unread else logging.ERROR, active_policy.fault
    logger.log(level, "policy not loaded; the old policy stays in force", source=active_policy.source, faults=faults)


def _say_if_not_kept(active_policy: ActivePolicy) -> None:
    if active_policy.not_kept:
        logger.warning("the policy is not kept for the next start", error=active_policy.not_kept)


async def _sign_checkpoints(ledger: Ledger) -> None:
    """Have the state of the ledger signed and logged, also while no GPU is scrubbed. Runs until it is cancelled."""
    while True:
        with suppress(LedgerUnavailable):  # the ledger has logged it
            await ledger.checkpoint()
        await asyncio.sleep(CHECKPOINT_EVERY)
