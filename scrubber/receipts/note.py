"""Checkpoints and inclusion proofs of a log, as text with signature lines: written, opened, parsed.

The formats are those of C2SP (c2sp.org): ``signed-note``, ``tlog-checkpoint`` and ``tlog-proof``.

A checkpoint says how many rows the ledger has, and the root of its Merkle tree. Whoever holds an older checkpoint can
show that rows were cut off or replaced since.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ground.quantities import quantity
from scrubber.receipts import key
from scrubber.receipts.key import ReceiptError, Signer
from scrubber.receipts.merkle import Inclusion

PROOF = "c2sp.org/tlog-proof@v1"
HASH_BYTES = 32
_SIGNATURE = re.compile(r"\u2014 ([^\s+]+) ([A-Za-z0-9+/]+=*)")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f\ud800-\udfff]+")  # of a key: the format forbids white space and a plus sign


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a log: who keeps it, how many entries it has, the root of its tree."""

    origin: str
    size: int
    root: bytes
    signed_by: tuple[bytes, ...] = field(default=(), compare=False)  # those of the given keys that have signed it

    @property
    def body(self) -> str:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"


class NotSignedError(ReceiptError):
    """None of the given keys has signed a checkpoint, which says that it is of ``origin``."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"the checkpoint of {origin} is not signed by the key")
        self.origin = origin


@dataclass(frozen=True, slots=True)
class LogProof:
    """That an entry is in a log, with the signed checkpoint. ``extra``: what a reader must know beside the entry."""

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: str
    extra: bytes = b""

    @property
    def text(self) -> str:
        """The proof as a file."""
        extra = f"extra {_base64(self.extra)}\n" if self.extra else ""
        hashes = "".join(f"{_base64(one)}\n" for one in self.hashes)
        return f"{PROOF}\n{extra}index {self.index}\n{hashes}\n{self.checkpoint}"


def log_name(node: str) -> str:
    """The name of a node's log; ReceiptError if a signed note cannot have it."""
    return _name(f"autoclave/{node}")


def sign(checkpoint: Checkpoint, signer: Signer) -> str:
    """The checkpoint as a signed note; ReceiptError for a name that would add lines to it, or has no key."""
    body, name = checkpoint.body, _name(checkpoint.origin)
    signature = key.note_id(name, signer.public_key) + signer.sign(body.encode())
    return f"{body}\n\u2014 {name} {_base64(signature)}\n"


def prove(included: Inclusion, row_hash: str, checkpoint: str) -> LogProof:
    """The proof that goes with a receipt. The hash of its row, which the entry also has, is the extra."""
    return LogProof(included.index, included.hashes, checkpoint, row_hash.encode())


def opened(note: str, keys: Collection[bytes]) -> Checkpoint:
    """The checkpoint in a note that one of these keys signed; ReceiptError otherwise.

    Signatures of other keys do not count. A line that is not a signature is an error, and a wrong one by a key as well.
    """
    body, separated, signatures = note.rstrip("\n").rpartition("\n\n")  # `jq -r` adds an end of line
    body += "\n"
    lines = body.split("\n")
    if not separated or len(lines) < 4 or not _NUMBER.fullmatch(lines[1]):  # noqa: PLR2004 - three lines and the end
        raise ReceiptError("this is not a checkpoint: expected an origin, a size and a root, and then signatures")
    checkpoint = Checkpoint(lines[0], int(lines[1]), _decoded(lines[2], "the root of a checkpoint", HASH_BYTES))
    signed: dict[bytes, bytes] = {}  # of each key the first signature
    for line in signatures.split("\n"):
        if (parts := _SIGNATURE.fullmatch(line)) is None:
            raise ReceiptError("this is not a checkpoint: a line below its text is not a signature")
        if parts[1] == checkpoint.origin:
            signature = _decoded(parts[2], "a signature of a checkpoint")
            signed.setdefault(signature[:4], signature[4:])
    ours = {by: signed[each] for by in keys if (each := key.note_id(checkpoint.origin, by)) in signed}
    if not ours:
        raise NotSignedError(checkpoint.origin)
    if not all(key.verify(by, signature, body.encode()) for by, signature in ours.items()):
        raise ReceiptError(f"the checkpoint of {checkpoint.origin} has a wrong signature")
    return replace(checkpoint, signed_by=tuple(ours))


def parse_proof(text: str) -> LogProof:
    """The proof in a file; ReceiptError if it is none."""
    head, _, checkpoint = text.partition("\n\n")
    mark, *lines = head.split("\n")
    extra = b""
    if lines and lines[0].startswith("extra "):
        extra = _decoded(lines.pop(0).removeprefix("extra "), "the extra of a proof")
    word, _, index = lines.pop(0).partition(" ") if lines else ("", "", "")
    if mark != PROOF or word != "index" or not _NUMBER.fullmatch(index):
        raise ReceiptError(f"this is not a proof: expected {PROOF} and an index")
    hashes = tuple(_decoded(line, "a hash of a proof", HASH_BYTES) for line in lines)
    return LogProof(int(index), hashes, checkpoint, extra)


def notes_in(text: str) -> list[str]:
    """The notes in a file: one as it is, or those in lines of the service's log, as JSON behind anything else."""
    lines = [line[line.index("{") :] for line in text.split("\n") if "{" in line]
    if not lines:
        return [text]
    checkpoints = [noted for line in lines if isinstance(noted := _fields(line).get("checkpoint"), str)]
    if not checkpoints:
        raise ReceiptError("no line of the log has a checkpoint")
    return checkpoints


def _fields(line: str) -> dict[str, object]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):  # cut off, or of another program
        return {}
    return fields if isinstance(fields, dict) else {}


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ReceiptError(
            f"cannot use the name {text!r} in a checkpoint: it has white space, a plus sign or a control character",
            "give another with --node-name",
        )
    return text


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(text: str, what: str, length: int | None = None) -> bytes:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ReceiptError(f"{what} is not base64: {text[:80]!r}") from error
    if length is not None and len(value) != length:
        raise ReceiptError(f"{what} has {quantity(len(value), 'byte')} instead of {length}")
    return value
