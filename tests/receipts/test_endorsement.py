"""A key is trusted if a trusted key vouches for it, and a rotation only if both keys have signed it."""

import json

import pytest

from scrubber.receipts import dsse, key
from scrubber.receipts.dsse import KEY_TYPE, announcement, endorse, endorsed, successor
from scrubber.receipts.key import ReceiptError
from tests.receipts.signing import WordSigner

SITE, NODE, OTHER = WordSigner("site"), WordSigner("node"), WordSigner("other")


def test_a_site_key_vouches_for_a_key():
    assert endorsed(endorse(NODE.public_key, SITE), [SITE.public_key]) == NODE.public_key
    with pytest.raises(ReceiptError, match="signature is wrong"):
        endorsed(endorse(NODE.public_key, OTHER), [SITE.public_key])


def test_a_receipt_is_no_endorsement():
    receipt = dsse.envelope(json.dumps({"key": "AAAA"}).encode(), SITE)
    with pytest.raises(ReceiptError, match=r"payloadType is 'application/vnd\.in-toto"):
        endorsed(receipt, [SITE.public_key])


@pytest.mark.parametrize("payload", [b"{}", b"[]", b"?", b'{"key": 1}', b'{"key": "AAAA"}', b'{"key": "?"}'])
def test_an_endorsement_without_a_key_is_refused(payload):
    with pytest.raises(ReceiptError, match="the endorsement"):
        endorsed(dsse.envelope(payload, SITE, payload_type=KEY_TYPE), [SITE.public_key])


def test_a_rotation_is_signed_by_both_keys(tmp_path):
    tmp_path.chmod(0o700)
    key.open_key(tmp_path)
    first = key.read_key(tmp_path)
    assert announcement(first) == {"key": first.key_id, "public_key": first.public_key.hex()}
    key.make_next(tmp_path)
    note = json.loads(json.dumps(announcement(key.read_key(tmp_path))))
    taken = key.take_next(tmp_path)
    assert successor(note, first.public_key) == taken.public_key
    assert (note["previous"], note["key"]) == (first.key_id, taken.key_id)
    one_sided = {
        name: note | {"endorsement": endorse(taken.public_key, by)} for name, by in [("old", first), ("new", taken)]
    }
    swapped = note | {"public_key": OTHER.public_key.hex()}
    for false, trusted in (
        (note, OTHER.public_key), (one_sided["old"], first.public_key), (one_sided["new"], first.public_key),
        (swapped, first.public_key), (announcement(first), first.public_key), ({}, first.public_key),
        (note | {"endorsement": endorse(OTHER.public_key, first, taken)}, first.public_key),
    ):  # fmt: skip
        with pytest.raises(ReceiptError):
            successor(false, trusted)
