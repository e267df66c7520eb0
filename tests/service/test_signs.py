"""A sign quarantines a device where the policy says so, and keeps it in quarantine while it lasts."""

from __future__ import annotations

import asyncio

import pytest

from policies.hardware import DeviceSign
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, ScrubPath, Sign, State
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
async def test_by_default_a_sign_is_shown_and_quarantines_nothing(world, kind):
    device = world.uuids[0]
    tell(world, device, kind)
    seen = await shown(world, device)
    assert (seen.state, seen.healthy, seen.why) == ("clean", True, f"clean; {kind.value}: {MEANT}")
    await world.tenancy(device)
    tell(world, device)
    assert MEANT not in (await shown(world, device)).why
    assert rows(world, ev.AilmentFound, device) == rows(world, ev.Quarantined, device) == []


@pytest.mark.parametrize("sign", DeviceSign)
async def test_a_strict_policy_quarantines_for_a_sign(strict, sign):
    device, other = strict.uuids
    tell(strict, device, AilmentKind(sign.value))
    record = await strict.reach(device, State.QUARANTINED)
    assert (record.quarantine.ailment.kind.value, record.quarantine.ailment.detail) == (sign.value, MEANT)
    assert strict.state(other) is State.CLEAN
    assert (await shown(strict, device)).why == f"quarantined: {MEANT}"


async def test_a_sign_on_a_device_in_use_waits_for_release(world):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    tell(world, device, AilmentKind.LINKS)
    seen = await shown(world, device)
    assert (seen.state, seen.healthy) == ("in_use", False)
    world.node.end_container(tenant)
    await world.reach(device, State.QUARANTINED)


@pytest.mark.parametrize("kind", WAITED_FOR)
async def test_probation_waits_until_the_sign_ends(strict, kind):
    device = strict.uuids[0]
    tell(strict, device, kind)
    await strict.reach(device, State.QUARANTINED)
    await asyncio.sleep(300.0)  # a trial would have come after a minute
    assert rows(strict, ev.ProbationStarted, device) == []
    tell(strict, device)
    await strict.clean(device)
    assert strict.record(device).receipt.path is ScrubPath.FAST


async def test_broken_links_return_only_after_a_successful_reset(world):
    device = world.uuids[0]
    tell(world, device, AilmentKind.LINKS)
    await world.reach(device, State.QUARANTINED)
    await asyncio.sleep(300.0)
    trials = rows(world, ev.ProbationStarted, device)
    assert len(trials) > 1
    assert {it.job.path for it in trials} == {ScrubPath.RESET}
    assert len(rows(world, ev.ScrubPassed, device)) == 1  # the one that it began with
    tell(world, device)
    await world.clean(device)


async def test_worn_out_on_chip_memory_waits_for_an_operator(world):
    device = world.uuids[0]
    tell(world, device, AilmentKind.SRAM)
    assert (await world.reach(device, State.QUARANTINED)).quarantine.next_probe is None


async def test_the_worst_of_several_signs_is_the_reason(strict):
    device = strict.uuids[0]
    tell(strict, device, AilmentKind.HEAT, AilmentKind.FABRIC, AilmentKind.SRAM, AilmentKind.LINKS)
    record = await strict.reach(device, State.QUARANTINED)
    assert record.quarantine.ailment.kind is AilmentKind.SRAM
