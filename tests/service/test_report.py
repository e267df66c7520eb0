"""Status, history and explanations for operators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from ground import paths
from ground.errors import InvalidRequest, NotReady, Reason
from scrubber.core import device_names, ownership
from scrubber.core.acquire import ForJob
from scrubber.core.events import Distrusted, OpenAttempted, PutInUse
from scrubber.core.fencing import KeptOff
from scrubber.core.model import Holder, Opener, Owner, ScrubPath
from scrubber.devices.blocking_calls import UnresponsiveError
from scrubber.fence.live_openers import LiveOpeners
from scrubber.ledger.entry_queries import Window
from scrubber.node import bystanders, proc
from scrubber.node.assignments import AssignmentEntry
from scrubber.node.cgroup_tree import GroupPlace
from scrubber.node.pods import Tenants
from scrubber.observe.observed_since import OBSERVED_WITHIN
from tests.core import lives
from tests.service.asking import let_on, written_down
from tests.service.pretend_worker import PretendWorker
from tests.service.world import World


@pytest.fixture
def reporter(world):
    return world.life.reporter


@pytest.mark.parametrize("name", ["1", "GPU-0001", "gpu-0001", "GPU-0001"[:8]])
async def test_a_device_is_found_by_index_uuid_and_prefix(world, name):
    assert device_names.find(world.life.ledger.records, name) == "GPU-0001"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("GPU-", Reason.INVALID_REQUEST),
        ("7", Reason.UNKNOWN_DEVICE),
        ("GPU-7", Reason.UNKNOWN_DEVICE),
        ("", Reason.UNKNOWN_DEVICE),
        ("²", Reason.UNKNOWN_DEVICE),
    ],
)
async def test_an_unknown_or_ambiguous_name_is_refused(world, name, reason):
    with pytest.raises(InvalidRequest) as refused:
        device_names.find(world.life.ledger.records, name)
    assert refused.value.reason is reason


async def test_a_slice_is_named_by_its_gpu_and_its_number(world):
    for number, gpu in enumerate(world.node.gpus.values()):
        gpu.info = replace(gpu.info, index=3, slice=number, parent="GPU-p", mig=True)
    await asyncio.sleep(OBSERVED_WITHIN + 1)
    assert [device_names.find(world.life.ledger.records, name) for name in ("3:0", "3:1")] == [*world.uuids]
    with pytest.raises(InvalidRequest) as refused:
        device_names.find(world.life.ledger.records, "3")
    assert refused.value.reason is Reason.INVALID_REQUEST
    world.node.gpus[world.uuids[0]].info = replace(world.node.gpus[world.uuids[0]].info, index=0)
    await asyncio.sleep(OBSERVED_WITHIN + 1)
    assert device_names.find(world.life.ledger.records, "3") == world.uuids[1]


async def test_a_full_uuid_wins_over_a_prefix(world):
    gpu = world.node.gpus[world.uuids[0]]
    world.node.gpus["GPU-00001"] = replace(gpu, info=replace(gpu.info, uuid="GPU-00001", index=2))
    await world.life.monitor.round()
    assert device_names.find(world.life.ledger.records, "GPU-0000") == "GPU-0000"


async def test_status_is_ordered_by_index_and_shows_the_ledger(world, reporter):
    status = await reporter.status(["1", "0"])
    assert [device.index for device in status.devices] == [0, 1]
    assert [device.state for device in status.devices] == ["clean", "clean"]
    assert (status.service.ledger_rows, status.service.ledger_fault) == (world.life.ledger.seq, "")
    assert status.service.ledger_head == world.life.ledger.head.root


async def test_status_shows_the_progress_of_a_job(world, reporter):
    running = await world.operator_requests.scrub("GPU-0000", ScrubPath.SLOW)
    while running.progress.bytes_total == 0:
        await anext(running.updates())
    job = reporter.device("GPU-0000").job
    assert 0 <= job.step_seconds < job.step_limit == 60.0
    assert (job.id, job.step, job.total_bytes) == (running.id, "clear", 2**22)
    await running.finished.wait()
    assert reporter.device("GPU-0000").job is None
    assert reporter.device("GPU-0000").receipt.path == "slow"


class StallsLater(PretendWorker):
    """It stops in the middle of a step, once a test says so, and reports the same progress again and again."""

    async def perform(self, step, order, progress):
        def reported(done: int, total: int) -> None:
            progress(done, total)
            self.report_again = partial(progress, done, total)

        return await super().perform(step, order, reported)

    async def spend(self, seconds: float) -> None:
        await super().spend(seconds)
        while self.gpu.stalls:
            self.report_again()
            await super().spend(1.0)


async def test_a_clear_that_stalls_is_explained_with_advice(begin):
    world = await begin(worker=StallsLater)
    device, reporter = world.uuids[0], world.life.reporter
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    while running.progress.bytes_done == 0:
        await anext(running.updates())
    world.node.gpus[device].stalls = True
    assert (await reporter.explain(device)).advice == ()
    await asyncio.sleep(41.0)
    explained = await reporter.explain(device)
    assert explained.device.job.still_seconds == pytest.approx(41.0, abs=0.5)
    assert explained.advice == (
        "clear makes no progress: wait, Autoclave ends it within 19 s",
        "if it happens again, read what the driver has reported: `journalctl -k`",
    )


@pytest.mark.parametrize("sick", [False, True], ids=["in use", "quarantined"])
async def test_an_explanation_names_the_processes_that_are_in_the_way(world, reporter, sick):
    device = world.uuids[0]
    if sick:
        await world.operator_requests.quarantine(device, "it smells", "ann")
        process = world.intrude(device)
    else:
        tenant = await world.tenancy(device)
        [process] = [it for it in world.node.everybody() if it.container == tenant]
    explained = await reporter.explain(device)
    assert [(it.pid, it.container) for it in explained.device.holders] == [(process.pid, process.container or "")]
    assert not sick or f"`kill {process.pid}`" in explained.advice[1]


async def test_an_explanation_names_the_pods_of_holders(world, reporter):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await asyncio.sleep(3)

    async def look() -> Tenants:
        return Tenants(names={tenant: "team/train"})

    world.context.tenants = look
    for answer in ((await reporter.explain(device)).device, (await reporter.status([device])).devices[0]):
        [holder] = answer.holders
        assert (holder.container, holder.pod) == (tenant, "team/train")
        assert str(holder).endswith("team/train)")


@pytest.mark.parametrize("is_gone", [True, False], ids=["given to the next pod", "only asked for"])
async def test_an_explanation_ends_whom_the_next_pod_waits_for(world, naming, register, is_gone):
    device = world.uuids[0]
    [process] = await let_on(world, "pod", device)
    await asyncio.sleep(3)
    assert (await naming.explain("0")).advice == ()
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    if is_gone:
        register.tenants = Tenants((AssignmentEntry(device, "next", "main"),), {"pod": "ns/train", "next": "ns/next"})
    explained = await naming.explain("0")
    who, *ends = explained.advice
    assert explained.before_release == "; ".join(ends)
    assert ends[-1].endswith(f"`kill -9 {process.pid}`")
    if is_gone:
        assert who == "the kubelet has given the GPU to ns/next, which cannot start before ns/train has left it"
        assert "kubectl" not in ends[0]
    else:
        assert who == "another pod has asked for the GPU in vain: unless ns/train is still needed, end it"
        assert "`kubectl -n ns delete pod train`" in ends[0]


async def test_an_explanation_says_what_to_do_after_a_use(world, reporter):
    device = world.uuids[0]
    assert (await reporter.explain(device)).advice == ()
    world.node.leave(world.foreign(device, "stranger", "uid-1"))
    world.node.alive.discard("uid-1")
    await asyncio.sleep(3)
    await world.clean(device)

    async def look() -> Tenants:
        return Tenants(names={"uid-1": "team/train"})

    world.context.tenants = look
    [wiped] = (await reporter.explain(device)).advice
    assert (wiped.startswith("used without a grant, noticed at "), "wiped since" in wiped) == (True, True)
    await world.life.ledger.append("", (device, attempt(held=True)))
    explained = await reporter.explain(device)
    assert explained.advice[0].startswith("the GPU was used by pod team/b (pod-b), without a grant, last tried at ")
    assert "treat it as a break-in" in explained.advice[-1]
    await world.operator_requests.quarantine(device, "it smells", "ann")
    quarantine, use, *_ = (await reporter.explain(device)).advice
    assert ("autoclave reinstate 0" in quarantine, use) == (True, explained.advice[0])
    await asyncio.sleep(3601)
    assert (await reporter.explain(device)).advice == (quarantine,)
    await world.operator_requests.reinstate(device, "it is fine", "ann")
    await world.clean(device)
    assert (await reporter.explain(device)).advice == ()


async def test_the_advice_on_a_quarantine_comes_first(world, reporter):
    device = world.uuids[0]
    for _ in range(2):
        world.node.leave(world.intrude(device))
        await asyncio.sleep(3)
        await world.clean(device)
    [keeps_out, *_] = (await reporter.explain(device)).advice
    assert "has ended 2 proofs or scrubs of the GPU recently" in keeps_out
    await world.operator_requests.quarantine(device, "it smells", "ann")
    first, second, *_ = (await reporter.explain(device)).advice
    assert ("autoclave reinstate 0" in first, second) == (True, keeps_out)


async def test_an_explanation_says_what_is_in_the_way_unseen(world, reporter):
    """A container that was let start is not there yet: `autoclave release` would be refused."""
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await world.tenant_requests.start([device], None)
    explained = await reporter.explain(device)
    assert explained.before_release == "; ".join(explained.advice)
    assert explained.advice[1] == "wait 10 s"
    await asyncio.sleep(ownership.STARTS_WITHIN)
    explained = await reporter.explain(device)
    assert (explained.before_release, "autoclave release" in "".join(explained.advice)) == ("", True)


async def test_status_names_the_holders_of_the_last_round(world, reporter):
    process = world.intrude(world.uuids[0])
    await world.life.monitor.round()
    devices = (await reporter.status([])).devices
    assert [[holder.pid for holder in device.holders] for device in devices] == [[process.pid], []]
    world.node.leave(process)
    await world.life.monitor.round()
    assert reporter.device(world.uuids[0]).holders == ()


# -- whose devices


class Register:
    """Tells whose devices are what, and remembers that it was asked."""

    def __init__(self, world) -> None:
        first, second = world.uuids[:2]
        written = (
            AssignmentEntry(first, "pod", "main"),
            AssignmentEntry(second, "pod", "side"),
            AssignmentEntry(second, "other", "app"),
        )
        self.tenants = Tenants(written, {"pod": "ns/train"})
        self.late = False
        self.asked = 0

    async def __call__(self) -> Tenants:
        self.asked += 1
        if self.late:
            raise UnresponsiveError("pods did not answer")
        return self.tenants


@pytest.fixture
def register(world):
    return Register(world)


@pytest.fixture
def naming(world, reporter, register):
    """A reporter with a register of pod names."""
    world.context.tenants = register
    return reporter


async def test_devices_with_an_owner_show_the_names_of_their_pods(world, naming):
    first, second = world.uuids
    await let_on(world, "pod", first)
    assert [(it.index, it.pod) for it in (await naming.status(["1", "0"])).devices] == [(0, "ns/train/main"), (1, "")]
    reported = (await naming.explain("0")).device
    assert (reported.owner, reported.pod) == ("pod", "ns/train/main")
    await world.acquire("pod", second, announced=True)
    device = (await naming.status(["1"])).devices[0]
    assert (device.state, device.owner, device.pod) == ("granted", "", "other, ns/train/side")


async def test_the_name_of_a_pod_outlives_it(world, naming, register):
    first, second = world.uuids
    await let_on(world, "pod", first)
    await let_on(world, "other", second)
    await world.life.monitor.round()
    register.tenants = Tenants()
    await world.life.monitor.round()
    assert [device.pod for device in (await naming.status([])).devices] == ["ns/train", ""]
    entries = (await naming.history.entries("0", 0.0, 1, Window(kinds=frozenset({"in-use"})))).entries
    assert entries[0].text == "in use by ns/train (pod pod)"


async def test_late_pod_names_delay_no_status(world, naming, register):
    await let_on(world, "pod", world.uuids[0])
    register.late = True
    device = (await naming.status(["0"])).devices[0]
    assert (device.owner, device.pod) == ("pod", "")
    assert (await naming.explain("0")).device.pod == ""


async def test_pod_names_are_read_only_for_devices_with_an_owner(world, naming, register):
    await naming.status([])
    await naming.explain("0")
    assert register.asked == 0
    await let_on(world, "pod", world.uuids[0])
    naming.reported()
    naming.device(world.uuids[0])
    assert register.asked == 0
    await naming.status([])
    assert register.asked == 1


async def test_a_status_shows_one_moment(world, reporter, register):
    async def meanwhile() -> Tenants:
        await world.operator_requests.quarantine(world.uuids[1], "it smells of smoke", "ann")
        tenants: Tenants = register.tenants
        return tenants

    await let_on(world, "pod", world.uuids[0])
    before = world.life.ledger.seq
    world.context.tenants = meanwhile
    status = await reporter.status([])
    assert world.life.ledger.seq > before
    assert (status.service.ledger_rows, status.devices[1].state) == (before, "clean")
    assert status.devices[0].pod == "ns/train/main"


def attempt(*, held: bool) -> OpenAttempted:
    return OpenAttempted(lives.OPENER, 7, held)


async def of_a_job(begin):
    """A world, its first device, and a process of the job that has it for a control group of its own."""
    world: World = await begin(fenced=True)
    await asyncio.sleep(1.0)
    device, kernel = world.uuids[0], world.node.kernel
    assert kernel is not None
    group = kernel.group("container:job")
    await world.tenant_requests.acquire([device], ForJob("job-7", group))
    process = world.run("container:job", device)
    await asyncio.sleep(3)
    return world, device, process


async def test_a_foreign_use_comes_before_the_owner(begin):
    world, device, _ = await of_a_job(begin)
    await world.life.ledger.append("", (device, attempt(held=True)))
    first, *_, last = (await world.life.reporter.explain(device)).advice
    assert first.startswith("the GPU was used by pod team/b")
    assert last == "if its owner job-7 has ended: `autoclave release 0 --owner job-7`"


@pytest.mark.parametrize("since", ["before the grant", "after it"])
async def test_an_attempt_before_the_grant_may_be_of_the_owner(begin, monkeypatch, since):
    """The process of a job may have opened the device before the device was acquired for its control group."""
    world, device, process = await of_a_job(begin)
    wall = world.node.now().wall - (60.0 if since == "before the grant" else 0.0)
    openers = LiveOpeners(lambda: wall)
    openers.add(
        device, Opener("container:job", "", "sleep", process.pid, False, 1, 0, wall, wall), ignored=False, at=0.0
    )
    monkeypatch.setattr(world.life.observer.driver.guard, "openers", openers)
    named = f"`kill {process.pid}`" in "".join((await world.life.reporter.explain(device)).advice)
    assert named is (since == "after it")


async def watched_tenancy(begin):
    """A pod that uses a GPU behind a fence that lets others in."""
    world = await begin(fenced=True, policy="defaults: {fence: {mode: watch}}")
    device, tenant = world.uuids[0], "pod-a"
    await asyncio.sleep(1.0)
    await world.acquire(tenant, device, announced=True)
    await world.begin(tenant, device)
    await asyncio.sleep(3)
    return world, device, tenant


@pytest.mark.parametrize("who", ["another pod", "an exempt one", "the owner"])
async def test_a_foreign_process_on_the_gpu_is_named(begin, monkeypatch, who):
    world, device, tenant = await watched_tenancy(begin)
    pod = "monitoring/dcgm" if who == "an exempt one" else "team/train"
    [owner] = [it for it in world.node.everybody() if it.container == tenant]
    process = owner if who == "the owner" else world.foreign(device, "stranger", "uid-9")
    guard, wall = world.life.observer.driver.guard, world.node.now().wall
    openers = LiveOpeners(lambda: wall)
    openers.add(device, Opener(process.container, pod, "sh", 1, False, 1, 0, wall, wall), ignored=False, at=0.0)
    monkeypatch.setattr(guard, "openers", openers)
    monkeypatch.setattr(guard.places, "exempts", lambda _uuid, pod, _place, **_: pod.startswith("monitoring/"))
    for state in ("with its pod", "and after it")[: 1 if who == "the owner" else 2]:
        explained = await world.life.reporter.explain(device)
        named = any(f"`kill {process.pid}`" in it for it in explained.advice)
        assert (explained.device.state, named) == ("in_use", who == "another pod"), (state, explained.advice)
        world.node.end_container(tenant)
        await asyncio.sleep(5)


@pytest.mark.parametrize("given", [(), ("uid-9",)], ids=["to nobody", "to it"])
async def test_a_monitor_that_stays_does_not_keep_the_tenancy(begin, given):
    """The pod has ended: unless the kubelet gave the device to the monitor, nobody else may be sent to it."""
    world, device, tenant = await watched_tenancy(begin)
    world.foreign(device, "monitor", "uid-9")
    written_down(world, **{pod: [device] for pod in given})
    world.node.end_container(tenant)
    await asyncio.sleep(5)
    said = (await world.life.reporter.explain(device)).device
    assert (said.state, said.healthy) == (("in_use", True) if given else ("dirty", False))


@pytest.mark.parametrize("who", ["an exempt pod", "another pod", "an exempt unit", "another unit", "an exempt owner"])
async def test_an_exempt_holder_is_shown_as_exempt(begin, monkeypatch, who):
    """It keeps the device out, also if it opened it before anybody counted."""
    world = await begin(fenced=True, policy="defaults: {fence: {mode: watch}}")
    device, guard = world.uuids[0], world.life.observer.driver.guard
    await asyncio.sleep(1.0)
    if who == "an exempt owner":
        await world.acquire("uid-9", device, announced=True)
        await world.begin("uid-9", device)
    else:
        world.foreign(device, "monitor", None if who.endswith("unit") else "uid-9")
    exempt, group = "exempt" in who, frozenset({7})
    monkeypatch.setattr(guard.places, "exempts", lambda _uuid, _pod, place, **_: exempt and place == "uid-9")
    sources = replace(
        guard.places._sources, group_of=lambda _holder: 7, place=lambda _group: GroupPlace("/x.service", None, group),
        terms=lambda it, asks=guard.places._sources.terms: replace(asks(it), exempt=group if exempt else frozenset()),
    )  # fmt: skip
    monkeypatch.setattr(guard.places, "_sources", sources)
    await asyncio.sleep(3)
    [holder] = (await world.life.reporter.status([device])).devices[0].holders
    advice = " ".join((await world.life.reporter.explain(device)).advice)
    assert ("but counts as no bystander" in advice) is holder.exempt
    unit = "/x.service" if who == "an exempt unit" else ""
    assert (holder.exempt, holder.place) == (exempt and who != "an exempt owner", unit)


@pytest.mark.parametrize("is_given", [True, False])
async def test_a_monitor_on_an_idle_device_is_no_tenant(world, reporter, is_given):
    """It is on the device, but was not given it: its namespace may be exempt."""
    device = world.uuids[0]
    if is_given:
        await let_on(world, "uid-9", device)
    else:
        unknown = device, Distrusted("a test", world.record(device).incarnation)
        used = device, PutInUse(Owner("uid-9", world.node.now(), unannounced=True))
        await world.life.ledger.append("", unknown, used)
    namespaces = reporter._namespaces(world.record(device), Tenants(names={"uid-9": "ops/monitor"}))
    assert namespaces.of_tenants == ({"ops"} if is_given else set())


@pytest.mark.parametrize("is_exempt", [True, False])
async def test_an_exempt_unit_is_not_advised_again(begin, monkeypatch, is_exempt):
    """It was not exempt when it opened the GPU."""
    world = await begin(fenced=True, policy="defaults: {fence: {mode: watch}}")
    device, guard = world.uuids[0], world.life.observer.driver.guard
    opener = replace(opened_now(world, "/system.slice/x.service"), pod="")
    await world.life.ledger.append("", (device, replace(attempt(held=False), opener=opener)))
    monkeypatch.setattr(guard.places, "exempts", lambda _uuid, _pod, place, **_: is_exempt and place == opener.place)
    advice = " ".join((await world.life.reporter.explain(device)).advice)
    assert ("before the policy exempted it" in advice, "add its unit" in advice) == (is_exempt, not is_exempt)


async def fenced_tenant(begin):
    """A device that a pod has, behind a fence that only counts, and who reports about it."""
    world = await begin(fenced=True, policy="defaults: {fence: {mode: watch}}")
    device, reporter = world.uuids[0], world.life.reporter
    await asyncio.sleep(1.0)
    await world.acquire("pod-a", device, announced=True)
    await world.begin("pod-a", device)
    await asyncio.sleep(3)
    return world, device, reporter


@pytest.mark.parametrize("given", [("pod-a", "uid-9"), ("pod-a",), ("uid-9",)], ids=["both", "the owner", "the other"])
async def test_a_pod_that_the_kubelet_names_is_not_foreign(begin, given):
    """A plugin with time slicing gave the GPU to both, before it came behind ours."""
    world, device, reporter = await fenced_tenant(begin)
    process = world.foreign(device, "stranger", "uid-9")
    await asyncio.sleep(3)

    async def look() -> Tenants:
        entries = tuple(AssignmentEntry(device, pod, "main") for pod in given)
        return Tenants(entries, {"pod-a": "team/train", "uid-9": "team/other"})

    world.context.tenants = look
    foreign = [it.pid for it in (await reporter.status([device])).devices[0].holders if it.foreign]
    said = " ".join((await reporter.explain(device)).advice)
    shares = len(given) == 2
    assert (foreign, "not given to" in said) == ([] if shares else [process.pid], not shares)
    world.node.leave(process)
    world.node.alive.discard("uid-9")
    await asyncio.sleep(3)
    await world.life.ledger.append("", (device, replace(attempt(held=True), opener=opened_now(world, "uid-9"))))
    assert ("was used by" in " ".join((await reporter.explain(device)).advice)) is not shares


@pytest.mark.parametrize("is_proven", [True, False])
async def test_a_monitor_on_an_idle_gpu_is_no_break_in(build, begin, is_proven):
    """The label had_by of AutoclaveGpuOpened says that nobody had it."""
    if is_proven:
        world = await begin(fenced=True, policy="defaults: {fence: {mode: watch}}")
    else:
        world = build(fenced=True, policy="observe")
        await world.start()
    device, reporter, names = world.uuids[0], world.life.reporter, Tenants(names={"uid-9": "ops/monitor"})
    await asyncio.sleep(1.0)
    world.foreign(device, "monitor", "uid-9")
    await asyncio.sleep(3)

    async def look() -> Tenants:
        return names

    world.context.tenants = look
    shown = (await reporter.status([device])).devices[0]
    explained = await reporter.explain(device)
    for it in (shown, explained.device):
        assert (it.state, it.was_opened_idle) == (("dirty", False) if is_proven else ("in_use", True))
    said = "; ".join(explained.advice)
    assert ("the idle GPU was opened by" in said, "break-in" in said) == (True, False)
    words = "add ops to evict.operator_namespaces", "if nobody needs it, end it:", "delete pod monitor"
    assert [it for it in words if it not in said] == []


@pytest.mark.parametrize("fenced", [True, False], ids=["with a fence", "without one"])
async def test_status_says_who_else_is_on_a_tenants_device(begin, fenced):
    """The driver lists none of them, so the rounds after a search see no holder."""
    world = await begin(fenced=fenced, policy="defaults: {fence: {mode: watch}}")
    device, reporter = world.uuids[0], world.life.reporter
    await asyncio.sleep(1.0)
    await world.acquire("pod-a", device, announced=True)
    [owner] = await world.begin("pod-a", device)
    owner.secret = True
    await asyncio.sleep(12)

    async def look() -> Tenants:
        return Tenants(names={"pod-a": "team/train", "uid-9": "team/evil"})

    world.context.tenants = look
    shown = (await reporter.status([device])).devices[0]
    assert (shown.was_shared, [it.foreign for it in shown.holders if it.foreign]) == (False, [])
    process = world.foreign(device, "stranger", "uid-9")
    process.secret = fenced
    await asyncio.sleep(15)
    shown = (await reporter.status([device])).devices[0]
    foreign = [(it.pid, it.pod) for it in shown.holders if it.foreign]
    assert (shown.was_shared, foreign) == (True, [(process.pid, "team/evil")])
    first, save, *more, end, _ = (await reporter.explain(device)).advice
    assert "the data of team/train may have been read" in first
    assert "operator_namespaces" not in "".join(more), "the tenant's own namespace"
    assert "autoclave ledger export" in save
    assert "kubectl -n team delete pod evil" in end
    assert owner.pid not in [pid for pid, _ in foreign]
    world.node.leave(process)
    world.node.alive.discard("uid-9")
    await asyncio.sleep(3)
    shown = (await reporter.status([device])).devices[0]
    assert (shown.was_shared, [it for it in shown.holders if it.foreign]) == (True, [])


async def test_a_short_opening_of_a_tenants_device_is_shown(begin):
    world, device, reporter = await fenced_tenant(begin)
    world.node.leave(world.foreign(device, "passer", "uid-9"))
    await asyncio.sleep(3)
    owner = world.record(device).tenancy.owner
    assert owner is not None
    assert (owner.crowded, reporter.device(device).was_shared) == (False, True)


async def test_a_tenant_on_a_second_device_is_not_ended_unawares(begin):
    world = await begin(fenced=True, policy="defaults: {fence: {mode: watch}}")
    first, second = world.uuids
    await asyncio.sleep(1.0)
    for tenant, device in (("pod-a", first), ("pod-b", second)):
        await world.acquire(tenant, device, announced=True)
        await world.begin(tenant, device)
    await asyncio.sleep(3)
    world.foreign(first, "stranger", "pod-b")
    await asyncio.sleep(3)
    advice = (await world.life.reporter.explain(first)).advice
    assert "pod pod-b is also the tenant of GPU 1: if you end it, its work there ends, too" in advice


async def test_a_wiped_use_names_its_tenant(world, reporter):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await asyncio.sleep(3)
    await world.life.ledger.append("", (device, replace(attempt(held=True), opener=opened_now(world))))
    world.node.end_container(tenant)
    await asyncio.sleep(3)
    await world.clean(device)
    [wiped] = (await reporter.explain(device)).advice
    assert f", at least once while {tenant} had it, last tried at " in wiped


def opened_now(world, place: str = lives.OPENER.place) -> Opener:
    wall = world.node.now().wall
    return replace(lives.OPENER, place=place, first=wall, last=wall)


async def test_no_advice_acquires_what_a_kubelet_hands_out(begin):
    world = await begin()
    device = world.uuids[0]
    host = world.intrude(device)
    await asyncio.sleep(3)
    world.node.leave(host)
    row = replace(attempt(held=False), opener=replace(opened_now(world), place="/system.slice/x.service", pod=""))
    for socket in (False, True):
        if socket:
            (world.life.observer._kubelet_dir / paths.KUBELET_SOCKET).touch()
        await world.life.ledger.append("", (device, row))
        advice = "".join((await world.life.reporter.explain(device)).advice)
        assert ("autoclave acquire" in advice, "through Kubernetes" in advice) == (not socket, socket)


async def test_an_owner_that_was_never_seen_is_freed_by_force(world, naming):
    """Without the flag, `autoclave release` leaves the device of a pod alone."""
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await world.tenant_requests.start([device], None)
    await asyncio.sleep(ownership.STARTS_WITHIN)
    advice = (await naming.explain(device)).advice
    assert advice[-2:] == (
        "if the pod ns/train is still there, delete it: `kubectl -n ns delete pod train`",
        "if the pod ns/train has ended: `autoclave release 0 --force`",
    )


@pytest.mark.parametrize("unit", ["mymon.service", "containerd.service"])
async def test_a_service_in_the_way_is_stopped_as_a_unit(world, reporter, monkeypatch, unit):
    """Not what runs the containers of the node."""
    process = world.intrude(world.uuids[0])
    monkeypatch.setattr(proc, "unit", lambda _directory, started: unit if started == process.started else "")
    await asyncio.sleep(3)
    advice = (await reporter.explain(world.uuids[0])).advice
    stops = unit == "mymon.service"
    assert f"`systemctl stop {unit}`" in advice[0] if stops else f"`kill {process.pid}`" in advice[0]


async def test_an_entry_without_effect_is_explained(begin, monkeypatch):
    world = await begin(policy="defaults: {evict: {bystanders: [/usr/bin/mymon]}}")
    process = world.intrude(world.uuids[0])
    why = "root did not start it"
    monkeypatch.setattr(bystanders, "why_not", lambda listed, *_: why if "/usr/bin/mymon" in listed else "")
    await asyncio.sleep(3)
    said = (await world.life.reporter.explain(world.uuids[0])).advice
    [in_vain] = [it for it in said if it.startswith("evict.bystanders lists ")]
    assert in_vain.endswith(f" (pid {process.pid}), but it does not count: {why}")


async def test_an_entry_that_counts_is_not_called_without_effect(begin, monkeypatch):
    """A search left the process out: only as one of its owner does `explain` name it."""
    world = await begin(policy="defaults: {evict: {bystanders: [/usr/bin/mymon]}}")
    await world.acquire("pod", device := world.uuids[0], announced=True)

    async def process_of_owner(_record: object) -> tuple[Holder, ...]:
        return (Holder(9, 1.0, "mymon", "pod"),)

    monkeypatch.setattr(world.life.observer, "process_of_owner", process_of_owner)
    monkeypatch.setattr(bystanders, "why_not", lambda *_: "root did not start it")
    said = await world.life.reporter.explain(device)
    assert ([it.pid for it in said.device.holders], [it for it in said.advice if "lists" in it]) == ([9], [])


@dataclass
class Following:
    """A guard whose fence does this with others, or stands for no device."""

    keeps_off: KeptOff | None
    lets_all_in: bool = False
    pods_share_groups: bool = False
    below: str = ""
    openers: LiveOpeners = field(default_factory=lambda: LiveOpeners(lambda: 0.0))

    def kept_off(self, _uuid: str) -> KeptOff | None:
        return self.keeps_off

    def opens_to_all(self, _uuid: str) -> bool:
        return self.lets_all_in

    def keeps_out(self, _uuid: str) -> bool:
        return False

    def exempts(self, _uuid: str, pod: str, _place: str, *, before: bool = False) -> bool:  # noqa: ARG002 - as the guard has it
        return pod.startswith("monitoring/")

    def read(self, _uuid: str) -> None:
        """It has counted nothing."""

    @property
    def rules(self) -> Following:
        """It is all that it consists of."""
        return self

    places = count = rules


async def test_an_opener_is_exempt_as_the_policy_says_now(begin, monkeypatch):
    """Whatever it said when the opener asked: a plan is applied as it is printed."""
    world = await begin()
    guard = Following(KeptOff.PODS)
    monkeypatch.setattr(world.life.observer.driver, "guard", guard)
    pods = {"uid-1": "monitoring/dcgm", "uid-2": "team/train"}
    asked = [("uid-1", False), ("uid-2", True), ("uid-1", True), ("uid-1", True)]
    for wall, (pod, exempt) in enumerate(asked, 1):
        opener = Opener(pod, "", "dcgm", 7, exempt, 1, int(not exempt), wall, wall)
        guard.openers.add(world.uuids[0], opener, ignored=False, at=0.0)
    tenants = Tenants(names=pods)

    async def look() -> Tenants:
        return tenants

    monkeypatch.setattr(world.context, "tenants", look)
    device = (await world.life.reporter.status([world.uuids[0]])).devices[0]
    assert [(it.pod, it.exempt, it.times, it.refused, it.opened) for it in device.openers] == [
        ("team/train", False, 1, 0, 2.0), ("monitoring/dcgm", True, 3, 1, 4.0),
    ]  # fmt: skip


async def test_exemptions_stand_since_the_start_or_another_policy(begin, monkeypatch):
    world = await begin()
    reporter = world.life.reporter
    monkeypatch.setattr(reporter, "_fixed", replace(reporter.about(), started=70.0))
    assert reporter.about().policy_since == 70.0
    world.active_policy.changed = 90.0
    assert reporter.about().policy_since == 90.0


async def test_a_device_that_is_open_to_all_says_so(begin, monkeypatch):
    world = await begin(policy="defaults: {fence: {mode: refuse}}")
    monkeypatch.setattr(world.life.observer.driver, "guard", Following(KeptOff.ALL, lets_all_in=True))
    assert world.life.reporter.device(world.uuids[0]).fence == "open to all"


@pytest.mark.parametrize(
    ("policy", "kept_off", "said"),
    [
        ("fence: {mode: refuse}", KeptOff.ALL, "refuse"),
        ("fence: {mode: refuse}", KeptOff.NONE, "only watch"),
        ("fence: {mode: refuse}", None, ""),
        ("mode: enforce", KeptOff.PODS, "hold"),
        ("mode: enforce", KeptOff.NONE, "only watch"),
        ("fence: {mode: watch}", KeptOff.NONE, "watch"),
    ],
)
async def test_a_fence_that_cannot_keep_others_off_says_so(begin, monkeypatch, policy, kept_off, said):
    world = await begin(policy=f"defaults: {{{policy}}}")
    monkeypatch.setattr(world.life.observer.driver, "guard", Following(kept_off))
    assert world.life.reporter.device(world.uuids[0]).fence == said
