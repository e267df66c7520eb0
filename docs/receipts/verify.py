"""Verify a receipt of Autoclave on any machine: Python, the package ``cryptography``, and the node's public key.

python verify.py /run/autoclave/receipts/ID --key node.pem --gpu GPU-8f2c... --boot 0f1e2d3c-...

PATH is the directory with receipt.dsse.json and receipt.tlog-proof, or the first file. The directory has the id of the
hand-over as its name; else give --handover. With --closing, PATH is a closing receipt, about who else opened the GPU.
Exit code: 0 verified, 1 not, 2 wrong usage, 6 of a simulated GPU.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

NUMBER, SIGNATURE = re.compile("0|[1-9][0-9]{0,18}"), re.compile("\u2014 ([^\\s+]+) ([A-Za-z0-9+/]+=*)")
ENVELOPE, PROOF, RECEIPT, OTHER = "{}.dsse.json", "{}.tlog-proof", 2**20, 2**26  # the most bytes of a file
TYPES = ("application/vnd.in-toto+json", "https://in-toto.io/Statement/v1", "tag:autoclave.internal,2026:{}s/v1")
ON_CHIP = "shared memory and registers of {unitsReached} of {units} units overwritten; not overwritten: {}"


class WrongError(ValueError):
    """A field is not what it must be."""


def demand(holds: bool, field: str, why: str) -> None:  # noqa: FBT001 - each call reads as a sentence
    """Refuse the receipt if this does not hold."""
    if not holds:
        raise WrongError(f"{field}: {why}")


def content(path: Path, most: int) -> bytes:
    """What is in a file. Keys and checkpoints may come through a pipe; what others wrote must be a regular file."""
    demand(most == OTHER or path.is_file() or not path.exists(), path.name, "it is not a regular file")
    with path.open("rb") as file:
        found = file.read(most + 1)
    demand(len(found) <= most, path.name, f"it has more than {most} bytes")
    return found


def decode(text: str, length: int = 0) -> bytes:
    """Base64, of so many bytes."""
    found = base64.b64decode(text, validate=True)
    demand(length in {0, len(found)}, "format", f"{text[:80]} is not {length} bytes in base64")
    return found


def read_key(text: str) -> bytes:
    """A public key from a PEM, from base64, or from a key of signed notes (NAME+ID+BASE64)."""
    demand((text := text.strip())[:1] != "{", "key", "a site signed it: use `autoclave receipt verify --site-key`")
    if found := re.fullmatch(r"-----BEGIN PUBLIC KEY-----\s([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----", text):
        pem = decode("".join(found[1].split()), 44)
        demand(pem.startswith(bytes.fromhex("302a300506032b6570032100")), "key", "it is not an Ed25519 public key")
        return pem[12:]
    if not (found := re.fullmatch(r"([^+]*)\+([0-9a-f]{8})\+(.*)", text)):
        return decode(text, 32)
    key = decode(found[3], 33)
    own = hashlib.sha256(found[1].encode() + b"\n" + key).hexdigest()[:8]
    demand(key[:1] == b"\x01" and own == found[2], "key", "it is no key of signed notes")
    return key[1:]


def signed_by(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of the key signed the message."""
    with suppress(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        return True
    return False


def open_envelope(text: bytes, keys: list[bytes], word: str) -> tuple[Any, bytes]:
    """The statement in an envelope (DSSE), and who signed it. It is parsed only after its signature was verified."""
    envelope = json.loads(text.decode())
    kind, encoded = envelope["payloadType"], [envelope["payload"], *(each["sig"] for each in envelope["signatures"])]
    payload, *signatures = (decode(each.translate({45: "+", 95: "/"})) for each in encoded)  # of either alphabet
    message = b"DSSEv1 %d %b %d %b" % (len(kind.encode()), kind.encode(), len(payload), payload)
    by = [key for key in keys if any(signed_by(key, s, message) for s in signatures)]
    demand(bool(by), "signature", "wrong key, or the content was altered")
    statement = json.loads(payload)
    types = (*TYPES[:2], TYPES[2].format(word))
    demand((kind, statement["_type"], statement["predicateType"]) == types, "type", f"it is not a {word} of version 1")
    return statement, by[0]


def open_checkpoint(note: str, keys: list[bytes]) -> tuple[str, int, bytes]:
    """Origin, size and root of a log, from a signed note."""
    body, _, signatures = note.rstrip("\n").rpartition("\n\n")  # as in an envelope, jq -r adds an end of line
    lines, signed = body.split("\n"), [SIGNATURE.fullmatch(line) for line in signatures.split("\n")]
    demand(bool(lines[2:] and all(signed) and NUMBER.fullmatch(lines[1])), "checkpoint", "it is not signed")
    ids = {hashlib.sha256(lines[0].encode() + b"\n\x01" + key).digest()[:4]: key for key in keys}  # in signed notes
    made = [decode(each[2]) for each in reversed(signed) if each and each[1] == lines[0]]
    ours = {ids[raw[:4]]: raw[4:] for raw in made if raw[:4] in ids}  # of each key the first signature
    demand(bool(ours), "checkpoint", f"no given key signed the checkpoint of {lines[0]}")
    demand(all(signed_by(key, ours[key], f"{body}\n".encode()) for key in ours), "checkpoint", "its signature is wrong")
    return lines[0], int(lines[1]), decode(lines[2], 32)


def held(text: str, origin: str, keys: list[bytes]) -> list[tuple[str, int, bytes]]:
    """The checkpoints of this log in a file: one as it is, or those in lines of services' logs, others' among them."""
    lines, found = [line[line.index("{") :] for line in text.split("\n") if "{" in line], []
    for line in lines or [text]:
        with suppress(*[AttributeError, LookupError, RecursionError, TypeError, ValueError] * (len(lines) > 1)):
            found.append(open_checkpoint(json.loads(line)["checkpoint"] if lines else text, keys))
    demand(any(each[0] == origin for each in found), "checkpoint", f"yours has none of {origin} by a given key")
    return [each for each in found if each[0] == origin]


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


def check_log(proof: str, envelope: bytes, keys: list[bytes], checkpoint: Path | None) -> str:
    """That the log of the node contains the receipt, and that checkpoints from elsewhere agree."""
    head, _, note = proof.partition("\n\n")
    form = re.fullmatch(r"c2sp[.]org/tlog-proof@v1\nextra (.*)\nindex (.*)((?:\n.*)*)", head)
    demand(form is not None and bool(NUMBER.fullmatch(form[2])), "proof", "it is no tlog-proof of a receipt")
    row, place, hashes = decode(form[1], 64), int(form[2]), [decode(line, 32) for line in form[3].split("\n")[1:]]
    leaf = hashlib.sha256(b"\x00" + row + b"\n" + hashlib.sha256(envelope).hexdigest().encode()).digest()
    origin, size, root = open_checkpoint(note, keys)
    demand(place < size, "checkpoint", f"it has {size} rows: it was made before the receipt, row {place + 1}")
    demand(root_of(place, size, leaf, hashes) == root, "proof", "it does not lead to the checkpoint")
    others = held(content(checkpoint, OTHER).decode(errors="replace"), origin, keys) if checkpoint else []
    demand(all(s != size or r == root for _, s, r in others), "checkpoint", "yours has another root: two histories")
    demand(max((each[1] for each in others), default=size) > place, "checkpoint", "yours is older than the receipt")
    says = "is the same" if (origin, size, root) in others else "has another size; `autoclave ledger verify` compares"
    return f"row {place + 1} of {origin}{f'; your checkpoint {says}' if others else ''}"


def verify(given: argparse.Namespace) -> list[str]:
    """Check everything that can be checked, and say it."""
    word = "closing" if given.closing else "receipt"
    envelope_name, proof_name = ENVELOPE.format(word), PROOF.format(word)
    alone, place = given.path.is_file(), given.path.absolute()  # a link has its own name
    file, folder = (place, place.parent) if alone else (place / envelope_name, place)
    keys = [read_key(content(each, OTHER).decode(errors="replace")) for each in given.key]
    demand(given.path.exists(), "path", f"there is no {given.path}")
    given.field = envelope_name
    statement, key = open_envelope(text := content(file, RECEIPT).rstrip(b"\n"), keys, word)
    device, boot = statement["predicate"]["device"]["uuid"], statement["predicate"]["boot"]["id"]
    demand(given.gpu in (None, device), "gpu", f"the receipt is for {device}, not for {given.gpu}")
    demand(given.boot in (None, boot), "boot", f"the receipt is of boot {boot}, not of {given.boot}")
    named = given.handover is None and (not alone or re.fullmatch("[0-9a-f]{24}", folder.name))
    handover = folder.name if named else given.handover
    digest = hashlib.sha256(f"{device}\n{boot}\n{handover}\n".encode()).hexdigest()
    subjects = [each["digest"]["sha256"] for each in statement["subject"] if each["name"] == "hand-over"]
    right = handover is None or subjects == [digest]
    demand(right, "handover", f"the receipt is not for {handover}; of a renamed copy, give --handover")
    row = f"without {proof_name}: the log is not checked"
    if not alone or given.checkpoint or (folder / proof_name).exists():
        given.field, proof = proof_name, content(folder / proof_name, RECEIPT)
        row = check_log(proof.decode(), text, keys, given.checkpoint)
    said, own = statement["predicate"], f"by the clock of node {statement['predicate'].get('node', '')}"
    checked = [
        f"verified: signed by {hashlib.sha256(key).hexdigest()[:16]} for hand-over {handover or '(not given)'}, {row}",
        f"gpu {device}{'' if given.gpu else ' (not compared)'}, boot {boot}{'' if given.boot else ' (not compared)'}",
    ]
    if given.closing:
        of = "SIMULATED GPU, no claim" if "simulated" in said["device"] else f"a tenancy of the GPU, {own}"
        return [*checked, of, *(f"{name}: {json.dumps(said[name])}" for name in said)]
    claim = said["sanitization"]
    of = "SIMULATED GPU, no claim:" if "simulated" in claim else f"{claim['category']} ({claim['standard']}) of"
    return [
        *checked,
        f"{of} {claim['coveredBytes']} of {claim['allocatableBytes']} bytes, left as {claim.get('left', 'zero')}",
        f"finished {said['finished']}, {own}",
        *(f"not covered: {part['bytes']} bytes, {part['cause']}" for part in claim["uncovered"]),
        *([ON_CHIP.format(", ".join(claim.get("unitsLeft", ["not said"])), **claim)] if "units" in claim else []),
        *([f"others since the last proof: {json.dumps(said['fence'])}"] if "fence" in said else []),
    ]


def plain(text: str) -> str:
    """The text without what a terminal obeys."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def main(arguments: list[str] | None = None) -> None:
    """Verify, and print what was found or what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--key", type=Path, required=True, action="append", help="a public key of the node; repeatable")
    [parser.add_argument(flag) for flag in ("--gpu", "--boot", "--handover")]
    parser.add_argument("--checkpoint", type=Path, help="a signed checkpoint of the node from elsewhere")
    parser.add_argument("--closing", action="store_true", help="PATH is a closing receipt")
    given = parser.parse_args(arguments, argparse.Namespace(field="key"))
    try:
        print(*map(plain, lines := verify(given)), sep="\n")
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        wrong = f"{error.args[0]}: it is missing" if isinstance(error, KeyError) else f"{given.field}: it is malformed"
        said = plain(f"{error if isinstance(error, (WrongError, OSError)) else wrong}")
        parser.error(said) if given.field == "key" else sys.exit(f"not verified: {said}")
    sys.exit(6 if "SIMULATED" in lines[2] else 0)


if __name__ == "__main__":
    main()
