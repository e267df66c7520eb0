"""What is told to be wrong with a device takes it out where the policy says so, and keeps it out while it is told."""

from __future__ import annotations

import asyncio

import pytest

from policies.health import Symptom
from scrubber.core import events as ev
from scrubber.core.model import Ailment, Path, Sign, State
from tests.service.asking import rows

ALL = "name: all\ndefaults:\n  quarantine: {signs: [sram, links, fabric, switch, reboot-required, pcie, heat]}\n"
MEANT = "so it is"
SHOWN = (Ailment.PCIE, Ailment.HEAT)  # by default that, and no more
WAITED_FOR = (Ailment.FABRIC, Ailment.REBOOT_REQUIRED, Ailment.PCIE, Ailment.HEAT)


def tell(world, device, *ailments):
    world.node.gpus[device].signs = tuple(Sign(ailment, MEANT) for ailment in ailments)


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


@pytest.mark.parametrize("ailment", SHOWN)
async def test_by_default_it_is_shown_and_takes_nothing_out(world, ailment):
    device = world.uuids[0]
    tell(world, device, ailment)
    seen = await shown(world, device)
    assert (seen.state, seen.healthy, seen.why) == ("clean", True, f"clean; {ailment.value}: {MEANT}")
    await world.tenancy(device)
    tell(world, device)
    assert MEANT not in (await shown(world, device)).why
    assert rows(world, ev.Sickened, device) == rows(world, ev.Quarantined, device) == []


@pytest.mark.parametrize("symptom", Symptom)
async def test_where_the_policy_says_so_it_takes_that_device_out(strict, symptom):
    device, other = strict.uuids
    tell(strict, device, Ailment(symptom.value))
    record = await strict.reach(device, State.QUARANTINED)
    assert (record.quarantine.sickness.ailment.value, record.quarantine.sickness.detail) == (symptom.value, MEANT)
    assert strict.state(other) is State.CLEAN
    assert (await shown(strict, device)).why == f"quarantined: {MEANT}"


async def test_in_use_it_is_told_and_left_until_it_is_free(world):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await world.reach(device, State.EXPOSED)
    tell(world, device, Ailment.LINKS)
    seen = await shown(world, device)
    assert (seen.state, seen.healthy) == ("exposed", False)
    world.node.end_container(tenant)
    await world.reach(device, State.QUARANTINED)


@pytest.mark.parametrize("ailment", WAITED_FOR)
async def test_what_is_told_still_is_not_tried_and_what_is_over_comes_back_by_evidence(strict, ailment):
    device = strict.uuids[0]
    tell(strict, device, ailment)
    await strict.reach(device, State.QUARANTINED)
    await asyncio.sleep(300.0)  # a trial would have come after a minute
    assert rows(strict, ev.ProbationStarted, device) == []
    tell(strict, device)
    await strict.clean(device)
    assert strict.record(device).receipt.path is Path.FAST


async def test_links_may_be_mended_by_a_reset_and_do_not_come_back_unmended(world):
    device = world.uuids[0]
    tell(world, device, Ailment.LINKS)
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
    tell(world, device, Ailment.SRAM)
    assert (await world.reach(device, State.QUARANTINED)).quarantine.next_probe is None


async def test_the_worst_of_several_is_the_reason(strict):
    device = strict.uuids[0]
    tell(strict, device, Ailment.HEAT, Ailment.FABRIC, Ailment.SRAM, Ailment.LINKS)
    record = await strict.reach(device, State.QUARANTINED)
    assert record.quarantine.sickness.ailment is Ailment.SRAM
