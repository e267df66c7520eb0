"""``autoclave receipt verify``: whether a receipt can be trusted, by its signature, what it is for, and the log.

It works on any machine, and in a container: files are all that it needs.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from autoclave.cli import DONE, NOT_CLEAN, SIMULATED, worst
from autoclave.cli.output import document, human
from autoclave.cli.output.statement_words import RECEIPTS, Kind, in_words, is_simulated
from ground import paths
from ground.boot import boot_id
from ground.errors import FatalError
from ground.quantities import quantity
from scrubber.receipts import dsse, note, verification
from scrubber.receipts import key as key_file
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.tenant_files import CLOSING
from scrubber.receipts.verification import Expected, Logged

HANDOVER = re.compile(r"[0-9a-f]{24}")
RECEIPT, OTHER = 2**20, 2**26  # bytes of the largest file that is read
DEV, DEVICE_NODE = Path("/dev"), re.compile(r"nvidia[0-9]+")

Files = tuple[Path, ...]


def verify(
    path: Path | None, files: tuple[Files, Files, Files], wanted: tuple[str, str, str], output: str,
    kind: Kind = RECEIPTS,
) -> int:  # fmt: skip
    """Verify receipts and say what was checked. ``files``: keys, keys of the site, checkpoints.

    Without a path: the receipt of each GPU of this container, which must be of this boot.
    """
    public = _trusted(*files[:2])
    if path is not None:
        return _verify(path, public, files[2], wanted, output, kind)
    gpu, boot, given = wanted
    try:
        folders = _in_container(os.environ.get(paths.RECEIPTS_VARIABLE, ""))
    except ReceiptError as error:
        return _not_verified(f"cannot find the receipts of this container: {error}", output)
    wanted = gpu, boot or boot_id(), given
    return worst([_verify(each, public, files[2], wanted, output, kind) for each in folders])


def _in_container(named: str) -> list[Path]:
    """The directories of the hand-overs of this container's GPUs."""
    if not named:
        why = "it has no GPU, the policy of its node has no `receipts: mount`, or the service cannot sign"
        raise ReceiptError(f"{paths.RECEIPTS_VARIABLE} is not set: {why}")
    try:
        folders = sorted(each for each in Path(named).iterdir() if HANDOVER.fullmatch(each.name))
    except OSError as error:
        raise ReceiptError(f"{named} cannot be read: {error.strerror}") from error
    gpus = max(1, sum(1 for each in DEV.iterdir() if DEVICE_NODE.fullmatch(each.name)))  # slices of a GPU share a node
    if len(folders) < gpus:
        has = quantity(len(folders), "hand-over")
        raise ReceiptError(f"{named} has {has}, and the container {quantity(gpus, 'GPU')}")
    return folders


def _not_verified(why: str, output: str) -> int:
    if output != "text":
        document.emit(document.single("ReceiptVerification", {"verified": False, "why": why}), output)
    human.warn(why)
    return NOT_CLEAN


def _verify(
    path: Path, public: Sequence[bytes], checkpoints: Files, wanted: tuple[str, str, str], output: str, kind: Kind
) -> int:
    gpu, boot, given = wanted
    document_name, proof_name = kind.files
    envelope_file = path / document_name if path.is_dir() else path
    folder = envelope_file.absolute().parent  # a link has the id of its own name, whatever it leads to
    named = path.is_dir() or HANDOVER.fullmatch(folder.name)
    expected = Expected(gpu, boot, given or (folder.name or "/" if named else ""))
    held = [one for each in checkpoints for one in _read(each, note.notes_in, "checkpoint")]
    try:
        envelope = _text(envelope_file, RECEIPT).rstrip("\n")  # `jq -r` adds an end of line
        statement = verification.statement(envelope, public, expected, kind.predicate)
        proven = (folder / proof_name).exists() or path.is_dir() or bool(held)  # a container always has both files
        logged = verification.logged(envelope, _text(folder / proof_name, RECEIPT), public, held) if proven else None
    except ReceiptError as error:
        closing = kind is RECEIPTS and path.is_dir() and (path / CLOSING).exists() and not envelope_file.exists()
        hint = "; the directory holds a closing receipt: give --closing" if closing else ""
        return _not_verified(f"cannot trust the {kind.word} {envelope_file}: {error}{hint}", output)
    keys = [key_file.key_id(each) for each in public]
    simulated = is_simulated(statement)
    if output == "text":
        human.say("verified", *_checked(statement, expected, logged, keys, held, kind), *in_words(statement))
    else:
        compared = {f"{name}_compared": bool(value) for name, value in asdict(expected).items()}
        about = {"verified": True, "why": "", "simulated": simulated, "trusted_keys": keys, **compared}
        about |= {"log": None if logged is None else asdict(logged), "statement": statement}
        document.emit(document.single("ReceiptVerification", about), output)
    if simulated:
        human.warn("the GPU is simulated: the receipt claims nothing about hardware")
    return SIMULATED if simulated else DONE


def _trusted(keys: Files, site_keys: Files) -> list[bytes]:
    """The public keys in these files. A document that vouches for a key counts only if a site key signed it."""
    sites = [_read(each, key_file.public_key_of) for each in site_keys]
    return [_read(each, partial(_trusted_key, each, sites)) for each in keys]


def _trusted_key(file: Path, sites: Sequence[bytes], text: str) -> bytes:
    if not text.lstrip().startswith("{"):
        return key_file.public_key_of(text)
    if not sites:
        raise FatalError(
            f"cannot trust the key in {file}: only the key of its site shows that it is genuine",
            "name the key of the site with --site-key",
        )
    return dsse.endorsed(text, sites)


def _read(file: Path, read: Callable[[str], Any], what: str = "key") -> Any:  # noqa: ANN401 - what ``read`` returns
    """What a file of the caller holds; FatalError names the file."""
    try:
        return read(_text(file))
    except ReceiptError as error:
        raise FatalError(f"cannot use the {what} in {file}: {error.message}", *error.remedies) from error


def _text(file: Path, most: int = OTHER) -> str:
    """The text of a file. Keys and checkpoints may come through a pipe; what others wrote must be a regular file."""
    try:
        if most == RECEIPT and not stat.S_ISREG(file.stat().st_mode):
            raise ReceiptError(f"{file} is not a regular file")
        with file.open("rb") as opened:
            content = opened.read(most + 1)
        if len(content) > most:
            raise ReceiptError(f"{file} has more than {most} bytes")
        return content.decode()
    except OSError as error:
        raise ReceiptError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ReceiptError(f"{file} is not text") from error


def _checked(
    statement: dict[str, Any], expected: Expected, logged: Logged | None, keys: Sequence[str], held: Sequence[str],
    kind: Kind,
) -> Iterator[str]:  # fmt: skip
    """One line for each thing that was checked, or was not."""
    predicate = statement["predicate"]
    yield f"signature   by {'one of ' if len(keys) > 1 else ''}{', '.join(keys)}"
    for name, value, given, flag in (
        ("gpu", predicate["device"]["uuid"], expected.gpu, "--gpu"),
        ("boot", predicate["boot"]["id"], expected.boot, "--boot"),
        ("hand-over", expected.handover or "not known", expected.handover, "--handover"),
    ):
        yield f"{name:11} {value}{'' if given else f' (not compared: {flag})'}"
    if logged is None:
        yield f"log         not checked: there is no {kind.files[1]} beside it"
        return
    yield f"log         row {logged.row} of {logged.rows} of {logged.origin}"
    advice = "yours has another size; `autoclave ledger verify` compares them" if held else "--checkpoint"
    compared = "the same was held elsewhere" if logged.compared else f"not compared with one of the same size: {advice}"
    yield f"checkpoint  {compared}"
