"""Envelopes are read by others, and an envelope that no given key has signed is refused."""

import base64
import itertools
import json

import pytest
import securesystemslib.dsse
from securesystemslib import exceptions
from securesystemslib.signer._crypto_signer import CryptoSigner
from securesystemslib.signer._key import SSlibKey

from scrubber.receipts import dsse
from scrubber.receipts.key import ReceiptError
from tests.receipts.signing import WordSigner

NODE, OTHER = WordSigner(), WordSigner("other")
PAYLOAD = b'{"a": "\xc3\xbc?>"}'  # in base64 it has characters that the two alphabets write differently
TEXT = dsse.envelope(PAYLOAD, NODE)


def other_reader(text, signer, count=1):
    """The content that another reader of this format accepts."""
    known = SSlibKey(
        signer.key_id, "ed25519", "ed25519", {"public": signer.public_key.hex()}
    )  # fmt: skip
    envelope = securesystemslib.dsse.Envelope.from_dict(json.loads(text))
    envelope.verify([known], count)
    return envelope.payload


def test_what_is_signed_has_the_form_of_the_standard():
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert dsse.pae("http://example.com/HelloWorld", b"hello world") == expected
    assert dsse.pae("é", "é".encode()) == "DSSEv1 2 é 2 é".encode()  # lengths are of bytes


def test_another_reader_accepts_our_envelope():
    assert other_reader(TEXT, NODE) == PAYLOAD


def test_another_reader_refuses_another_key_and_a_change():
    changed = TEXT.replace(base64.b64encode(PAYLOAD).decode(), base64.b64encode(b"{}").decode())
    for text, signer in ((TEXT, OTHER), (changed, NODE)):
        with pytest.raises(exceptions.VerificationError):
            other_reader(text, signer)


def test_we_accept_the_envelope_of_another_writer():
    envelope = securesystemslib.dsse.Envelope(PAYLOAD, dsse.PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(NODE.private))
    assert dsse.opened(json.dumps(envelope.to_dict()), [NODE.public_key]) == PAYLOAD


def test_both_alphabets_of_base64_are_read():
    url_safe = TEXT.translate({ord("+"): "-", ord("/"): "_"}).replace("application_vnd.in-toto-json", dsse.PAYLOAD_TYPE)
    assert url_safe != TEXT
    assert dsse.opened(url_safe, [NODE.public_key]) == PAYLOAD


def test_an_altered_byte_never_gives_another_content():
    refused = 0
    for place, letter in itertools.product(range(len(TEXT)), ("A", "0", '"', "\x01")):
        try:
            assert dsse.opened(TEXT[:place] + letter + TEXT[place + 1 :], [NODE.public_key]) == PAYLOAD
        except ReceiptError:
            refused += 1
    assert refused > 3 * len(TEXT)  # the rest is the id of the key, and a letter in its own place


def test_each_fault_is_named():
    document = json.loads(TEXT)
    altered = document | {"payload": base64.b64encode(PAYLOAD + b" ").decode()}
    unsigned, foreign = document | {"signatures": []}, document | {"payloadType": "text/plain"}
    faults = {
        "signature is wrong": (altered, unsigned),
        "payloadType is 'text/plain'": (foreign,),
        "not a signed document": ([], 1, {}, document | {"signatures": 5}, document | {"payload": "?"}),
    }
    for why, documents in faults.items():
        for each in documents:
            with pytest.raises(ReceiptError, match=why):
                dsse.opened(json.dumps(each), [NODE.public_key])
    with pytest.raises(ReceiptError, match=f"it names {NODE.key_id}; given: {OTHER.key_id}"):
        dsse.opened(TEXT, [OTHER.public_key])
    with pytest.raises(ReceiptError, match="given: no key"):
        dsse.opened(TEXT, [])


def test_the_key_id_in_an_envelope_decides_nothing():
    swapped = TEXT.replace(NODE.key_id, OTHER.key_id)
    assert dsse.opened(swapped, [NODE.public_key]) == PAYLOAD
    with pytest.raises(ReceiptError):
        dsse.opened(swapped, [OTHER.public_key])


def test_several_signatures_count_by_key():
    both, keys = dsse.envelope(PAYLOAD, NODE, OTHER), [NODE.public_key, OTHER.public_key]
    assert dsse.opened(both, keys, at_least=2) == PAYLOAD
    for text, given in ((TEXT, keys), (dsse.envelope(PAYLOAD, NODE, NODE), keys), (both, keys[:1])):
        with pytest.raises(ReceiptError, match="1 of 2 signatures"):
            dsse.opened(text, given, at_least=2)
