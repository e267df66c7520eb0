"""How jobs end: what was found until then counts, and a started reset completes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from policies.model import Policy
from scrubber.core import events as ev
from scrubber.core.model import AilmentKind, Facts, Record, ScrubPath, Sign, State, Step
from scrubber.devices.base import Progress
from scrubber.ground.errors import NotReady
from scrubber.steps.base import Order, Report
from scrubber.workers.worker import BrokenError
from tests.service.asking import at_step, rows
from tests.service.pretend_worker import AMinuteOfTests, PretendWorker


async def left_alone(begin, worker):
    """A clean device of which nothing happens before the workers do what they are for."""
    world = await begin(gpus=1, worker=worker)
    await asyncio.sleep(1000)
    return world, world.uuids[0]


class HangsInTheEnd(PretendWorker):
    """Its last step is done, and then the driver hangs."""

    async def perform(self, step, order, progress):
        report = await super().perform(step, order, progress)
        self.gpu.hangs = step is Step.HEALTH and self.node.loop.time() > 1000
        return report


async def test_a_driver_that_hangs_at_the_end_proves_nothing(begin):
    world, device = await left_alone(begin, HangsInTheEnd)
    running = await world.operations.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert running.receipt is None
    monitor_asked_first = running.why.startswith("the driver does not answer for this device")
    assert monitor_asked_first or running.why == "its health could not be read at the end"
    world.node.heal()


async def test_one_late_last_answer_makes_no_device_sick(begin):
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

    world, device = await left_alone(begin, OneLateAnswer)
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


async def test_a_reset_waiting_for_a_self_test_delays_no_pod(begin):
    world = await begin(gpus=4, worker=AMinuteOfTests, policy="fast")
    tested, reset, tenants, _ = world.uuids
    first = await world.operations.scrub(tested, ScrubPath.RESET)
    await at_step(world, tested, Step.SELFTEST)
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


@pytest.mark.parametrize("ask", ["acquire", "start"])
async def test_a_scrub_that_ends_meanwhile_causes_no_refusal(world, monkeypatch, ask):
    device = world.uuids[0]
    await world.operations.scrub(device, ScrubPath.FAST)
    await at_step(world, device, Step.EVICT)
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


async def test_an_operator_cannot_cancel_a_reset(world):
    device = world.uuids[0]
    world.node.report(device, (79,))
    await world.reach(device, State.QUARANTINED)
    running = await world.operations.reinstate(device, "", "ops")
    await at_step(world, device, Step.RESET)
    with pytest.raises(NotReady, match="it is being reset; try again"):
        await world.operations.reinstate_without_proof(device, "no time", "ann")
    await running.finished.wait()
    assert running.receipt is not None


async def test_a_reinstatement_replaces_a_running_probation(begin):
    world = await begin(policy="defaults: {quarantine: {signs: [heat]}}", worker=AMinuteOfTests)
    device = world.uuids[0]
    gpu = world.node.gpus[device]
    gpu.signs = (Sign(AilmentKind.HEAT, "hot"),)
    await world.reach(device, State.QUARANTINED)
    gpu.signs = ()
    await at_step(world, device, Step.CLEAR)
    running = await world.operations.reinstate(device, "looked after", "ann")
    assert await world.operations.reinstate(device, "me too", "bob") is running
    await running.finished.wait()
    assert running.receipt.path is ScrubPath.SLOW
    assert [it.by for it in rows(world, ev.ProbationStarted, device)][-1] == "ann: looked after"
    assert world.record(device).returns == ()


async def test_a_sign_lasts_over_one_late_answer(world):
    device = world.uuids[0]
    world.node.gpus[device].signs = (Sign(AilmentKind.HEAT, "hot"),)
    await asyncio.sleep(5)
    world.node.gpus[device].hangs = True
    await asyncio.sleep(3)
    assert world.context.vitals[device].signs == (Sign(AilmentKind.HEAT, "hot"),)
    world.node.heal()
