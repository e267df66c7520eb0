"""Builds the parts of the service from its configuration: backend, ledger, notary, workers. Starts nothing."""

from __future__ import annotations

import importlib
import json
import os
import random
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import scrubber
from ground import boot, log, paths
from ground.errors import FatalError, LedgerUnavailable
from policies.policy_model import Evict, Policy
from scrub_api import views
from scrubber.config import BackendChoice, ScrubberConfig, SightMode
from scrubber.core import absence, reset_domains, states
from scrubber.core.model import DeviceInfo, Holder
from scrubber.core.record import Record
from scrubber.devices.base import Address, Backend, DeviceHandling
from scrubber.devices.blocking_calls import Caller
from scrubber.devices.simulated import layout
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.fence import building
from scrubber.fence.guard import Guard
from scrubber.fence.kernel import fence
from scrubber.fence.kernel.fence import FenceError
from scrubber.jobs.jobs import Jobs
from scrubber.ledger import compaction, ledger_rows, opening
from scrubber.ledger.database import Loaded
from scrubber.ledger.ledger import Ledger
from scrubber.ledger.ledger_files import LedgerPaths
from scrubber.ledger.sqlite_store import SqliteStore
from scrubber.metrics.counters import ServiceCounters
from scrubber.metrics.gauges import BoardSampler, ServiceCollector
from scrubber.node import clock, pods, proc
from scrubber.node.bystanders import Bystander, Bystanders
from scrubber.node.pods import PodNames
from scrubber.node.processes import Processes
from scrubber.node.sandboxes import Sandboxes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from scrubber.observe.owner_ends import Ends
from scrubber.policy import ActivePolicy
from scrubber.receipts import dsse, note, tenant_files
from scrubber.receipts import key as key_file
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.notary import Notary, SigningState
from scrubber.receipts.statement import Program
from scrubber.receipts.tenant_files import TenantFiles
from scrubber.service.chronicle import Chronicle
from scrubber.service.context import ServiceContext
from scrubber.service.fence_upkeep import FenceUpkeep
from scrubber.service.monitor import Monitor
from scrubber.service.open_attempt_rows import OpenAttemptRows
from scrubber.service.report import StatusReporter
from scrubber.service.service import Readiness, Service
from scrubber.workers.pool import WorkerPool
from scrubber.workers.wire import Assignment, Prepare
from scrubber.workers.worker import BrokenError, Worker

logger = log.get("assembly")

PROC = Path("/proc")
POD_NAMES_WITHIN = 1.0  # seconds; a status without the names of pods is better than a late one
WATCH_EVERY = 0.25  # seconds between the observations that look for foreign processes while a step runs


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts that the daemon starts and stops."""

    config: ScrubberConfig
    ledger: Ledger
    service: Service
    reporter: StatusReporter
    monitor: Monitor
    chronicle: Chronicle
    openers: OpenAttemptRows | None  # None: no fence tells of them
    active_policy: ActivePolicy
    pool: WorkerPool
    readiness: Readiness
    collector: ServiceCollector
    board_sampler: BoardSampler
    guard: Guard | None


def open_gpus(config: ScrubberConfig, *, fences: bool) -> Backend:
    """``build_backend``, once a fence that stands lets this service in. ``fences``: whether the policy asks for one."""
    building.enter(config, fences=fences)
    return build_backend(config)


def build_backend(config: ScrubberConfig) -> Backend:
    """The backend in the configuration; DeviceError when the node has no such hardware."""
    if config.backend is BackendChoice.SIMULATED:
        return _simulated(config)
    # Imported here: a service with simulated GPUs starts faster without the modules for NVIDIA.
    nvidia: Backend = importlib.import_module("scrubber.assembly_nvidia").build(config, _pid_namespace(config))
    return nvidia


def _pid_namespace(config: ScrubberConfig) -> int | None:
    """The PID namespace that shows all processes of the node; None for the first one of the machine."""
    return proc.own_namespace(PROC) if config.sight is SightMode.NAMESPACE else None


def _simulated(config: ScrubberConfig) -> Simulated:
    layout.create(config.simulation, config.simulated_gpus, config.simulated_memory, boot.boot_id())
    lock = layout.service_lock(config.simulation)
    if lock is None:
        raise FatalError(f"cannot start: another autoclave scrubber uses the GPUs in {config.simulation}")
    if config.cgroup_root is None:  # then a trial changes nothing on the node
        for place in layout.places(config.simulation):
            layout.remove_node(place)
    elif why := layout.make_nodes(config.simulation):
        logger.warning("the memory of a simulated GPU is a file: the kernel makes no loop device", error=why)
    if config.simulated_cdi_dir is not None:
        _write_cdi(config.simulated_cdi_dir, config.simulation)
    simulated = Simulated(config.simulation, config.host_root / "sys/fs/cgroup", lock)
    simulated.open_driver()
    return simulated


def _write_cdi(directory: Path, simulated_dir: Path) -> None:
    try:
        layout.write_cdi(directory, layout.places(simulated_dir))
    except OSError as error:
        why = f"cannot write the CDI specification {directory / layout.CDI_NAME}: {error.strerror}"
        raise FatalError(why, "give a directory that this user can write with --simulated-cdi-dir") from error


def _handling(policy: Policy) -> DeviceHandling:
    """What the policy says about the handling of a device, as backends read it."""
    left = tuple(setting.value for setting in policy.settings.leave or ())
    return DeviceHandling(left, policy.deadline("reset"))


@dataclass(frozen=True, slots=True)
class _WorkerStarter:
    """Starts a worker process for a device and its policy."""

    backend: Backend
    observer: Observer
    pool: WorkerPool
    whole_node: bool
    pod_logs: str
    host_root: str
    operator_namespaces: tuple[str, ...]
    namespace: int | None

    async def start(self, device: str, policy: Policy) -> Worker:
        handling = _handling(policy)

        async def describe() -> Prepare:
            return Prepare(self.backend.address(device, handling), await self.observer.health.memory(device))

        assignment = Assignment(
            self.backend.address(device, handling),
            self.backend.files(device),
            self.whole_node,
            service=os.getpid(),
            reach=self.backend.reach(device),
            bystanders=policy.evict.all_bystanders(self.operator_namespaces),
            pod_logs=self.pod_logs,
            host_root=self.host_root,
            pid_namespace=self.namespace,
        )
        worker = await self.pool.start_worker(assignment, describe)
        if self.pool.cupy.lacks:  # known only now, after the zygote has started
            await worker.kill()
            raise BrokenError(f"cannot clear its memory: {self.pool.cupy.lacks}")
        return worker

    async def start_restore(self, address: Address) -> Worker:
        """A worker for a pending restore. Such a device needs no policy and may have no files."""
        assignment = Assignment(address, (), self.whole_node, os.getpid(), pid_namespace=self.namespace)
        return await self.pool.start_worker(assignment)

    def clear_obstacle(self, device: DeviceInfo) -> str | None:
        """What prevents a worker from clearing the memory of a device; None when nothing does."""
        return self.backend.lacks(device) or self.pool.cupy.lacks or None


def open_ledger(config: ScrubberConfig, counters: ServiceCounters) -> Ledger:
    """The ledger, replayed. A damaged one is set aside with an error in the log, and every device is UNKNOWN."""
    accepted: list[Loaded] = []

    def load(opened: SqliteStore) -> None:
        accepted.append(opened.load(states.replay))

    path, run_head = paths.ledger(config.state_dir), paths.ledger_head(config.run_dir)
    opened, aside = opening.open_or_set_aside(path, clock.now(), load, run_head)
    if aside is not None:
        logger.error("ledger set aside: every device is unknown now", why=aside.why, kept_as=str(aside.path))
    evidence = compaction.Retention(config.evidence_rows, config.evidence_age)
    try:
        notary = _notary(config, opened, counters)
    except LedgerUnavailable:
        opened.close()  # the caller opens it again
        raise
    loaded = replace(accepted[-1], head=opened.head)  # the notary may have added a row
    ledger = Ledger(opened, clock.now, loaded=loaded, listener=counters.recorded, evidence=evidence)
    if notary is not None:
        notary.files.reconcile(ledger.records.values())
        ledger.notary = notary
    else:
        tenant_files.withdraw(paths.receipts(config.state_dir))
    counters.watch(record.device for record in ledger.records.values() if not absence.taken_away(record))
    return ledger


def _notary(config: ScrubberConfig, store: SqliteStore, counters: ServiceCounters) -> Notary | None:
    """Who signs receipts; None where nothing can be signed. The ledger says which key does from now on."""
    if not key_file.can_sign():
        return None
    counters.signing = signing = SigningState()  # from now on, a receipt without a signature is a fault
    node = config.node_name or socket.gethostname()
    try:
        origin = note.log_name(node)
        key = key_file.open_key(config.state_dir)
        noted = store.last_note(ledger_rows.KEY)
        signs = key.next or key
        if noted is None or json.loads(noted)["key"] != signs.key_id:  # a start that was killed may have noted it
            if noted is not None and key.next is None:
                logger.warning("another key signs receipts, and the last one does not vouch for it", key=key.key_id)
            store.write_note(ledger_rows.KEY, clock.now(), dsse.announcement(key))
        if key.next is not None:
            key = key_file.take_next(config.state_dir)
    except (ReceiptError, OSError, ImportError) as error:  # an import fails where a part of ``cryptography`` is missing
        logger.error("receipts are not signed", error=str(error))  # noqa: TRY400 - expected
        return None
    files = TenantFiles(paths.receipts(config.state_dir), key.secret)
    program = Program(scrubber.__version__, simulated=config.backend is BackendChoice.SIMULATED, node=node)
    return Notary(key, origin, program, files, signing, paths.last_checkpoint(config.state_dir))


def _unified_root() -> Path | None:
    """Where the control groups of version 2 are; None where there are none, or this container does not see them all."""
    try:
        return fence.root()
    except FenceError:
        return None


def build_pool(config: ScrubberConfig, *, fences: bool = False) -> WorkerPool:
    """What starts the workers; its zygote is not started. It uses no GPU, and no lock is needed to start it.

    ``fences``: whether the policy asks for a fence. Then workers begin in the control group of this service, also those
    of a zygote that is started on standby.
    """
    if fences and building.is_possible(config):
        with suppress(FenceError):  # said when the fence is built
            building.own_group(config.cgroup_root)
    return WorkerPool(warm_cuda=config.backend is not BackendChoice.SIMULATED)


def build(
    config: ScrubberConfig,
    backend: Backend,
    active_policy: ActivePolicy,
    ledger: Ledger,
    counters: ServiceCounters,
    pool: WorkerPool,
) -> Assembly:
    """All parts, not started."""
    # A simulated GPU is a file that only this user can open. For a real one, all processes of the node must be seen.
    whole_node = not isinstance(backend, Simulated)
    namespace = _pid_namespace(config)
    on_pass = counters.process_pass
    processes = Processes(PROC, backend.container_of, whole_node=whole_node, namespace=namespace, on_pass=on_pass)

    pod_names = PodNames(Sandboxes(config.host_root), config.pod_logs)
    elsewhere: dict[Bystander, float] = {}

    def seen_elsewhere(program: Bystander) -> None:
        elsewhere[program] = clock.now().uptime

    @cache
    def is_bystander(bystanders: tuple[str, ...]) -> Callable[[Holder], bool]:
        return Bystanders(tuple(map(Bystander.parse, bystanders)), PROC, pod_names, seen_elsewhere).knows

    @cache
    def ignored_by(evict: Evict) -> Callable[[Holder], bool]:
        return is_bystander(evict.all_bystanders(config.operator_namespace))

    def policy(device: str) -> Policy:
        record = ledger.records.get(device)
        return active_policy.device_policy(record.device).policy if record is not None else active_policy.defaults

    def ignored(device: str) -> Callable[[Holder], bool]:
        return ignored_by(policy(device).evict)

    ends = Ends(_unified_root())

    fenced: Guard | str = ""
    if whole_node or config.cgroup_root is not None:
        fences = active_policy.fences
        fenced = building.guard(config, namespace, processes, ignored, policy, fences=fences)
    elif active_policy.fences:
        fenced = "cannot fence simulated GPUs: the service was started without --cgroup-root"
    guard = fenced if isinstance(fenced, Guard) else None
    if guard is not None:
        pool.on_started, pool.on_ended = guard.rules.admit_process, guard.rules.dismiss_process
    driver = DriverCalls(backend, boot.boot_id(), guard=guard)
    counts_all = guard is not None and not guard.below
    seen_since = ObservedSince(clock.now().uptime, bystanders=ignored, counts_all=counts_all)

    def resetting(record: Record) -> bool:
        return reset_domains.resetting(record, ledger.records.values())

    observer = Observer(
        driver, processes, config.kubelet_dir, seen_since, resetting, ignored, ends=ends, on_pass=on_pass
    )
    ledger.overtaken = observer.overtaken
    places = (str(config.pod_logs), str(config.host_root))
    starter = _WorkerStarter(backend, observer, pool, whole_node, *places, config.operator_namespace, namespace)
    jobs = Jobs(ledger, observer, starter.start, starter.start_restore, clock.now, secrets.token_hex, WATCH_EVERY)
    notary = ledger.notary
    if notary is not None:
        jobs.sign_with(notary)
    context = ServiceContext(
        ledger,
        observer,
        jobs,
        active_policy,
        now=clock.now,
        token=secrets.token_hex,
        chance=random.SystemRandom().random,
        clear_obstacle=starter.clear_obstacle,
        fence=FenceUpkeep(guard, seen_since).follow(ledger) if guard is not None else None,
    )
    service = Service.build(context, on_vitals=counters.vitals)
    about = views.ServiceStatus(
        scrubber.__version__,
        backend.name,
        simulated_dir="" if whole_node else str(config.simulation),
        state_dir=str(config.state_dir),
        started=clock.now().wall,
        exempt_namespaces=config.operator_namespace,
        exempt_units=config.exempt_unit,
        set_aside=LedgerPaths(paths.ledger(config.state_dir)).set_aside(),
        fence_lacks=fenced if isinstance(fenced, str) else "",
    )
    # With a Caller of its own, so that no request waits behind the pod names of a status.
    look = partial(pods.look, config.kubelet_dir, config.pod_logs)
    context.tenants = partial(Caller().ask, "pods", look, POD_NAMES_WITHIN)
    reporter = StatusReporter(context, about, lambda: pool.cupy, elsewhere)
    monitor = Monitor(service, observer, backend.pace, ends, counters.failed)
    board_sampler = BoardSampler(observer)
    readiness = Readiness(context, reporter, lambda: monitor.ended)
    collector = ServiceCollector(context, reporter, counters, readiness, lambda: board_sampler.latest, clock.now().wall)
    chronicle = Chronicle(ledger, active_policy, clock.clocks)
    openers = OpenAttemptRows(context, guard.openers) if guard is not None else None
    parts = (service, reporter, monitor, chronicle, openers, active_policy, pool)
    return Assembly(config, ledger, *parts, readiness, collector, board_sampler, guard)
