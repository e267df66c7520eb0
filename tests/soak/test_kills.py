"""Whatever is killed, and whenever: no container starts on a GPU that was not proven clean for it."""

from __future__ import annotations

import pytest

from tests.flows.node import Node
from tests.soak.aftermath import complaints, demand_none, demand_whole
from tests.soak.conftest import witness
from tests.soak.pods import Pods
from tests.soak.storm import Storm

pytestmark = pytest.mark.night

GPUS = 3
FEW, MANY = 6, 200


@pytest.mark.timeout(1500)
async def test_no_container_starts_on_a_gpu_that_was_not_proven_clean_whatever_is_killed(build, soak, seed):
    node: Node = await build(GPUS)
    pods = Pods(node, witness(node.stage), seed)
    storm = Storm(node, witness(node.stage), pods, seed)
    kills = MANY if soak else FEW
    await storm.rage(lambda: storm.killed.total() >= kills)
    print(told(node, pods, storm))  # noqa: T201 - shown with -s, and when the test fails
    demand_none([*witness(node.stage).faults, *pods.counters.faults, *map(repr, node.kubelet.panics)])
    await demand_whole(node)
    demand_none([*witness(node.stage).faults, *complaints(node)])


def told(node: Node, pods: Pods, storm: Storm) -> str:
    """The figures."""
    seen, counters = witness(node.stage), pods.counters
    unasked = sum(not start.prestart for start in node.kubelet.starts)
    lines = [
        f"{storm.killed.total()} kills {dict(storm.killed)} in {storm.seconds:.0f} s; in a call: {storm.during}",
        f"{counters.pods} pods, {seen.begun.total()} starts ({unasked} without PreStart), {counters.crashes} crashes",
        f"{len(seen.zombies)} processes left behind; ends: {dict(counters.ended)}",
        f"{counters.refused.total()} refusals, {counters.waited.total()} waits",
        *(f"  refused {count}: {why}" for why, count in counters.refused.most_common()),
        *(f"  waited {count}: {why}" for why, count in counters.waited.most_common()),
    ]
    return "\n".join(lines)
