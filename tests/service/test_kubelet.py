"""What the kubelet's checkpoint and restarts mean for a start: the owner, the wait, the new owner."""

from __future__ import annotations

import asyncio

import pytest

from ground.errors import LedgerUnavailable, NotReady, Reason, Refused
from scrubber.core import events as ev
from scrubber.core import ownership, pauses
from scrubber.core.acquire import ForJob
from scrubber.core.model import Facts, State
from scrubber.core.observation import Purpose
from scrubber.service.context import ServiceContext
from tests.service.asking import let_on, looking, rows, scrubs, written_down

LONG = 300.0


@pytest.fixture
def containers_wait(monkeypatch):
    """The fence holds back the containers."""
    monkeypatch.setattr(ServiceContext, "containers_wait", lambda _self, _device: True)


# -- whose devices


async def test_w3_without_a_readable_checkpoint_nothing_starts(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    with pytest.raises(NotReady) as refused:
        await world.tenant_requests.start([device], None)
    assert refused.value.reason is Reason.OWNER_UNKNOWN
    assert world.state(device) is State.GRANTED


@pytest.mark.usefixtures("containers_wait")
async def test_x23_a_pod_that_lost_the_device_does_not_start(world):
    """A start is not cancelled when its pod is deleted; the device may be the next pod's by the time it is clean."""
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    waiting = world.spawn(world.tenant_requests.start([device], None))
    await asyncio.sleep(0.1)  # it has read the checkpoint and waits for the scrub
    assert world.state(device) is State.SCRUBBING
    written_down(world, next=[device])
    with pytest.raises(NotReady) as refused:
        await waiting
    assert refused.value.reason is Reason.OWNER_UNKNOWN
    assert not [it for it in rows(world, ev.PutInUse, device) if it.owner.container == "pod"]


async def test_a_start_on_two_devices_uses_both_or_none(world):
    await world.acquire("pod", *world.uuids, announced=True)
    written_down(world, pod=world.uuids)
    world.intrude(world.uuids[1], container=True)
    with pytest.raises(NotReady):
        await world.tenant_requests.start(world.uuids, None)
    assert world.state(world.uuids[0]) is State.GRANTED
    assert not rows(world, ev.PutInUse, world.uuids[0])


@pytest.mark.parametrize("asks", ["start", "acquire"])
async def test_w17_a_short_unannounced_use_of_a_grant_is_scrubbed(world, asks):
    """Whoever was refused for it asks again; what the visitor left must not be forgotten with its process."""
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    unannounced = world.intrude(device, container=True)
    ask = (
        world.tenant_requests.start([device], None) if asks == "start" else world.acquire("pod", device, announced=True)
    )
    question = world.spawn(ask)
    await asyncio.sleep(0.01)  # no round of the monitor is in between
    world.node.end_container(unannounced.container)
    await asyncio.wait([question])
    await world.tenant_requests.start([device], None)
    assert scrubs(world, device) == 2


async def test_a_pod_seen_before_its_containers_is_released_when_gone(world):
    """Its sandbox runs already: a container may start and end between two observations."""
    first, second = world.uuids
    written_down(world, pod=[first])
    world.run("pod", second)  # something of the pod runs
    await world.acquire("pod", first, announced=True)
    await world.tenant_requests.start([first], None)
    assert rows(world, ev.PutInUse, first)[-1].owner.seen
    world.node.end_container("pod")
    await world.acquire("next", first, announced=True)
    assert scrubs(world, first) == 2


async def test_a_pod_without_the_device_in_the_checkpoint_is_released(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await world.tenant_requests.start([device], None)  # and nothing of it is ever seen
    written_down(world, other=[world.uuids[1]])
    await asyncio.sleep(ownership.STARTS_WITHIN - 1)
    assert world.state(device) is State.IN_USE, "its container may come any moment"
    await asyncio.sleep(5)
    assert world.state(device) is State.CLEAN
    assert rows(world, ev.Released, device)[-1].why == "it was not used, and the kubelet has taken it from its owner"


# -- which hook waits


@pytest.mark.usefixtures("containers_wait")
async def test_where_the_fence_holds_allocate_answers_at_once(world):
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    began = world.loop.time()
    assert await world.acquire("next", device, announced=True) == []
    assert world.loop.time() == began
    await world.reach(device, State.SCRUBBING)
    written_down(world, next=[device])
    await world.tenant_requests.start([device], None)
    assert world.loop.time() > began
    assert scrubs(world, device) == 2
    assert rows(world, ev.Granted, device)[-1].grant.receipt == rows(world, ev.ScrubPassed, device)[-1].receipt.id


@pytest.mark.usefixtures("containers_wait")
async def test_where_the_fence_holds_allocate_answers_from_memory(world, monkeypatch):
    """Neither a look, nor a row, nor a lock that another request holds delays the other pods of the node."""
    [device, other] = world.uuids
    monkeypatch.setattr(world.life.observer, "look", lambda *_: pytest.fail("it looked"))
    world.life.disk.full = True
    before, began = len(world.truth.entries), world.loop.time()
    async with world.life.jobs.locks.of([device, other]):
        assert await world.acquire("next", device, other, announced=True) == []
    assert (len(world.truth.entries), world.loop.time()) == (before, began)


@pytest.mark.usefixtures("containers_wait")
async def test_where_the_fence_holds_a_quarantined_device_is_refused(world):
    [other, device] = world.uuids
    await world.operator_requests.quarantine(device, "to be returned", "tests")
    with pytest.raises(Refused, match="it is quarantined"):
        await world.acquire("next", other, device, announced=True)
    assert not world.tenant_requests._reserved, "all of them, or none"


@pytest.mark.usefixtures("containers_wait")
async def test_a_start_writes_grant_and_owner_of_all_at_once(world):
    [device, other] = world.uuids
    await world.acquire("next", device, other, announced=True)
    written_down(world, next=[device, other])
    append, written = world.life.ledger.append, list[int]()

    async def counted(op, *events, **more) -> None:
        written.append(len(events))
        await append(op, *events, **more)

    world.life.ledger.append = counted
    await world.tenant_requests.start([device, other], None)
    assert written == [4]
    assert all(world.state(it) is State.IN_USE for it in (device, other))


@pytest.mark.usefixtures("containers_wait")
async def test_where_the_fence_holds_nothing_starts_beside_the_last_owner(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    assert await world.acquire("next", device, announced=True) == []
    written_down(world, next=[device])
    began = world.loop.time()
    with pytest.raises(NotReady) as refused:
        await world.tenant_requests.start([device], None)
    assert refused.value.reason is Reason.IN_USE
    assert world.loop.time() - began >= pauses.START_WITHIN


@pytest.mark.usefixtures("containers_wait")
async def test_where_the_fence_holds_a_start_awaits_the_last_owner(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    await world.acquire("next", device, announced=True)
    written_down(world, next=[device])
    start = world.spawn(world.tenant_requests.start([device], None))
    await asyncio.sleep(10)
    assert world.state(device) is State.IN_USE
    world.node.end_container("pod")
    began = world.loop.time()
    await start
    assert scrubs(world, device) == 2
    assert world.loop.time() - began < 3.0  # about its scrub


@pytest.mark.usefixtures("containers_wait")
async def test_a_waiting_start_grants_no_other_device_meanwhile(world):
    used, free = world.uuids
    await let_on(world, "pod", used)
    written_down(world, next=[used, free])
    with pytest.raises(NotReady):
        await world.tenant_requests.start([used, free], None)
    assert not rows(world, ev.Granted, free)


async def test_rule_1_no_observation_is_recorded_after_its_answer(world):
    """Two devices are asked for and one cannot be recorded: the look at the other must end with the question."""
    first, second = world.uuids
    world.node.end_container(await world.tenancy(first, second))
    observer, late = world.life.observer, asyncio.Event()
    look = observer.look

    async def slow(asked, record) -> Facts:
        facts: Facts = await asked()
        if record.device.uuid == second:
            await late.wait()
        return facts

    observer.look = looking(observer, Purpose.RESERVE, Purpose.GRANT, does=slow)
    world.life.disk.full = True
    with pytest.raises(LedgerUnavailable):
        await world.acquire("next", first, second, announced=True)
    observer.look = look
    world.life.disk.full = False
    await world.acquire("tenant", second, announced=True)
    written_down(world, tenant=[second])
    await world.tenant_requests.start([second], None)
    late.set()
    await asyncio.sleep(0.05)
    assert world.state(second) is State.IN_USE


async def test_a_stop_is_not_a_failure_of_a_requested_device(world):
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    waiting = world.spawn(world.acquire("next", device, announced=True))
    await world.reach(device, State.SCRUBBING)
    await world.service.stop()
    with pytest.raises(NotReady) as refused:
        await waiting
    assert refused.value.reason is Reason.SHUTTING_DOWN


# -- an unannounced pod keeps its device while it lives, unless the device was granted to another pod


async def quick(world, device):
    """A container of a pod that lives on has been on it, which a round has seen. The pod."""
    unannounced = world.intrude(device, container=True)
    await world.reach(device, State.IN_USE)
    world.node.leave(unannounced)
    return unannounced.container


async def test_a_monitor_on_a_grant_does_not_take_it(world):
    """Its container may be about to come, after a restart of the kubelet without a word."""
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await quick(world, device)
    await asyncio.sleep(LONG)
    with pytest.raises(Refused):
        await world.tenant_requests.acquire([device], ForJob())
    world.restart_kubelet()
    process = world.run("pod", device)
    await asyncio.sleep(LONG)
    world.node.leave(process)  # between two kernels of its own
    await asyncio.sleep(LONG)
    assert (world.record(device).tenancy.owner.container, scrubs(world, device)) == ("pod", 1)


async def test_a_start_waits_until_a_monitor_closes_the_device(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    unannounced = world.intrude(device, container=True)
    await world.reach(device, State.IN_USE)
    with pytest.raises(NotReady):
        await world.tenant_requests.start([device], None)
    world.node.leave(unannounced)
    await world.tenant_requests.start([device], None)  # before any round has seen it
    assert (world.record(device).tenancy.owner.container, scrubs(world, device)) == ("pod", 2)


@pytest.mark.parametrize("given", [["pod"], []], ids=["given to another pod", "given to nobody"])
async def test_r11_an_unannounced_pod_outlives_a_kubelet_restart(world, given):
    """He may have been started without a word; and the checkpoint may have been lost and begun anew."""
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, **{pod: [device] for pod in given})
    world.restart_kubelet()
    pod = await quick(world, device)
    await asyncio.sleep(LONG)
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    assert (world.state(device), scrubs(world, device)) == (State.IN_USE, 1)
    world.node.end_container(pod)
    await world.clean(device)


async def test_w14_a_pod_in_the_checkpoint_owns_the_device(world):
    """The ledger was lost. The kubelet forgets a pod that was deleted by force, and its container runs on."""
    device = world.uuids[0]
    [before] = [world.run(await world.tenancy(device), device)]
    pod = before.container
    written_down(world, **{pod: [device]})
    await world.die()
    world.forget()
    await world.start()
    await asyncio.sleep(2)
    for process in world.node.gpus[device].users():
        world.node.leave(process)  # between two kernels of its own
    written_down(world)
    await asyncio.sleep(LONG)
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    assert (world.state(device), world.record(device).tenancy.owner.unannounced) == (State.IN_USE, False)
    world.node.end_container(pod)
    await world.clean(device)
