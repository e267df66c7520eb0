"""What the service makes of a kubelet: whose devices these are, what is offered, who waits, what a start means."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core import grounds
from scrubber.core.model import Facts, State
from scrubber.errors import LedgerUnavailable, NotReady, Reason, Refused
from scrubber.hooks import WITHHELD
from scrubber.node import checkpoint
from tests.service.world import World


def rows(world, kind, device):
    return [it.event for it in world.truth.entries if isinstance(it.event, kind) and it.device == device]


def scrubs(world, device):
    return len(rows(world, ev.ScrubPassed, device))


def healthy(world, device):
    return next(it for it in world.life.reporter.adverts().devices if it.device == device).healthy


def written_down(world, **pods):
    """What the kubelet's checkpoint says: devices by pod."""
    entries = [
        {"PodUID": pod, "ContainerName": "app", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": list(devices)}}
        for pod, devices in pods.items()
    ]
    text = json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1})
    (world.life.sight._kubelet_dir / checkpoint.NAME).write_text(text)


async def let_on(world, pod, *devices):
    """A pod's first container, from Allocate to its first process."""
    await world.acquire(pod, *devices, announced=True)
    written_down(world, **{pod: devices})
    await world.service.start(devices, None)
    world.truth.started(pod, devices[0])
    return [world.run(pod, device) for device in devices]


@pytest.fixture
def policy(build, tmp_path):
    """Worlds under a policy of a few lines."""

    async def one(text: str) -> World:
        file = tmp_path / "policy.yaml"
        file.write_text(f"name: few-lines\ndefaults: {text}\n")
        world: World = build(policy=str(file))
        await world.start()
        await world.clean()
        return world

    return one


# -- whose devices


async def test_a_start_without_an_owner_is_the_pods_that_the_kubelet_has_written_down(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device], other=[world.uuids[1]])
    await world.service.start([device], None)
    assert rows(world, ev.Exposed, device)[-1].owner.container == "pod"


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        ({}, Reason.OWNER_UNKNOWN),
        ({"pod": [0]}, Reason.OWNER_UNKNOWN),
        ({"pod": [0, 1], "other": [1]}, Reason.OWNER_AMBIGUOUS),
        ({"pod": [0], "other": [1]}, Reason.OWNER_AMBIGUOUS),
    ],
    ids=["nobody", "one of two is nobody's", "R8: one has two owners", "two pods"],
)
async def test_a_start_whose_owner_is_not_exactly_one_pod_is_refused_and_may_be_asked_again(world, pods, reason):
    await world.acquire("pod", *world.uuids, announced=True)
    written_down(world, **{pod: [world.uuids[at] for at in devices] for pod, devices in pods.items()})
    with pytest.raises(NotReady) as refused:
        await world.service.start(world.uuids, None)
    assert refused.value.reason is reason
    assert not any(rows(world, ev.Exposed, device) for device in world.uuids)


async def test_w3_without_a_readable_checkpoint_nothing_starts(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    with pytest.raises(NotReady) as refused:
        await world.service.start([device], None)
    assert refused.value.reason is Reason.OWNER_UNKNOWN
    assert world.state(device) is State.GRANTED


async def test_x23_who_lost_the_device_while_it_was_made_ready_does_not_start_on_it(policy):
    """A start is not cancelled when its pod is deleted; the device may be the next pod's by the time it is clean."""
    world = await policy("{gate: prestart}")
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    waiting = world.spawn(world.service.start([device], None))
    await asyncio.sleep(0.1)  # it has read the checkpoint and waits for the scrub
    assert world.state(device) is State.SCRUBBING
    written_down(world, next=[device])
    with pytest.raises(NotReady) as refused:
        await waiting
    assert refused.value.reason is Reason.OWNER_UNKNOWN
    assert not [it for it in rows(world, ev.Exposed, device) if it.owner.container == "pod"]


async def test_a_start_on_two_devices_exposes_both_or_none(world):
    await world.acquire("pod", *world.uuids, announced=True)
    written_down(world, pod=world.uuids)
    world.intrude(world.uuids[1], container=True)
    with pytest.raises(Refused):
        await world.service.start(world.uuids, None)
    assert world.state(world.uuids[0]) is State.GRANTED
    assert not rows(world, ev.Exposed, world.uuids[0])


async def test_a_pod_that_is_there_before_its_containers_is_known_to_be_gone_when_it_is(world):
    """Its sandbox runs already: nobody need wait for a container that came and went between two looks."""
    first, second = world.uuids
    written_down(world, pod=[first])
    world.run("pod", second)  # something of the pod runs
    await world.acquire("pod", first, announced=True)
    await world.service.start([first], None)
    assert rows(world, ev.Exposed, first)[-1].owner.seen
    world.node.end_container("pod")
    await world.acquire("next", first, announced=True)
    assert scrubs(world, first) == 2


# -- what is offered


async def test_r4_what_was_asked_for_while_in_use_is_not_offered_until_its_tenant_is_gone(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    assert healthy(world, device)
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    assert not healthy(world, device)
    await asyncio.sleep(10 * WITHHELD)
    assert not healthy(world, device)
    assert healthy(world, world.uuids[1])
    world.node.end_container("pod")
    await world.clean(device)
    assert healthy(world, device)


async def test_whoever_watches_hears_of_it_before_the_refusal(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    seq = world.life.ledger.seq
    refusal = world.spawn(world.acquire("next", device, announced=True))
    while healthy(world, device):
        seq = world.life.ledger.seq
        assert await world.life.ledger.moved(seq, 5.0)
    with pytest.raises(NotReady):
        await refusal


async def test_what_was_asked_for_in_vain_and_deserted_comes_back_by_itself(world):
    """Nobody would ask again for what is not offered, and so show that the last tenant is gone."""
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device])
    await world.service.start([device], None)  # it never comes
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    began = world.loop.time()
    assert not healthy(world, device)
    await world.clean(device)
    assert world.loop.time() - began <= grounds.STARTS_WITHIN + 5
    assert healthy(world, device)


async def test_a_hung_driver_does_not_withhold_a_device_for_ever(world):
    device = world.uuids[0]
    world.life.service._withhold([device])
    assert not healthy(world, device)
    await asyncio.sleep(WITHHELD)
    assert healthy(world, device)


# -- which hook waits


async def test_gate_prestart_answers_at_once_and_the_start_waits(policy):
    world = await policy("{gate: prestart}")
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    began = world.loop.time()
    assert await world.acquire("next", device, announced=True) == []
    assert world.loop.time() == began
    assert world.state(device) is State.SCRUBBING
    written_down(world, next=[device])
    await world.service.start([device], None)
    assert world.loop.time() > began
    assert scrubs(world, device) == 2
    assert rows(world, ev.Granted, device)[-1].grant.receipt == rows(world, ev.ScrubPassed, device)[-1].receipt.id


async def test_gate_prestart_starts_nothing_beside_a_tenant_that_does_not_leave(policy):
    world = await policy("{gate: prestart}")
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    assert await world.acquire("next", device, announced=True) == []
    written_down(world, next=[device])
    with pytest.raises(Refused) as refused:
        await world.service.start([device], None)
    assert refused.value.reason is Reason.IN_USE


async def test_gate_prestart_does_not_concern_who_will_not_announce_a_start(policy):
    world = await policy("{gate: prestart}")
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    [grant] = await world.acquire("next", device)
    assert grant.receipt == rows(world, ev.ScrubPassed, device)[-1].receipt.id


# -- what a start means


async def restart(world, device, *, left_behind=False):
    """The pod's container dies, and another one of the pod starts on the device."""
    if left_behind:
        world.node.enter(device, world.node.gpus[device].users()[0].kind, "left")
    world.node.end_container("pod")
    world.run("pod", next(it for it in world.uuids if it != device))  # the pod itself lives on
    await asyncio.sleep(1)
    before = scrubs(world, device)
    await world.service.start([device], None)
    return scrubs(world, device) - before


@pytest.mark.parametrize(("model", "wanted"), [("per-pod", 0), ("per-container", 1), ("per-container-cached", 0)])
async def test_a_restart_costs_a_scrub_under_per_container_only(policy, model, wanted):
    world = await policy(f"{{model: {model}}}")
    device = world.uuids[0]
    await let_on(world, "pod", device)
    assert await restart(world, device) == wanted
    assert world.state(device) is State.EXPOSED
    assert world.record(device).owner.container == "pod"


# -- what a review found


async def test_x31_an_abandoned_grant_that_was_asked_for_in_vain_is_offered_again(world):
    """One look that saw nothing must not take a device out until the next restart of the service."""
    device, sight = world.uuids[0], world.life.sight
    await world.acquire("gone", device, announced=True)
    full, quick = sight.full, sight.quick

    async def blind(record, *_args, **_kwargs) -> Facts:
        seen: Facts = await full(record)
        return replace(seen, holders=None)

    sight.quick = blind
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    sight.quick = quick
    await asyncio.sleep(60)
    assert healthy(world, device)
    assert world.state(device) is State.CLEAN


async def test_nothing_is_scrubbed_between_a_permitted_restart_and_its_first_process(world):
    """Not every runtime keeps a process of the pod alive between two containers."""
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    world.node.end_container("pod")
    await world.service.start([device], None)
    await asyncio.sleep(3)  # creating the container takes its time
    world.run("pod", device)
    await asyncio.sleep(5)
    assert world.state(device) is State.EXPOSED


@pytest.mark.parametrize("model", ["per-pod", "per-container", "per-container-cached"])
async def test_s10_what_a_strangers_container_left_is_scrubbed_before_the_next_start(policy, model):
    world = await policy(f"{{model: {model}}}")
    device, other = world.uuids
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    world.node.end_container("pod")
    world.run("pod", other)
    stranger = world.intrude(device, container=True)
    await asyncio.sleep(3)
    world.node.end_container(stranger.container)
    await asyncio.sleep(3)
    before = scrubs(world, device)
    await world.service.start([device], None)
    assert scrubs(world, device) == before + 1
    assert world.record(device).owner.container == "pod"


async def test_while_the_ledger_fails_what_was_asked_for_is_not_offered(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    world.life.disk.full = True
    world.node.end_container("pod")
    with pytest.raises(LedgerUnavailable):
        await world.acquire("next", device, announced=True)
    await asyncio.sleep(30)
    assert not healthy(world, device)
    world.life.disk.full = False
    await world.clean(device)
    assert healthy(world, device)


async def test_whoever_asks_while_a_look_holds_the_device_is_told_in_time(world):
    device, sight = world.uuids[0], world.life.sight
    quick = sight.quick

    async def slow(record) -> Facts:
        await asyncio.sleep(14)
        seen: Facts = await quick(record)
        return seen

    sight.quick = slow
    tending = world.spawn(world.service.tend(device))
    await asyncio.sleep(0.5)
    sight.quick = quick
    async with asyncio.timeout(6):  # as long as the plugin waits
        with pytest.raises(NotReady) as refused:
            await world.service.acquire([device], announced=True)
    assert refused.value.reason is Reason.UNRESPONSIVE
    assert not healthy(world, device)
    await tending


async def test_a_caller_that_runs_out_of_time_leaves_the_device_withheld(world):
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.service.acquire([device], announced=True), 0.5)
    assert world.life.service.withheld(world.record(device))


async def test_rule_1_no_look_is_recorded_after_its_question_was_answered(world):
    """Two devices are asked for and one cannot be recorded: the look at the other must end with the question."""
    first, second = world.uuids
    world.node.end_container(await world.tenancy(first, second))
    quick, late = world.life.sight.quick, asyncio.Event()

    async def slow(record) -> Facts:
        facts: Facts = await quick(record)
        if record.device.uuid == second:
            await late.wait()
        return facts

    world.life.sight.quick = slow
    world.life.disk.failures = 1
    with pytest.raises(LedgerUnavailable):
        await world.acquire("next", first, second, announced=True)
    world.life.sight.quick = quick
    await world.acquire("tenant", second, announced=True)
    written_down(world, tenant=[second])
    await world.service.start([second], None)
    late.set()
    await asyncio.sleep(0.05)
    assert world.state(second) is State.EXPOSED


async def test_a_stop_is_no_failure_of_the_device_that_a_pod_waits_for(world):
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    waiting = world.spawn(world.acquire("next", device, announced=True))
    await world.reach(device, State.SCRUBBING)
    await world.service.stop()
    with pytest.raises(NotReady) as refused:
        await waiting
    assert refused.value.reason is Reason.SHUTTING_DOWN
