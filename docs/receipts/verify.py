"""Verify a receipt of Autoclave on any machine: Python, the package ``cryptography``, and the node's public key.

python verify.py /run/autoclave/receipts/ID --key node.pem --gpu GPU-8f2c... --boot 0f1e2d3c-...

PATH is the directory with receipt.dsse.json and receipt.tlog-proof. Its name is the id of the hand-over; in a copy with
another name, give the id with --handover. Exit code: 0 verified, 1 something is wrong, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SPKI = bytes.fromhex("302a300506032b6570032100")  # what comes before the key in a PEM
TYPES = ("application/vnd.in-toto+json", "https://in-toto.io/Statement/v1", "https://autoclave.dev/receipts/v1")


class WrongError(ValueError):
    """A field is not what it must be."""


def demand(holds: bool, field: str, why: str) -> None:  # noqa: FBT001 - each call reads as a sentence
    """Refuse the receipt if this does not hold."""
    if not holds:
        raise WrongError(f"{field}: {why}")


def read_key(text: str) -> bytes:
    """A public key from a PEM, from base64, or from a key of signed notes (NAME+ID+BASE64)."""
    word = "".join(line.strip() for line in text.splitlines() if not line.startswith("-----"))
    noted = re.fullmatch(r"[^+]+\+[0-9a-f]{8}\+(.+)", word)
    demand(not set(word) & set(' {"'), "key", "it is no public key")
    key = decode(noted[1] if noted else word).removeprefix(b"\x01" if noted else SPKI)
    demand(len(key) == 32, "key", "it is no Ed25519 public key")  # noqa: PLR2004 - bytes of such a key
    return key


def signed_by(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of the key signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def decode(text: str) -> bytes:
    """Base64 in the standard or in the URL-safe alphabet."""
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def open_envelope(text: bytes, key: bytes) -> Any:  # noqa: ANN401 - JSON
    """The statement in an envelope (DSSE). It is parsed only after its signature was verified."""
    envelope = json.loads(text)
    kind, payload = envelope["payloadType"], decode(envelope["payload"])
    message = b"DSSEv1 %d %b %d %b" % (len(kind.encode()), kind.encode(), len(payload), payload)
    valid = any(signed_by(key, decode(each["sig"]), message) for each in envelope["signatures"])
    demand(valid, "signature", "the key did not sign this content: the key is wrong, or the content was altered")
    statement = json.loads(payload)
    demand((kind, statement["_type"], statement["predicateType"]) == TYPES, "type", "it is no receipt of version 1")
    return statement


def open_checkpoint(note: str, key: bytes) -> tuple[str, int, bytes]:
    """Origin, size and root of a log, from a signed note, or from a line of the service's log that has one."""
    note = json.loads(note)["checkpoint"] if note.startswith("{") else note
    demand(note.count("\n") > 3, "checkpoint", "it is no signed checkpoint")  # noqa: PLR2004 - lines of the smallest
    body, _, signatures = note.rpartition("\n\n")
    origin, size, root = body.split("\n")[:3]
    key_hash = hashlib.sha256(origin.encode() + b"\n\x01" + key).digest()[:4]
    for mark, name, signature in (line.split(" ") for line in signatures.splitlines()):
        content = decode(signature)
        if (mark, name, content[:4]) == ("\u2014", origin, key_hash):
            demand(signed_by(key, content[4:], f"{body}\n".encode()), "checkpoint", "its signature is wrong")
            return origin, int(size), decode(root)
    raise WrongError(f"checkpoint: the key did not sign the checkpoint of {origin}")


def root_of(index: int, size: int, leaf: bytes, hashes: list[bytes]) -> bytes:
    """The root to which an inclusion proof leads (RFC 9162, 2.1.3.2)."""
    node, last = leaf, size - 1
    while last:
        if index % 2 or index != last:  # it has a sibling: else it moves up alone
            demand(bool(hashes), "proof", "it has too few hashes")
            node = hashlib.sha256(b"\x01" + (hashes.pop(0) + node if index % 2 else node + hashes.pop(0))).digest()
        index, last = index // 2, last // 2
    demand(not hashes, "proof", "it has too many hashes")
    return node


def check_log(proof: str, envelope: bytes, key: bytes, held: str | None) -> str:
    """That the log of the node contains the receipt, and that a checkpoint from elsewhere agrees."""
    demand(proof.startswith("c2sp.org/tlog-proof@v1\nextra "), "proof", "it is no tlog-proof of a receipt")
    head, _, note = proof.partition("\n\n")
    _, extra, index, *hashes = head.split("\n")
    row, place = decode(extra.removeprefix("extra ")), int(index.removeprefix("index "))
    leaf = hashlib.sha256(b"\x00" + row + b"\n" + hashlib.sha256(envelope).hexdigest().encode()).digest()
    origin, size, root = open_checkpoint(note, key)
    demand(0 <= place < size, "checkpoint", f"it has {size} rows: it was made before the receipt, row {place + 1}")
    demand(root_of(place, size, leaf, list(map(decode, hashes))) == root, "proof", "it does not lead to the checkpoint")
    if held is None:
        return f"row {place + 1} of {origin}"
    other, held_size, held_root = open_checkpoint(held, key)
    demand(other == origin, "checkpoint", f"yours is of {other}, not of {origin}")
    demand(held_size > place, "checkpoint", f"yours has {held_size} rows: it was made before the receipt")
    demand(held_size != size or held_root == root, "checkpoint", "yours has another root: there are two histories")
    compared = "is the same" if held_size == size else "has another size: `autoclave ledger verify` compares them"
    return f"row {place + 1} of {origin}; your checkpoint {compared}"


def verify(given: argparse.Namespace) -> None:
    """Check everything that can be checked, and say it."""
    envelope, proof = ((given.path / f"receipt.{kind}").read_bytes() for kind in ("dsse.json", "tlog-proof"))
    key = read_key(given.key.read_text())
    statement = open_envelope(envelope, key)
    device, boot = statement["predicate"]["device"]["uuid"], statement["predicate"]["boot"]["id"]
    demand(given.gpu in (None, device), "gpu", f"the receipt is for {device}, not for {given.gpu}")
    demand(given.boot in (None, boot), "boot", f"the receipt is of boot {boot}, not of {given.boot}")
    handover = given.handover or given.path.resolve().name
    digest = hashlib.sha256(f"{device}\n{boot}\n{handover}\n".encode()).hexdigest()
    subjects = [each["digest"]["sha256"] for each in statement["subject"] if each["name"] == "hand-over"]
    demand(subjects == [digest], "handover", f"the receipt is not for {handover}; of a renamed copy, give --handover")
    row = check_log(proof.decode(), envelope, key, given.checkpoint and given.checkpoint.read_text(encoding="utf-8"))
    claim = statement["predicate"]["sanitization"]
    print(f"verified: signed by {hashlib.sha256(key).hexdigest()[:16]} for hand-over {handover}, {row}")
    print(f"gpu {device}{'' if given.gpu else ' (not compared)'}, boot {boot}{'' if given.boot else ' (not compared)'}")
    print(f"{claim['category']} ({claim['standard']}) of {claim['coveredBytes']} of {claim['allocatableBytes']} bytes")
    uncovered = (f"not covered: {part['bytes']} bytes, {part['cause']}" for part in claim["uncovered"])
    print(f"finished {statement['predicate']['finished']}, by the clock of the node", *uncovered, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--key", type=Path, required=True, help="the node's public key")
    [parser.add_argument(flag) for flag in ("--gpu", "--boot", "--handover")]
    parser.add_argument("--checkpoint", type=Path, help="a signed checkpoint of the node from elsewhere")
    try:
        verify(parser.parse_args())
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        sys.exit(f"not verified: {error if isinstance(error, (WrongError, OSError)) else f'format: {error!r}'}")
