"""Has the kernel do what follows from the records: to whom each GPU is open, and which proofs outlive the service."""

from __future__ import annotations

from collections.abc import Iterable

from scrubber.core import fencing
from scrubber.core.model import State
from scrubber.core.record import Record
from scrubber.core.use_counter import UseCounter
from scrubber.fence.guard import Guard
from scrubber.ledger.ledger import Ledger
from scrubber.node import clock
from scrubber.observe.observed_since import ObservedSince


class FenceUpkeep:
    """That of all devices."""

    def __init__(self, guard: Guard, observed_since: ObservedSince) -> None:
        self._guard = guard
        self._observed_since = observed_since

    def follow(self, ledger: Ledger) -> FenceUpkeep:
        """Follow all records of this ledger from now on."""
        ledger.on_record = self.recorded
        for record in ledger.records.values():
            self.recorded(record)
        return self

    def recorded(self, record: Record) -> None:
        """A new record, before a reader sees it."""
        open_to = fencing.open_to(record)
        guard, since, uuid, receipt = self._guard, self._observed_since, record.device.uuid, record.scrubs.receipt
        guard.openers.began(record, open_to, clock.now().uptime)
        before = guard.rules.changed(uuid, open_to)
        if before != open_to:
            since.changed(uuid, before)
        if record.state is State.CLEAN and receipt is not None and receipt.witness == UseCounter.FENCE.value:
            said = since.uses_since(uuid, receipt.finished.uptime)
            # Who opened it between the search of the scrub and its clear may have it open, without a use since.
            if said is not None and since.fence_tells(uuid).no_other_user:
                guard.count.proven(uuid, receipt.id, said.uses)

    def resume(self, records: Iterable[Record]) -> None:
        """After a start of the service, keep the proofs that the kernel has watched since.

        Call this when the devices are known. The proof of a granted device is not kept: the device is scrubbed before
        its start.
        """
        for record in records:
            uuid, receipt = record.device.uuid, record.scrubs.receipt
            if record.state is not State.CLEAN or receipt is None:
                continue
            then = self._guard.count.at_proof(uuid, receipt.id)
            if then is not None:
                self._observed_since.resume(uuid, receipt.finished.uptime, then)
