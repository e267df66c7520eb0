"""A job under way, for whoever wants to wait for it or watch it; and the one line that it leaves in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from scrubber.core.model import Path, Receipt, State, Step, Trigger
from scrubber.ground import log
from scrubber.policy import DevicePolicy

logger = log.get("jobs")


@dataclass(eq=False)
class Running:
    """What dies with the process: the running task, how far it is, and what it will be told as."""

    id: str
    device: str
    op: str  # the operation that began it
    device_policy: DevicePolicy
    path: Path
    trigger: Trigger
    done: int = 0
    total: int = 0
    receipt: Receipt | None = None
    step: Step | None = None  # it stands in the ledger, or is about to
    cleared: float | None = None  # the uptime at which its last clear began
    why: str = "it was cut off"  # not clean, unless the end says otherwise
    cancelled: bool = False
    unrecorded: str = ""  # why its end is not in the ledger
    fault: Exception | None = None  # of ours
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self, done: int, total: int) -> None:
        """Progress of the present step, in bytes."""
        self.done, self.total = done, total
        self._turn()

    def end(self, state: State, seconds: float) -> None:
        """Nothing more will come: the device is left in this state. Told here and nowhere else."""
        about = {"op": self.op, "device": self.device, "job": self.id, "path": self.path.value}
        about |= {"trigger": self.trigger.value, "state": state.value}
        took = round(seconds, 3)
        if self.fault is not None:
            logger.error("job ended", **about, outcome="fault", seconds=took, exc_info=self.fault)
        elif self.unrecorded:
            logger.error("job ended", **about, outcome="unrecorded", error=self.unrecorded, seconds=took)
        elif self.receipt is not None:
            logger.info("job ended", **about, outcome="ok", receipt=self.receipt.id, seconds=took)
        else:
            outcome = "cancelled" if self.cancelled else "failed"
            logger.warning("job ended", **about, outcome=outcome, why=self.why, seconds=took)
        self.finished.set()
        self._turn()

    async def updates(self) -> AsyncIterator[None]:
        """One turn at every change until the job is over. Any number may watch."""
        while not self.finished.is_set():
            await self._moved.wait()
            yield

    def _turn(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
