"""During a reset the service releases the driver, and no other device suffers."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from ground.errors import NotReady, Refused
from scrubber.core import events as ev
from scrubber.core.model import Blame, Outcome, ScrubPath, State, Step, StepResult
from scrubber.core.observation import Purpose
from scrubber.core.plans import STEPS, Driver
from scrubber.devices.base import DeviceError
from scrubber.jobs.jobs import RETRY_AFTER
from scrubber.steps.orders import Report
from tests.service import pretend_worker
from tests.service.asking import at_step, results, rows
from tests.service.node import Node
from tests.service.pretend_worker import PretendWorker


async def test_a_driver_without_release_blames_no_device(world):
    device = world.uuids[0]

    def stuck() -> None:
        raise DeviceError("an earlier question has not been answered")

    world.node.release_driver = stuck
    await world.operator_requests.scrub(device, ScrubPath.RESET)
    aborted: list[StepResult] = []
    async with asyncio.timeout(60):
        while not aborted:
            await asyncio.sleep(0.1)
            aborted = [it for it in results(world, device) if it.outcome is Outcome.ABORTED]
    assert (aborted[0].step, aborted[0].blame) == (Step.RESET, Blame.SERVICE)
    assert world.state(device) is not State.QUARANTINED


async def test_during_a_reset_other_devices_are_granted(world):
    first, second = world.uuids
    async with world.life.jobs.slots.driver_release.during_reset():
        await asyncio.sleep(30)
        assert {world.state(first), world.state(second)} == {State.CLEAN}
        await world.acquire("pod", second)
    assert world.state(second) is State.GRANTED


async def test_during_a_reset_a_device_with_an_error_is_refused(world):
    first, second = world.uuids
    async with world.life.jobs.slots.driver_release.during_reset(first):
        world.node.report(second, (79,))
        await asyncio.sleep(5)
        assert world.state(second) is State.QUARANTINED
        with pytest.raises(Refused):
            await world.acquire("pod", second)
        world.node.report(first, (62,))  # in the middle of a reset such things are said
        await asyncio.sleep(5)
        assert world.state(first) is State.CLEAN


async def test_a_driver_that_stays_closed_counts_as_unresponsive(world):
    """Nothing is heard of any device any more: none of them may be called well."""
    device = world.uuids[0]
    world.node.reacquire_driver = lambda: None
    async with world.life.jobs.slots.driver_release.during_reset():
        pass
    await world.reach(device, State.QUARANTINED)
    with pytest.raises(Refused):
        await world.acquire("pod", device)


async def test_lateness_before_a_reset_does_not_count_after_it(build):
    world = build()
    await world.start(watching=False)
    device, other = world.uuids
    gpu, health = world.node.gpus[device], world.life.observer.health
    release = world.life.jobs.slots.driver_release
    gpu.hangs = True
    assert (await health.vitals(device)).partial
    async with release.during_reset(other):
        gpu.hangs = False
        await asyncio.sleep(1)
        assert (await health.vitals(device)).partial
    await release.reacquired()
    gpu.hangs = True
    assert (await health.vitals(device)).partial
    gpu.hangs = False


async def test_a_device_under_reset_by_a_tool_is_not_free(world):
    """Its worker was killed, its tool was not: the end of that reset would hit each new step."""
    device = world.uuids[0]
    world.node.reset_by_tools.add(device)
    with pytest.raises(NotReady):
        await world.acquire("pod", device)
    running = await world.operator_requests.scrub(world.uuids[1], None)
    await running.finished.wait()
    await asyncio.sleep(30)
    assert world.state(device) is not State.GRANTED
    world.node.reset_by_tools.clear()
    await world.clean(device)


async def test_our_own_reset_is_not_a_foreign_one(world):
    device = world.uuids[0]
    async with world.life.jobs.slots.driver_release.during_reset(device):
        world.node.reset_by_tools.add(device)
        assert (await world.life.observer.look(world.record(device), Purpose.CHANGE)).holders == ()
    assert (await world.life.observer.look(world.record(device), Purpose.CHANGE)).holders is None
    world.node.reset_by_tools.clear()


async def test_no_worker_uses_the_driver_during_a_reset(world, monkeypatch):
    """No step of another device asks for settings or health, and no worker has memory open."""
    on_driver: list[Step] = []
    beside: set[tuple[Step, ...]] = set()
    perform = PretendWorker.perform

    async def counted(worker, step, order, progress) -> Report:
        on_driver.append(step)
        beside.add(tuple(on_driver))
        try:
            return await perform(worker, step, order, progress)
        finally:
            on_driver.remove(step)

    monkeypatch.setattr(PretendWorker, "perform", counted)
    jobs = [await world.operator_requests.scrub(device, ScrubPath.RESET) for device in world.uuids]
    await asyncio.gather(*(job.finished.wait() for job in jobs))
    assert [job.receipt is not None for job in jobs] == [True, True]
    resets = {step for steps in beside if Step.RESET in steps for step in steps}
    assert {STEPS[step].driver for step in resets} <= {Driver.ALONE, Driver.NOT}
    assert any(len(steps) == 2 and {STEPS[step].driver for step in steps} == {Driver.FOR_MEMORY} for steps in beside), (
        "two memories are worked on at once"
    )


async def test_a_device_can_wait_twice_for_the_driver(world):
    """Its job and its pending restore, while another device is reset."""
    slots, device = world.life.jobs.slots, world.uuids[0]

    async def wait_for_the_driver() -> None:
        async with slots.at_driver(device, Step.SETTINGS):
            pass

    async with slots.driver.exclusive():
        both = [asyncio.create_task(wait_for_the_driver()) for _ in range(2)]
        await asyncio.sleep(1)
        assert slots.place(device) == 1
    await asyncio.gather(*both)
    assert slots.place(device) is None


async def test_a_reset_waits_for_the_end_of_memory_workers(world, monkeypatch):
    """It keeps its device open between two steps."""
    monkeypatch.setitem(pretend_worker.TAKES, Step.VERIFY, 5.0)
    ended: list[tuple[str, Step]] = []
    perform = PretendWorker.perform

    async def noted(worker, step, order, progress) -> Report:
        report = await perform(worker, step, order, progress)
        ended.append((worker.gpu.info.uuid, step))
        return report

    monkeypatch.setattr(PretendWorker, "perform", noted)
    one, other = world.uuids
    first = await world.operator_requests.scrub(one, ScrubPath.FAST)
    await asyncio.sleep(1)
    second = await world.operator_requests.scrub(other, ScrubPath.RESET)
    await asyncio.gather(first.finished.wait(), second.finished.wait())
    assert ended.index((one, Step.VERIFY)) < ended.index((other, Step.RESET))


async def test_a_reset_waits_for_no_evict_of_another_device(world):
    """Its worker does the steps on memory later, and uses the driver only then."""
    one, other = world.uuids
    world.node.gpus[one].stalls = True
    first = await world.operator_requests.scrub(one, ScrubPath.FAST)
    await at_step(world, one, Step.EVICT)
    second = await world.operator_requests.scrub(other, ScrubPath.RESET)
    await second.finished.wait()
    assert second.receipt is not None
    assert (first.step, first.finished.is_set()) == (Step.EVICT, False)


@pytest.fixture
def blinding(monkeypatch):
    """Resets of some seconds that hide the holders of all devices in the reset domain."""
    perform = PretendWorker.perform
    begun = asyncio.Event()

    async def blindly(worker, step, order, progress) -> Report:
        if step is not Step.RESET:
            return await perform(worker, step, order, progress)
        domain = worker.gpu.info.reset_domain
        gpus = [it for it in worker.node.gpus.values() if it is worker.gpu or domain in (it.info.reset_domain, "")]
        for gpu in gpus:
            gpu.blind = True
        begun.set()
        try:
            await worker.spend(3.0)
        finally:
            for gpu in gpus:
                gpu.blind = False
        return await perform(worker, step, order, progress)

    monkeypatch.setattr(PretendWorker, "perform", blindly)
    return begun


@pytest.mark.usefixtures("blinding")
async def test_a_reset_that_removes_device_files_completes(begin):
    """Slices come back only at its end: cut off there, all of them would be lost."""
    world = await begin(gpus=3)
    running = await world.operator_requests.scrub(world.uuids[-1], ScrubPath.RESET)  # it has a sibling
    await running.finished.wait()
    assert running.receipt is not None


async def test_a_holder_found_during_a_reset_aborts_it(world, blinding):
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, ScrubPath.RESET)
    await blinding.wait()
    world.node.gpus[device].blind = False
    world.intrude(device, container=True)
    await running.finished.wait()
    last = results(world, device)[-1]
    assert (last.step, last.outcome, last.blame) == (Step.RESET, Outcome.ABORTED, Blame.TENANT)


async def test_no_step_uses_the_driver_beside_a_running_reset_tool(world, monkeypatch):
    begun: list[Step] = []
    perform = PretendWorker.perform

    async def noted(worker, step, order, progress) -> Report:
        begun.append(step)
        return await perform(worker, step, order, progress)

    monkeypatch.setattr(PretendWorker, "perform", noted)
    first, second = world.uuids
    async with world.life.jobs.slots.driver_release.during_reset(first):
        world.node.reset_by_tools.add(first)
    running = await world.operator_requests.scrub(second, ScrubPath.FAST)
    await asyncio.sleep(20)
    assert set(begun) == {Step.EVICT}
    world.node.reset_by_tools.clear()
    await running.finished.wait()
    assert running.receipt is not None


async def test_each_pending_restore_starts_at_once_without_a_job(world):
    for _ in range(2):
        world.node.unrestored = {"GPU-not-offered"}
        await asyncio.sleep(RETRY_AFTER / 4)
        assert world.node.unrestored == set()
    assert world.node.restored_by_worker == ["GPU-not-offered"] * 2


async def test_a_pending_restore_waits_for_other_resets(world):
    device = "GPU-not-offered"
    world.node.reset_by_tools.add(device)
    world.node.unrestored = {device}
    await asyncio.sleep(10)
    assert world.node.restored_by_worker == []
    async with world.context.jobs.slots.driver.exclusive():
        world.node.reset_by_tools.clear()
        await asyncio.sleep(10)
        assert world.node.restored_by_worker == []
    await asyncio.sleep(10)
    assert world.node.restored_by_worker == [device]


async def test_a_failed_restore_is_logged_and_retried(world):
    world.node.restores_fail = True
    world.node.unrestored = {"GPU-not-offered"}
    with capture_logs() as logs:
        await asyncio.sleep(150)
    assert len(world.node.restored_by_worker) == 3
    assert [entry["error"] for entry in logs if entry["event"] == "pending restore failed"] == ["it is refused"] * 3


async def test_a_stopping_service_starts_no_restore(world):
    world.node.unrestored = {"GPU-not-offered"}
    await world.life.jobs.start_restores()
    await asyncio.sleep(0.1)
    await world.service.stop()
    assert world.node.restored_by_worker == ["GPU-not-offered"]
    assert world.node.unrestored
    await asyncio.sleep(150)
    assert len(world.node.restored_by_worker) == 1


async def test_a_holder_that_appears_before_a_waiting_reset_is_found(world):
    device = world.uuids[0]
    async with world.context.jobs.slots.driver.shared():
        running = await world.operator_requests.scrub(device, ScrubPath.RESET)
        await asyncio.sleep(3)  # the reset has no holder to end, and waits
        assert (world.record(device).scrubs.job.id, world.record(device).scrubs.job.begun) == (running.id, None)
        world.intrude(device, container=True)
        await asyncio.sleep(0.3)
    await running.finished.wait()
    last = results(world, device)[-1]
    assert (last.step, last.outcome, last.seconds) == (Step.RESET, Outcome.ABORTED, 0)


async def test_an_unclearable_device_is_refused_before_any_job(world, monkeypatch):
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    monkeypatch.setattr(Node, "lacks", lambda *_: "CuPy is not installed")
    before = len(rows(world, ev.ScrubStarted, device))
    with pytest.raises(NotReady, match=f"cannot hand out {device}: cannot clear its memory: CuPy is not installed"):
        await world.acquire("next", device)
    with pytest.raises(NotReady, match=r"^cannot clear its memory: CuPy is not installed"):
        await world.operator_requests.scrub(device, ScrubPath.RESET)
    await asyncio.sleep(30)
    assert len(rows(world, ev.ScrubStarted, device)) == before
    assert world.state(device) is State.DIRTY
    await world.operator_requests.quarantine(device, "test", "ann")
    with pytest.raises(NotReady, match=r"^cannot clear its memory: CuPy is not installed"):
        await world.operator_requests.reinstate(device, "test", "ann")
    with pytest.raises(NotReady, match="CuPy is not installed"):
        await world.operator_requests.reinstate_without_proof(device, "it was the cable", "ann")
    assert not rows(world, ev.ProbationStarted, device)
    assert world.state(device) is State.QUARANTINED
