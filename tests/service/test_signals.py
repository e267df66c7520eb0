"""Every fault that a device can report, on an idle device and on one in use: verdict, ledger, probation, advice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from policies.hardware import DeviceSign
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, ScrubPath, Sign, State
from scrubber.words import device_status
from tests.service.asking import healthy, reported, rows

ALL = f"defaults: {{quarantine: {{signs: [{', '.join(sign.value for sign in DeviceSign)}]}}}}"
INTERVAL = 5.0  # of the monitor: the tests mostly wait for what must not happen
A_ROUND = INTERVAL + 0.1
LONG = 200.0  # a trial would have come after a minute, and the next one two minutes later
Inject = Callable[[Any, str], None]


def flag(name: str) -> Inject:
    return lambda world, device: setattr(world.node.gpus[device], name, True)


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
    "xid that wants new software": Signal(reports(78), AilmentKind.XID, "driver and the firmware"),
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
    "switch": Signal(sign(AilmentKind.SWITCH), AilmentKind.SWITCH, "NVSwitch", lasting="never"),
    "pcie": Signal(sign(AilmentKind.PCIE), AilmentKind.PCIE, "the slot", ScrubPath.FAST, "never"),
    "ghost load": Signal(
        sign(AilmentKind.GHOST_LOAD), AilmentKind.GHOST_LOAD, "autoclave scrub", ScrubPath.FAST, "in vain"
    ),
    "heat": Signal(sign(AilmentKind.HEAT), AilmentKind.HEAT, "cooling", ScrubPath.FAST, "never"),
}


def test_each_sign_that_may_quarantine_has_its_row():
    assert {sign.value for sign in DeviceSign} <= {signal.kind.value for signal in SIGNALS.values()}


def each(table):
    return pytest.mark.parametrize("signal", list(table.values()), ids=list(table))


@pytest.fixture
async def world(begin):
    """Two devices, clean under a policy that takes every sign seriously."""
    return await begin(policy=ALL, interval=INTERVAL)


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
async def test_a_signal_keeps_an_idle_device_out_until_it_ends(world, signal):
    device, other = world.uuids
    signal.inject(world, device)
    await look(signal)
    shown = reported(world, device)
    assert (shown.healthy, shown.reason, shown.sick, shown.quarantined) == (False, signal.kind.value, False, True)
    [out] = quarantines(world, device)
    assert (out.ailment.kind, out.by) == (signal.kind, "autoclave")
    assert (out.next_probe is None) == (signal.tried is None)
    assert signal.advice in "; ".join(device_status.advice(world.record(device)))
    assert quarantines(world, other) == []
    await asyncio.sleep(LONG)
    path = [signal.tried or ScrubPath.RESET]
    if signal.lasting == "mended" and signal.tried is not None:
        assert (trials(world, device), world.state(device)) == (path, State.CLEAN)
        return
    assert world.state(device) is State.QUARANTINED
    in_vain = trials(world, device)
    assert (len(in_vain) > 1) == (signal.lasting == "in vain")
    assert in_vain[:1] in ([], path)
    heal_one(world, device)
    if signal.tried is None:
        await asyncio.sleep(LONG)
        assert (trials(world, device), world.state(device)) == ([], State.QUARANTINED)
        await world.operator_requests.reinstate(device, "looked after", "ops")
    await world.clean(device)
    assert trials(world, device)[len(in_vain) :] == ([ScrubPath.RESET] if in_vain else path)
    assert healthy(world, device)
    assert len(quarantines(world, device)) == 1 + len(in_vain)
    assert device_status.advice(world.record(device)) == ()


@each(SIGNALS)
async def test_a_signal_on_a_device_in_use_waits_for_release(world, signal):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    signal.inject(world, device)
    await look(signal)
    shown = reported(world, device)
    assert (shown.healthy, shown.reason, shown.sick, shown.quarantined) == (False, signal.kind.value, True, False)
    assert [it.ailment.kind for it in rows(world, ev.AilmentFound, device)] == [signal.kind]
    await asyncio.sleep(LONG)
    assert (quarantines(world, device), trials(world, device)) == ([], [])
    assert [process.name for process in world.node.gpus[device].users()] == [tenant]
    first, *then = device_status.advice(world.record(device))
    assert (first, signal.advice in "; ".join(then)) == ("let its owner end first", True)
    world.node.end_container(tenant)
    await world.reach(device, State.QUARANTINED)
    assert [it.ailment.kind for it in quarantines(world, device)] == [signal.kind]


@pytest.mark.parametrize(
    ("codes", "used"), [((13,) * 40, False), ((92,) * 4, True)], ids=["many of a tenant", "fewer than are too many"]
)
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


async def test_a_siblings_reset_does_not_make_a_lost_device_present(world):
    device, other = world.uuids
    flag("lost")(world, device)
    await world.reach(device, State.QUARANTINED)
    await asyncio.sleep(LONG)
    async with world.life.jobs.slots.driver_release.during_reset(other):  # as for a reset that takes its time
        await asyncio.sleep(10.0)
    await asyncio.sleep(A_ROUND)
    assert trials(world, device) == []


async def test_by_default_heat_is_shown_and_quarantines_nothing(begin):
    world = await begin()
    device = world.uuids[0]
    sign(AilmentKind.HEAT)(world, device)
    await asyncio.sleep(5.0)
    shown = world.life.reporter.device(device)
    assert (shown.state, shown.healthy, shown.why) == ("clean", True, "heat: so it is")
    assert rows(world, ev.AilmentFound, device) == quarantines(world, device) == []
