"""What a node says when its history is over."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from scrubber.ground.errors import Unreachable
from tests.flows.node import Node

OF_GRPC = re.compile(r"[IWE]\d{4} ")  # lines about connections and open files
# What service and plugin may call an error while everything around them is killed, and why.
EXPECTED = {
    "every device is unhealthy: the scrub service does not answer": "it was killed",
    "the kubelet's checkpoint names two pods for one device": "it lost its checkpoint, or forgot an Allocate (R8)",
    "cannot find the pod that is about to start": "the checkpoint was damaged",
}


async def answer(node: Node) -> None:
    """Wait for the service, which may have been started again just now."""
    retrying = AsyncRetrying(retry=retry_if_exception_type(Unreachable), wait=wait_fixed(0.05))
    async for attempt in retrying:
        with attempt:
            await node.status(node.stage.uuids[0])


def complaints(node: Node) -> Iterator[str]:
    """Lines of both logs with an exception or an error that is not expected, and lines that are no lines of a log."""
    lines = [line for log in (node.stage.service.log, node.stage.plugin.log) for line in log.read_text().splitlines()]
    for line in lines:
        if not line.startswith("{"):
            if not OF_GRPC.match(line):
                yield line
            continue
        said = json.loads(line)
        error = said["level"] in ("error", "critical") and said["event"] not in EXPECTED
        if error or "exception" in said:
            yield line
