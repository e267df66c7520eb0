"""What the notary leaves for a tenant, and when."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from scrubber.core import events as ev
from scrubber.core.model import Receipt, State
from scrubber.core.record import Change, Record
from scrubber.ledger.ledger import Ledger
from scrubber.receipts import dsse, key
from scrubber.receipts.merkle import Inclusion
from scrubber.receipts.notary import Notary, SigningState
from scrubber.receipts.statement import Program, handover_digest
from scrubber.receipts.tenant_files import ENVELOPE, PROOF, TenantFiles
from tests.core import lives
from tests.ledger.memory_store import MemoryStore

DEVICE = lives.DEVICE.uuid


class Watched(Notary):
    """Notes after each row what a reader of the ledger and a tenant could see at that moment."""

    ledger: Ledger

    def __init__(self, signer: key.FileKey, files: TenantFiles, newest_in: Path) -> None:
        super().__init__(signer, "autoclave/node", Program("1"), files, SigningState(), newest_in)
        self.seen: list[tuple[State | None, list[str]]] = []

    def recorded(self, changes: Sequence[Change], prove: Callable[[int], tuple[Inclusion, str]]) -> None:
        super().recorded(changes, prove)
        record = self.ledger.records.get(DEVICE)
        there = sorted(path.name for path in self.files.path(changes[-1].after).iterdir())
        self.seen.append((record.state if record is not None else None, there))


async def test_the_files_are_there_before_the_device_counts_as_clean(tmp_path: Path) -> None:
    """Allocate and PreStart read the ledger: what they let start finds its receipt."""
    signer = key.open_key(tmp_path)
    notary = Watched(signer, TenantFiles(tmp_path / "receipts", signer.secret), tmp_path / "newest")
    notary.files.reconcile(())
    ledger = notary.ledger = Ledger(MemoryStore(), lambda: lives.NOW)
    ledger.notary = notary
    await ledger.append("op", (DEVICE, ev.Discovered(lives.DEVICE, lives.HERE)))
    await ledger.append("op", (DEVICE, ev.ScrubStarted(lives.job())))
    record: Record = ledger.records[DEVICE]
    passed = lives.passed(record)
    receipt: Receipt = notary.seal(record, passed.receipt)
    await ledger.append("op", (DEVICE, replace(passed, receipt=receipt)))
    assert notary.seen == [(None, []), (State.UNKNOWN, []), (State.SCRUBBING, [ENVELOPE, PROOF])]
    assert ledger.records[DEVICE].state is State.CLEAN
    folder = notary.files.path(ledger.records[DEVICE])
    statement = json.loads(dsse.opened((folder / ENVELOPE).read_text(), [signer.public_key]))
    assert statement["subject"][0]["digest"]["sha256"] == handover_digest(DEVICE, lives.HERE.boot_id, folder.name)
    await ledger.append("op", (DEVICE, ev.Distrusted("a reload", lives.RELOADED)))
    assert notary.seen[-1] == (State.CLEAN, []), "a proof that has ended is shown to nobody before"
    await ledger.close()


async def test_a_checkpoint_that_cannot_be_signed_stops_nothing(tmp_path: Path) -> None:
    signer = key.open_key(tmp_path)
    ledger = Ledger(MemoryStore(), lambda: lives.NOW)
    files = TenantFiles(tmp_path / "receipts", signer.secret)
    ledger.notary = Notary(signer, "autoclave/n\udce9", Program("1"), files, SigningState(), tmp_path / "newest")
    await ledger.append("op", (DEVICE, ev.Discovered(lives.DEVICE, lives.HERE)))
    await ledger.checkpoint()
    assert ledger.fault is None
    await ledger.close()
