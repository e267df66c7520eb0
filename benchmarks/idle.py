"""What the service costs while nobody asks: processor time and memory, also after a start with a large ledger."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from benchmarks import processes, rig
from benchmarks.figures import Figure
from demo.stage import Stage
from ground import paths
from scrubber.core import events, states, verdict
from scrubber.core.events import LedgerEntry
from scrubber.core.record import Record
from scrubber.ledger import compaction, ledger, opening
from scrubber.node import clock

GPUS = 8
ROWS = 200_000  # the evidence that a service keeps by default


async def measure(*, quick: bool) -> list[Figure]:
    """A minute of nothing, then a start with the events of years."""
    async with rig.service(GPUS) as stage:
        share = await processes.share(stage.service.pid, 5.0 if quick else 60.0)
        rss = processes.rss(stage.service.pid)
        heavy = processes.mapped(stage.service.pid, ("numpy", "cupy", "cuda", "nvidia"))
        await stage.service.end(signal.SIGTERM)
        rows = await asyncio.to_thread(_fill, stage, ROWS // 10 if quick else ROWS)
        if (await stage.start()).service.ledger_rows < rows:
            raise RuntimeError("the service set the ledger aside")
        await rig.all_clean(stage)
        large = processes.rss(stage.service.pid)
    return [
        Figure(f"idle, {GPUS} devices: processor", share * 100, "% of a core", 1, "< 1 %"),
        Figure(f"idle, {GPUS} devices: resident memory", rss / 2**20, "MiB", 1, "<= 80 MiB"),
        Figure(f"idle, started after {rows:,} events: resident memory", large / 2**20, "MiB", 1, "<= 80 MiB"),
        Figure("libraries of numpy, cupy, cuda or nvidia in the service", heavy, "mapped", 1, "0"),
    ]


def _fill(stage: Stage, least: int) -> int:
    """Repeat the first scrub of a GPU in the ledger of a service that has ended; returns how many events were added."""
    first: list[LedgerEntry] = []

    def collect(records: tuple[Record, ...], entries: Sequence[LedgerEntry]) -> tuple[Record, ...]:
        first.extend(entry for entry in entries if entry.device == stage.uuids[0])
        return states.replay(records, entries)

    path, head = paths.ledger(stage.root / "state"), paths.ledger_head(stage.root / "run")
    opened, _ = opening.open_or_set_aside(path, clock.now(), run_head=head)
    with closing(opened):
        kept = added = opened.load(collect).rows
        began, passed = (
            next(index for index, entry in enumerate(first) if isinstance(entry.event, kind))
            for kind in (events.ScrubStarted, events.ScrubPassed)
        )
        scrubs = _scrubs(first[began : passed + 1])
        while added < least:
            at = clock.now()
            rows = [replace(entry, at=at) for _ in range(50) for entry in next(scrubs)]
            opened.append(rows)
            kept, added = kept + len(rows), added + len(rows)
            if kept >= ledger.KEEP + ledger.FOLD_AT_ONCE:
                kept -= opened.compact(states.replay, ledger.KEEP, at, compaction.Retention(ROWS))
    return added


def _scrubs(scrub: list[LedgerEntry]) -> Iterator[list[LedgerEntry]]:
    """The same scrub again and again, each with a receipt that follows the one before."""
    *steps, last = scrub
    while isinstance(last.event, events.ScrubPassed):
        receipt = replace(last.event.receipt, previous=last.event.receipt.digest)
        digest = verdict.digest_of(receipt)
        last = replace(last, event=replace(last.event, receipt=replace(receipt, id=digest[:16], digest=digest)))
        yield [*steps, last]
