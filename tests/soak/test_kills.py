"""Whatever is killed, and whenever: no container starts on a GPU that was not proven clean for it."""

from __future__ import annotations

import asyncio
import json

import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from plugin.testing.pods import Phase, Pod
from scrubber.cli.stage import RESOURCE
from scrubber.core import view
from scrubber.errors import Unreachable
from scrubber.ledger import audit
from tests.flows.node import WITHIN, Node
from tests.soak.conftest import witness
from tests.soak.pods import Pods
from tests.soak.storm import Storm
from tests.soak.waiting import within

GPUS = 3
FEW, MANY = 6, 200
HEALS_WITHIN = 120.0


@pytest.mark.timeout(1500)
async def test_no_container_starts_on_a_gpu_that_was_not_proven_clean_whatever_is_killed(build, soak, seed):
    node: Node = await build(GPUS)
    pods = Pods(node, witness(node.stage), seed)
    storm = Storm(node, witness(node.stage), pods, seed)
    await storm.rage(MANY if soak else FEW)
    print(told(node, pods, storm))  # noqa: T201 - shown with -s, and when the test fails
    demand_none([*witness(node.stage).faults, *pods.tally.faults, *map(repr, node.kubelet.panics)])
    await demand_whole(node)
    demand_none(complaints(node))


def demand_none(faults: list[str]) -> None:
    """All of them are told."""
    assert not faults, "\n".join(faults)


async def demand_whole(node: Node) -> None:
    """Everything is as on the first day: nobody's, registered, and each GPU takes a pod."""
    async with within(HEALS_WITHIN, lambda: "every GPU to be nobody's and offered again"):
        await answer(node)
        for number, uuid in enumerate(node.stage.uuids):
            device = await node.stage.settled(number, is_nobodys, WITHIN)
            # A start whose container never came stands, as such a grant does, until somebody asks for the GPU: below.
            assert is_nobodys(device) or device.owner not in node.kubelet.pods, (
                f"{uuid} is {device.state}: {device.why}"
            )
        await node.kubelet.registered(RESOURCE)
        await node.offered(GPUS)
    fresh = [Pod.of(f"fresh-{number}", {RESOURCE: 1}) for number in range(GPUS)]
    for status in await asyncio.gather(*map(node.kubelet.run, fresh)):
        assert status.phase is Phase.RUNNING, status.message
    assert {node.gpu(pod) for pod in fresh} == set(node.stage.uuids)
    demand_none(witness(node.stage).faults)
    found = audit.verify(node.stage.ledger)
    assert (found.broken, found.set_aside) == (None, ())


def is_nobodys(device: view.DeviceStatus) -> bool:
    """Clean, or granted to a pod that never came."""
    return device.state in ("clean", "granted")


async def answer(node: Node) -> None:
    """Wait for the service, which may have been started again just now."""
    retrying = AsyncRetrying(retry=retry_if_exception_type(Unreachable), wait=wait_fixed(0.05))
    async for attempt in retrying:
        with attempt:
            await node.status(node.stage.uuids[0])


def complaints(node: Node) -> list[str]:
    """Lines of both logs that tell of a fault of ours, or that are no lines of a log."""
    lines = [line for log in (node.stage.service.log, node.stage.plugin.log) for line in log.read_text().splitlines()]
    return [line for line in lines if not line.startswith("{") or "exception" in json.loads(line)]


def told(node: Node, pods: Pods, storm: Storm) -> str:
    """The figures."""
    seen, tally = witness(node.stage), pods.tally
    unasked = sum(not start.prestart for start in node.kubelet.starts)
    lines = [
        f"{storm.killed.total()} kills {dict(storm.killed)} in {storm.seconds:.0f} s; in a call: {storm.during}",
        f"{tally.pods} pods, {seen.begun.total()} starts ({unasked} without PreStart), {tally.crashes} crashes",
        f"{len(seen.zombies)} processes left behind; ends: {dict(tally.ended)}",
        f"{tally.refused.total()} refusals, {tally.waited.total()} waits",
        *(f"  refused {count}: {why}" for why, count in tally.refused.most_common()),
        *(f"  waited {count}: {why}" for why, count in tally.waited.most_common()),
    ]
    return "\n".join(lines)
