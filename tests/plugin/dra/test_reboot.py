"""After a reboot the kubelet prepares the claims of all its pods again, while the devices take their first look."""

import pytest

from demo.standins.pods import Pod
from plugin.dra.config import DRIVER
from scrubber.core import events as ev
from scrubber.core.model import ScrubPath, State, Step, Trigger
from tests.plugin.dra.claim_world import ClaimWorld
from tests.service.asking import rows
from tests.service.pretend_worker import PretendWorker
from tests.service.virtual import VirtualLoop


class AMinuteOfTests(PretendWorker):
    """As the real self-test does."""

    async def perform(self, step, order, progress):
        if step is Step.SELFTEST:
            await self.spend(60)
        return await super().perform(step, order, progress)


@pytest.fixture
def world(tmp_path):
    loop = VirtualLoop()
    world = ClaimWorld(loop, tmp_path, gpus=2, worker=AMinuteOfTests)
    loop.run_until_complete(world.start())
    yield world
    world.leave()
    loop.close()


def prepare(world, pod):
    """The kubelet's next try."""
    return world.loop.run_until_complete(world.on("kubelet", world.claims.prepare(pod)))


@pytest.mark.parametrize("waited", [0.0, 30.0])
def test_after_a_reboot_a_claim_waits_for_no_self_test(world, waited):
    world.loop.run_until_complete(world.clean())
    world.start_driver()
    world.loop.advance(10.0)
    world.cluster.claim("train", driver=DRIVER, count=1)
    pod = Pod.of("train", None, "train")
    pod.uid = "train"
    assert world.cluster.place(pod) == ""
    prepare(world, pod)
    [device] = world.held
    world.loop.run_until_complete(world.die())
    world.end_driver()
    world.held.clear()
    world.node.reboot()
    world.start_kubelet()
    world.loop.run_until_complete(world.start())
    world.start_driver()
    world.loop.advance(waited)
    prepare(world, pod)
    assert [*world.held] == [device]
    assert world.state(device) is State.GRANTED
    assert world.record(device).receipt.path is ScrubPath.FAST
    [other] = set(world.uuids) - {device}
    world.loop.run_until_complete(world.reach(other, State.CLEAN))
    assert world.record(other).receipt.path is ScrubPath.SLOW  # its first look went on: no request waited for it
    assert [it.job.trigger for it in rows(world, ev.ScrubStarted, other)] == [Trigger.FIRST_LOOK] * 2
    assert world.wrong == []
