"""Each way to break a promise is either stopped by the service or reported by ``Truth``.

The service itself stops a saboteur that lies in one place. ``Truth`` must report one that lies everywhere: otherwise
no green test here would mean anything.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from scrubber.core import verdict
from scrubber.core.events import Event
from scrubber.core.measurements import Measurements
from scrubber.core.model import Findings, Outcome, State, Step, Vitals
from scrubber.ground.errors import AutoclaveError
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.steps.base import Report
from tests.service.node import Kind
from tests.service.pretend_worker import ALL, UNITS, PretendWorker


class Lazy(PretendWorker):
    """Says that it cleared, and did not."""

    async def _clear(self, order, _progress) -> Report:
        return Report(Outcome.PASSED, findings=Findings(ALL, ALL, 0, patterns=order.patterns))


class Blind(PretendWorker):
    """Says that it read all of the memory, and did not look."""

    async def _verify(self, _progress) -> Report:
        return Report(Outcome.PASSED, findings=Findings(ALL, ALL))


class LazyAndBlind(Lazy, Blind):
    """Both."""


class Flatterer(PretendWorker):
    """Finds every device healthy."""

    async def perform(self, step, order, progress):
        if step is Step.HEALTH:
            return Report(Outcome.PASSED, findings=Findings(vitals=Vitals()))
        return await super().perform(step, order, progress)


class Butcher(PretendWorker):
    """Ends every holder, also in live containers."""

    async def _evict(self, _order) -> Report:
        for process in list(self.gpu.users()):
            self.truth.killing(self.gpu, process)
            self.node.leave(process)
        return Report(Outcome.PASSED)


class SkipsScratch(PretendWorker):
    """Says that it overwrote the memory on the chip, and did not."""

    def _scratch(self) -> Report:
        return Report(Outcome.PASSED, findings=Findings(units=UNITS, units_reached=UNITS))


class Partial(PretendWorker):
    """Leaves a unit out, says so, and passes itself all the same."""

    def _scratch(self) -> Report:
        return Report(Outcome.PASSED, findings=Findings(units=UNITS, units_reached=UNITS - 1))


class Untested(PretendWorker):
    """Passes its self-test without a test."""

    def _selftest(self) -> Report:
        return Report(Outcome.PASSED, findings=Findings(covered_bytes=ALL, units=UNITS))


class Hasty(PretendWorker):
    """Writes only zeros, whatever the pattern is."""

    async def _clear(self, order, progress) -> Report:
        return await super()._clear(replace(order, patterns=("zero",)), progress)


class Halfhearted(PretendWorker):
    """Leaves the arithmetic out."""

    def _selftest(self) -> Report:
        return Report(Outcome.PASSED, findings=Findings(covered_bytes=ALL, units=UNITS, tests=("address",)))


class Shrugger(PretendWorker):
    """Finds a unit that deviates, and passes itself all the same."""

    def _selftest(self) -> Report:
        findings = Findings(covered_bytes=ALL, units=UNITS, tests=("arithmetic",), deviating=(3,))
        return Report(Outcome.PASSED, findings=findings)


class Idler(PretendWorker):
    """Reports every step as passed, and does none."""

    async def do(self, step, path, order, deadline, on_progress):
        result = await super().do(step, path, order, deadline, on_progress)
        self.gpu.deeds.clear()
        return result


class Fenceless(ScrubJob):
    """Never looks before it leaps."""

    def _fence(self, _step, _facts) -> None:
        return None


class Lenient(ScrubJob):
    """Overlooks a verify that did not pass."""

    def _conclusion(self, record, job, judged, vitals) -> Event:
        if isinstance(judged, verdict.Failed) and judged.step is Step.VERIFY:
            patterns = self.device_policy.policy.clear.passes.patterns
            judged = Measurements(
                covered_bytes=ALL,
                allocatable_bytes=ALL,
                residue_bytes=0,
                processes_found=0,
                processes_terminated=0,
                patterns=patterns,
            )
        return super()._conclusion(record, job, judged, vitals)


class Trusting(ScrubJob):
    """Does not look itself at what a worker calls well."""

    def _conclusion(self, record, job, _judged, vitals) -> Event:
        trusted = verdict.judge(job, record.baseline, self.device_policy.policy)
        return super()._conclusion(record, job, trusted, vitals)


async def hand_over(world):
    """A tenant leaves its secret, the next one asks."""
    await world.start()
    await world.clean()
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    await asyncio.sleep(10)
    await world.acquire("next", device)


async def intrusion(world):
    """Somebody opens a device in the middle of its clear, and stays."""
    await world.start()
    await world.clean()
    device = world.uuids[0]
    await world.operations.scrub(device, None)
    await asyncio.sleep(0.3)
    assert world.record(device).job.step is Step.CLEAR
    world.intrude(device, container=True)
    await asyncio.sleep(10)


async def ailment(world):
    """A device leaks memory that no reset brings back, is scrubbed, and asked for."""
    await world.start()
    await world.clean()
    device = world.uuids[0]
    world.node.gpus[device].remap_failed = True
    await world.operations.scrub(device, None)
    await asyncio.sleep(10)


async def squatter(world):
    """A live container sits on a device that is to be evicted."""
    await world.start()
    device = world.uuids[0]
    await world.clean()
    await world.operations.scrub(device, None)
    world.node.enter(device, Kind.TENANT, "pod-x", container="pod-x")
    await asyncio.sleep(10)


async def test_verify_finds_a_skipped_clear(build):
    world = build(worker=Lazy)
    with pytest.raises(AutoclaveError):
        await hand_over(world)
    assert world.state(world.uuids[0]) is State.QUARANTINED
    assert world.truth.violations == []


@pytest.mark.parametrize(
    ("worker", "reason", "why"),
    [
        (Partial, "scrub-failed", "scratch overwrote 131 of 132 units"),
        (Shrugger, "compute-fault", "selftest passed"),
    ],
)
async def test_a_slow_path_with_too_little_evidence_ends_in_quarantine(build, worker, reason, why):
    world = build(worker=worker)
    await world.start()
    record = await world.reach(world.uuids[0], State.QUARANTINED)
    assert (record.quarantine.ailment.kind.value, record.quarantine.ailment.detail) == (reason, why)
    assert world.truth.violations == []


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (Hasty, "clear wrote and read back zero; the policy orders random, zero"),
        (Untested, "selftest did not say which tests it ran"),
        (Halfhearted, "selftest ran address, but not arithmetic: selftest.time in the policy may be too short"),
    ],
)
async def test_a_worker_that_does_too_little_leaves_a_dirty_device(build, worker, why):
    world = build(worker=worker)
    await world.start()
    record = await world.reach(world.uuids[0], State.DIRTY)
    assert (record.setback.detail, record.quarantine, record.receipt) == (why, None, None)
    await asyncio.sleep(60)
    record = world.record(world.uuids[0])
    assert (record.setback.detail, record.setback.count > 1, record.receipt) == (why, True, None)
    assert world.truth.violations == []


async def test_an_idle_verify_does_no_harm_after_a_real_clear(build):
    world = build(worker=Blind)
    await hand_over(world)
    assert world.truth.violations == []


@pytest.mark.parametrize(
    ("kinds", "scene", "charge"),
    [
        ({"worker": LazyAndBlind}, hand_over, r"leak: GPU-0000 was called clean with bytes of pod-1"),
        ({"worker": Lazy, "job": Lenient}, hand_over, r"leak: GPU-0000 was granted with bytes of pod-1"),
        ({"worker": Idler}, hand_over, r"was called clean after \[.*\] \(I6\)"),
        ({"worker": SkipsScratch}, hand_over, r"was called clean with bytes of pod-1 on its chip"),
        ({"worker": Flatterer, "job": Trusting}, ailment, r"was called clean although it is not well"),
        ({"job": Fenceless}, intrusion, r"clear on GPU-0000 while pod-1 uses it"),
        ({"job": Fenceless}, intrusion, r"was called clean while it is used"),
        ({"worker": Butcher, "job": Fenceless}, squatter, r"pod-x of a live container was killed"),
    ],
)
async def test_the_truth_reports_each_broken_promise(build, kinds, scene, charge):
    world = build(guilty=True, **kinds)
    await scene(world)
    assert [text for text in world.truth.violations if re.search(charge, text)], world.truth.violations
    with pytest.raises(AssertionError):
        world.check()


@pytest.mark.parametrize("scene", [hand_over, intrusion, ailment, squatter])
async def test_the_real_service_breaks_no_promise_in_these_scenes(build, scene):
    world = build()
    await scene(world)
    assert world.truth.violations == []
