"""Which steps share a worker, and what a bad end of one means for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from scrubber.core import events as ev
from scrubber.core.model import Outcome, ScrubPath, State, Step
from scrubber.jobs.slots import ON_MEMORY
from scrubber.steps.base import Report
from tests.service.asking import rows
from tests.service.pretend_worker import PretendWorker


class Recorded(PretendWorker):
    """Records which worker does which step, and when it ends."""

    received: list[tuple[int, Step | str]]

    async def do(self, step, path, order, deadline, on_progress):
        self.received.append((self.pid, step))
        return await super().do(step, path, order, deadline, on_progress)

    async def finish(self, last):
        self.received.append((self.pid, "ended"))
        return await super().finish(last)


class UnsteadyWithMemory(Recorded):
    """Fails at its end, after it had memory open."""

    async def finish(self, last):
        result = await super().finish(last)
        return replace(result, outcome=Outcome.DIED) if (self.pid, Step.VERIFY) in self.received else result


async def test_all_memory_steps_share_one_worker(build):
    Recorded.received = []
    world = build(gpus=1, worker=Recorded)
    await world.start()
    await world.clean()
    first, second, third = dict.fromkeys(pid for pid, _ in Recorded.received)
    assert Recorded.received == [
        *[(first, it) for it in (Step.EVICT, "ended")],
        *[(second, it) for it in (Step.CLEAR, Step.VERIFY, Step.SCRATCH, Step.SELFTEST, "ended")],
        *[(third, it) for it in (Step.SETTINGS, Step.HEALTH, "ended")],
    ]


async def test_memory_results_count_only_when_the_worker_ends_well(build):
    Recorded.received = []
    world = build(gpus=1, worker=UnsteadyWithMemory)
    await world.start()
    await world.reach(world.uuids[0], State.QUARANTINED)
    last = rows(world, ev.StepFinished, world.uuids[0])[-1].result
    assert last.outcome is Outcome.DIED
    assert last.step in ON_MEMORY


class Keyed(PretendWorker):
    """Notes the key of each clear."""

    keys: ClassVar[list[str]] = []

    async def _clear(self, order, progress) -> Report:
        self.keys.append(order.key)
        return await super()._clear(order, progress)


async def test_a_jobs_slow_path_has_its_own_key(build):
    world = build(gpus=1, worker=Keyed)
    await world.start()
    await world.clean()
    Keyed.keys.clear()
    world.node.gpus[world.uuids[0]].bad_memory = True
    running = await world.operations.scrub(world.uuids[0], ScrubPath.FAST)
    await running.finished.wait()
    fast, slow = Keyed.keys
    assert fast != slow
