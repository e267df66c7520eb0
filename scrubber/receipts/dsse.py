"""Signed documents in the form of DSSE 1.0: a payload, its type, and signatures over both.

One kind vouches for a key: a site's key for a node's key, and a node's key for the next one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ground.quantities import quantity
from scrubber.receipts import key
from scrubber.receipts.key import BYTES, FileKey, ReceiptError, Signer

PAYLOAD_TYPE = "application/vnd.in-toto+json"
KEY_TYPE = "application/vnd.autoclave.key+json"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A signed document as it was read. Nothing in it is verified."""

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]  # what it says of the key's id, which is a hint only, and the signature


def envelope(payload: bytes, *signers: Signer, payload_type: str = PAYLOAD_TYPE) -> str:
    """A document with the signatures of these signers, in one line of JSON."""
    message = pae(payload_type, payload)
    return written(Envelope(payload_type, payload, tuple((each.key_id, each.sign(message)) for each in signers)))


def written(document: Envelope) -> str:
    """The one text in which this service writes it."""
    signatures = [{"keyid": name, "sig": _base64(signature)} for name, signature in document.signatures]
    content = {"payloadType": document.payload_type, "payload": _base64(document.payload), "signatures": signatures}
    return json.dumps(content, separators=(",", ":"))


def parsed(text: str) -> Envelope:
    """A document without verification, such as one of our own ledger; ReceiptError if it is not such a document."""
    try:
        document = json.loads(text)
        signatures = tuple(
            (str(signature.get("keyid", "")), _bytes(signature["sig"])) for signature in document["signatures"]
        )
        return Envelope(str(document["payloadType"]), _bytes(document["payload"]), signatures)
    except KeyError as error:
        raise ReceiptError(f"the envelope is not a signed document (DSSE): it lacks {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ReceiptError("the envelope is not a signed document (DSSE): its JSON or base64 is broken") from error


def opened(
    text: str, keys: Collection[bytes], *, payload_type: str = PAYLOAD_TYPE, at_least: int = 1
) -> bytes:  # fmt: skip
    """The exact payload, once so many of these public keys have signed it; ReceiptError names what is wrong."""
    document = parsed(text)
    if document.payload_type != payload_type:
        raise ReceiptError(f"the envelope's payloadType is {document.payload_type!r}, not {payload_type!r}")
    message = pae(payload_type, document.payload)
    valid = {by for by in keys if any(key.verify(by, signature, message) for _, signature in document.signatures)}
    if len(valid) >= at_least:
        return document.payload
    names = ", ".join(name for name, _ in document.signatures) or "no key"
    given = ", ".join(sorted(map(key.key_id, keys))) or "no key"
    counted = "its signature is" if at_least == 1 else f"{len(valid)} of {at_least} signatures are"
    raise ReceiptError(
        f"the envelope's signature is wrong: {counted} not by a given key or the content was altered; "
        f"it names {names}; given: {given}"
    )


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: the type and the payload, each after its length."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    """The content of base64 in either alphabet."""
    try:
        return base64.b64decode(text.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


def endorse(public_key: bytes, *signers: Signer) -> str:
    """A signed document that vouches for a key."""
    payload = json.dumps({"key": base64.b64encode(public_key).decode()}, separators=(",", ":"))
    return envelope(payload.encode(), *signers, payload_type=KEY_TYPE)


def endorsed(text: str, keys: Collection[bytes], *, at_least: int = 1) -> bytes:
    """The key that so many of these keys vouch for; ReceiptError names what is wrong."""
    payload = opened(text, keys, payload_type=KEY_TYPE, at_least=at_least)
    try:
        public_key = base64.b64decode(json.loads(payload)["key"], validate=True)
    except (ValueError, TypeError, LookupError, RecursionError, binascii.Error) as error:
        raise ReceiptError(f"the endorsement names no key: {error!r}") from error
    if len(public_key) != BYTES:
        raise ReceiptError(f"the endorsement's key has {quantity(len(public_key), 'byte')}, not {BYTES}")
    return public_key


def announcement(key: FileKey) -> dict[str, str]:
    """What the ledger notes of the key that signs from now on. Both keys of a rotation sign it."""
    if key.next is None:
        return {"key": key.key_id, "public_key": key.public_key.hex()}
    both = {"previous": key.key_id, "endorsement": endorse(key.next.public_key, key, key.next)}
    return {"key": key.next.key_id, "public_key": key.next.public_key.hex()} | both


def successor(note: Mapping[str, str], trusted: bytes) -> bytes:
    """The key that follows a trusted one, by such a note; ReceiptError if not both have signed."""
    try:
        following, text = bytes.fromhex(note["public_key"]), note["endorsement"]
    except (KeyError, ValueError) as error:
        raise ReceiptError(f"the note is not a rotation of a key: {error!r}") from error
    if endorsed(text, [trusted, following], at_least=2) != following:
        raise ReceiptError("the note names another key than its endorsement")
    return following
