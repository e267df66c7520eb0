"""A round observes every device in time, no device delays another, and each failure is logged once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from scrubber.core.model import AilmentKind, Facts, State, Vitals
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.observe.observed_since import OBSERVED_WITHIN, UNOBSERVED
from scrubber.service.monitor import CONCURRENT
from tests.service.asking import healthy, let_on, looking, scrubs

MANY = 3 * CONCURRENT


def counting(monkeypatch, owner, name: str) -> list[str]:
    """The devices of all later calls of a method."""
    calls: list[str] = []
    method = getattr(owner, name)

    def counted(device: str, *arguments: object, **options: object) -> object:
        calls.append(device)
        return method(device, *arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    return calls


async def test_a_device_that_leaves_the_inventory_is_quarantined(world):
    device = world.uuids[0]
    world.node.hidden.add(device)
    await asyncio.sleep(3)
    assert device in {device.uuid for device in world.life.reporter.reported().devices}
    assert not healthy(world, device)
    world.node.hidden.clear()
    await world.reach(device, State.CLEAN)


async def test_without_an_inventory_known_devices_are_reconciled(begin):
    world = await begin(interval=0.5)
    world.node.driver_hangs = True
    await asyncio.sleep(20)
    assert not any(device.clean and not device.healthy for device in world.life.reporter.reported().devices)
    world.node.driver_hangs = False
    await world.clean()


async def test_a_failure_of_every_round_is_logged_once(world):
    with capture_logs() as logs:
        world.life.disk.full = True
        world.intrude(world.uuids[0])
        await asyncio.sleep(30)
    assert "disk is full" in (await world.life.reporter.status([])).service.ledger_fault
    lines = [line for line in logs if line["event"].startswith("cannot write the ledger")]
    assert len(lines) == 1
    assert lines[0]["log_level"] == "error"
    world.life.disk.full = False
    await world.reach(world.uuids[0], State.DIRTY)
    assert (await world.life.reporter.status([])).service.ledger_fault == ""


async def test_a_sick_gpu_is_shown_while_the_disk_is_full(world):
    """Its pod goes on, and nobody must think that it is well."""
    device = world.uuids[0]
    await let_on(world, "pod-a", device)
    world.life.disk.full = True
    world.node.gpus[device].remap_failed = True
    await asyncio.sleep(30)
    assert (world.record(device).health.ailment, healthy(world, device)) == (None, False)
    [status] = (await world.life.reporter.status([device])).devices
    assert status.why == "sick: a memory row could not be remapped; not recorded yet"


async def test_a_late_answer_is_forgotten_after_a_good_one(world):
    """Two late answers in a row are a sign."""
    health, device = world.life.observer.health, world.uuids[0]
    for _ in range(2):
        world.node.gpus[device].hangs = True
        assert await health.vitals(device) == Vitals(partial=True)
        world.node.gpus[device].hangs = False
        await asyncio.sleep(100)  # the late call returns, and the device answers again
        assert await health.vitals(device) == Vitals()


async def test_a_hanging_device_delays_a_round_by_its_deadline_only(world):
    world.node.gpus[world.uuids[0]].hangs = True
    began = world.loop.time()
    await world.life.monitor.round()
    assert world.loop.time() - began < 5


async def settled(begin, gpus: int):
    """A world in which all devices are clean and quiet."""
    world = await begin(gpus=gpus)
    await asyncio.sleep(2 * OBSERVED_WITHIN)
    return world


@pytest.mark.parametrize("gpus", [2, MANY])
async def test_quiet_devices_are_observed_in_time_and_not_reconciled(begin, monkeypatch, gpus):
    world = await settled(begin, gpus)
    reconciled, observed = (
        counting(monkeypatch, world.upkeep, "reconcile"),
        counting(monkeypatch, world.node, "quick_observation"),
    )
    await asyncio.sleep(10 * OBSERVED_WITHIN)
    assert not reconciled
    slots = 10 * OBSERVED_WITHIN if gpus <= CONCURRENT else 10 * OBSERVED_WITHIN * CONCURRENT / MANY
    for device in world.uuids:
        assert slots - 2 <= observed.count(device) <= slots + 2


async def test_quiet_devices_take_no_search_of_the_processes(begin, monkeypatch):
    """The driver leaves out who only has a device open; a use searches for him."""
    world = await settled(begin, CONCURRENT)
    searches = counting(monkeypatch, world.node, "holders")
    reconciled = counting(monkeypatch, world.upkeep, "reconcile")
    await asyncio.sleep(10)
    assert (searches, reconciled) == ([], [])


async def test_a_fault_in_a_search_ends_no_rounds(begin, monkeypatch):
    world = await settled(begin, 2)
    first, second = world.uuids
    has_holders = world.node.has_holders

    async def broken(look: Callable[[], Awaitable[Facts]], record: Record) -> Facts:
        if record.device.uuid == first:
            raise ValueError("a fault of ours")
        return await look()

    def unknown(uuid: str) -> bool | None:  # so it is searched for
        return None if uuid == first else has_holders(uuid)

    monkeypatch.setattr(world.node, "has_holders", unknown)
    monkeypatch.setattr(world.life.observer, "look", looking(world.life.observer, Purpose.ROUND, does=broken))
    with capture_logs() as lines:
        await asyncio.sleep(OBSERVED_WITHIN)
    assert any("a fault of ours" in str(line.get("exc_info")) for line in lines)
    world.node.gpus[second].remap_failed = True
    await asyncio.sleep(OBSERVED_WITHIN)
    assert world.state(second) is State.QUARANTINED


@pytest.mark.parametrize("number", [0, MANY - 1])
async def test_a_change_of_a_quiet_device_is_found_in_time(begin, number):
    world = await settled(begin, MANY)
    one, other = world.uuids[number], world.uuids[(number + 7) % MANY]
    await asyncio.sleep(number / 10)
    world.intrude(one)
    world.node.gpus[other].remap_failed = True
    await asyncio.sleep(OBSERVED_WITHIN + 1)
    assert world.state(one) is not State.CLEAN
    assert world.record(other).health.quarantine.ailment.kind is AilmentKind.REMAP_FAILED


async def test_a_hanging_device_hides_no_change_of_a_quiet_one(begin):
    world = await settled(begin, MANY)
    world.node.gpus[world.uuids[0]].hangs = True
    await asyncio.sleep(1)
    for device in (world.uuids[1], world.uuids[-1]):
        world.intrude(device)
        await asyncio.sleep(OBSERVED_WITHIN + 1)
        assert world.state(device) is not State.CLEAN
    await world.reach(world.uuids[0], State.QUARANTINED)
    world.node.gpus[world.uuids[0]].hangs = False


async def test_a_device_in_use_is_never_quiet(begin, monkeypatch):
    world = await settled(begin, MANY)
    await let_on(world, "pod-a", world.uuids[0])
    await asyncio.sleep(2)
    observed = counting(monkeypatch, world.node, "quick_observation")
    await asyncio.sleep(10)
    assert 9 <= observed.count(world.uuids[0]) <= 11
    world.node.end_container("pod-a")
    await asyncio.sleep(1.5)
    assert world.state(world.uuids[0]) is State.SCRUBBING


async def test_a_device_with_a_new_record_is_reconciled_again(begin, monkeypatch):
    world = await settled(begin, MANY)
    await asyncio.sleep(0.5)
    await world.operator_requests.quarantine(world.uuids[0], "to be looked at", "a person")
    observed = counting(monkeypatch, world.node, "quick_observation")
    await asyncio.sleep(1)
    assert world.uuids[0] in observed


@pytest.mark.parametrize(("unwatched", "scrubbed"), [(UNOBSERVED - 10, 0), (UNOBSERVED + 10, 1)])
async def test_a_proof_ends_after_long_without_observation(world, monkeypatch, unwatched, scrubbed):
    """During a hanging write or a SIGSTOP, a process can use the device and leave unseen."""
    device, go = world.uuids[0], asyncio.Event()
    monkeypatch.setattr(world.life.monitor, "round", lambda _stagger: go.wait())
    before = scrubs(world, device)
    await asyncio.sleep(unwatched)
    await world.acquire("pod", device)
    assert scrubs(world, device) == before + scrubbed
