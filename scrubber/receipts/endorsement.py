"""A key that another key vouches for: a node's key for a site's key, and a node's next key for the one before it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping

from ground.quantities import quantity
from scrubber.receipts import dsse
from scrubber.receipts.key import BYTES, FileKey, ReceiptError, Signer

KEY_TYPE = "application/vnd.autoclave.key+json"


def endorse(public_key: bytes, *signers: Signer) -> str:
    """A signed document that vouches for a key."""
    payload = json.dumps({"key": base64.b64encode(public_key).decode()}, separators=(",", ":"))
    return dsse.envelope(payload.encode(), *signers, payload_type=KEY_TYPE)


def endorsed(text: str, keys: Collection[bytes], *, at_least: int = 1) -> bytes:
    """The key that so many of these keys vouch for; ReceiptError names what is wrong."""
    payload = dsse.opened(text, keys, payload_type=KEY_TYPE, at_least=at_least)
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
