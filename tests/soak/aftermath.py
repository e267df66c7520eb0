"""What must hold when everything is over."""

from __future__ import annotations

import asyncio
import json

from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from demo.handout import RESOURCE
from demo.standins.pods import Phase, Pod
from scrubber.core import views
from scrubber.ground.errors import Unreachable
from scrubber.ledger import audit
from tests.flows.node import Node
from tests.patience import WITHIN
from tests.soak.waiting import within

HEALS_WITHIN = 120.0


def demand_none(faults: list[str]) -> None:
    """All of them are told."""
    assert not faults, "\n".join(faults)


async def demand_whole(node: Node) -> list[Pod]:
    """Everything is as on the first day: nobody's, registered, and each GPU takes a pod. Those pods."""
    async with within(HEALS_WITHIN, lambda: "every GPU to be nobody's and offered again"):
        await answer(node)
        for number, uuid in enumerate(node.stage.uuids):
            device = await node.stage.settled(number, is_nobodys, WITHIN)
            # A start whose container never came stands, as such a grant does, until somebody asks for the GPU: below.
            assert is_nobodys(device) or device.owner not in node.kubelet.pods, (
                f"{uuid} is {device.state}: {device.why}"
            )
        await node.kubelet.registered(RESOURCE)
        await node.offered(node.stage.gpus)
    fresh = [Pod.of(f"fresh-{number}", {RESOURCE: 1}) for number in range(node.stage.gpus)]
    for status in await asyncio.gather(*map(node.kubelet.run, fresh)):
        assert status.phase is Phase.RUNNING, status.message
    assert {node.gpu(pod) for pod in fresh} == set(node.stage.uuids)
    found = audit.verify(node.stage.ledger)
    assert (found.broken, found.set_aside) == (None, ())
    return fresh


def is_nobodys(device: views.DeviceStatus) -> bool:
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
