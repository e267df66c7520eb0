"""A signed document counts in its own row only: whoever may write to the ledger can copy it into another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.values import FenceMode
from scrubber.core.events import Event, LetIn, ScrubPassed
from scrubber.core.guarded import UNKNOWN
from scrubber.core.model import Incarnation, Moment
from scrubber.ledger import ledger_rows
from scrubber.receipts import dsse
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.row_documents import Documents, why_not_its_own
from tests.core import lives
from tests.receipts.signing import COUNTED, ENDED, WordSigner, closed, sealed

NODE, OTHER = WordSigner("node"), WordSigner("other")
GPU = lives.DEVICE.uuid
PROOF = sealed(lives.proof(lives.CLEAN), NODE)
PASSED = ScrubPassed("job", PROOF)


def stored(event: Event) -> str:
    return ledger_rows.encode(event)[1]


def test_the_document_of_a_row_is_its_own():
    owned = replace(ENDED, container=None, pod="", acquired_by="job 7", began=None, guarded=UNKNOWN)
    for event in (PASSED, closed(), closed(owned, replace(COUNTED, open_to_all=True)), LetIn(("a",))):
        assert why_not_its_own(event, GPU) == why_not_its_own(event, GPU, stored(event)) == ""


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"id": "0" * 16}, "receipt"),
        ({"finished": Moment(1.0, 1.0)}, "time"),
        ({"covered_bytes": 1}, "coveredBytes"),
        ({"allocatable_bytes": 1}, "allocatableBytes"),
        ({"residue_bytes": 1}, "residueBytes"),
        ({"previous": "0" * 64}, "previous"),
        ({"digest": "0" * 64}, "digest"),
    ],
)
def test_a_proof_with_the_document_of_another_is_found(change: dict[str, Any], differs: str):
    forged = ScrubPassed("job", replace(PROOF, **change))
    assert why_not_its_own(forged, GPU) == f"its signed document has another {differs}: it is of another row"


@pytest.mark.parametrize(
    "change",
    [{"searched_bytes": 0}, {"units": 1}, {"policy": "other"}, {"incarnation": Incarnation("another", "driver")}],
    ids=str,
)
def test_no_field_of_a_signed_proof_can_be_changed(change: dict[str, Any]):
    """Also those that the document does not have: it has the digest of them all."""
    event = ScrubPassed("job", replace(PROOF, **change))
    assert "another content" in why_not_its_own(event, GPU, stored(event))


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"boot_id": "another"}, "boot"),
        ({"began": Moment(2.0, 2.0)}, "beginning"),
        ({"ended": Moment(2.0, 2.0)}, "end"),
        ({"container": "another"}, "uid"),
        ({"pod": "team/b"}, "pod"),
        ({"acquired_by": "job 8"}, "owner"),
        *(
            ({"guarded": replace(COUNTED, **each)}, "fence")
            for each in (
                {"mode": FenceMode.REFUSE}, {"mode_before": FenceMode.REFUSE}, {"let_through": 0}, {"refused": 0},
                {"ignored": 0}, {"gaps": 1}, {"open_to_all": True}, {"below": ""},
                {"exempt": "e"}, {"exempt_before": "e"},
            )
        ),
    ],
)  # fmt: skip
def test_an_end_with_the_document_of_another_is_found(change: dict[str, Any], differs: str):
    forged = replace(closed(), ended=replace(ENDED, **change))
    assert why_not_its_own(forged, GPU) == f"its signed document has another {differs}: it is of another row"


def test_a_document_is_of_one_device_and_one_wipe():
    for event in (PASSED, closed()):
        assert "another device" in why_not_its_own(event, "GPU-2")
    assert "another receipt" in why_not_its_own(replace(closed(), receipt="0" * 16), GPU)
    assert "another untilWiped" in why_not_its_own(replace(closed(), until_wiped=COUNTED), GPU)


def test_a_document_that_cannot_be_read_is_wrong():
    for envelope in ("{", dsse.envelope(b'{"predicate":[]}', NODE)):
        assert "cannot be read" in why_not_its_own(replace(closed(), envelope=envelope), GPU)


def check(documents: Documents, *events: Event) -> None:
    for row, event in enumerate(events):
        documents.check(row, event, GPU, stored(event))


def test_documents_are_counted_by_who_signed_them():
    documents = Documents([NODE.public_key])
    unsigned = ScrubPassed("job", replace(PROOF, envelope=""))
    by_other = [ScrubPassed("job", sealed(replace(PROOF, job=job), OTHER)) for job in "ab"]
    check(documents, PASSED, closed(), unsigned, *by_other, LetIn(("a",)))
    assert (documents.signed, documents.unsigned, documents.first_unsigned) == (2, 1, 2)
    assert documents.of_other_keys == {OTHER.key_id: 3}


def test_a_signature_that_is_not_by_its_key_is_wrong():
    altered = PROOF.envelope.replace(NODE.key_id, OTHER.key_id)
    event = ScrubPassed("job", replace(PROOF, envelope=altered))
    for keys in ([OTHER.public_key], [NODE.public_key, OTHER.public_key]):
        with pytest.raises(ReceiptError, match="its signature is not by a given key"):
            check(Documents(keys), event)
    check(Documents(), event)


def test_a_document_is_in_one_row_only():
    with pytest.raises(ReceiptError, match="row 0 has the same signed document"):
        check(Documents(), PASSED, closed(), PASSED)


@pytest.mark.parametrize(
    "change", [(":", ": "), ("{", '{"x":1,'), ("}]}", "}]} ")], ids=["a space", "a field", "an end"]
)
def test_a_document_has_one_text(change: tuple[str, str]):
    """With another one, it could be in two rows."""
    changed = PROOF.envelope.replace(*change, 1)
    with pytest.raises(ReceiptError, match="not in the form in which the service writes it"):
        check(Documents([NODE.public_key]), ScrubPassed("job", replace(PROOF, envelope=changed)))


@pytest.mark.parametrize("signers", [(), (NODE, OTHER)], ids=["none", "two"])
def test_a_document_has_one_signature(signers: tuple[WordSigner, ...]):
    envelope = dsse.envelope(dsse.parsed(PROOF.envelope).payload, *signers)
    with pytest.raises(ReceiptError, match=f"its signed document has {len(signers)} signatures, not one"):
        check(Documents([NODE.public_key]), ScrubPassed("job", replace(PROOF, envelope=envelope)))
