"""Every fault that a device can report, on an idle device and on one in use: verdict, ledger, probation, advice.

``test_signs`` is about signs that last, ``test_recovery`` about reinstatement.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from scrubber.core import device_status
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, ScrubPath, Sign, State
from tests.service.asking import healthy, rows
from tests.service.test_signs import ALL

INTERVAL = 5.0  # of the monitor: the tests mostly wait for what must not happen
A_ROUND = INTERVAL + 0.1
LONG = 200.0  # a trial would have come after a minute, and the next one two minutes later
Inject = Callable[[Any, str], None]


def flag(name: str) -> Inject:
    return lambda world, device: setattr(world.node.gpus[device], name, True)


def leak(world, device) -> None:
    world.node.gpus[device].leaked = 4096


def sign(kind: AilmentKind) -> Inject:
    return lambda world, device: setattr(world.node.gpus[device], "signs", (Sign(kind, "so it is"),))


def reports(*codes: int, action: str = "") -> Inject:
    return lambda world, device: world.node.report(device, codes, action)


def ecc(world, device) -> None:
    world.node.gpus[device].ecc += 2


@dataclass(frozen=True)
class Signal:
    """``tried`` is None where a person decides; ``lasting`` says how often that is while its cause lasts."""

    inject: Inject
    kind: AilmentKind
    advice: str
    tried: ScrubPath | None = ScrubPath.RESET
    lasting: str = "mended"  # by the first trial; or "never", or "in vain"
    rounds: int = 1


SIGNALS = {
    "lost": Signal(flag("lost"), AilmentKind.LOST, "power and seating", lasting="never"),
    "unresponsive": Signal(
        flag("hangs"), AilmentKind.UNRESPONSIVE, "waits until the driver answers", ScrubPath.FAST, "never", rounds=2
    ),
    "xid that wants a reset": Signal(reports(48), AilmentKind.XID, "with a reset"),
    "xid that wants a reboot": Signal(reports(79), AilmentKind.XID, "reboot the node"),
    "xid that wants a look at the plugs": Signal(reports(54), AilmentKind.XID, "seating, power leads"),
    "xid that wants new software": Signal(reports(78), AilmentKind.XID, "driver and firmware"),
    "xid for the vendor": Signal(reports(125), AilmentKind.XID, "the vendor", tried=None),
    "xid that nobody knows": Signal(reports(999), AilmentKind.XID, "with a reset"),
    "announced reset": Signal(reports(154, action="reset_gpu"), AilmentKind.XID, "with a reset"),
    "announcement that cannot be read": Signal(reports(154), AilmentKind.XID, "with a reset"),
    "harmless xid five times": Signal(reports(92, 92, 92, 92, 92), AilmentKind.XID, "with a reset"),
    "worst of several": Signal(reports(13, 48, 125), AilmentKind.XID, "the vendor", tried=None),
    "ecc": Signal(ecc, AilmentKind.ECC, "RMA"),
    "remap pending": Signal(flag("remap_pending"), AilmentKind.REMAP_PENDING, "with a reset"),
    "remap failed": Signal(flag("remap_failed"), AilmentKind.REMAP_FAILED, "RMA", tried=None),
    "reset required": Signal(flag("reset_required"), AilmentKind.RESET_REQUIRED, "with a reset"),
    "sram": Signal(sign(AilmentKind.SRAM), AilmentKind.SRAM, "RMA", tried=None),
    "links": Signal(sign(AilmentKind.LINKS), AilmentKind.LINKS, "cables", lasting="in vain"),
    "fabric": Signal(sign(AilmentKind.FABRIC), AilmentKind.FABRIC, "fabric manager", ScrubPath.FAST, "never"),
    "reboot required": Signal(
        sign(AilmentKind.REBOOT_REQUIRED), AilmentKind.REBOOT_REQUIRED, "reboot", ScrubPath.FAST, "never"
    ),
    "pcie": Signal(sign(AilmentKind.PCIE), AilmentKind.PCIE, "the slot", ScrubPath.FAST, "never"),
    "heat": Signal(sign(AilmentKind.HEAT), AilmentKind.HEAT, "cooling", ScrubPath.FAST, "never"),
}
FOUND = {  # by a scrub alone
    "memory fault": Signal(flag("bad_memory"), AilmentKind.MEMORY_FAULT, "does not hold what is written", tried=None),
    "compute fault": Signal(flag("computes_wrongly"), AilmentKind.COMPUTE_FAULT, "computes wrongly", tried=None),
    "unit that cannot be reached": Signal(
        flag("unit_unreachable"), AilmentKind.SCRUB_FAILED, "which step failed", lasting="in vain"
    ),
    "memory that cannot be reached": Signal(
        flag("memory_unreachable"), AilmentKind.SCRUB_FAILED, "which step", lasting="in vain"
    ),
    "failed reset": Signal(flag("reset_fails"), AilmentKind.RESET_FAILED, "reboot the node", lasting="in vain"),
}
COUNTED = {
    "application error": (13,),
    "many application errors": (13,) * 40,
    "harmless xid": (63,),
    "fewer than are too many": (92,) * 4,
}


def each(table):
    return pytest.mark.parametrize("signal", list(table.values()), ids=list(table))


@pytest.fixture
async def world(build, tmp_path):
    """Two devices, clean under a policy that takes every sign seriously."""
    file = tmp_path / "all.yaml"
    file.write_text(ALL)
    world = build(policy=str(file), interval=INTERVAL)
    await world.start()
    await world.clean()
    return world


def quarantines(world, device):
    return [it.quarantine for it in rows(world, ev.Quarantined, device)]


def trials(world, device):
    return [it.job.path for it in rows(world, ev.ProbationStarted, device)]


def heal_one(world, device) -> None:
    world.node.gpus[device].heal()


async def look(signal) -> None:
    """What answers late takes so much longer."""
    await asyncio.sleep(signal.rounds * A_ROUND + (signal.rounds - 1) * 5.0)


@each(SIGNALS)
async def test_a_signal_quarantines_an_idle_device_with_advice(world, signal):
    device, other = world.uuids
    signal.inject(world, device)
    await look(signal)
    assert not healthy(world, device)
    [out] = quarantines(world, device)
    assert (out.ailment.kind, out.by) == (signal.kind, "autoclave")
    assert (out.next_probe is None) == (signal.tried is None)
    [advice] = device_status.advice(world.record(device))
    assert signal.advice in advice
    assert quarantines(world, other) == []


@each(SIGNALS)
async def test_a_signal_on_a_device_in_use_waits_for_release(world, signal):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    signal.inject(world, device)
    await look(signal)
    assert not healthy(world, device)
    assert [it.ailment.kind for it in rows(world, ev.AilmentFound, device)] == [signal.kind]
    await asyncio.sleep(LONG)
    assert (quarantines(world, device), trials(world, device)) == ([], [])
    assert [process.name for process in world.node.gpus[device].users()] == [tenant]
    [advice] = device_status.advice(world.record(device))
    assert advice.startswith("let its pod or job end first; then ")
    assert signal.advice in advice
    world.node.end_container(tenant)
    await world.reach(device, State.QUARANTINED)
    assert [it.ailment.kind for it in quarantines(world, device)] == [signal.kind]


@each(SIGNALS)
async def test_a_signal_that_ends_allows_the_return(world, signal):
    device = world.uuids[0]
    signal.inject(world, device)
    await world.reach(device, State.QUARANTINED)
    heal_one(world, device)
    await asyncio.sleep(LONG)
    if signal.tried is None:
        assert (trials(world, device), world.state(device)) == ([], State.QUARANTINED)
        await (await world.operations.reinstate(device, "looked after", "ops")).finished.wait()
    assert trials(world, device) == [signal.tried or ScrubPath.RESET]
    assert world.state(device) is State.CLEAN
    assert healthy(world, device)
    assert len(quarantines(world, device)) == 1
    assert device_status.advice(world.record(device)) == ()


@each(SIGNALS)
async def test_a_lasting_signal_prevents_the_return(world, signal):
    device = world.uuids[0]
    signal.inject(world, device)
    await world.reach(device, State.QUARANTINED)
    await asyncio.sleep(LONG)
    if signal.tried is None or signal.lasting == "never":
        assert (trials(world, device), world.state(device)) == ([], State.QUARANTINED)
    elif signal.lasting == "in vain":
        assert len(trials(world, device)) > 1
        assert world.state(device) is State.QUARANTINED
    else:
        assert (trials(world, device), world.state(device)) == ([ScrubPath.RESET], State.CLEAN)


@each(FOUND)
async def test_a_scrub_finds_hidden_faults_before_the_next_owner(world, signal):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    signal.inject(world, device)
    await asyncio.sleep(A_ROUND)
    assert healthy(world, device)
    world.node.end_container(tenant)
    await world.reach(device, State.SCRUBBING)
    await world.life.jobs.of(device).finished.wait()
    if world.state(device) is State.CLEAN:  # no step of the fast path looks at it
        await world.operations.scrub(device, ScrubPath.RESET)
    await world.reach(device, State.QUARANTINED)
    [out] = quarantines(world, device)
    assert (out.ailment.kind, out.next_probe is None) == (signal.kind, signal.tried is None)
    assert not healthy(world, device)
    assert signal.advice in device_status.advice(world.record(device))[0]
    await asyncio.sleep(LONG)
    assert (len(trials(world, device)) > 1) == (signal.lasting == "in vain")
    assert world.state(device) is State.QUARANTINED


async def test_leaked_memory_ends_a_proof_and_a_reset_frees_it(world):
    device = world.uuids[0]
    leak(world, device)
    await asyncio.sleep(A_ROUND)
    said = "4096 bytes are in use, but no visible process holds them"
    assert [it.why for it in rows(world, ev.Soiled, device)] == [said]
    await world.clean(device)
    assert quarantines(world, device) == []


@pytest.mark.parametrize("codes", list(COUNTED.values()), ids=list(COUNTED))
@pytest.mark.parametrize("used", [False, True])
async def test_harmless_errors_are_noted_and_quarantine_nothing(world, codes, used):
    device = world.uuids[0]
    if used:
        await world.tenancy(device)
        await world.reach(device, State.IN_USE)
    world.node.report(device, codes)
    await asyncio.sleep(A_ROUND)
    seen = min(len(codes), 32)  # the log keeps no more of one code
    assert [it.codes for it in rows(world, ev.ErrorsNoted, device)] == [((codes[0], seen),)]
    assert healthy(world, device)
    assert rows(world, ev.AilmentFound, device) == quarantines(world, device) == []
    assert device_status.advice(world.record(device)) == ()


async def test_errors_of_a_loud_tenant_are_noted_once_a_minute(world):
    device = world.uuids[0]
    for _ in range(100):
        world.node.report(device, [13])
        await asyncio.sleep(3.0)
    await asyncio.sleep(LONG)
    entries = [it for it in world.truth.entries if it.device == device and isinstance(it.event, ev.ErrorsNoted)]
    assert all(two.at.wall - one.at.wall >= 60.0 for one, two in itertools.pairwise(entries))
    assert sum(dict(it.event.codes)[13] for it in entries) == 100


async def test_one_late_answer_is_not_an_ailment(world):
    device = world.uuids[0]
    flag("hangs")(world, device)
    looking = world.spawn(world.life.monitor.round())
    await asyncio.sleep(3.5)  # longer than one look waits, and shorter than two
    heal_one(world, device)
    await looking
    assert world.node.hung_at > 0
    await asyncio.sleep(LONG)
    assert quarantines(world, device) == []
    assert healthy(world, device)


@pytest.mark.parametrize("signal", [SIGNALS["lost"], SIGNALS["unresponsive"]], ids=["lost", "unresponsive"])
async def test_a_silent_device_returns_with_its_old_errors(world, signal):
    device = world.uuids[0]
    ecc(world, device)
    await world.reach(device, State.QUARANTINED)
    await world.clean(device)
    before = len(trials(world, device))
    signal.inject(world, device)
    await world.reach(device, State.QUARANTINED)
    heal_one(world, device)
    await world.clean(device)
    assert len(trials(world, device)) == before + 1
    assert [it.ailment.kind for it in quarantines(world, device)] == [AilmentKind.ECC, signal.kind]


WORSE_LATER = {
    "a wait, then a reset": (sign(AilmentKind.FABRIC), reports(95), AilmentKind.XID, ScrubPath.RESET),
    "a reset, then a person": (sign(AilmentKind.LINKS), reports(125), AilmentKind.XID, None),
    "a reset, then a wait": (reports(48), sign(AilmentKind.FABRIC), AilmentKind.XID, ScrubPath.RESET),
}


@pytest.mark.parametrize(("first", "then", "kind", "tried"), list(WORSE_LATER.values()), ids=list(WORSE_LATER))
async def test_a_second_fault_in_use_is_kept_until_release(world, first, then, kind, tried):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    first(world, device)
    await asyncio.sleep(A_ROUND)
    then(world, device)
    await asyncio.sleep(A_ROUND)
    heal_one(world, device)
    world.node.end_container(tenant)
    await world.reach(device, State.QUARANTINED)
    assert [it.ailment.kind for it in quarantines(world, device)] == [kind]
    await asyncio.sleep(LONG)
    assert trials(world, device) == ([tried] if tried else [])


async def test_of_several_signs_the_gravest_is_the_reason(world):
    device = world.uuids[0]
    ecc(world, device)
    reports(125)(world, device)
    assert (await world.reach(device, State.QUARANTINED)).quarantine.next_probe is None


@pytest.mark.parametrize("silent", ["lost", "hangs"])
async def test_a_silent_quarantined_device_gets_no_probation(world, silent):
    device = world.uuids[0]
    reports(48)(world, device)
    await world.reach(device, State.QUARANTINED)
    flag(silent)(world, device)
    await asyncio.sleep(LONG)
    assert trials(world, device) == []
    heal_one(world, device)
    await world.clean(device)


async def test_a_siblings_reset_does_not_make_a_lost_device_present(world):
    device, other = world.uuids
    flag("lost")(world, device)
    await world.reach(device, State.QUARANTINED)
    await asyncio.sleep(LONG)
    async with world.life.jobs.slots.driver_release.during_reset(other):  # as for a reset that takes its time
        await asyncio.sleep(10.0)
    await asyncio.sleep(A_ROUND)
    assert trials(world, device) == []


async def test_a_flapping_lost_device_is_recorded_once(world):
    device = world.uuids[0]
    for returns in range(4):
        reports(48)(world, device)
        await world.reach(device, State.QUARANTINED)
        if returns < 3:
            await world.clean(device)
    before = len(quarantines(world, device))
    flag("lost")(world, device)
    await asyncio.sleep(LONG)
    assert len(quarantines(world, device)) <= before + 1
    assert world.record(device).quarantine.next_probe is None


@pytest.mark.parametrize("kind", [AilmentKind.FABRIC, AilmentKind.HEAT])
async def test_a_graver_fault_in_quarantine_gets_its_reset(world, kind):
    device = world.uuids[0]
    sign(kind)(world, device)
    await world.reach(device, State.QUARANTINED)
    await asyncio.sleep(A_ROUND)
    reports(95)(world, device)
    await asyncio.sleep(A_ROUND)
    heal_one(world, device)
    await world.clean(device)
    assert world.record(device).receipt.path is ScrubPath.RESET
