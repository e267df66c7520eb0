"""What the service sees of NVIDIA GPUs during resets of its own and of others."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scrubber.core.model import Ailment, AilmentKind, Incarnation, Moment, Quarantine, State, Vitals
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.core.use_counter import Counted, UseCounter, UseReading
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import locks
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.jobs.driver_release import DriverRelease
from scrubber.node import clock
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from tests.core import lives
from tests.devices.nvidia import bench
from tests.devices.nvidia.health.events_seen import rings

gpu, cut = bench.gpu, bench.cut  # fixtures


@pytest.fixture
def backend(rig) -> Nvidia:
    """One that has looked."""
    found: Nvidia = rig.backend()
    found.inventory()
    return found


NewObserver = Callable[..., Observer]


def over(backend: Nvidia, folder: Path, patience: float) -> Observer:
    """The observer of a service that has this backend."""
    processes = Processes(Path("/proc"), backend.container_of, whole_node=False)
    return Observer(
        DriverCalls(backend, "boot", patience=patience), processes, folder, ObservedSince(0.0), lives.no_reset
    )


@pytest.fixture
def new_observer(backend, tmp_path) -> NewObserver:
    """The service's, with as much patience as a test likes."""
    return lambda patience=2.0: over(backend, tmp_path, patience)


@pytest.fixture
def watch(rig, kmsg, listen, tmp_path) -> NewObserver:
    """Those of a service that listens, and whose second GPU has just fallen off its bus, as the kernel says it."""

    def begin(patience: float = 5.0) -> Observer:
        backend = listen()
        kmsg.xid(rig.gpu(1).pci, 79, ", GPU has fallen off the bus.")
        assert rings(backend)
        return over(backend, tmp_path, patience)

    return begin


def record(backend: Nvidia, uuid: str) -> Record:
    info = next(info for info in backend.inventory() if info.uuid == uuid)
    return Record(info, Incarnation("boot", backend.driver()), State.SCRUBBING, Moment(1.0, 1.0))


def questions(rig) -> int:
    """How many the driver was asked so far."""
    return len(rig.machine.calls())


class UsedMeanwhile(Processes):
    """While all processes are searched, a process begins to use the GPU, and ends."""

    use = staticmethod(lambda: None)

    def holders(self, *args, **more):
        self.use()
        return super().holders(*args, **more)


async def test_a_use_during_the_search_is_noticed(gpu, backend, tmp_path, monkeypatch) -> None:
    processes = UsedMeanwhile(Path("/proc"), backend.container_of, whole_node=False)
    observer = Observer(DriverCalls(backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    uses = [1]
    monkeypatch.setattr(backend, "read_uses", lambda _: Counted(UseCounter.FENCE, sum(uses)))
    here = record(backend, gpu.uuid)
    await observer.look(here, Purpose.CHANGE)
    before = clock.now().uptime
    processes.use = lambda: uses.append(1)
    seen = await observer.look(here, Purpose.CHANGE)
    assert seen.holders == ()
    assert seen.used_at >= before


async def test_no_holders_are_known_without_an_answer_of_the_counter(gpu, backend, new_observer, monkeypatch) -> None:
    def fails(*_) -> UseReading:
        raise DeviceError("the driver does not answer")

    monkeypatch.setattr(backend, "read_uses", fails)
    assert (await new_observer().look(record(backend, gpu.uuid), Purpose.CHANGE)).holders is None


async def test_a_slice_absent_during_its_reset_is_not_free(rig, cut, backend, new_observer) -> None:
    """Its files are those of its instance, and go with it."""
    backend.inventory()
    here = record(backend, cut[0])
    observer = new_observer()
    release = DriverRelease(observer.driver)
    async with release.during_reset(*cut):
        assert (await observer.look(here, Purpose.CHANGE)).holders == ()
        rig.cut(0)
        assert (await observer.look(here, Purpose.CHANGE)).holders is None


async def test_a_device_is_not_asked_while_a_tool_resets_it(rig, gpu, backend, new_observer) -> None:
    """What seems to be lost may only be in the middle of its reset."""
    observer, here = new_observer(), record(backend, gpu.uuid)
    with locks.claimed(bench.lock(rig)):
        gpu.set(lost=True)
        before = questions(rig)
        assert await observer.health.vitals(gpu.uuid) is None
        assert (await observer.look(here, Purpose.CHANGE)).holders is None
        assert (await observer.look(here, Purpose.ROUND)).holders is None
        assert questions(rig) == before
    vitals = await observer.health.vitals(gpu.uuid)
    assert vitals is not None
    assert vitals.lost


async def test_there_are_no_measurements_while_the_driver_is_released(rig, gpu, new_observer) -> None:
    observer = new_observer()
    release = DriverRelease(observer.driver)
    assert len(await observer.health.readings()) == len(rig.machine.gpus)
    async with release.during_reset(gpu.uuid):
        assert await observer.health.readings() == {}
    await release.reacquired()
    assert len(await observer.health.readings()) == len(rig.machine.gpus)


async def test_the_driver_stays_released_until_an_abandoned_tool_ends(rig, gpu, new_observer) -> None:
    observer = new_observer()
    release = DriverRelease(observer.driver)
    with locks.claimed(bench.lock(rig)):
        async with release.during_reset(gpu.uuid):
            pass
        before = questions(rig)
        assert len(await observer.driver.inventory()) == 8
        answers = {
            it.uuid: await observer.health.vitals(it.uuid) for it in rig.machine.gpus
        }  # the kernel's log is not the driver
        assert answers == {it.uuid: None if it.uuid == gpu.uuid else Vitals(partial=True) for it in rig.machine.gpus}
        assert questions(rig) == before
    await release.reacquired()
    assert await observer.health.vitals(gpu.uuid) is not None


async def test_waiting_for_an_abandoned_tool_has_a_limit(rig, gpu, new_observer, monkeypatch) -> None:
    monkeypatch.setattr("scrubber.jobs.driver_release.TOOL_ENDS_WITHIN", 0.1)
    observer = new_observer()
    release = DriverRelease(observer.driver)
    with locks.claimed(bench.lock(rig)):
        async with release.during_reset(gpu.uuid):
            pass
        await release.reacquired()
        assert await observer.health.vitals(rig.gpu(1).uuid) is not None
        assert await observer.health.vitals(gpu.uuid) is None


async def test_an_unreadable_lock_does_not_keep_the_driver_released(gpu, backend, new_observer, monkeypatch) -> None:
    def refuse(_uuid: str) -> bool:
        raise DeviceError("no locks available")

    observer = new_observer()
    release = DriverRelease(observer.driver)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "in_reset", refuse)
        async with release.during_reset(gpu.uuid):
            pass
        await release.reacquired()
    assert await observer.health.vitals(gpu.uuid) is not None


async def test_a_caller_after_a_reset_waits_for_the_driver(backend, new_observer, monkeypatch) -> None:
    """Its own letting go would wait behind that, and be given up."""
    opening = backend._library._open_it

    def slowly() -> None:
        if not backend._library._open:
            time.sleep(1.0)
        opening()

    monkeypatch.setattr(backend._library, "_open_it", slowly)
    observer, turn, done = new_observer(patience=0.2), asyncio.Lock(), 0
    release = DriverRelease(observer.driver)

    async def one() -> None:
        nonlocal done
        async with turn, release.during_reset():
            done += 1

    await asyncio.gather(*(one() for _ in range(3)))
    assert done == 3
    await release.reacquired()


async def test_during_a_reset_errors_count_and_health_is_unknown(rig, watch):
    observer = watch()
    release = DriverRelease(observer.driver)
    well, sick = rig.gpu(0).uuid, rig.gpu(1).uuid
    async with release.during_reset(rig.gpu(2).uuid):
        found = await observer.health.vitals(sick)
        assert (found.partial, [xid.code for xid in found.xids]) == (True, [79])
        assert await observer.health.vitals(well) == Vitals(partial=True)
    await release.reacquired()
    assert await observer.health.vitals(well) == Vitals()
    assert not (await observer.health.vitals(sick)).partial


async def test_a_device_that_is_being_reset_reports_no_errors(rig, watch):
    observer, sick = watch(), rig.gpu(1).uuid
    release = DriverRelease(observer.driver)
    async with release.during_reset(sick):
        assert await observer.health.vitals(sick) is None
    await release.reacquired()
    bench.lock(rig, 1).parent.mkdir(parents=True)
    with bench.lock(rig, 1).open("w") as held:  # a tool that outlived its worker
        fcntl.flock(held, fcntl.LOCK_EX)
        async with release.during_reset(rig.gpu(2).uuid):
            assert await observer.health.vitals(sick) is None
        assert await observer.health.vitals(sick) is None
    await release.reacquired()


async def test_a_hanging_driver_does_not_hide_reported_errors(rig, watch):
    observer, sick = watch(patience=0.5), rig.gpu(1).uuid
    with rig.machine.hanging("nvmlDeviceGetTotalEccErrors") as file:
        found = [await observer.health.vitals(sick)]
        async with asyncio.timeout(30):
            while found[-1].partial:
                found.append(await observer.health.vitals(sick))
                await asyncio.sleep(0.01)
        file.unlink()
    assert len(found) > 1
    assert {(it.unresponsive, *(xid.code for xid in it.xids)) for it in found[:-1]} == {(False, 79)}
    assert (found[-1].unresponsive, [xid.code for xid in found[-1].xids]) == (True, [79])


AWAY = Vitals(lost=True, relaid=True)


async def health(observer: Observer, here: Record) -> Vitals | None:
    """As the service asks about one device by itself."""
    return await observer.health.vitals(here.device.uuid, here.device.parent)


async def test_a_replaced_slice_is_no_slice_of_a_lost_gpu(rig, cut, backend, new_observer, tmp_path) -> None:
    """Also by a service that has never seen it: the ledger knows whose slice it was."""
    backend.inventory()
    gone = record(backend, cut[0])
    assert await health(new_observer(), gone) == Vitals()
    rig.cut(0)
    for observer in (new_observer(), over(rig.backend(), tmp_path, 2.0)):
        assert await health(observer, gone) == AWAY
    rig.gpu(0).uncut()
    assert await health(new_observer(), gone) == AWAY, "its GPU is whole again"
    for trouble in ("lost", "absent", "reset_required"):
        rig.gpu(0).set({trouble: 1})
        found = await health(new_observer(), gone)
        assert found is not None
        assert (found.lost, found.relaid) == (True, False), trouble
        rig.gpu(0).set({trouble: None})
    assert await health(new_observer(), gone) == AWAY


async def test_a_slice_with_a_pending_restore_is_lost(rig, cut, backend, new_observer) -> None:
    backend.inventory()
    gone = record(backend, cut[0])
    rig.cut(0)
    note = rig.settings / f"{rig.gpu(0).uuid}.resetting.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("{}")
    assert await health(new_observer(), gone) == Vitals(lost=True)
    note.unlink()
    assert await health(new_observer(), gone) == AWAY


async def test_a_slice_is_unknown_while_its_gpu_is_reset(rig, cut, backend, new_observer) -> None:
    backend.inventory()
    gone = record(backend, cut[0])
    rig.cut(0)
    with locks.claimed(bench.lock(rig)):
        assert await health(new_observer(), gone) is None


async def test_only_a_lost_slice_needs_an_observation(rig, cut, backend, new_observer) -> None:
    """A node keeps the slices of all its layouts in mind: they must not cost more with each."""
    backend.inventory()
    gone = record(backend, cut[0])
    rig.cut(0)
    observer = new_observer()
    for kind, found in ((AilmentKind.RELAID, AWAY), (AilmentKind.LOST, None)):
        out = Quarantine(Ailment(kind, "x"), gone.since, "autoclave", next_probe=1.0)
        seen = await observer.look_at_all([lives.but(gone, state=State.QUARANTINED, quarantine=out)])
        facts = seen.get(cut[0])
        assert (facts.vitals if facts is not None else None) == found
