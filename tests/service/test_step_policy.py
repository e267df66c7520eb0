"""The policy of a step reaches its worker: the deadline and the instructions."""

from __future__ import annotations

import pytest

from policies import load
from scrubber.core.model import ScrubPath, Step, StepResult
from tests.service.pretend_worker import PretendWorker


@pytest.mark.parametrize("policy", ["default", "fast"])
async def test_each_slow_step_gets_its_deadline_from_the_policy(build, policy):
    seen = {}

    class Noting(PretendWorker):
        async def do(self, step, path, order, deadline, on_progress) -> StepResult:
            seen[self.gpu.info.uuid, step] = (deadline, order)
            return await super().do(step, path, order, deadline, on_progress)

    world = build(worker=Noting, policy=policy)
    await world.start()
    await world.clean()
    device = world.uuids[0]
    running = await world.operations.scrub(device, ScrubPath.RESET)
    await running.finished.wait()
    wanted = load.load(policy).defaults
    for step in Step:
        deadline, order = seen[device, step]
        assert (deadline, order.seconds) == (getattr(wanted.timeouts, step.value), wanted.selftest.time)
    assert len({seen[device, step][1].key for step in Step}) == 1, "of the job; each step makes its own of it"
