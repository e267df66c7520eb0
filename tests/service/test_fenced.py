"""A service whose kernel counts or refuses who opens a device: who may open it, and what a restart believes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ground.errors import NotReady
from scrubber.core import events as ev
from scrubber.core.acquire import ForClaim, ForJob
from scrubber.core.fencing import Pods
from scrubber.core.model import ScrubPath, State, Step
from scrubber.core.observation import Purpose
from scrubber.devices.base import Progress
from scrubber.steps.orders import Order, Report
from tests.service.asking import at_step, healthy, rows, scrubs, written_down
from tests.service.node import Kind
from tests.service.pretend_worker import PretendWorker
from tests.service.world import World


class Searches:
    """How often all processes of the world are searched."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, search = 0, world.node.holders

        def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
            self.count += 1
            return search(*args, **kwargs)

        monkeypatch.setattr(world.node, "holders", counted)


async def used(world: World, device: str) -> None:
    """A pod has it, and was seen."""
    await world.acquire("pod", device, announced=True)
    await world.begin("pod", device)
    await asyncio.sleep(3.0)


@pytest.fixture
def fenced(begin):
    """Worlds with clean devices some time after their scrubs: a use at the very end of one is one before it."""

    async def one(**kwargs) -> World:
        world: World = await begin(fenced=True, **kwargs)
        await asyncio.sleep(1.0)
        return world

    return one


async def scrubbed(world: World, device: str) -> None:
    """Return after its next scrub."""
    passed = scrubs(world, device)
    async with asyncio.timeout(600):
        while scrubs(world, device) == passed:
            await world.news()


@pytest.mark.parametrize("away", [0.0, 3600.0])
async def test_a_proof_outlives_a_kill(fenced, away):
    world = await fenced()
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await world.die()
    await asyncio.sleep(away)
    await world.start()
    await world.acquire("pod", device)
    assert scrubs(world, device) == passed


async def test_a_use_while_the_service_is_away_ends_the_proof(fenced):
    world = await fenced()
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await world.die()
    world.node.leave(world.intrude(device))
    await world.start()
    await world.acquire("pod", device)
    assert scrubs(world, device) == passed + 1


@pytest.mark.parametrize("asks", ["for a start", "again"])
async def test_a_use_before_the_granted_start_ends_the_proof(fenced, asks):
    """The service is away meanwhile."""
    world = await fenced(policy="fast")
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await world.acquire("pod", device, announced=True)
    await world.die()
    world.node.leave(world.intrude(device))
    await world.start()
    if asks == "again":
        await world.acquire("next", device, announced=True)
    await world.begin("next" if asks == "again" else "pod", device)
    assert scrubs(world, device) == passed + 1


async def test_an_earlier_tenant_is_a_user_like_others(fenced):
    world = await fenced(policy="defaults: {fence: {mode: watch}}")
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await world.acquire("pod", device, announced=True)
    await world.begin("pod", device)
    await asyncio.sleep(3.0)  # it was seen
    world.node.end_container("pod")
    await scrubbed(world, device)
    await asyncio.sleep(1.0)
    world.node.leave(world.foreign(device, "later", "pod"))
    world.node.alive.discard("pod")
    await world.acquire("next", device)
    assert scrubs(world, device) == passed + 2


@pytest.mark.parametrize("stays", [0.0, 60.0], ids=["in passing", "for a while"])
@pytest.mark.parametrize("company", [False, True], ids=["alone", "beside another one"])
async def test_a_use_counts_unless_all_its_users_are_exempt(fenced, stays, company):
    """It ends the proof in any case."""
    world = await fenced(policy="defaults: {fence: {mode: watch}}")
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    world.node.kernel.group("monitor")
    world.exempt.add("monitor")
    world.pod_names = {"monitor": "ops/monitor", "stranger": "site/stranger"}
    await asyncio.sleep(3.0)  # the service has read it
    if company:
        world.node.leave(world.foreign(device, "stranger", "stranger"))
    monitor = world.foreign(device, "monitor", "monitor")
    await asyncio.sleep(stays)
    world.node.leave(monitor)
    world.node.alive -= {"monitor", "stranger"}
    await scrubbed(world, device)
    soiled = rows(world, ev.Soiled, device)[-1]
    assert scrubs(world, device) == passed + 1
    named = "pod site/stranger (stranger)" if company else "pod ops/monitor (monitor)"
    assert stays or named in soiled.why
    assert (bool(soiled.holders or soiled.unnamed), "which the policy exempted" in soiled.why) == (company, not company)


async def test_a_row_names_the_pod_of_a_living_holder(fenced):
    world = await fenced(policy="defaults: {fence: {mode: watch}}")
    device = world.uuids[0]
    world.pod_names = {"stranger": "site/stranger"}
    process = world.foreign(device, "python", "stranger")
    await asyncio.sleep(3.0)
    soiled = rows(world, ev.Soiled, device)[-1]
    assert (soiled.why, [it.container for it in soiled.holders]) == (
        "it was used without a grant in pod site/stranger", ["stranger"],
    )  # fmt: skip
    note = (await world.life.reporter.status([device])).devices[0].setback
    assert f"(pid {process.pid}, site/stranger)" in note


PRESTART = "defaults: {fence: {mode: refuse}}"


async def test_where_the_fence_refuses_the_start_waits(fenced):
    world = await fenced(policy=PRESTART)
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await world.acquire("first", device, announced=True)
    await world.begin("first", device)
    await asyncio.sleep(3.0)  # it was seen
    world.node.end_container("first")
    assert await world.acquire("second", device, announced=True) == []
    assert scrubs(world, device) == passed
    assert await world.begin("second", device)
    assert scrubs(world, device) == passed + 1


async def test_a_pod_that_waits_for_its_start_survives_a_reboot(fenced):
    """The kubelet admits it again, and fails it unless its device is in the list: for a minute, as during a scrub."""
    world = await fenced(policy=PRESTART)
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await world.die()
    world.node.reboot()
    world.node.gpus[device].blind = True
    await world.start()
    listed = [healthy(world, device)]
    for seconds in (50, 20):
        await asyncio.sleep(seconds)
        listed.append(healthy(world, device))
    assert (world.state(device), listed) == (State.UNKNOWN, [True, True, False])
    world.node.gpus[device].blind = False
    await world.tenant_requests.start([device], None)
    assert world.record(device).tenancy.container == "pod"


async def test_while_all_may_open_a_device_allocate_waits(fenced):
    """A claim has it until its release, and the fence does not know the claim's pods."""
    world = await fenced(policy=PRESTART)
    device = world.uuids[0]
    await world.tenant_requests.acquire([device], ForJob("claim"))
    world.run("pod", device)
    await asyncio.sleep(3.0)  # it was seen
    with pytest.raises(NotReady):
        await world.acquire("second", device, announced=True)


async def test_a_claim_keeps_what_its_pod_only_has_open(fenced):
    """The kubelet gives it away once more. The fence lets the pod in, so it is not counted, and no list shows it."""
    world = await fenced(policy=PRESTART)
    device = world.uuids[0]
    world.node.kernel.group("pod")
    await world.tenant_requests.acquire([device], ForClaim("claim", Pods(frozenset({"pod"}))))
    idle = world.node.enter(device, Kind.FOREIGN_PROCESS, "a process", "pod", writes=False)
    idle.secret = True
    assert await world.acquire("second", device, announced=True) == []
    assert (world.record(device).tenancy.acquired_by, idle.refused) == ("claim", False)


@pytest.mark.parametrize("away", [False, True])
async def test_a_control_group_that_is_removed_opens_nothing(fenced, away):
    """The pod has ended, and for now the service cannot tell. Another one was given the GPU, and nobody was asked."""
    world = await fenced(policy=PRESTART)
    device = world.uuids[0]
    await world.acquire("first", device, announced=True)
    await world.begin("first", device)
    await asyncio.sleep(3.0)  # it was seen
    if away:
        await world.die()
    world.node.gpus[device].blind = True
    world.node.end_container("first")
    world.node.kernel.removed.add("first")
    if away:
        await world.start()
    await asyncio.sleep(3.0)
    assert world.state(device) is State.IN_USE
    assert world.foreign(device, "second", "second").refused, "it could have read what the first pod left"
    assert await world.acquire("second", device, announced=True) == [], "its container is held: it may wait"


async def test_without_a_fence_that_refuses_allocate_waits(begin):
    world = await begin(policy=PRESTART)
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    world.node.end_container(await world.tenancy(device))
    assert await world.acquire("second", device, announced=True)
    assert scrubs(world, device) == passed + 1


async def test_a_device_is_open_to_its_pod_alone(fenced):
    world = await fenced(policy="strict")
    device = world.uuids[0]

    def let_in() -> list[bool]:
        """Whether processes of the pod, of another one and of the host can open it now, and leave it at once."""
        found = []
        for container in ("pod", "other", None):
            process = world.node.enter(device, Kind.FOREIGN_PROCESS, "a process", container, writes=False)
            world.node.leave(process)
            found.append(not process.refused)
        return found

    assert let_in() == [False, False, False]
    await world.acquire("pod", device, announced=True)
    assert let_in() == [False, False, False], "no start was admitted"
    await world.begin("pod", device)
    assert let_in() == [True, False, False]
    await asyncio.sleep(3.0)  # it was seen
    world.node.end_container("pod")
    await at_step(world, device, Step.EVICT)
    assert let_in() == [False, False, False]


async def test_a_hand_over_takes_one_search(fenced, monkeypatch):
    world = await fenced()
    device, searches = world.uuids[0], Searches(world, monkeypatch)
    await used(world, device)
    assert searches.count == 0
    world.node.end_container("pod")
    await scrubbed(world, device)
    await used(world, device)
    assert searches.count == 1


async def test_who_was_sent_the_open_device_is_found(fenced):
    """The kernel asks nothing then, and the driver lists who uses its memory only."""
    world = await fenced()
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await used(world, device)
    heir = world.node.enter(device, Kind.FOREIGN_PROCESS, "heir", "pod", writes=False)
    heir.container, heir.secret = "other", True
    world.node.alive.add("other")
    world.node.end_container("pod")
    await asyncio.sleep(60.0)
    assert scrubs(world, device) == passed
    world.node.leave(heir)
    await scrubbed(world, device)


async def test_a_reset_takes_searches(fenced, monkeypatch):
    """Before it, since it cannot be undone, and after it: its tool is a program of the service."""
    world = await fenced()
    device, searches, before = world.uuids[0], Searches(world, monkeypatch), dict[Step, int]()

    class Counting(PretendWorker):
        async def perform(self, step: Step, order: Order, progress: Progress) -> Report:
            before.setdefault(step, searches.count)
            return await super().perform(step, order, progress)

    world._worker = Counting
    await world.operator_requests.scrub(device, ScrubPath.RESET)
    await at_step(world, device, Step.CLEAR)
    await world.life.observer.look(
        world.record(device), Purpose.START, starting_pod="next"
    )  # the tool counts as ours so far
    await scrubbed(world, device)
    assert before[Step.EVICT] < before[Step.RESET] < before[Step.HEALTH] < searches.count


async def test_a_worker_that_cannot_be_killed_is_found(fenced):
    world = await fenced()
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])

    class Unkillable(PretendWorker):
        async def kill(self) -> None:
            self._gone.set()
            self.process.secret = True

    world._worker = Unkillable
    job = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await at_step(world, device, Step.CLEAR)
    [stuck] = world.node.gpus[device].processes.values()
    job.cancel()
    await job.ended()
    world._worker = PretendWorker
    await asyncio.sleep(60.0)
    assert scrubs(world, device) == passed
    world.node.leave(stuck)
    await scrubbed(world, device)
