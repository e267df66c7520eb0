"""``autoclave ledger``: look at the file itself, whether a service runs or not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from scrubber.cli import document, human, options
from scrubber.ground import paths
from scrubber.ledger import audit

file = click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))


@click.group()
def command() -> None:
    """Check or export the ledger, with or without a running service."""


@command.command(context_settings=options.ENVIRONMENT)
@options.output("text", "json", "yaml")
@file
@options.state_dir
def verify(output: str, file: Path | None, state_dir: Path) -> int:
    """Check that no row was changed, lost or moved.

    FILE is a ledger, one that was set aside for example; without it, it is the one in the state directory. Exit code 1,
    and the first row that does not hold, when one was.
    """
    path = file or paths.ledger(state_dir)
    found = audit.verify(path)
    if output != "text":
        document.emit(document.single("LedgerAudit", {"path": str(path), **dataclasses.asdict(found)}), output)
    elif found.broken is None:
        click.echo(human.printable(f"{path} holds: {_rows(found)}"))
    for name in found.set_aside:
        click.echo(
            human.printable(f"autoclave: a damaged ledger was set aside before: {path.with_name(name)}"), err=True
        )
    if found.broken is None:
        return 0
    told = f"autoclave: cannot trust the ledger {path}: {found.broken.why}; {_rows(found)} before that held"
    click.echo(human.printable(told), err=True)
    return 1


@command.command(context_settings=options.ENVIRONMENT)
@file
@options.state_dir
def export(file: Path | None, state_dir: Path) -> None:
    """Print every row as a line of JSON, hashes included.

    FILE is a ledger, one that was set aside for example. Whether it can be trusted is said by verify.
    """
    for row in audit.export(file or paths.ledger(state_dir)):
        document.emit_line(row)


def _rows(found: audit.Audit) -> str:
    head = f", the last is {found.head.seq} ({found.head.hash[:16]})" if found.head else ""
    return f"{found.rows} {'row' if found.rows == 1 else 'rows'}{head}"
