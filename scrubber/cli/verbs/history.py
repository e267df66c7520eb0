"""``autoclave history``: the events in the ledger of the running service."""

from __future__ import annotations

from pathlib import Path

import click

from scrubber.cli import cells, document, human, options, service_call, table


@click.command(context_settings=options.ENVIRONMENT)
@click.argument("gpu", required=False, default="", shell_complete=options.complete_gpus)
@click.option(
    "--since",
    type=options.Parsed("time", human.since),
    default=0.0,
    show_default=False,
    help="From when: 10m, 2h or 7d (ago), 2026-11-20 09:00 (local), or RFC 3339.",
)
@click.option("--limit", type=click.IntRange(1, 10000), default=1000, help="How many of the newest events.")
@options.output("table", "json", "jsonl", "yaml")
@options.run_dir
def command(gpu: str, since: float, limit: int, output: str, run_dir: Path) -> None:
    """List the events of the ledger, oldest first.

    The table shows local time with the UTC offset; json and yaml show UTC.
    """
    entries = service_call.ask(run_dir, lambda admin: admin.history(gpu, since=since, limit=limit + 1))
    older, entries = entries[:-limit], entries[-limit:]
    if output == "table":
        table.show(cells.HISTORY, cells.history(entries))
    elif output == "jsonl":
        for entry in entries:
            document.emit_line(document.entry(entry))
    else:
        document.emit(document.listing("HistoryEntry", map(document.entry, entries)), output)
    if older:
        click.echo(f"autoclave: older events are not shown: only the newest {limit}; --limit shows more", err=True)
