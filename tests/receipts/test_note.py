"""Checkpoints and proofs as text: what was signed is read back, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scrubber.receipts import merkle, note
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.note import Checkpoint
from tests.receipts.signing import WordSigner

CHECKPOINT = Checkpoint("autoclave/node-7", 123, bytes(range(32)))


OURS, OTHER = WordSigner(), WordSigner("another node")
SIGNED = note.sign(CHECKPOINT, OURS)


def test_a_signed_checkpoint_is_read_back():
    assert note.opened(SIGNED, [OTHER.public_key, OURS.public_key]) == CHECKPOINT
    assert SIGNED.splitlines()[:4] == ["autoclave/node-7", "123", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", ""]


@pytest.mark.parametrize("at", range(0, len(SIGNED), 7))
def test_a_checkpoint_with_one_other_character_is_refused(at):
    other = "A" if SIGNED[at] != "A" else "B"
    with pytest.raises(ReceiptError):
        note.opened(SIGNED[:at] + other + SIGNED[at + 1 :], [OURS.public_key])


@pytest.mark.parametrize("name", ["", "a b", "a\n7\nAAAA", "a+b", "a\u2028b", "a\x1bb", "a\udce9"])
def test_a_name_that_could_add_lines_is_not_signed(name):
    with pytest.raises(ReceiptError, match="cannot use the name"):
        note.sign(replace(CHECKPOINT, origin=name), OURS)


def test_a_signature_of_another_key_does_not_count():
    with pytest.raises(ReceiptError, match="the checkpoint of autoclave/node-7 is not signed by the key"):
        note.opened(SIGNED, [OTHER.public_key])


def test_signatures_of_others_are_ignored():
    witnessed = SIGNED + "\u2014 witness.example 5bFGAAAAAAAAAAAA\n"
    assert note.opened(witnessed, [OURS.public_key]) == CHECKPOINT
    assert note.opened(f"{SIGNED}\n", [OURS.public_key]) == CHECKPOINT, "as jq -r prints it"
    for line in ("\u2014 nothing", "anything"):
        with pytest.raises(ReceiptError, match="a line below its text is not a signature"):
            note.opened(f"{witnessed}{line}\n", [OURS.public_key])


def test_a_proof_is_read_back():
    included = merkle.Inclusion(7, 123, CHECKPOINT.root, (b"\x01" * 32, b"\x02" * 32))
    proof = note.prove(included, "ab" * 32, SIGNED)
    assert note.parse_proof(proof.text) == proof
    assert proof.text.startswith("c2sp.org/tlog-proof@v1\nextra ")
    assert proof.text.endswith(SIGNED)


@pytest.mark.parametrize(
    "text", ["", "c2sp.org/tlog-proof@v1\n", "c2sp.org/tlog-proof@v1\nindex 07\n\n", "x\nindex 1\n\n"]
)
def test_a_text_that_is_no_proof_is_refused(text):
    with pytest.raises(ReceiptError):
        note.parse_proof(text)


def test_checkpoints_are_found_in_a_log():
    line = json.dumps({"event": "checkpoint", "checkpoint": SIGNED})
    log = f"{json.dumps({'event': 'serving'})}\n2026-11-25T10:00:00Z stdout F {line}\nplain text\n{line[:40]}\n{line}\n"
    assert note.notes_in(log) == [SIGNED, SIGNED]
    assert note.notes_in(SIGNED) == [SIGNED]
    with pytest.raises(ReceiptError, match="no line of the log has a checkpoint"):
        note.notes_in('{"event":"serving"}\n')
