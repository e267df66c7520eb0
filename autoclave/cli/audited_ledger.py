"""A copy of a ledger that was checked against the node's checkpoints and keys, as ``ledger verify`` does."""

from __future__ import annotations

from pathlib import Path

from autoclave.cli.output import human
from ground import paths
from ground.errors import FatalError
from scrubber.ledger import reading
from scrubber.receipts import key, note
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.note import Checkpoint, NotSignedError

BOTH_KEYS = "if the node has changed its key (`autoclave receipt key --rotate`), give both with --key"


def audited(path: Path, state_dir: Path, checkpoints: tuple[Path, ...], keys: tuple[Path, ...]) -> reading.Audit:
    """What the check has found.

    FatalError if nothing can be said of the ledger: no checkpoint is of its node, or a key was not given. ``keys``:
    without any, that in ``state_dir``.
    """
    public = _public_keys(keys, state_dir) if keys or checkpoints else []
    held, unsigned = _opened(checkpoints, public)
    result = reading.verify(path, held, public)
    if result.broken is not None:
        return result
    if why := _not_compared(result, held, unsigned):
        raise FatalError(f"cannot compare {path} with the checkpoints: {why[0]}", why[1])
    if by := result.of_other_keys:
        first = ", ".join(f"the one in row {row} is by the key {name}" for name, row in sorted(by.items()))
        raise FatalError(f"cannot verify each signed document in {path}: {first}, as it says", BOTH_KEYS)
    if others := sorted({*result.left_out, *unsigned} - {*result.compared}):
        human.warn(f"the checkpoints of other nodes are left out: {', '.join(others)}")
    return result


def complete_since(result: reading.Audit) -> str:
    """That the evidence is complete from this row on; empty: from the first."""
    if result.complete_from <= 1:
        return ""
    since = human.local(result.complete_since) if result.complete_since else "no checkpoint vouches for its time"
    older = "older evidence was dropped, or an older version has written it"
    return f"complete from row {result.complete_from} on ({since}); {older}"


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
        texts = {each: each.read_text() for each in files}
        if empty := next((each for each, text in texts.items() if not text.strip()), None):
            raise FatalError(f"cannot use the checkpoints: {empty} is empty")
        for one in (one for text in texts.values() for one in note.notes_in(text)):
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
