"""Rounds: each device in its turn, none in the way of another, and complaints that are made once."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from scrubber.core.model import AilmentKind, State
from scrubber.observe.observation_cache import UNOBSERVED
from scrubber.service.monitor import AT_ONCE, RESTS
from tests.service.asking import let_on, scrubs

MANY = 3 * AT_ONCE


def counting(monkeypatch, owner, name: str) -> list[str]:
    """The devices that a method is called for, from now on."""
    calls: list[str] = []
    method = getattr(owner, name)

    def counted(device: str) -> object:
        calls.append(device)
        return method(device)

    monkeypatch.setattr(owner, name, counted)
    return calls


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


async def settled(build, gpus: int):
    """A world in which nothing happens any more."""
    world = build(gpus=gpus)
    await world.start()
    await world.clean()
    await asyncio.sleep(2 * RESTS)
    return world


@pytest.mark.parametrize("gpus", [2, MANY])
async def test_devices_at_rest_are_looked_at_in_turn_and_never_tended(build, monkeypatch, gpus):
    world = await settled(build, gpus)
    tended, looks = counting(monkeypatch, world.service, "tend"), counting(monkeypatch, world.node, "look")
    await asyncio.sleep(10 * RESTS)
    assert not tended
    slots = 10 * RESTS if gpus <= AT_ONCE else 10 * RESTS * AT_ONCE / MANY
    for device in world.uuids:
        assert slots - 2 <= looks.count(device) <= slots + 2


@pytest.mark.parametrize("number", range(0, MANY, 5))
async def test_who_enters_a_device_at_rest_and_what_befalls_it_are_seen_within_the_time_told(build, number):
    world = await settled(build, MANY)
    one, other = world.uuids[number], world.uuids[(number + 7) % MANY]
    await asyncio.sleep(number / 10)
    world.intrude(one)
    world.node.gpus[other].remap_failed = True
    await asyncio.sleep(RESTS + 1)
    assert world.state(one) is not State.CLEAN
    assert world.record(other).quarantine.ailment.kind is AilmentKind.REMAP_FAILED


async def test_a_device_that_hangs_hides_no_other_at_rest(build):
    world = await settled(build, MANY)
    world.node.gpus[world.uuids[0]].hangs = True
    await asyncio.sleep(1)
    for device in (world.uuids[1], world.uuids[-1]):
        world.intrude(device)
        await asyncio.sleep(RESTS + 1)
        assert world.state(device) is not State.CLEAN
    await world.reach(world.uuids[0], State.QUARANTINED)
    world.node.gpus[world.uuids[0]].hangs = False


async def test_a_device_in_use_does_not_rest(build, monkeypatch):
    world = await settled(build, MANY)
    await let_on(world, "pod-a", world.uuids[0])
    await asyncio.sleep(2)
    tended = counting(monkeypatch, world.service, "tend")
    await asyncio.sleep(10)
    assert 9 <= tended.count(world.uuids[0]) <= 11
    world.node.end_container("pod-a")
    await asyncio.sleep(1.5)
    assert world.state(world.uuids[0]) is State.SCRUBBING


async def test_a_device_is_tended_again_as_soon_as_its_record_is_another(build, monkeypatch):
    world = await settled(build, MANY)
    await asyncio.sleep(0.5)
    await world.service.quarantine(world.uuids[0], "to be looked at", "a person")
    looks = counting(monkeypatch, world.node, "look")
    await asyncio.sleep(1)
    assert world.uuids[0] in looks


@pytest.mark.parametrize(("unwatched", "scrubbed"), [(UNOBSERVED - 10, 0), (UNOBSERVED + 10, 1)])
async def test_what_nobody_looked_at_for_long_is_proven_anew(world, monkeypatch, unwatched, scrubbed):
    """A disk that hangs, or a service that was stopped, as by SIGSTOP: whoever came and went was met by nobody."""
    device, go = world.uuids[0], asyncio.Event()
    monkeypatch.setattr(world.life.monitor, "round", lambda _pace: go.wait())
    before = scrubs(world, device)
    await asyncio.sleep(unwatched)
    await world.acquire("pod", device)
    assert scrubs(world, device) == before + scrubbed
