"""A use of a clean device ends its proof, whoever saw it, before anything is answered."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from ground.errors import AutoclaveError, NotReady, Reason, Refused
from scrubber.core import events as ev
from scrubber.core.acquire import ForJob, ForPod
from scrubber.core.model import ScrubPath, State, Step
from scrubber.core.observation import Purpose
from scrubber.core.use_counter import UseCounter
from scrubber.service.monitor import Monitor
from scrubber.service.operator_requests import OperatorRequests
from scrubber.service.tenant_requests import TenantRequests
from scrubber.service.upkeep import Upkeep
from tests.service.asking import at_step, let_on, rows, scrubs
from tests.service.node import Kind, Node, Process
from tests.service.world import World

Ask = Callable[[World, str], Awaitable[object]]
# Every request and every round, by the method that it calls.
OBSERVE: dict[str, Ask] = {
    "TenantRequests.acquire": lambda world, device: world.tenant_requests.acquire([device], ForJob()),
    "TenantRequests.start": lambda world, device: world.tenant_requests.start([device], "pod"),
    "TenantRequests.release": lambda world, device: world.tenant_requests.release([device]),
    "OperatorRequests.scrub": lambda world, device: world.operator_requests.scrub(device, None),
    "Upkeep.reconcile": lambda world, device: world.upkeep.reconcile(device),
    "Monitor.round": lambda world, _device: world.life.monitor.round(),
}
# They do not observe holders, or ask about devices that are not clean.
OTHERS = {
    "TenantRequests.let_in", "TenantRequests.distrust", "OperatorRequests.quarantine", "OperatorRequests.reinstate",
    "OperatorRequests.reinstate_without_proof",
    "Upkeep.recover", "Upkeep.register", "Upkeep.name_pods", "Monitor.run",
}  # fmt: skip


def test_every_request_and_every_round_is_known_here():
    methods = {
        f"{room.__name__}.{name}"
        for room in (TenantRequests, OperatorRequests, Upkeep, Monitor)
        for name, method in vars(room).items()
        if not name.startswith("_") and (inspect.iscoroutinefunction(method) or name == "reinstate_without_proof")
    }
    assert methods == OBSERVE.keys() | OTHERS


async def unobserved(begin, **kwargs) -> World:
    """A world with clean devices and no rounds."""
    world: World = await begin(**kwargs)
    assert world._watching is not None
    world._watching.cancel()
    await asyncio.sleep(0.1)
    return world


@pytest.mark.parametrize("ask", OBSERVE)
async def test_a_holder_that_a_request_saw_ends_the_proof(begin, ask):
    world = await unobserved(begin)
    world.node.keeps_uses = False
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    holder = world.intrude(device)
    with suppress(AutoclaveError):
        await OBSERVE[ask](world, device)
    assert holder.name in rows(world, ev.Soiled, device)[0].holders[0].command
    world.node.leave(holder)
    await world.acquire("pod", device)
    assert scrubs(world, device) == passed + 1


@pytest.mark.parametrize(
    ("ask", "then"),
    [("TenantRequests.acquire", State.GRANTED), ("TenantRequests.start", State.IN_USE), ("Monitor.round", State.CLEAN)],
)
async def test_a_use_between_two_observations_ends_the_proof(begin, ask, then):
    world = await unobserved(begin)
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    world.node.leave(world.intrude(device))
    with suppress(AutoclaveError):
        await OBSERVE[ask](world, device)
    assert "cannot be named" in rows(world, ev.Soiled, device)[0].why
    await world.reach(device, then)
    assert scrubs(world, device) == passed + 1


async def test_uses_are_counted_until_the_next_hand_over(begin):
    world = await unobserved(begin)
    device = world.uuids[0]

    async def is_used() -> None:
        await asyncio.sleep(0.1)  # a use at the very end of a scrub is taken for one before it
        world.node.leave(world.intrude(device))
        await world.upkeep.reconcile(device)
        await world.reach(device, State.CLEAN)

    for _ in range(3):
        await is_used()
    await world.acquire("pod", device)
    await world.tenant_requests.release([device])
    await world.reach(device, State.CLEAN)
    await is_used()
    assert [event.times for event in rows(world, ev.Soiled, device)] == [1, 2, 3, 1]


@pytest.mark.parametrize("step", [Step.CLEAR, Step.VERIFY, Step.SCRATCH, Step.SETTINGS, Step.HEALTH])
async def test_a_short_use_during_a_scrub_leaves_no_receipt(begin, step):
    """It is tried again, as after any other use."""
    world = await unobserved(begin)
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    job = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await at_step(world, device, step)
    await asyncio.sleep(0.02)
    world.node.leave(world.intrude(device))
    await job.finished.wait()
    assert (job.receipt, scrubs(world, device)) == (None, passed)
    assert "another process has used the device since its clear began" in job.why
    assert world.record(device).scrubs.setback is not None
    job = await world.operator_requests.scrub(device, None)
    await job.finished.wait()
    assert job.receipt is not None


async def waits_for_a_scrub(begin, ask="TenantRequests.acquire"):
    """A device that is being scrubbed, how many scrubs it had passed before, and the request that waits for it."""
    world = await unobserved(begin)
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await world.tenant_requests.distrust(device, "a test")
    waiting = asyncio.ensure_future(OBSERVE[ask](world, device))
    await at_step(world, device, Step.VERIFY)
    return world, device, passed, waiting


async def test_a_request_outlasts_a_use_in_passing(begin):
    """A monitoring tool that opens the device for a moment must not fail the pod that waits for it."""
    world, device, passed, waiting = await waits_for_a_scrub(begin)
    world.node.leave(world.intrude(device))
    assert len(await waiting) == 1
    assert scrubs(world, device) == passed + 1
    assert len(rows(world, ev.ScrubFailed, device)) == 1


@pytest.mark.parametrize("ask", ["TenantRequests.acquire", "TenantRequests.start"])
async def test_a_request_outlasts_a_process_that_ended_its_scrub(begin, ask):
    world, device, passed, waiting = await waits_for_a_scrub(begin, ask)
    holder = world.intrude(device, container=True)
    await world.reach(device, State.DIRTY)
    await asyncio.sleep(0.2)
    world.node.leave(holder)
    await waiting
    assert (scrubs(world, device), len(rows(world, ev.ScrubFailed, device))) == (passed + 1, 1)


async def test_a_request_outlasts_a_use_of_what_it_had_scrubbed(begin):
    """It waits for another GPU meanwhile. The scrub passed, so it did not fail."""
    world = await unobserved(begin)
    device, other = world.uuids
    passed, tenant = scrubs(world, device), await world.tenancy(other)
    await world.tenant_requests.distrust(device, "a test")
    waiting = asyncio.create_task(world.acquire("pod", device, other))
    await world.reach(device, State.CLEAN)
    await asyncio.sleep(0.1)
    world.node.leave(world.intrude(device))
    await asyncio.sleep(0.1)
    world.node.end_container(tenant)
    assert len(await waiting) == 2
    assert scrubs(world, device) == passed + 2


async def test_a_request_outlasts_a_scrub_that_was_cancelled(begin):
    world, device, passed, waiting = await waits_for_a_scrub(begin)
    await world.life.jobs.cancel(device)
    assert len(await waiting) == 1
    assert scrubs(world, device) == passed + 1


async def test_two_requests_that_wait_for_one_scrub_both_get_it(begin):
    """The second one lets the GPU be scrubbed again: the first one may have used it."""
    world = await unobserved(begin)
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await world.tenant_requests.distrust(device, "a test")
    await asyncio.gather(*(world.acquire(pod, device) for pod in ("first", "second")))
    assert scrubs(world, device) == passed + 2


async def test_a_use_counter_that_cannot_answer_ends_the_proof(begin):
    """It may have missed a use. Nobody gets the device meanwhile, and the sentence says what to do."""
    world = await unobserved(begin)
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    world.node.misses_uses = True
    with pytest.raises(NotReady, match="raise its limit") as refused:
        await world.acquire("pod", device)
    assert refused.value.reason is Reason.SHORTAGE
    await world.upkeep.reconcile(device)
    shown = world.life.reporter.device(device)
    assert (shown.state, shown.healthy, shown.setback) == ("dirty", False, "raise its limit")
    assert shown.use_counter == "not known: raise its limit"
    [soiled] = rows(world, ev.Soiled, device)
    assert (soiled.why, soiled.holders) == ("it is not known whether it was used: raise its limit", ())
    world.node.misses_uses = False
    await world.acquire("pod", device)
    assert scrubs(world, device) == passed + 1


@pytest.mark.parametrize(("switch", "why"), [("misses_uses", "raise its limit"), ("keeps_uses", "keeps no accounts")])
async def test_a_use_counter_lost_during_a_scrub_leaves_no_receipt(begin, switch, why):
    """Also if it is back at once."""
    world = await unobserved(begin)
    device, now = world.uuids[0], getattr(world.node, switch)
    job = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await at_step(world, device, Step.VERIFY)
    setattr(world.node, switch, not now)
    await world.life.observer.look(world.record(device), Purpose.CHANGE)
    setattr(world.node, switch, now)
    await job.finished.wait()
    assert job.receipt is None
    assert why in job.why


async def test_a_receipt_names_the_use_counter_of_its_scrub(begin):
    """A scrub in which a use counter comes is made again: nobody has counted from its clear on."""
    world = await unobserved(begin)
    device = world.uuids[0]
    receipt = world.record(device).scrubs.receipt
    assert receipt is not None
    assert receipt.witness == UseCounter.FILES.value
    world.node.keeps_uses = False
    await world.upkeep.reconcile(device)
    job = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await at_step(world, device, Step.SETTINGS)
    world.node.keeps_uses = True
    await job.finished.wait()
    assert job.receipt is None
    again = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await again.finished.wait()
    assert again.receipt is not None
    assert again.receipt.witness == UseCounter.FILES.value


async def test_a_short_use_before_the_clear_is_overwritten(begin):
    world = await unobserved(begin)
    device = world.uuids[0]
    job = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await at_step(world, device, Step.EVICT)
    world.node.leave(world.intrude(device))
    await job.finished.wait()
    assert job.receipt is not None


async def test_a_look_of_the_monitor_disturbs_no_scrub(begin):
    """It finds the worker on the device."""
    world = await unobserved(begin)
    device = world.uuids[0]
    job = await world.operator_requests.scrub(device, ScrubPath.FAST)
    while not job.finished.is_set():
        await world.life.monitor.round()
        await asyncio.sleep(0.05)
    assert job.receipt is not None


def traced_searches(world: World, device: str, monkeypatch: pytest.MonkeyPatch) -> list[State]:
    """The state of the device at each search for its holders, from now on."""
    search, seen = world.life.observer.holders.of, list[State]()

    async def traced(uuids, listed) -> object:
        seen.extend([world.record(device).state] * (device in uuids))
        return await search(uuids, listed)

    monkeypatch.setattr(world.life.observer.holders, "of", traced)
    return seen


async def test_each_start_is_searched_for_without_a_fence(begin, monkeypatch):
    world = await unobserved(begin)
    device = world.uuids[0]
    searches = traced_searches(world, device, monkeypatch)
    await world.acquire("pod", device, announced=True)
    assert searches == [], "the start decides again"
    await world.tenant_requests.start([device], "pod")
    await world.tenant_requests.start([device], "pod")
    assert searches == [State.GRANTED, State.IN_USE]


@pytest.mark.parametrize("secret", [True, False])
async def test_a_start_finds_a_pod_without_a_grant(begin, secret):
    world = await unobserved(begin)
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    guest = world.intrude(device, container=True)
    guest.secret = secret  # the driver does not list it
    with suppress(AutoclaveError):
        await world.tenant_requests.start([device], "pod")
    assert guest.container in {event.owner.container for event in rows(world, ev.PutInUse, device)}


async def without_context(world, device, name, **more) -> Process:
    """A process that has the device open, and is on no list of the driver."""
    process: Process = world.node.enter(device, Kind.FOREIGN_PROCESS, name, writes=False, **more)
    process.secret = True
    return process


@pytest.fixture
def _as_nvml(monkeypatch) -> None:
    """The driver knows no holder but those on its list."""

    def has_holders(node: Node, uuid: str) -> bool:
        return bool(node.listed_holders(uuid))

    monkeypatch.setattr(Node, "has_holders", has_holders)


@pytest.mark.usefixtures("_as_nvml")
async def test_a_job_keeps_its_gpu_before_it_has_a_context(begin):
    world = await begin(gpus=1)
    device = world.uuids[0]
    await world.tenant_requests.acquire([device], ForJob("job-1"))
    world.run("job-1", device).secret = True
    await asyncio.sleep(5)
    with pytest.raises(NotReady, match="still in use"):
        await world.tenant_requests.acquire([device], ForPod(announced=True))
    assert world.record(device).tenancy.until_release


@pytest.mark.usefixtures("_as_nvml")
@pytest.mark.parametrize("fenced", [False, True])
async def test_no_scrub_begins_while_somebody_has_it_open(begin, fenced):
    """A monitor has no context. Its GPU waits for its end, and is not scrubbed in vain again and again."""
    world = await begin(gpus=1, fenced=fenced, policy="defaults: {fence: {mode: watch}}")
    device = world.uuids[0]
    monitor = await without_context(world, device, "monitor", container="monitor")
    with suppress(Refused, NotReady):
        await world.tenant_requests.acquire([device], ForPod())
    await asyncio.sleep(60)
    assert [it for it in world.truth.entries if isinstance(it.event, ev.ScrubFailed)] == []
    assert world.state(device) is not State.CLEAN
    world.node.leave(monitor)
    await world.reach(device, State.CLEAN)


@pytest.mark.usefixtures("_as_nvml")
async def test_an_idle_owner_is_searched_for_once_a_minute(begin, monkeypatch):
    """Perhaps it hangs, and the driver lists it no more."""
    world = await begin(gpus=1)
    device = world.uuids[0]
    for process in await let_on(world, "pod-a", device):
        process.secret = True
    await asyncio.sleep(5)
    searches, holders = list[float](), world.node.holders

    def counted(*arguments: object, **more: object) -> object:
        searches.append(world.loop.time())
        return holders(*arguments, **more)

    monkeypatch.setattr(world.node, "holders", counted)
    await asyncio.sleep(300)
    assert 3 <= len(searches) <= 6
