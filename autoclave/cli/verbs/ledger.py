"""``autoclave ledger``: check and export the ledger file, with or without a running service."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from autoclave.cli import DONE, ENVIRONMENT, NOT_CLEAN, options
from autoclave.cli.output import document, human
from ground import paths
from ground.errors import FatalError
from ground.quantities import quantity
from scrubber.ledger import reading
from scrubber.receipts import key, note
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.note import Checkpoint, NotSignedError

READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
BOTH_KEYS = "if the node has changed its key (`autoclave receipt key --rotate`), give both with --key"
file = click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))


@click.group()
def ledger() -> None:
    """Check or export the ledger, with or without a running service."""


@ledger.command(context_settings=ENVIRONMENT)
@options.output("text", "json", "yaml")
@file
@options.state_dir
@click.option(
    "--checkpoint", "checkpoints", type=READABLE, multiple=True, metavar="FILE", envvar="AUTOCLAVE_CHECKPOINT",
    help="A signed checkpoint, or lines of the service's log; may be repeated.",
)  # fmt: skip
@click.option(
    "--key", "keys", type=READABLE, multiple=True, metavar="FILE", envvar="AUTOCLAVE_KEY",
    show_default="the key in --state-dir",
    help="A public key that may have signed them; may be repeated.",
)  # fmt: skip
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
    public = _public_keys(keys, state_dir) if keys or checkpoints else []
    held, unsigned = _opened(checkpoints, public)
    result = reading.verify(path, held, public)
    if result.broken is None and (why := _not_compared(result, held, unsigned)):
        raise FatalError(f"cannot compare {path} with the checkpoints: {why[0]}", why[1])
    if result.broken is None and (by := result.of_other_keys):
        first = ", ".join(f"the one in row {row} is by the key {name}" for name, row in sorted(by.items()))
        raise FatalError(f"cannot verify each signed document in {path}: {first}, as it says", BOTH_KEYS)
    if output != "text":
        document.emit(document.single("LedgerAudit", {"path": str(path), **dataclasses.asdict(result)}), output)
    elif result.broken is None:
        human.say(f"{path} is intact: {_rows(result)}")
        if result.complete_from > 1:
            older = "older evidence was dropped, or an older version has written it"
            since = (
                human.local(result.complete_since) if result.complete_since else "no checkpoint vouches for its time"
            )
            human.say(f"its evidence is complete from row {result.complete_from} on ({since}); {older}")
        if checkpoints and result.rows:
            of = ", ".join(result.compared)
            human.say(f"the checkpoints of {of} vouch for the rows up to {result.vouched}, and for none after it")
        if public:
            none = f"; {result.unsigned} have none, the first is row {result.first_unsigned}" if result.unsigned else ""
            human.say(f"a given key has signed the documents of {quantity(result.signed, 'row')}{none}")
    if others := sorted({*result.left_out, *unsigned} - {*result.compared} if result.broken is None else ()):
        human.warn(f"the checkpoints of other nodes are left out: {', '.join(others)}")
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


def _public_keys(files: tuple[Path, ...], state_dir: Path) -> list[bytes]:
    """The public keys that may have signed: those in the files, or that of the node."""
    if not files and not paths.receipt_key(state_dir).exists():
        raise FatalError(f"cannot check the checkpoints: {state_dir} has no key", "name the key of the node with --key")
    try:
        return [key.public_key_of(each.read_text()) for each in files] or [key.read_key(state_dir).public_key]
    except ReceiptError as error:
        raise FatalError(f"cannot use the key: {error.message}", *error.remedies) from error


def _opened(files: tuple[Path, ...], keys: list[bytes]) -> tuple[list[Checkpoint], set[str]]:
    """The checkpoints in these files, and the origins of those that none of the keys has signed."""
    held, unsigned = list[Checkpoint](), set[str]()
    if not files:
        return held, set()
    try:
        for one in (one for each in files for one in note.notes_in(each.read_text())):
            try:
                held.append(note.opened(one, keys))
            except NotSignedError as error:
                unsigned.add(error.origin)
    except ReceiptError as error:
        raise FatalError(f"cannot use the checkpoints: {error.message}", *error.remedies) from error
    if not held:
        of = ", ".join(sorted(unsigned))
        raise FatalError(f"cannot use the checkpoints: those of {of} are not signed by the key", BOTH_KEYS)
    return held, unsigned


def _not_compared(result: reading.Audit, held: list[Checkpoint], unsigned: set[str]) -> tuple[str, str] | None:
    """Why the checkpoints do not tell whether the ledger is whole, and what to do; None: they do."""
    if held and not result.compared:
        of = f", and the ledger is of {result.node}" if result.node else ", and none fits the ledger"
        return f"they are of {', '.join(result.left_out)}{of}", "give the checkpoints and the key of its node"
    if cut := sorted(unsigned & {*result.compared, result.node}):
        return f"the key has not signed each of those of {', '.join(cut)}", BOTH_KEYS
    return None


def _rows(result: reading.Audit, intact: str = "") -> str:
    one, many = (f"row is{intact}", f"rows are{intact}") if intact else ("row", "rows")
    root = f", the root of the tree is {result.head.root[:16]}" if result.head else ""
    return f"{quantity(result.rows, one, many)}, the last is {result.last}{root}"
