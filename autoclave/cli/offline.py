"""What verbs say about the past when the service does not answer, or of a copy: the events in a ledger's file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from autoclave.cli.output import human
from ground.errors import AutoclaveError, FatalError, Unreachable
from policies.policy_model import Policy
from scrub_api import admin_client, views
from scrubber.core import changes, device_names
from scrubber.core.answers import Offer
from scrubber.core.events import Discovered, Distrusted
from scrubber.core.model import Moment
from scrubber.ledger import ledger_rows, reading
from scrubber.ledger.entry_queries import Window
from scrubber.ledger.ledger_files import LedgerPaths
from scrubber.ledger.ledger_rows import CorruptLedgerError
from scrubber.receipts.merkle import Inclusion
from scrubber.service.history import MAX_ENTRIES, History
from scrubber.words import device_status

EVERY = 2**31  # rows: more than a ledger has
NO_ANSWER = Offer(healthy=False, why="the scrub service does not answer")
ADVICE = "until the scrub service answers, no GPU is handed out", "`autoclave doctor` says what is wrong with it"


class Offline:
    """Answers from a ledger's file, in the form of the service's answers."""

    def __init__(self, path: Path, unreachable: Unreachable | None = None) -> None:
        """Read the ledger. If that is impossible, the error says why neither the service nor the ledger answers.

        ``unreachable``: why the service does not answer; None if nobody asked it.
        """
        try:
            self.file = reading.read(path)
        except (AutoclaveError, FatalError) as error:
            if unreachable is None and isinstance(error, CorruptLedgerError) and not error.unreadable:
                advice = *error.remedies, f"`autoclave ledger export {path}` prints its rows unchecked"
                why = f"cannot trust the ledger {path}: {error.message}"
                raise CorruptLedgerError(why, error.seq, *advice) from error
            if unreachable is None:
                raise
            why = f"{unreachable.message}; without it, {error.message}"
            raise Unreachable(why, *unreachable.remedies, *error.remedies) from error
        self._history = History(self.file)
        if unreachable is not None:
            human.warn(f"{unreachable.message}; this is what its ledger {path} says")
            human.hint(*unreachable.remedies)

    @property
    def path(self) -> Path:
        """The ledger."""
        return self.file.path

    @property
    def models(self) -> dict[str, str]:
        """The model of each device that the ledger knows."""
        return {uuid: record.device.model for uuid, record in self.file.records.items()}

    @property
    def set_aside(self) -> tuple[str, ...]:
        """The names of damaged ledgers in the same directory, and of the one after which this one began."""
        before = self.file.set_aside_before()
        return tuple(dict.fromkeys([*LedgerPaths(self.path).set_aside(), *([before] if before else [])]))

    @property
    def kept(self) -> tuple[float, float]:
        """From when on there are events, and from when on there are steps."""
        return self.file.kept.since, self.file.kept.steps_since

    async def history(
        self, gpu: str, *, limit: int, since: float = 0.0, **which: Unpack[admin_client.Which]
    ) -> Sequence[views.HistoryEntry]:
        """The newest events that are asked for, newest last."""
        window = Window(
            kinds=frozenset(which["kinds"]), until=which.get("until") or None, warnings=which.get("warnings", False)
        )
        events: tuple[views.HistoryEntry, ...] = ()
        while len(events) < limit:
            older = replace(window, before=events[0].seq if events else None)
            steps = which.get("without_steps", False)
            answer = await self._history.entries(gpu, since, limit - len(events), older, without_steps=steps)
            events = (*(page := answer.entries), *events)
            if len(page) < MAX_ENTRIES:
                break
        return events

    def prove(self, seq: int, size: int) -> tuple[Inclusion, str]:
        """That the first ``size`` rows of the ledger have a row; and its hash."""
        return self.file.prove(seq, size)

    def tenancy(self, uuid: str) -> int:
        """The number of the newest tenancy of a device."""
        return self.file.records[uuid].tenancy.number

    def first_tenancies(self, uuid: str) -> list[int]:
        """The numbers from which a device has counted its tenancies, the newest first."""
        kinds = (ledger_rows.KINDS[Discovered], ledger_rows.KINDS[Distrusted])
        rows = asyncio.run(self.history(uuid, limit=EVERY, kinds=kinds))
        firsts = (changes.first_tenancy(ledger_rows.decode(it.kind, it.body), Moment(it.at, 0.0)) for it in rows[::-1])
        return [first for first in firsts if first is not None]

    def explain(self, gpu: str) -> views.Explanation:
        """The events that led to the last known state. What the service would do next is left out."""
        uuid = device_names.find(self.file.records, gpu)
        record = self.file.records[uuid]
        status = device_status.device_status(record, NO_ANSWER, "", Policy(), Moment(time.time(), 0.0))
        if status.quarantine is not None:
            status = replace(status, quarantine=replace(status.quarantine, next_probe_seconds=None, next_path=""))
        entries = tuple(map(self._history.shown, asyncio.run(self._history.of_present_state(uuid))))
        return views.Explanation(status, entries, (*ADVICE, *device_names.had_index(self.file.records, gpu, uuid)), "")
