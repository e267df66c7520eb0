"""What happens to the whole node is told by rows of the ledger, each once, also if it could not be written at first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from scrubber.core import events as ev
from scrubber.core.model import Moment
from scrubber.core.standstills import Clocks
from scrubber.service.chronicle import Chronicle
from tests.service.world import World


@dataclass
class Tampered:
    """The clocks of a node, of which a test may change two."""

    world: World
    stood_still: float = 0.0
    was_set: float = 0.0

    def __call__(self) -> Clocks:
        now = self.world.node.now()
        uptime = now.uptime + self.stood_still
        return Clocks(Moment(now.wall + self.stood_still + self.was_set, uptime), uptime)


@pytest.fixture
async def world(begin) -> World:
    it: World = await begin(policy="default")
    await it.clean()
    return it


def begun(world):
    """The clocks, and the task of the chronicle in the present life of the service."""
    clocks = Tampered(world)
    chronicle = Chronicle(world.life.ledger, world.active_policy, clocks)
    return clocks, world.spawn(chronicle.run())


async def of_node(world):
    """The events of the node so far."""
    entries = (await world.life.ledger.history(None, None, 1000)).entries
    return [entry.event for entry in entries if isinstance(entry.event, ev.OF_NODE)]


async def test_what_happens_to_the_node_is_recorded_once(world):
    clocks, _ = begun(world)
    await asyncio.sleep(2)
    [policy] = await of_node(world)
    assert policy == ev.PolicyInForce("default", world.active_policy.digest)
    clocks.stood_still += 27.0
    await asyncio.sleep(1)
    clocks.was_set -= 3600.0
    await asyncio.sleep(1)
    world.change_policy("strict")
    await asyncio.sleep(600)
    [_, still, moved, strict] = await of_node(world)
    assert (still.seconds, still.times, moved.seconds) == (pytest.approx(27.0), 1, pytest.approx(-3600.0))
    assert strict == ev.PolicyInForce("strict", world.active_policy.digest)


async def test_the_next_start_records_only_another_policy(world):
    begun(world)
    await asyncio.sleep(2)
    for policy in ("default", "strict"):
        await world.die()
        world.change_policy(policy)
        await world.start()
        begun(world)
        await asyncio.sleep(2)
    assert [event.name for event in await of_node(world)] == ["default", "strict"]


async def test_what_happens_on_a_full_disk_is_recorded_afterwards(world):
    clocks, _ = begun(world)
    await asyncio.sleep(2)
    world.life.disk.full = True
    clocks.stood_still += 27.0
    world.change_policy("strict")
    await asyncio.sleep(300)
    world.life.disk.full = False
    await asyncio.sleep(5)
    [_, outage, still, policy] = await of_node(world)
    assert (type(still), policy.name) == (ev.StoodStill, "strict")
    assert outage.until.uptime - outage.since.uptime == pytest.approx(300.0, abs=5)
