"""An operator changes the MIG layout of a GPU: removed slices are not missing devices."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

from ground.errors import NotReady, Refused
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, State
from scrubber.metrics.counters import ServiceCounters
from scrubber.metrics.gauges import ServiceCollector
from scrubber.service.service import Readiness
from scrubber.words import device_status
from tests.service.asking import rows
from tests.service.node import Kind

GPU = "GPU-0000"


@pytest.fixture
async def world(begin):
    """One clean GPU."""
    return await begin(gpus=1)


async def laid_out(world, *slices: str) -> None:
    """Change the slices as an operator does, and wait until all devices are clean."""
    world.node.lay_out(GPU, *slices)
    await asyncio.sleep(10)  # the next look at the inventory is over
    for uuid in slices or (GPU,):
        await world.reach(uuid, State.CLEAN)


def reasons(world) -> dict[str, AilmentKind]:
    """The reasons of all devices in quarantine."""
    records = world.life.ledger.records.items()
    return {uuid: it.health.quarantine.ailment.kind for uuid, it in records if it.health.quarantine is not None}


def series(world) -> set[str]:
    """The names and labels of all series."""
    registry = CollectorRegistry()
    readiness = Readiness(world.context, world.life.reporter, lambda: None)
    counts = ServiceCollector(
        world.context, world.life.reporter, ServiceCounters(CollectorRegistry()), readiness, dict, 0.0
    )
    registry.register(counts)
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def test_slices_that_a_new_layout_removed_are_not_lost(world):
    await laid_out(world, "MIG-a", "MIG-b")
    assert reasons(world) == {GPU: AilmentKind.RELAID}
    await laid_out(world, "MIG-b", "MIG-c")
    assert reasons(world) == {GPU: AilmentKind.RELAID, "MIG-a": AilmentKind.RELAID}
    for gone in (GPU, "MIG-a"):
        with pytest.raises((Refused, NotReady)):
            await world.acquire("pod", gone)
    reported = {it.uuid: it for it in world.life.reporter.reported().devices}
    assert {uuid for uuid, it in reported.items() if it.healthy} == {"MIG-b", "MIG-c"}
    assert (reported["MIG-a"].reason, reported["MIG-a"].replaced) == ("relaid", True)
    assert {it.quarantine.ailment.kind for it in rows(world, ev.Quarantined)} == {AilmentKind.RELAID}


async def test_a_new_layout_during_a_restart_is_recognised(world):
    await laid_out(world, "MIG-a", "MIG-b")
    await world.die()
    world.node.lay_out(GPU, "MIG-c")
    await world.start()
    await laid_out(world, "MIG-c")
    assert reasons(world) == dict.fromkeys((GPU, "MIG-a", "MIG-b"), AilmentKind.RELAID)


async def test_a_returned_slice_or_gpu_is_proven_again(world):
    await laid_out(world, "MIG-a")
    world.run("pod", "MIG-a")  # what it writes lies there still
    world.node.end_container("pod")
    await world.reach("MIG-a", State.CLEAN)
    before = {uuid: len(rows(world, ev.ScrubPassed, uuid)) for uuid in (GPU, "MIG-a")}
    await laid_out(world)
    assert reasons(world) == {"MIG-a": AilmentKind.RELAID}
    assert len(rows(world, ev.ScrubPassed, GPU)) == before[GPU] + 1
    world.node.leave(world.node.enter("MIG-a", Kind.FOREIGN_PROCESS, "in another layout"))
    await laid_out(world, "MIG-a")
    assert len(rows(world, ev.ScrubPassed, "MIG-a")) == before["MIG-a"] + 1


async def test_a_slice_of_a_lost_gpu_is_lost(world):
    await laid_out(world, "MIG-a", "MIG-b", "MIG-c")
    await world.tenancy("MIG-c")
    await world.reach("MIG-c", State.IN_USE)
    world.node.gpus[GPU].cut, world.node.gpus[GPU].lost = False, True
    world.node.gpus["MIG-a"].away = True
    await world.reach("MIG-a", State.QUARANTINED)
    assert reasons(world)["MIG-a"] is AilmentKind.LOST
    world.node.gpus[GPU].cut, world.node.gpus[GPU].lost = True, False
    world.node.gpus["MIG-c"].away = True
    await asyncio.sleep(10)
    record = world.record("MIG-c")
    assert (record.state, record.health.ailment.kind) == (State.IN_USE, AilmentKind.LOST)
    assert reasons(world)["MIG-a"] is AilmentKind.RELAID, "its GPU is back, without it"


async def test_old_layouts_leave_nothing_in_status_and_metrics(world):
    await laid_out(world, "MIG-0-a", "MIG-0-b")
    await laid_out(world, "MIG-1-a", "MIG-1-b")
    await asyncio.sleep(device_status.SHOWN)
    first = series(world)
    shown = {it.device for it in (await world.life.reporter.status(())).devices}
    assert shown == {"MIG-1-a", "MIG-1-b"}
    for layout in range(2, 5):
        await laid_out(world, f"MIG-{layout}-a", f"MIG-{layout}-b")
    assert any("relaid" in each for each in series(world)), "who looks at it hears what became of it"
    await asyncio.sleep(device_status.SHOWN)
    assert {it.replace("MIG-4-", "MIG-1-") for it in series(world)} == first
    shown = {it.device for it in (await world.life.reporter.status(())).devices}
    assert shown == {"MIG-4-a", "MIG-4-b"}
    [old] = (await world.life.reporter.status(("MIG-3-a",))).devices
    assert old.quarantine.reason == "relaid"
