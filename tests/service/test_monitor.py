"""Rounds: each device in its turn, none in the way of another, and complaints that are made once."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from scrubber.core.model import State


async def test_a_device_that_is_not_listed_any_more_is_kept_and_taken_out(world):
    device = world.uuids[0]
    world.node.hidden.add(device)
    await asyncio.sleep(3)
    assert device in {advert.device for advert in world.life.reporter.adverts().devices}
    assert not next(it for it in world.life.reporter.adverts().devices if it.device == device).healthy
    world.node.hidden.clear()
    await world.reach(device, State.CLEAN)


async def test_while_the_inventory_cannot_be_read_known_devices_are_tended(build):
    world = build(interval=0.5)
    await world.start()
    await world.clean()
    world.node.deaf = True
    await asyncio.sleep(20)
    assert not any(advert.clean and not advert.healthy for advert in world.life.reporter.adverts().devices)
    world.node.deaf = False
    await world.clean()


async def test_what_goes_wrong_in_every_round_is_said_once(world):
    with capture_logs() as logs:
        world.life.disk.full = True
        world.intrude(world.uuids[0])
        await asyncio.sleep(30)
    told = [line for line in logs if line["event"].startswith("cannot record")]
    assert len(told) == 1
    assert told[0]["log_level"] == "error"
    world.life.disk.full = False
    await world.reach(world.uuids[0], State.DIRTY)


async def test_a_hung_device_makes_no_round_longer_than_its_patience(world):
    world.node.gpus[world.uuids[0]].hangs = True
    began = world.loop.time()
    await world.life.monitor.round()
    assert world.loop.time() - began < 5
