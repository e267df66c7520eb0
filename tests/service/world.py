"""The real service on a simulated node, on virtual time.

``start`` starts the service over the stored ledger. ``die`` is SIGKILL: nothing that the dead service would still do
reaches the store, a device or a caller. ``check`` compares the records of the service with the truth.
"""

from __future__ import annotations

import asyncio
import copy
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from ground.errors import AutoclaveError, LedgerUnavailable
from policies.policy_model import Mode, Policy
from policies.values import FenceMode
from scrub_api import views
from scrub_api.device_messages import GrantedDevice
from scrubber.core import reset_domains
from scrubber.core.acquire import ForPod
from scrubber.core.model import Holder, State
from scrubber.core.offering import WAITED_FOR
from scrubber.core.record import Record
from scrubber.devices.base import Address
from scrubber.devices.blocking_calls import Caller
from scrubber.fence.guard import Guard
from scrubber.fence.ignored import Sources, Terms
from scrubber.fence.kernel.fence import Fence
from scrubber.jobs.jobs import Jobs
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.ledger.ledger import Ledger, Store
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import UNOBSERVED, ObservedSince
from scrubber.observe.observer import Observer
from scrubber.policy import ActivePolicy
from scrubber.service.context import ServiceContext
from scrubber.service.fence_upkeep import FenceUpkeep
from scrubber.service.monitor import Monitor
from scrubber.service.operator_requests import OperatorRequests
from scrubber.service.report import StatusReporter
from scrubber.service.service import Service
from scrubber.service.tenant_requests import TenantRequests
from scrubber.service.upkeep import Upkeep
from scrubber.workers.worker import Worker
from tests.ledger import memory_store
from tests.service.disk import Disk
from tests.service.kernel import PODS, SERVICE
from tests.service.node import Kind, Node, PretendCaller, Process
from tests.service.pretend_worker import PretendWorker, RestoreWorker
from tests.service.truth import A_SLOW_LOOK, WATCH_EVERY, Truth
from tests.service.virtual import VirtualLoop, is_kill
from tests.trace import NODE

KEEP = 40  # rows: so few that every longer history is compacted on its way


@cache
def _active_policy(policy: str) -> ActivePolicy:
    """Reading a policy takes longer than most histories."""
    return ActivePolicy(policy)


@dataclass(frozen=True)
class Life:
    """One run of the service, from its start to its kill."""

    number: int
    disk: Disk
    ledger: Ledger
    observer: Observer
    jobs: Jobs
    service: Service
    monitor: Monitor
    reporter: StatusReporter


class World:
    """A node, its service, and the truth about both."""

    def __init__(  # noqa: PLR0913 - what a test may choose
        self,
        loop: VirtualLoop | None = None,
        *,
        gpus: int = 2,
        policy: str = "default",
        kept: Store | None = None,
        worker: type[PretendWorker] = PretendWorker,
        job: type[ScrubJob] = ScrubJob,
        seed: int = 0,
        fenced: bool = False,
        interval: float = 1.0,
        arm: Callable[[Disk], None] = lambda _: None,
    ) -> None:
        """``kept`` is the store, which outlives all kills; without it there is one in memory.

        ``arm`` prepares what will inject the disk in the first life. ``fenced``: the kernel tells who opens a device.
        """
        self.loop = loop or cast("VirtualLoop", asyncio.get_running_loop())
        self.chance = random.Random(seed)  # noqa: S311 - to be the same every time is its purpose
        self.node = Node(self.loop, gpus, fenced=fenced)
        self.active_policy = copy.copy(_active_policy(policy))
        self.trace, self.truth = self.node.trace, Truth(self.node, self.active_policy)
        self.trace.say(NODE, f"{gpus} GPUs, policy {policy}{', fenced' * fenced}")
        self.uuids = tuple(self.node.gpus)
        self.exempt: set[str] = set()  # containers that the policy exempts
        self.bystanders: dict[int, Holder] = {}  # processes of monitors, by pid
        self.pod_names: dict[str, str] = {}  # NAMESPACE/NAME by UID, as the runtime tells them
        self.tenants: dict[str, str] = {}  # device -> the pod that was started on it last
        self._kept: Store = kept or memory_store.MemoryStore()
        self._arm = arm
        self._interval = interval
        self._worker = worker
        self._job = job
        self._lives = 0
        self._names = 0
        self._run_dir = tempfile.TemporaryDirectory(prefix="ac-")
        self._up: Life | None = None
        self._watching: asyncio.Task[None] | None = None
        self._orphans: dict[str, float] = {}  # recorded jobs that do not run, and when that was first seen

    # -- the service

    @property
    def life(self) -> Life:
        """The service that is up."""
        assert self._up is not None, "the service is down"
        return self._up

    @property
    def up(self) -> bool:
        """Whether the service runs."""
        return self._up is not None

    @property
    def service(self) -> Service:
        """The running service."""
        return self.life.service

    @property
    def context(self) -> ServiceContext:
        """The context that the parts of the service share."""
        return self.service.context

    @property
    def tenant_requests(self) -> TenantRequests:
        """The part of the service that answers the plugin."""
        return self.service.tenant_requests

    @property
    def operator_requests(self) -> OperatorRequests:
        """The part of the service that answers people."""
        return self.service.operator_requests

    @property
    def upkeep(self) -> Upkeep:
        """The part of the service that answers the monitor."""
        return self.service.upkeep

    def record(self, device: str) -> Record:
        """The record that the service has of a device."""
        return self.life.ledger.records[device]

    def state(self, device: str) -> State:
        """The state that the service has recorded for a device."""
        return self.record(device).state

    async def start(self, *, watching: bool = True) -> None:
        """As ``daemon`` does it: recover, look once, then go on looking."""
        self._lives += 1
        self.trace.say(NODE, f"the service starts, life {self._lives}")
        self.node.life = self._lives
        self._up = self._build()
        with suppress(LedgerUnavailable):
            await self.upkeep.recover()
        await self.life.monitor.round()
        self._watching = self.spawn(self.life.monitor.run()) if watching else None

    async def die(self, *, lingering: bool = False) -> None:
        """SIGKILL. A worker may linger, stuck in its driver."""
        life, self._up = self.life, None
        self.trace.say(NODE, "the service is killed")
        life.disk.dead = True
        self.node.life = None
        for process in self.node.everybody():
            process.unwatched = True
            if process.kind is Kind.WORKER and not lingering:
                self.node.leave(process)
        await self._end_tasks()

    async def stop(self) -> None:
        """SIGTERM."""
        life, self._up = self.life, None
        self.trace.say(NODE, "the service is stopped")
        if self._watching is not None:
            self._watching.cancel()
        await life.service.stop()
        await self._end_tasks()
        self.node.life = None

    def forget(self) -> None:
        """The ledger is lost; the service must be down."""
        assert self._up is None
        self._kept = memory_store.MemoryStore()
        self.truth.entries.clear()
        self.truth.records.clear()

    def close(self) -> None:
        """Remove the directory of this world."""
        self._run_dir.cleanup()

    async def news(self) -> None:
        """Return when the service shows something new, at the latest after a second."""
        await self.context.news.after(self.context.news.notifications, 1.0)

    def spawn(self, work) -> asyncio.Task[Any]:
        """Run a task beside the test."""
        task = self.loop.create_task(work)
        task.add_done_callback(self._judge_end)
        return task

    def _judge_end(self, task: asyncio.Task[Any]) -> None:
        """A caller is answered, refused in our own words, or killed together with the service."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, AutoclaveError) and not is_kill(error):
            self.loop.complaints.append(f"{task.get_name()} died of {error!r}")

    async def clean(self, *devices: str) -> None:
        """Wait until these are clean."""
        for device in devices or self.uuids:
            await self.reach(device, State.CLEAN)

    async def reach(self, device: str, state: State) -> Record:
        """Wait until the service believes a device to be there."""
        async with asyncio.timeout(600):
            while self.state(device) is not state:
                await self.news()
        for _ in range(3):
            await asyncio.sleep(0)  # the task that recorded it goes on first
        return self.record(device)

    async def heal(self) -> None:
        """With every cause gone every device comes back: what is out for a person's word, by that word."""
        if not self.up:
            await self.start()
        self.life.disk.heal_one()
        if self.active_policy.source == "observe":
            self.change_policy("strict")
        for _ in range(40):
            self.node.heal()
            await asyncio.sleep(5.0)
            await self._ask_back()
            if all(self.state(device) is State.CLEAN for device in self.uuids):
                break
        for device in self.uuids:
            assert self.state(device) is State.CLEAN, self.trace.story(device)
            self.truth.at_rest(device)
        self.check()

    async def _ask_back(self) -> None:
        """Release and reinstate all devices, as a person would do now."""
        with suppress(AutoclaveError):
            await self.tenant_requests.release(self.uuids)  # grants that were never used
        for device in self.uuids:
            if self.state(device) is State.QUARANTINED:
                await self.operator_requests.reinstate(device, "healed", "ops")

    # -- callers

    def name(self) -> str:
        """The name of a new pod."""
        self._names += 1
        return f"pod-{self._names}"

    async def acquire(self, tenant: str, *devices: str, announced: bool = False) -> list[GrantedDevice]:
        """Allocate."""
        grants = await self.tenant_requests.acquire(devices, ForPod(announced=announced))
        for device in devices:
            self.tenants[device] = tenant
        return [granted for granted in grants.values() if granted.grant]

    async def begin(self, tenant: str, *devices: str) -> list[Process]:
        """PreStartContainer, and what it lets through. The runtime has made the pod's sandbox by then."""
        if self.node.kernel is not None:
            self.node.kernel.group(tenant)
        await self.tenant_requests.start(devices, tenant)
        for device in devices:
            self.truth.started(tenant, device)
        processes = [self.run(tenant, device) for device in devices]
        fails = self.node.kernel is not None and self.node.kernel.fails
        for device in [it.gpu for it in processes if it.refused]:
            observed = self.truth.policy(device).mode is Mode.OBSERVE  # it refuses no start
            if not (fails and observed):
                self.truth.accuse(f"{tenant}, which may start on {device}, is kept off it")
        return processes

    def run(self, tenant: str, device: str) -> Process:
        """A container of this tenant uses the device from now on, and writes its secrets there."""
        self.tenants[device] = tenant
        self.truth.users_since_proof.setdefault(device, set()).add(tenant)
        # A pod that starts late after an unannounced grant may have lost the device to the next request.
        late = self.truth.records[device].state not in (State.GRANTED, State.IN_USE)
        return self.node.enter(device, Kind.FOREIGN_PROCESS if late else Kind.TENANT, tenant, container=tenant)

    def intrude(self, device: str, *, container: bool = False, writes: bool = True) -> Process:
        """A process opens the device without a request to the service."""
        name = self.name()
        if container:
            self.truth.users_since_proof.setdefault(device, set()).add(name)
        return self.foreign(device, name, name if container else None, writes=writes)

    def foreign(self, device: str, name: str, container: str | None, *, writes: bool = True) -> Process:
        """A process that was given no device opens one."""
        self._check_fence(device)
        return self.node.enter(device, Kind.FOREIGN_PROCESS, name, container=container, writes=writes)

    async def tenancy(self, *devices: str) -> str:
        """A tenant that came in by the front door and has written its secrets."""
        tenant = self.name()
        await self.acquire(tenant, *devices)
        for device in devices:
            self.run(tenant, device)
        return tenant

    def change_policy(self, policy: str) -> None:
        """What ``ActivePolicy.reload`` does once it has read the file."""
        self.active_policy.source = policy
        self.active_policy._in_force = _active_policy(policy)._in_force

    def restart_kubelet(self) -> None:
        """Another life of the kubelet: its socket is another file."""
        fresh = Path(self._run_dir.name, "fresh")
        fresh.touch()
        fresh.replace(Path(self._run_dir.name, "kubelet.sock"))

    # -- the truth

    def check(self) -> None:
        """No promise was broken so far, and the service believes what it wrote."""
        for device in self.truth.records:
            self._check_fence(device)
        assert not self.truth.violations, self.trace.story()
        assert not self.loop.complaints, "\n".join(self.loop.complaints)
        if self.up and self.life.ledger.fault is None and not self.life.disk.dead:
            for device, record in self.life.ledger.records.items():
                assert record == self.truth.records[device], f"{record}\nis not\n{self.truth.records[device]}"
            self._check_reported()
            self._check_orphans()

    def _check_fence(self, device: str) -> None:
        if self.up and self.life.ledger.fault is None and not self.life.disk.dead:
            self.truth.fence(device)

    def _check_orphans(self) -> None:
        """The next round that can write closes a recorded job that does not run. A hanging driver may delay it."""
        records, jobs, now = self.life.ledger.records, self.life.jobs, self.loop.time()
        orphans = [
            record.scrubs.job.id for device, record in records.items() if record.scrubs.job and not jobs.of(device)
        ]
        self._orphans = {job: self._orphans.get(job, now) for job in orphans}
        late = [job for job, since in self._orphans.items() if now - since > A_SLOW_LOOK]
        assert not late, f"jobs that nobody does: {late}"

    def _check_reported(self) -> None:
        reported = {device.uuid: device for device in self.life.reporter.reported().devices}
        assert set(reported) == set(self.life.ledger.records), "a device is not listed any more (I3)"
        for device, record in self.life.ledger.records.items():
            observed = self.truth.policy(device).mode.value == "observe"
            out = (
                record.state is State.QUARANTINED
                or record.health.quarantine is not None
                or record.health.ailment is not None
            )
            lately = self.node.now().uptime - record.since.uptime <= WAITED_FOR
            waited_for = lately and self.context.offer_facts(record).containers_wait
            unknown = record.state is State.UNKNOWN and not observed and not waited_for
            assert not (reported[device].healthy and (out or unknown)), f"{device} is reported healthy (I3)"
            assert reported[device].clean == (record.state is State.CLEAN)

    # -- how it is put together

    def _build(self) -> Life:
        disk = Disk(self._kept, self.truth.written, self.loop.stop)
        if self._lives == 1:
            self._arm(disk)
        ledger = Ledger(disk, self.node.now, KEEP, KEEP)
        caller = cast("Caller", PretendCaller(self.chance))
        driver = DriverCalls(self.node, self.node.boot_id, guard=self._guard(), caller=caller)
        unobserved = max(UNOBSERVED, 3 * self._interval)
        since = ObservedSince(self.node.now().uptime, self.node.now, unobserved, counts_all=True)

        def resetting(record: Record) -> bool:
            return reset_domains.resetting(record, ledger.records.values())

        observer = Observer(driver, cast("Processes", self.node), Path(self._run_dir.name), since, resetting)
        ledger.overtaken = observer.overtaken
        fence = FenceUpkeep(driver.guard, since).follow(ledger) if driver.guard is not None else None
        token = lambda size: self.chance.randbytes(size).hex()  # noqa: E731 - three words
        jobs = Jobs(ledger, observer, self._hire, self._restore, self.node.now, token, WATCH_EVERY)
        jobs.job_type = self._job
        lacks = lambda device: self.node.lacks(device)  # noqa: E731, PLW0108 - a test may put another one there later
        context = ServiceContext(
            ledger, observer, jobs, self.active_policy, self.node.now, token, self.chance.random, lacks, fence,
        )  # fmt: skip
        service = Service.build(context)
        monitor = Monitor(service, observer, self._interval)
        reporter = StatusReporter(context, views.ServiceStatus("test", "pretend", started=self.node.now().wall))
        return Life(self._lives, disk, ledger, observer, jobs, service, monitor, reporter)

    def _guard(self) -> Guard | None:
        kernel = self.node.kernel
        if kernel is None:
            return None

        def terms(device: str) -> Terms:
            policy = self.truth.policy(device)
            mode = policy.fence_mode
            held = frozenset({PODS}) if mode is FenceMode.HOLD else None
            exempt = frozenset[int]().union(*map(kernel.groups_of, self.exempt))
            return Terms(mode is FenceMode.REFUSE, held, mode is not FenceMode.OFF, policy.fence.lease, exempt)

        sources = Sources(
            process=lambda pid: (self.bystanders[pid],) if pid in self.bystanders else (),
            groups=kernel.groups_of,
            bystanders=lambda _device: lambda holder: holder.pid in self.bystanders,
            terms=terms,
            read=lambda: None,
            place=kernel.place,
            runs=lambda _group: False,
            is_gone=lambda group: group > PODS and kernel.place(group) is None,
            pod_name=lambda uid: self.pod_names.get(uid, ""),
        )
        return Guard(cast("Fence", kernel), SERVICE, sources)

    async def _restore(self, address: Address) -> Worker:
        return cast("Worker", RestoreWorker(self.node, address.place))

    async def _hire(self, device: str, _policy: Policy) -> Worker:
        await asyncio.sleep(0)
        return cast("Worker", self._worker(self.node, self.truth, device))

    async def _end_tasks(self) -> None:
        while doomed := self._tasks() - {asyncio.current_task()}:  # some begin another one as they end
            for task in doomed:
                task.cancel()
            await asyncio.gather(*doomed, return_exceptions=True)
        self.node.away = 0  # the service that had released the driver is gone

    def _tasks(self) -> set[asyncio.Task[Any]]:
        """The tasks that end with the service."""
        return asyncio.all_tasks(self.loop)
