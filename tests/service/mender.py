"""A simulated worker for a pending restore."""

from __future__ import annotations

import asyncio

from scrubber.core.model import Outcome, ScrubPath, Step, StepResult
from scrubber.devices.base import Progress
from scrubber.steps.base import Order
from tests.service.node import Node


class Mender:
    """One of them, on one device."""

    pid = 7

    def __init__(self, node: Node, uuid: str) -> None:
        """Nothing is done yet."""
        self._node = node
        self._uuid = uuid
        node.menders.append(uuid)

    async def do(self, step: Step, path: ScrubPath, order: Order, deadline: float, on_progress: Progress) -> StepResult:
        """Takes a second, or fails for as long as the node says so."""
        del order, deadline, on_progress
        await asyncio.sleep(1.0)
        if self._node.owes_for_ever:
            return StepResult(step, path, Outcome.FAILED, 1.0, "it is refused")
        self._node.owes.discard(self._uuid)
        return StepResult(step, path, Outcome.PASSED, 1.0)

    def prepare(self) -> None:
        """There is nothing to open."""

    async def finish(self, last: StepResult) -> StepResult:
        """It ends well."""
        return last

    async def kill(self) -> None:
        """It is gone."""
