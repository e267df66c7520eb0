"""``Truth`` reports a worker or a job that lies: otherwise no green test of this room would mean anything.

The service itself stops a worker that lies in one place; ``tests/core/test_verdict_coverage.py`` says which lies.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from ground.errors import AutoclaveError
from scrubber.core import verdict
from scrubber.core.measured import Cleared, Scratched, Verified
from scrubber.core.model import Evicted, Facts, HealthRead, Outcome, State, Step, Vitals
from scrubber.jobs.path_run import Vetoes
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.steps.orders import Report
from tests.service.node import Kind
from tests.service.pretend_worker import ALL, UNITS, PretendWorker


class Lazy(PretendWorker):
    """A worker that reports a clear and does not clear."""

    async def _clear(self, order, _progress) -> Report:
        return Report(Outcome.PASSED, findings=Cleared(ALL, 0, ALL, patterns=order.patterns))


class LazyAndBlind(Lazy):
    """The same worker reports, too, that it read all of the memory, and does not read."""

    async def _verify(self, order, _progress) -> Report:
        return Report(Outcome.PASSED, findings=Verified(ALL, order.patterns[-1:], ALL))


class Flatterer(PretendWorker):
    """Finds every device healthy."""

    async def perform(self, step, order, progress):
        if step is Step.HEALTH:
            return Report(Outcome.PASSED, findings=HealthRead(Vitals()))
        return await super().perform(step, order, progress)


class Butcher(PretendWorker):
    """Ends every holder, also in live containers."""

    async def _evict(self, _order) -> Report:
        for process in list(self.gpu.users()):
            self.truth.killing(self.gpu, process)
            self.node.leave(process)
        return Report(Outcome.PASSED, findings=Evicted((), ()))


class SkipsScratch(PretendWorker):
    """A worker that reports that it overwrote the memory on the chip, and does not."""

    def _scratch(self) -> Report:
        return Report(Outcome.PASSED, findings=Scratched(UNITS, UNITS))


class Idler(PretendWorker):
    """Reports every step as passed, and does none."""

    async def do(self, step, path, order, deadline, on_progress):
        result = await super().do(step, path, order, deadline, on_progress)
        self.gpu.deeds.clear()
        return result


class NoVetoes(Vetoes):
    """Nothing stops a step."""

    def _veto(self, _step, _facts) -> None:
        return None


class Fenceless(ScrubJob):
    """A job that no veto stops."""

    vetoes_type = NoVetoes


class Trusting(ScrubJob):
    """A job that believes every result of its worker."""

    async def _judged(self, record, job, path) -> tuple[verdict.Verdict, Vitals | None, Facts | None]:
        _, vitals, seen = await super()._judged(record, job, path)
        return verdict.judge(job, record.health.baseline, self.device_policy.policy), vitals, seen


async def hand_over(world):
    """A tenant leaves its secret on a device, and the next tenant asks for the device."""
    await world.clean()
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    await asyncio.sleep(10)
    await world.acquire("next", device)


async def intrusion(world):
    """A process opens a device in the middle of its clear, and keeps it open."""
    await world.clean()
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, None)
    await asyncio.sleep(0.3)
    assert running.step is Step.CLEAR
    world.intrude(device, container=True)
    await asyncio.sleep(10)


async def ailment(world):
    """A device that no reset brings back is scrubbed."""
    await world.clean()
    device = world.uuids[0]
    world.node.gpus[device].remap_failed = True
    await world.operator_requests.scrub(device, None)
    await asyncio.sleep(10)


async def squatter(world):
    """A live container sits on a device that is to be evicted."""
    await world.clean()
    device = world.uuids[0]
    await world.operator_requests.scrub(device, None)
    world.node.enter(device, Kind.TENANT, "pod-x", container="pod-x")
    await asyncio.sleep(10)


async def test_verify_finds_a_skipped_clear(build):
    world = build(worker=Lazy)
    await world.start()
    with pytest.raises(AutoclaveError):
        await hand_over(world)
    assert world.state(world.uuids[0]) is State.QUARANTINED


@pytest.mark.parametrize(
    ("kinds", "scene", "charge"),
    [
        ({"worker": LazyAndBlind}, hand_over, r"leak: GPU-0000 was called clean with bytes of pod-1"),
        ({"worker": Idler}, hand_over, r"was called clean after \[.*\] \(I6\)"),
        ({"worker": SkipsScratch}, hand_over, r"was called clean with bytes of pod-1 on its chip"),
        ({"worker": Flatterer, "job": Trusting}, ailment, r"was called clean although it is not well"),
        ({"job": Fenceless}, intrusion, r"clear on GPU-0000 while pod-1 uses it"),
        ({"worker": Butcher, "job": Fenceless}, squatter, r"pod-x of a live container was killed"),
    ],
)
async def test_the_truth_reports_each_broken_promise(build, kinds, scene, charge):
    world = build(guilty=True, **kinds)
    await world.start()
    await scene(world)
    assert [text for text in world.truth.violations if re.search(charge, text)], world.truth.violations
    with pytest.raises(AssertionError):
        world.check()


@pytest.mark.parametrize("scene", [hand_over, intrusion, ailment, squatter])
async def test_the_real_service_breaks_no_promise_in_these_scenes(world, scene):
    await scene(world)
    assert world.truth.violations == []
