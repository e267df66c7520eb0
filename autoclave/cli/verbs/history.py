"""``autoclave history``: shows, or follows, the events in the ledger of the running service."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import click
from click.shell_completion import CompletionItem

from autoclave.cli import ENVIRONMENT, Parsed, options, service_call
from autoclave.cli.output import document, human, text_tables
from ground import paths
from ground.errors import NotReady, Unreachable
from scrub_api import admin_client, views

EVERY = 2**31  # rows: more than a ledger has
START_ROWS = 4  # of one start of a container, at most: see ``text_tables.one_for_each_start``


def complete_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Kinds of events for the shell. Imported late, because pydantic takes long to load."""
    del ctx, param
    kinds = importlib.import_module("scrubber.ledger.ledger_rows").CLASSES
    return [CompletionItem(kind) for kind in kinds if kind.startswith(incomplete)]


@click.command(context_settings=ENVIRONMENT)
@options.one_or_every_gpu
@click.option(
    "--since",
    type=Parsed("time", human.since),
    default=0.0,
    show_default=False,
    help="From when: 10m, 2h or 7d (ago), 2026-11-20 09:00 (local), or RFC 3339.",
)
@click.option(
    "--until", type=Parsed("time", human.since), default=0.0, show_default=False,
    help="Until when, as in --since.",
)  # fmt: skip
@click.option("-n", "--limit", type=options.IntRange(1), default=1000, help="How many of the newest events.")
@click.option("--steps", is_flag=True, help="Also the start and the steps of each scrub, and each row about a start.")
@click.option(
    "--kind", "kinds", multiple=True, envvar="AUTOCLAVE_KIND", shell_complete=complete_kinds,
    help="Only events of this kind, such as quarantined. Repeat it for several kinds.",
)  # fmt: skip
@click.option(
    "--warnings", is_flag=True, help="Only faults, outages, failed scrubs, unauthorised use, lost and missing proofs."
)
@click.option("-f", "--follow", is_flag=True, help="Keep running and print each new event, also each row of a start.")
@options.output("table", "csv", "json", "jsonl", "yaml")
@options.run_dir
@options.state_dir
def history(  # noqa: PLR0913, PLR0917 - its flags
    gpu: str,
    since: float,
    limit: int,
    steps: bool,
    follow: bool,
    output: str,
    run_dir: Path,
    state_dir: Path,
    **which: Unpack[admin_client.Which],
) -> None:
    """List the events of the ledger, oldest first.

    Without a GPU, also what happened to the whole node: when the service started, was stopped or stood still, when the
    ledger could not be written, when the clock was set, and which policy is in force since when.

    A scrub is one event, at its end, except with --steps. The table and csv also show the start of a container as one
    event; json, jsonl and yaml list each row about it. They show local time with the UTC offset; json and yaml show
    UTC. If older events are left out, or are no longer there, stderr says
    so. The ledger keeps starts and steps of about four thousand scrubs, and all other events as long as --evidence-rows
    and --evidence-age of the service say.

    If the service does not answer, the events come from the ledger in --state-dir, and stderr says so. With --state-dir
    and without --run-dir or --follow, the service is not asked: DIR may be a copy, of any node.
    """
    which["without_steps"] = not steps
    merged = output in {"table", "csv"} and not steps
    rows = START_ROWS * limit + 1 if merged else limit + 1
    if follow and which["until"]:
        raise click.UsageError("--follow and --until exclude each other")
    if follow and output not in {"table", "jsonl"}:
        raise click.UsageError("--follow needs -o table or -o jsonl: a JSON document must end")

    async def ask(admin: admin_client.AdminClient) -> None:
        seen = (await admin.status([gpu] if gpu else ())).service.ledger_rows
        newest_rows = await admin.history(gpu, since=since, limit=rows, warn=human.warn, **which)
        service = (await admin.status([gpu] if gpu else ())).service
        for name in service.set_aside:
            human.warn(f"earlier events may be in {name}, a damaged ledger: `autoclave ledger export` prints its rows")
        entries = newest(newest_rows, (service.history_since, service.steps_since))
        if not follow:
            _show(entries, output)
            return
        lines = _Lines(entries, output)
        lines(entries)
        await _follow(admin, gpu, max(seen, entries[-1].seq if entries else 0), lines, which)

    def newest(entries: Sequence[views.HistoryEntry], kept: tuple[float, float]) -> Sequence[views.HistoryEntry]:
        events = text_tables.one_for_each_start(entries) if merged else entries
        more = len(entries) == rows or len(events) > limit
        if hint := left_out(kept, since, limit if more else None, steps=steps):
            human.warn(hint)
        return events[-limit:]

    unreachable = None
    try:
        if follow or not options.names_a_copy():
            service_call.ask(run_dir, ask)
            return
    except Unreachable as error:
        if follow:
            raise
        unreachable = error
    file = importlib.import_module("autoclave.cli.offline").Offline(paths.ledger(state_dir), unreachable)
    entries = newest(asyncio.run(file.history(gpu, since=since, limit=rows, **which)), file.kept)
    _show(entries, output, from_file=str(file.path))


def left_out(kept: tuple[float, float], since: float, limit: int | None, *, steps: bool) -> str:
    """Which events of the asked time are not shown; empty if all are. ``kept``: since when it has events, and steps."""
    if limit is not None:
        return f"older events are not shown: only the newest {limit}; --limit shows more"
    if since < kept[0]:
        return f"the ledger has no events from before {human.local(kept[0])}"
    if steps and since < kept[1]:
        return f"the ledger has no steps from before {human.local(kept[1])}"
    return ""


def _show(entries: Sequence[views.HistoryEntry], output: str, **about: str) -> None:
    if output in {"table", "csv"}:
        document.show_table(text_tables.HISTORY, text_tables.history(entries), output)
        if not entries:
            human.warn("the ledger has no such event")
    elif output == "jsonl":
        for entry in entries:
            document.emit_line(document.entry(entry))
    else:
        document.emit(document.listing("HistoryEntry", map(document.entry, entries)) | about, output)


async def _follow(
    admin: admin_client.AdminClient, gpu: str, seen: int, lines: _Lines, which: admin_client.Which
) -> None:
    """Print the rows after ``seen`` as they come, until the user stops it. Survives a restart of the service."""
    reachable = True
    while True:
        try:
            status = await admin.status([gpu] if gpu else (), newer_than=seen, wait=service_call.QUIET)
            if status.service.ledger_rows < seen:
                human.warn("a new ledger was begun")
                seen = 0
            which["after"] = seen
            entries = await admin.history(gpu, limit=EVERY, warn=human.warn, **which)
        except (Unreachable, NotReady):
            if reachable:
                human.warn(service_call.RETRYING)
            reachable = False
            await asyncio.sleep(service_call.RETRY)
            continue
        reachable = True
        lines(entries)
        seen = max(status.service.ledger_rows, entries[-1].seq if entries else 0)


class _Lines:
    """Prints entries one by one, each at once. A table's columns are as wide as the first entries need."""

    def __init__(self, entries: Sequence[views.HistoryEntry], output: str) -> None:
        self._output = output
        rows = [text_tables.HISTORY, *text_tables.history(entries)]
        self._widths = [max(len(row[column]) for row in rows) for column in range(len(text_tables.HISTORY) - 1)]
        if output == "table":
            click.echo(self._line(text_tables.HISTORY))

    def __call__(self, entries: Sequence[views.HistoryEntry]) -> None:
        if self._output == "table":
            for row in text_tables.history(entries):
                click.echo(self._line([human.printable(cell) for cell in row]))
        else:
            _show(entries, self._output)

    def _line(self, row: Sequence[str]) -> str:
        return "  ".join([*(cell.ljust(width) for cell, width in zip(row, self._widths, strict=False)), row[-1]])
