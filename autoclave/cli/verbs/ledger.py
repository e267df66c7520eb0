"""``autoclave ledger``: check and export the ledger file, with or without a running service."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from autoclave.cli import DONE, ENVIRONMENT, NOT_CLEAN, options
from autoclave.cli.audited_ledger import audited, complete_since
from autoclave.cli.output import document, human
from ground import paths
from ground.quantities import quantity
from scrubber.ledger import reading

file = click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))


@click.group()
def ledger() -> None:
    """Check or export the ledger, with or without a running service."""


@ledger.command(context_settings=ENVIRONMENT)
@options.output("text", "json", "yaml")
@file
@options.state_dir
@options.checkpoints
@options.keys
def verify(
    output: str, file: Path | None, state_dir: Path, checkpoints: tuple[Path, ...], keys: tuple[Path, ...]
) -> int:
    """Check that no row was changed, lost or moved.

    FILE is a ledger, for example one that was set aside; the default is the ledger in the state directory. Checkpoints
    that were kept elsewhere also show that rows were cut off, or that an older copy was put back; those of other nodes
    are left out. With keys, each signed document is verified too. Exit code 1, with the first wrong row, when the check
    fails; 2 when no checkpoint is of this node, or one is by a key that was not given.
    """
    path = file or paths.ledger(state_dir)
    result = audited(path, state_dir, checkpoints, keys)
    if output != "text":
        document.emit(document.single("LedgerAudit", {"path": str(path), **dataclasses.asdict(result)}), output)
    elif result.broken is None:
        human.say(f"{path} is intact: {_rows(result)}")
        if since := complete_since(result):
            human.say(f"its evidence is {since}")
        if checkpoints and result.rows:
            of = ", ".join(result.compared)
            human.say(f"the checkpoints of {of} vouch for the rows up to {result.vouched}, and for none after it")
        if keys or checkpoints:
            none = f"; {result.unsigned} have none, the first is row {result.first_unsigned}" if result.unsigned else ""
            human.say(f"a given key has signed the documents of {quantity(result.signed, 'row')}{none}")
    if keys and not checkpoints:
        human.warn("without --checkpoint, it is not found that an older copy was put back")
    for name in result.set_aside:
        human.warn(f"a damaged ledger was set aside before: {path.with_name(name)}")
    if result.broken is None:
        return DONE
    is_after = result.broken.seq is None or result.broken.seq > result.last
    intact = f"; before it, {_rows(result, ' intact')}" if result.rows and is_after else ""
    human.warn(f"cannot trust the ledger {path}: {result.broken.why}{intact}")
    return NOT_CLEAN


@ledger.command(context_settings=ENVIRONMENT)
@file
@options.state_dir
def export(file: Path | None, state_dir: Path) -> None:
    """Print every row as a line of JSON, whatever version wrote it.

    FILE is a ledger, for example one that was set aside. Use verify to check it.
    """
    for row in reading.export(file or paths.ledger(state_dir)):
        document.emit_line(row)


def _rows(result: reading.Audit, intact: str = "") -> str:
    one, many = (f"row is{intact}", f"rows are{intact}") if intact else ("row", "rows")
    root = f", the root of the tree is {result.head.root[:16]}" if result.head else ""
    return f"{quantity(result.rows, one, many)}, the last is {result.last}{root}"
