"""What is told to be wrong with a device takes it out where the policy says so, and keeps it out while it is told."""

from __future__ import annotations

import asyncio

import pytest

from policies.health import DeviceSign
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, Path, Sign, State
from tests.service.asking import rows

ALL = "name: all\ndefaults:\n  quarantine: {signs: [sram, links, fabric, switch, reboot-required, pcie, heat]}\n"
MEANT = "so it is"
SHOWN = (AilmentKind.PCIE, AilmentKind.HEAT)  # by default that, and no more
WAITED_FOR = (AilmentKind.FABRIC, AilmentKind.REBOOT_REQUIRED, AilmentKind.PCIE, AilmentKind.HEAT)


def tell(world, device, *ailments):
    world.node.gpus[device].signs = tuple(Sign(kind, MEANT) for kind in ailments)


@pytest.fixture
async def strict(build, tmp_path):
    """Two clean devices under a policy that takes every sign seriously."""
    file = tmp_path / "all.yaml"
    file.write_text(ALL)
    world = build(policy=str(file))
    await world.start()
    await world.clean()
    return world


async def shown(world, device):
    await asyncio.sleep(5.0)
    return world.life.reporter.device(device)


@pytest.mark.parametrize("kind", SHOWN)
async def test_by_default_it_is_shown_and_takes_nothing_out(world, kind):
    device = world.uuids[0]
    tell(world, device, kind)
    seen = await shown(world, device)
    assert (seen.state, seen.healthy, seen.why) == ("clean", True, f"clean; {kind.value}: {MEANT}")
    await world.tenancy(device)
    tell(world, device)
    assert MEANT not in (await shown(world, device)).why
    assert rows(world, ev.AilmentFound, device) == rows(world, ev.Quarantined, device) == []


@pytest.mark.parametrize("symptom", DeviceSign)
async def test_where_the_policy_says_so_it_takes_that_device_out(strict, sign):
    device, other = strict.uuids
    tell(strict, device, AilmentKind(sign.value))
    record = await strict.reach(device, State.QUARANTINED)
    assert (record.quarantine.ailment.kind.value, record.quarantine.ailment.detail) == (sign.value, MEANT)
    assert strict.state(other) is State.CLEAN
    assert (await shown(strict, device)).why == f"quarantined: {MEANT}"


async def test_in_use_it_is_told_and_left_until_it_is_free(world):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    tell(world, device, AilmentKind.LINKS)
    seen = await shown(world, device)
    assert (seen.state, seen.healthy) == ("in_use", False)
    world.node.end_container(tenant)
    await world.reach(device, State.QUARANTINED)


@pytest.mark.parametrize("kind", WAITED_FOR)
async def test_what_is_told_still_is_not_tried_and_what_is_over_comes_back_by_evidence(strict, kind):
    device = strict.uuids[0]
    tell(strict, device, kind)
    await strict.reach(device, State.QUARANTINED)
    await asyncio.sleep(300.0)  # a trial would have come after a minute
    assert rows(strict, ev.ProbationStarted, device) == []
    tell(strict, device)
    await strict.clean(device)
    assert strict.record(device).receipt.path is Path.FAST


async def test_links_may_be_mended_by_a_reset_and_do_not_come_back_unmended(world):
    device = world.uuids[0]
    tell(world, device, AilmentKind.LINKS)
    await world.reach(device, State.QUARANTINED)
    await asyncio.sleep(300.0)
    trials = rows(world, ev.ProbationStarted, device)
    assert len(trials) > 1
    assert {it.job.path for it in trials} == {Path.SLOW}
    assert len(rows(world, ev.ScrubPassed, device)) == 1  # the one that it began with
    tell(world, device)
    await world.clean(device)


async def test_the_memory_on_a_chip_that_is_worn_out_waits_for_a_person(world):
    device = world.uuids[0]
    tell(world, device, AilmentKind.SRAM)
    assert (await world.reach(device, State.QUARANTINED)).quarantine.next_probe is None


async def test_the_worst_of_several_is_the_reason(strict):
    device = strict.uuids[0]
    tell(strict, device, AilmentKind.HEAT, AilmentKind.FABRIC, AilmentKind.SRAM, AilmentKind.LINKS)
    record = await strict.reach(device, State.QUARANTINED)
    assert record.quarantine.ailment.kind is AilmentKind.SRAM
