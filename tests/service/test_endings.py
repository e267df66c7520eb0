"""How jobs end: what was found until then counts, and a started reset completes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from policies.model import Policy
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, Facts, Outcome, Record, ScrubPath, Sign, State, Step
from scrubber.devices.base import Progress
from scrubber.ground.errors import AutoclaveError, NotReady
from scrubber.steps.base import Order, Report
from scrubber.workers.worker import BrokenError
from tests.service.asking import rows
from tests.service.pretend_worker import PretendWorker
from tests.service.world import World

SUPPORT = 125  # the catalogue wants support for it
TESTED = "name: tested\ndefaults: {timeouts: {evict: 5s}, periodic: {every: 1h, keep_free: 0}}\n"
HOT = "name: hot\ndefaults: {quarantine: {signs: [heat]}}\n"


@pytest.fixture
def node(build, tmp_path):
    """A node under a policy that is written here."""

    async def one(policy: str, gpus: int = 2, worker: type[PretendWorker] = PretendWorker) -> World:
        file = tmp_path / "policy.yaml"
        file.write_text(policy)
        world: World = build(policy=str(file), gpus=gpus, worker=worker, interval=20.0)
        await world.start()
        await world.clean()
        return world

    return one


async def left_alone(build, worker):
    """A clean device of which nothing happens before the workers do what they are for."""
    world = build(gpus=1, worker=worker)
    await world.start()
    await world.clean()
    await asyncio.sleep(1000)
    return world, world.uuids[0]


class HangsInTheEnd(PretendWorker):
    """Its last step is done, and then the driver hangs."""

    async def perform(self, step, order, progress):
        report = await super().perform(step, order, progress)
        self.gpu.hangs = step is Step.HEALTH and self.node.loop.time() > 1000
        return report


async def test_a_driver_that_hangs_at_the_end_proves_nothing(build):
    world, device = await left_alone(build, HangsInTheEnd)
    running = await world.operations.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert running.receipt is None
    monitor_asked_first = running.why.startswith("the driver does not answer for this device")
    assert monitor_asked_first or running.why == "its health could not be read at the end"
    world.node.heal()


async def test_one_late_last_answer_makes_no_device_sick(build):
    late = 0

    class OneLateAnswer(PretendWorker):
        """The driver is slow once, just when the job asks for the last time."""

        async def perform(self, step: Step, order: Order, progress: Progress) -> Report:
            nonlocal late
            report = await super().perform(step, order, progress)
            if step is Step.HEALTH and late == 0 and self.node.loop.time() > 1000:
                late += 1
                self.gpu.hangs = True
                self.node.loop.call_later(3.0, setattr, self.gpu, "hangs", False)
            return report

    world, device = await left_alone(build, OneLateAnswer)
    running = await world.operations.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert late == 1
    assert running.receipt is not None


async def test_a_proven_fault_outlives_a_missing_worker(world, monkeypatch):
    device = world.uuids[0]
    spawn = world.context.jobs._context.spawn

    async def none_for_the_slow_path(uuid: str, policy: Policy, steps: tuple[Step, ...]) -> PretendWorker:
        if world.record(uuid).job.path is ScrubPath.RESET:
            raise BrokenError("cannot start a worker")
        worker: PretendWorker = await spawn(uuid, policy, steps)
        return worker

    jobs = world.context.jobs
    monkeypatch.setattr(jobs, "_context", replace(jobs._context, spawn=none_for_the_slow_path))
    world.node.gpus[device].bad_memory = True
    running = await world.operations.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    world.node.heal()
    quarantine = world.record(device).quarantine
    assert (quarantine.ailment.kind, quarantine.next_probe) == (AilmentKind.MEMORY_FAULT, None)


class FailsAndReports(PretendWorker):
    """The clear fails, and meanwhile the driver reports what needs a person."""

    async def perform(self, step, order, progress):
        if step is Step.CLEAR and self.node.loop.time() > 1000:
            self.node.report(self.gpu.info.uuid, (SUPPORT,))
            await self.kill()
        return await super().perform(step, order, progress)


async def test_an_error_during_a_failed_scrub_is_kept(build):
    world, device = await left_alone(build, FailsAndReports)
    running = await world.operations.scrub(device, ScrubPath.RESET)
    await running.finished.wait()
    quarantine = world.record(device).quarantine
    assert (quarantine.ailment.xid, quarantine.next_probe, quarantine.errors) == (SUPPORT, None, ((SUPPORT, 1),))


async def test_errors_before_a_loss_count_as_well(world):
    device = world.uuids[0]
    world.node.report(device, (13, 13, SUPPORT))
    world.node.gpus[device].lost = True
    await world.reach(device, State.QUARANTINED)
    reported = rows(world, ev.Quarantined, device)[0].quarantine
    assert (reported.ailment.xid, reported.next_probe, reported.errors) == (SUPPORT, None, ((13, 2), (SUPPORT, 1)))
    assert "xid 125 (INFOROM_FS_ERROR) was reported; the driver reported xid 13 2 times" in world.story(device)
    world.node.heal()
    await asyncio.sleep(3600)
    assert world.state(device) is State.QUARANTINED


@pytest.fixture
async def lost(build):
    """A world with a device that is lost, and its sibling."""
    world = build(gpus=3)
    await world.start()
    await world.clean()
    _alone, one, other = world.uuids
    world.node.report(one, (79,))
    await world.reach(one, State.QUARANTINED)
    world.node.gpus[one].lost = world.node.gpus[one].blind = True
    await asyncio.sleep(5)
    assert world.record(one).quarantine.ailment.kind is AilmentKind.LOST
    return world, one, other


async def test_a_lost_quarantined_device_does_not_stop_a_siblings_reset(lost):
    world, _, other = lost
    running = await world.operations.scrub(other, ScrubPath.RESET)
    await running.finished.wait()
    assert running.receipt is not None


async def test_a_lost_device_used_again_stops_its_siblings_reset(lost):
    world, one, other = lost
    world.node.heal()
    world.intrude(one)
    assert world.record(one).quarantine.ailment.kind is AilmentKind.LOST
    running = await world.operations.scrub(other, ScrubPath.RESET)
    await running.finished.wait()
    assert running.receipt is None
    assert "reset domain" in running.why


class AMinuteOfTests(PretendWorker):
    """As the real self-test does."""

    async def perform(self, step, order, progress):
        if step is Step.SELFTEST:
            await self.spend(60)
        return await super().perform(step, order, progress)


async def at(world, device, step):
    """Return as soon as its job is at a step."""
    while (job := world.record(device).job) is None or job.step is not step:
        await world.life.ledger.newer_row(world.life.ledger.seq, 60.0)


async def test_a_reset_waiting_for_a_self_test_delays_no_pod(build):
    world = build(gpus=4, worker=AMinuteOfTests, policy="fast")
    await world.start()
    await world.clean()
    tested, reset, tenants, _ = world.uuids
    first = await world.operations.scrub(tested, ScrubPath.RESET)
    await at(world, tested, Step.SELFTEST)
    second = await world.operations.scrub(reset, ScrubPath.RESET)
    await asyncio.sleep(5)
    assert world.record(reset).job.step is None
    assert not first.finished.is_set()
    began = world.loop.time()
    running = await world.operations.scrub(tenants, ScrubPath.FAST)
    await running.finished.wait()
    assert running.receipt is not None
    assert world.loop.time() - began < 3
    await asyncio.gather(first.finished.wait(), second.finished.wait())
    assert second.receipt is not None


async def burning(world, step):
    """The device whose test has come to that step."""
    while True:
        for device in world.uuids:
            job = world.record(device).job
            if job is not None and job.step is step:
                return device
        await world.life.ledger.newer_row(world.life.ledger.seq, 60.0)


@pytest.mark.parametrize("ask", ["acquire", "start"])
async def test_a_scrub_that_ends_meanwhile_causes_no_refusal(node, monkeypatch, ask):
    world = await node("name: brisk\ndefaults: {paths: {first_look: fast}}\n")
    device = await burning(world, Step.EVICT)
    method = "quick" if ask == "acquire" else "full"
    look = getattr(world.life.observer, method)

    async def slow(record: Record, *args: Any, **more: Any) -> Facts:  # noqa: ANN401 - passed on
        facts: Facts = await look(record, *args, **more)
        if record.state is State.SCRUBBING and (more.get("starting_pod") or ask == "acquire"):
            await world.reach(device, State.CLEAN)
        return facts

    monkeypatch.setattr(world.life.observer, method, slow)
    await (
        world.handover.acquire([device], announced=True) if ask == "acquire" else world.handover.start([device], "p")
    )
    assert world.state(device) is (State.GRANTED if ask == "acquire" else State.IN_USE)


@pytest.mark.parametrize("ask", ["acquire", "start"])
async def test_a_reset_that_begins_during_an_observation_is_not_cancelled(node, monkeypatch, ask):
    world = await node(TESTED)
    device = await burning(world, Step.EVICT)
    method = "quick" if ask == "acquire" else "full"
    look = getattr(world.life.observer, method)

    async def slow(record: Record, *args: Any, **more: Any) -> Facts:  # noqa: ANN401 - passed on
        facts: Facts = await look(record, *args, **more)
        if (
            record.device.uuid == device
            and record.job is not None
            and record.job.step is Step.EVICT
            and "follow_up" not in more
        ):
            world.node.gpus[device].leaked = 7  # the burn-in fails, and goes on with a reset
            await at(world, device, Step.RESET)
        return facts

    monkeypatch.setattr(world.life.observer, method, slow)
    deed = world.handover.acquire([device], announced=True) if ask == "acquire" else world.handover.start([device], "p")
    try:
        await deed
    except AutoclaveError as error:
        assert "it is being reset; try again" in str(error)  # noqa: PT017 - it may also be over in time
    await asyncio.sleep(30)
    resets = [it.result for it in rows(world, ev.StepFinished, device) if it.result.step is Step.RESET]
    begun = [it for it in rows(world, ev.StepStarted, device) if it.step is Step.RESET]
    assert (len(resets), {it.outcome for it in resets}) == (len(begun), {Outcome.PASSED})


async def test_a_starting_container_gets_a_device_from_its_burn_in(node):
    world = await node(TESTED)
    device = await burning(world, Step.CLEAR)
    await world.handover.start([device], "pod")
    assert world.state(device) is State.IN_USE


async def test_an_operator_cannot_cancel_a_reset(world):
    device = world.uuids[0]
    world.node.report(device, (79,))
    await world.reach(device, State.QUARANTINED)
    running = await world.operations.reinstate(device, "", "ops")
    await at(world, device, Step.RESET)
    with pytest.raises(NotReady, match="it is being reset; try again"):
        await world.operations.reinstate_without_proof(device, "no time", "ann")
    await running.finished.wait()
    assert running.receipt is not None


async def test_a_reinstatement_replaces_a_running_probation(node):
    world = await node(HOT, worker=AMinuteOfTests)
    device = world.uuids[0]
    gpu = world.node.gpus[device]
    gpu.signs = (Sign(AilmentKind.HEAT, "hot"),)
    await world.reach(device, State.QUARANTINED)
    gpu.signs = ()
    await at(world, device, Step.CLEAR)
    running = await world.operations.reinstate(device, "looked after", "ann")
    assert await world.operations.reinstate(device, "me too", "bob") is running
    await running.finished.wait()
    assert running.receipt.path is ScrubPath.SLOW
    assert [it.by for it in rows(world, ev.ProbationStarted, device)][-1] == "ann: looked after"
    assert world.record(device).returns == ()


async def test_a_manual_quarantine_hides_no_graver_ailment(world):
    device = world.uuids[0]
    container = await world.tenancy(device)
    world.node.report(device, (SUPPORT,))
    await asyncio.sleep(5)
    await world.operations.quarantine(device, "suspect", "ops")
    world.node.end_container(container)
    await world.reach(device, State.QUARANTINED)
    ailment = world.record(device).quarantine.ailment
    assert (ailment.kind, ailment.xid) == (AilmentKind.XID, SUPPORT)
    assert ailment.detail.endswith("suspect (asked by ops)")


async def test_an_unclearable_device_cannot_be_reinstated_without_proof(world, monkeypatch):
    device = world.uuids[0]
    await world.operations.quarantine(device, "suspect", "ops")
    monkeypatch.setattr(type(world.node), "lacks", lambda *_: "CuPy is not installed")
    with pytest.raises(NotReady, match="CuPy is not installed"):
        await world.operations.reinstate_without_proof(device, "it was the cable", "ann")
    assert world.state(device) is State.QUARANTINED


async def test_an_unclearable_device_gets_no_burn_in(node, monkeypatch):
    world = await node(TESTED)
    monkeypatch.setattr(type(world.node), "lacks", lambda *_: "CuPy is not installed")
    before = [len(rows(world, ev.ScrubStarted, device)) for device in world.uuids]
    await asyncio.sleep(3 * 3600)
    assert [len(rows(world, ev.ScrubStarted, device)) for device in world.uuids] == before


async def test_a_sign_lasts_over_one_late_answer(world):
    device = world.uuids[0]
    world.node.gpus[device].signs = (Sign(AilmentKind.HEAT, "hot"),)
    await asyncio.sleep(5)
    world.node.gpus[device].hangs = True
    await asyncio.sleep(3)
    assert world.context.vitals[device].signs == (Sign(AilmentKind.HEAT, "hot"),)
    world.node.heal()
