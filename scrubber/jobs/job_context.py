"""What all jobs of the service share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from policies.policy_model import Policy
from scrubber.core.guarded import EndedTenancy, Guarded
from scrubber.core.model import Moment, Receipt
from scrubber.core.record import Record
from scrubber.jobs.slots import DeviceLocks, Slots
from scrubber.ledger.ledger import Ledger
from scrubber.observe.observer import Observer
from scrubber.workers.worker import Worker

Spawn = Callable[[str, Policy], Awaitable[Worker]]  # ``assembly`` passes that of its ``_WorkerStarter``
"""Starts a worker for a device, as its policy wants it."""


class Signs(Protocol):
    """Who signs what a job has shown: ``receipts.notary``."""

    def seal(self, record: Record, receipt: Receipt, guarded: Guarded) -> Receipt:
        """The receipt with its signed document. ``record``: the device before it; ``guarded``: since the last proof."""

    def close(self, record: Record, ended: EndedTenancy, wipe: Receipt, until_wiped: Guarded) -> str:
        """The signed document about a tenancy that the wipe follows; empty: not signed."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What all jobs of the service share."""

    ledger: Ledger
    observer: Observer
    slots: Slots
    locks: DeviceLocks
    spawn: Spawn
    now: Callable[[], Moment]
    token: Callable[[int], str]  # returns that many random bytes as hex
    watch_every: float  # seconds between two observations for unexpected holders
    forget: Callable[[str], object]  # a job calls it when it ends, with its device
    signer: Signs | None = None
