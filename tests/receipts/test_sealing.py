"""What is signed when a scrub has passed, for whom, and what follows if nothing can be signed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import structlog.testing

from ground import paths
from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Owner
from scrubber.core.record import Change, Record
from scrubber.receipts import dsse, key
from scrubber.receipts.key import FileKey
from scrubber.receipts.merkle import Inclusion
from scrubber.receipts.notary import Notary, SigningState
from scrubber.receipts.statement import Program, handover_digest
from scrubber.receipts.tenant_files import TenantFiles, handover_id, owner_digest
from tests.core import lives

SCRUBBED = lives.live(lives.UNKNOWN, ev.ScrubStarted(lives.job()))
PASSED = lives.passed(SCRUBBED)


@pytest.fixture
def node(tmp_path: Path) -> FileKey:
    tmp_path.chmod(0o700)
    return key.open_key(tmp_path)


@pytest.fixture
def notary(tmp_path: Path, node: FileKey) -> Notary:
    files = TenantFiles(paths.receipts(tmp_path), node.secret)
    files.reconcile([SCRUBBED])
    return Notary(node, "autoclave/node", Program("0.1.0"), files, SigningState(), paths.last_checkpoint(tmp_path))


def test_a_receipt_is_sealed_for_the_coming_handover(notary: Notary, node: FileKey) -> None:
    sealed = notary.seal(SCRUBBED, PASSED.receipt)
    assert replace(sealed, envelope="") == PASSED.receipt
    statement = json.loads(dsse.opened(sealed.envelope, [node.public_key]))
    coming, boot_id = handover_id(node.secret, "GPU-1", SCRUBBED.tenancy.number), PASSED.receipt.incarnation.boot_id
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert digests == {"hand-over": handover_digest("GPU-1", boot_id, coming), "receipt": PASSED.receipt.digest}


@pytest.mark.parametrize(
    ("record", "owner"),
    [
        (SCRUBBED, ""),
        (lives.but(SCRUBBED, last_owner="pod-1"), "pod-1"),
        (lives.but(SCRUBBED, last_owner="pod-1", left_by="job-7"), "job-7"),  # the pod was there before the job
    ],
)
def test_the_last_owner_is_the_one_before_this_scrub(
    notary: Notary, node: FileKey, record: Record, owner: str
) -> None:  # fmt: skip
    statement = json.loads(dsse.opened(notary.seal(record, PASSED.receipt).envelope, [node.public_key]))
    expected = owner_digest(node.secret, handover_id(node.secret, "GPU-1", record.tenancy.number), owner)
    assert statement["predicate"]["receipt"].get("lastOwner", "") == expected


def test_a_signer_that_fails_leaves_the_receipt_unsigned(notary: Notary, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError("no signer")

    monkeypatch.setattr(FileKey, "sign", fail)
    with structlog.testing.capture_logs() as lines:
        assert notary.seal(SCRUBBED, PASSED.receipt) == PASSED.receipt
    assert [(line["event"], line["log_level"]) for line in lines] == [("cannot sign a receipt", "error")]


def test_nothing_is_signed_while_a_pod_waits(notary: Notary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a grant nor a start nor a release signs anything, or asks for a proof."""
    clean = lives.live(SCRUBBED, PASSED)
    events = (ev.Granted(lives.grant(clean)), ev.PutInUse(Owner(lives.A, lives.NOW)), ev.Released("it has ended"))
    signed: list[bytes] = []

    def sign(_key: FileKey, message: bytes) -> bytes:
        signed.append(message)
        return bytes(64)

    def prove(seq: int) -> tuple[Inclusion, str]:
        pytest.fail(f"row {seq} was proven")

    monkeypatch.setattr(FileKey, "sign", sign)

    record = clean
    for event in events:
        after = lives.live(record, event)
        entry = LedgerEntry(1, record.device.uuid, lives.NOW, "op", event)
        notary.recorded([Change(entry, record, after)], prove)
        record = after
    assert signed == []
    notary.seal(SCRUBBED, PASSED.receipt)
    assert len(signed) == 1
