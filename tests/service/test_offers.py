"""A device whose request failed is not offered, and is offered again when the cause ends."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from ground.errors import LedgerUnavailable, NotReady, Reason, Refused
from scrubber.core.acquire import ForPod
from scrubber.core.model import Facts, State
from scrubber.core.observation import Purpose
from scrubber.service.context import WITHHOLD_SECONDS
from tests.service.asking import healthy, let_on, looking


async def test_r4_a_refused_device_in_use_is_withheld_until_release(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    assert healthy(world, device)
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    assert not healthy(world, device)
    await asyncio.sleep(10 * WITHHOLD_SECONDS)
    assert not healthy(world, device)
    assert healthy(world, world.uuids[1])
    world.node.end_container("pod")
    await world.clean(device)
    assert healthy(world, device)


async def test_watchers_learn_of_a_withheld_device_before_the_refusal(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await asyncio.sleep(2)
    refusal = world.spawn(world.acquire("next", device, announced=True))
    while healthy(world, device):
        assert await world.context.news.after(world.context.news.notifications, 5.0)
    with pytest.raises(NotReady):
        await refusal


async def test_a_refused_request_withholds_only_the_refused_devices(world):
    free, out = world.uuids
    await world.operator_requests.quarantine(out, "a drill", "the test")
    with pytest.raises(Refused):
        await world.tenant_requests.acquire([free, out], ForPod(announced=True))
    assert (healthy(world, free), world.context.is_withheld(world.record(out))) == (True, True)


async def test_a_hanging_driver_withholds_a_device_for_a_time_only(world):
    device = world.uuids[0]
    world.context.withhold([device])
    assert not healthy(world, device)
    await asyncio.sleep(WITHHOLD_SECONDS)
    assert healthy(world, device)


async def test_x31_an_abandoned_withheld_grant_is_offered_again(world):
    """One look that saw nothing must not take a device out until the next restart of the service."""
    device, observer = world.uuids[0], world.life.observer
    await world.acquire("gone", device, announced=True)
    look = observer.look

    async def blind(asked, _record) -> Facts:
        seen: Facts = await asked()
        return replace(seen, holders=None)

    observer.look = looking(observer, Purpose.RESERVE, Purpose.GRANT, does=blind)
    with pytest.raises(NotReady):
        await world.acquire("next", device, announced=True)
    observer.look = look
    await asyncio.sleep(60)
    assert healthy(world, device)
    assert world.state(device) is State.CLEAN


async def test_a_failing_ledger_offers_no_refused_device(world):
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


async def test_a_disk_that_is_freed_in_time_fails_none(world):
    device = world.uuids[0]
    world.life.disk.full = True
    asking = world.spawn(world.acquire("next", device, announced=True))
    await asyncio.sleep(2)
    assert not healthy(world, device)
    world.life.disk.full = False
    assert [granted.device for granted in await asking] == [device]


async def test_a_request_behind_a_hanging_observation_is_answered_in_time(world):
    device, observer = world.uuids[0], world.life.observer
    quick = observer.look

    async def slow(look, _record) -> Facts:
        await asyncio.sleep(14)
        seen: Facts = await look()
        return seen

    observer.look = looking(observer, Purpose.ROUND, does=slow)
    tending = world.spawn(world.upkeep.reconcile(device))
    await asyncio.sleep(0.5)
    observer.look = quick
    async with asyncio.timeout(6):  # as long as the plugin waits
        with pytest.raises(NotReady) as refused:
            await world.tenant_requests.acquire([device], ForPod(announced=True))
    assert refused.value.reason is Reason.UNRESPONSIVE
    assert not healthy(world, device)
    await tending


async def test_a_caller_that_was_killed_withholds_no_device(world):
    """Or the list that the next plugin registers with lacks a device that the Node still offers."""
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    asking = world.spawn(world.acquire("next", device, announced=True))
    await asyncio.sleep(0.5)
    asking.cancel()
    await asyncio.wait({asking})
    assert (asking.cancelled(), healthy(world, device)) == (True, True)


async def hand_over(world, device, before, after):
    """One pod ends, and the next one starts on its device; the lists that a watcher received meanwhile."""
    await asyncio.sleep(2)
    received, notify = [healthy(world, device)], world.context.news.notify

    def hear() -> None:
        notify()
        received.append(healthy(world, device))

    world.context.news.notify = hear
    world.node.end_container(before)
    await world.clean(device)
    await let_on(world, after, device)
    return [word for word, _ in itertools.groupby(received)]


@pytest.mark.parametrize(
    ("policy", "received"),
    [("default", [True]), ("defaults: {budgets: {allocate: 1s}}", [True, False, True])],
    ids=["within the budget of Allocate", "known to take longer"],
)
async def test_only_a_slow_handover_changes_the_offer(begin, policy, received):
    world = await begin(policy=policy)
    device = world.uuids[0]
    await let_on(world, "pod", device)
    await hand_over(world, device, "pod", "next")  # from now on it is known
    assert await hand_over(world, device, "next", "last") == received
