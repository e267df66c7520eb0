"""Which steps share a worker, and what the policy and the job tell it."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from policies import load
from scrubber.core.model import ScrubPath, State, Step, StepResult
from scrubber.steps.orders import Report
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


async def test_all_steps_to_the_last_on_memory_share_one_worker(begin):
    Recorded.received = []
    await begin(gpus=1, worker=Recorded)
    first, second = dict.fromkeys(pid for pid, _ in Recorded.received)
    assert Recorded.received == [
        *[(first, it) for it in (Step.EVICT, Step.CLEAR, Step.VERIFY, Step.SCRATCH, Step.SELFTEST, "ended")],
        *[(second, it) for it in (Step.SETTINGS, Step.HEALTH, "ended")],
    ]


class Lingering(Recorded):
    """A worker on memory that takes long to end, as on a card. It can end once the health was read."""

    health_read: ClassVar[asyncio.Event]

    async def do(self, step, path, order, deadline, on_progress):
        result = await super().do(step, path, order, deadline, on_progress)
        if step is Step.HEALTH:
            self.health_read.set()
        return result

    async def finish(self, last):
        await self.health_read.wait()
        return await super().finish(last)


async def test_the_end_of_the_worker_on_memory_holds_nothing_up(begin):
    Recorded.received, Lingering.health_read = [], asyncio.Event()
    world = await begin(gpus=1, worker=Lingering)
    assert world.state(world.uuids[0]) is State.CLEAN
    first, second = dict.fromkeys(pid for pid, _ in Recorded.received)
    assert Recorded.received.index((second, Step.HEALTH)) < Recorded.received.index((first, "ended"))


class Keyed(PretendWorker):
    """Notes the key of each clear."""

    keys: ClassVar[list[str]] = []

    async def _clear(self, order, progress) -> Report:
        self.keys.append(order.key)
        return await super()._clear(order, progress)


async def test_a_jobs_slow_path_has_its_own_key(begin):
    world = await begin(gpus=1, worker=Keyed)
    Keyed.keys.clear()
    world.node.gpus[world.uuids[0]].bad_memory = True
    running = await world.operator_requests.scrub(world.uuids[0], ScrubPath.FAST)
    await running.finished.wait()
    fast, slow = Keyed.keys
    assert fast != slow


async def test_each_slow_step_gets_its_deadline_from_the_policy(begin):
    seen = {}

    class Noting(PretendWorker):
        async def do(self, step, path, order, deadline, on_progress) -> StepResult:
            seen[self.gpu.info.uuid, step] = (deadline, order)
            return await super().do(step, path, order, deadline, on_progress)

    world = await begin(worker=Noting)
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, ScrubPath.RESET)
    await running.finished.wait()
    wanted = load.load("default").defaults
    for step in Step:
        deadline, order = seen[device, step]
        assert (deadline, order.seconds) == (wanted.deadline(step.value), wanted.selftest.time)
    assert len({seen[device, step][1].key for step in Step}) == 1, "of the job; each step makes its own of it"
