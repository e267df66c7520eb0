"""What the service sees of NVIDIA GPUs while resets come and go, whoever does them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scrubber.core.model import Incarnation, Moment, Record, State, Vitals
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import locks
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.node.processes import Processes
from scrubber.sight import Sight
from tests.devices.nvidia import bench

gpu, cut = bench.gpu, bench.cut  # fixtures


@pytest.fixture
def backend(rig) -> Nvidia:
    """One that has looked."""
    found: Nvidia = rig.backend()
    found.inventory()
    return found


Eyes = Callable[..., Sight]


@pytest.fixture
def eyes(backend, tmp_path) -> Eyes:
    """The service's, with as much patience as a test likes."""

    def of(patience: float = 2.0) -> Sight:
        processes = Processes(Path("/proc"), backend.container_of, full_sight=False)
        return Sight(backend, processes, "boot", tmp_path, 0.0, patience=patience)

    return of


def record(backend: Nvidia, uuid: str) -> Record:
    info = next(info for info in backend.inventory() if info.uuid == uuid)
    return Record(info, Incarnation("boot", backend.driver()), State.SCRUBBING, Moment(1.0, 1.0))


def questions(rig) -> int:
    """How many the driver was asked so far."""
    return len(rig.machine.calls())


async def test_a_slice_that_is_away_for_its_reset_is_free_for_nobody(rig, cut, backend, eyes) -> None:
    """Its files are those of its instance, and go with it."""
    backend.inventory()
    here = record(backend, cut[0])
    sight = eyes()
    async with sight.away(*cut):
        assert (await sight.full(here)).holders == ()
        rig.cut(0)
        assert (await sight.full(here)).holders is None


async def test_while_a_tool_is_at_it_a_device_is_not_asked_how_it_is_nor_who_uses_it(rig, gpu, backend, eyes) -> None:
    """What seems to be lost may only be in the middle of its reset."""
    sight, here = eyes(), record(backend, gpu.uuid)
    with locks.claimed(bench.lock(rig)):
        gpu.set(lost=True)
        before = questions(rig)
        assert await sight.vitals(gpu.uuid) is None
        assert (await sight.full(here)).holders is None
        assert (await sight.quick(here)).holders is None
        assert questions(rig) == before
    vitals = await sight.vitals(gpu.uuid)
    assert vitals is not None
    assert vitals.lost


async def test_the_service_stays_off_the_driver_until_a_tool_that_was_left_to_itself_is_done(rig, gpu, eyes) -> None:
    sight = eyes()
    with locks.claimed(bench.lock(rig)):
        async with sight.away(gpu.uuid):
            pass
        before = questions(rig)
        assert len(await sight.inventory()) == 8
        heard = {it.uuid: await sight.vitals(it.uuid) for it in rig.machine.gpus}  # the kernel's log is not the driver
        assert heard == {it.uuid: None if it.uuid == gpu.uuid else Vitals(partial=True) for it in rig.machine.gpus}
        assert questions(rig) == before
    await sight.back()
    assert await sight.vitals(gpu.uuid) is not None


async def test_but_not_for_ever(rig, gpu, eyes, monkeypatch) -> None:
    monkeypatch.setattr("scrubber.sight.TOOL_ENDS_WITHIN", 0.1)
    sight = eyes()
    with locks.claimed(bench.lock(rig)):
        async with sight.away(gpu.uuid):
            pass
        await sight.back()
        assert await sight.vitals(rig.gpu(1).uuid) is not None
        assert await sight.vitals(gpu.uuid) is None


async def test_a_lock_that_cannot_be_asked_for_keeps_us_off_the_driver_no_longer(
    gpu, backend, eyes, monkeypatch
) -> None:
    def refuse(_uuid: str) -> bool:
        raise DeviceError("no locks available")

    sight = eyes()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "in_reset", refuse)
        async with sight.away(gpu.uuid):
            pass
        await sight.back()
    assert await sight.vitals(gpu.uuid) is not None


async def test_who_comes_after_a_reset_waits_until_the_driver_is_open_again(backend, eyes, monkeypatch) -> None:
    """Its own letting go would wait behind that, and be given up."""
    opening = backend._library._open_it

    def slowly() -> None:
        if not backend._library._open:
            time.sleep(1.0)
        opening()

    monkeypatch.setattr(backend._library, "_open_it", slowly)
    sight, turn, done = eyes(patience=0.2), asyncio.Lock(), 0

    async def one() -> None:
        nonlocal done
        async with turn, sight.away():
            done += 1

    await asyncio.gather(*(one() for _ in range(3)))
    assert done == 3
    await sight.back()
