"""What a signed receipt adds to a scrub: the signatures, the proof from the ledger's tree, and the files of the tenant.

All of it runs once at the end of a scrub, before the device is called clean. Acquire signs nothing. And how long an
auditor waits for ``autoclave ledger verify --checkpoint``.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, quantile
from ground import log, paths
from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.record import Change
from scrubber.ledger import opening, reading
from scrubber.ledger.sqlite_store import SqliteStore
from scrubber.receipts import key
from scrubber.receipts.notary import Notary, SigningState
from scrubber.receipts.note import Checkpoint
from scrubber.receipts.statement import Program
from scrubber.receipts.tenant_files import TenantFiles
from tests.core import lives

ROWS = 20_000  # of the ledger before
VERIFIED = 100_000  # rows of the ledger that an auditor verifies
AT_ONCE = 1_000


ROW = LedgerEntry(0, lives.DEVICE.uuid, lives.NOW, "op", ev.Described(lives.DEVICE))


async def measure(*, quick: bool) -> list[Figure]:
    """Seal again and again, as for a device that is scrubbed after each tenant."""
    log.configure("warning")  # a checkpoint is a line of the log
    with tempfile.TemporaryDirectory(prefix="autoclave-") as directory:
        state_dir = Path(directory)
        signing, handing, size = _seal_often(state_dir, rounds=50 if quick else 1000)
        seconds = _verify(state_dir / "another", VERIFIED)
    both = [one + other for one, other in zip(signing, handing, strict=True)]
    about = f"a signed receipt, {ROWS} rows in the ledger"
    return [
        Figure(f"{about}: all that it adds to a scrub, p50", quantile(both, 0.5) * 1e3, "ms", len(both), "<= 5 ms"),
        Figure(f"{about}: all that it adds to a scrub, p99", quantile(both, 0.99) * 1e3, "ms", len(both)),
        Figure(f"{about}: its own signature, p50", quantile(signing, 0.5) * 1e3, "ms", len(signing)),
        Figure(f"{about}: size of the envelope", size / 1000, "kB", 1, "<= 3 KB"),
        Figure(f"a ledger of {VERIFIED} rows: verified with a checkpoint", seconds, "s", 1, "<= 5 s"),
    ]


def _seal_often(state_dir: Path, rounds: int) -> tuple[list[float], list[float], int]:
    """Seconds of each signature, seconds of each hand-over to the tenant's directory, bytes of the last envelope."""
    node = key.open_key(state_dir)
    files = TenantFiles(paths.receipts(state_dir), node.secret)
    notary = Notary(node, "autoclave/node", Program("0.1.0"), files, SigningState(), paths.last_checkpoint(state_dir))
    store = _filled(state_dir, ROWS)
    record = lives.live(lives.UNKNOWN, ev.ScrubStarted(lives.job()))
    passed = lives.passed(record)
    files.reconcile([record])
    signing, handing, size = [], [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        receipt = notary.seal(record, passed.receipt)
        signing.append(time.perf_counter() - began)
        [entry] = store.append([replace(ROW, event=replace(passed, receipt=receipt))])
        after = lives.live(record, passed)
        after = replace(after, scrubs=replace(after.scrubs, receipt=receipt))
        began = time.perf_counter()
        notary.recorded([Change(entry, record, after)], store.prove)
        handing.append(time.perf_counter() - began)
        size = len(receipt.envelope)
        files.changed(after, record, "", "")
    store.close()
    return signing, handing, size


def _verify(state_dir: Path, rows: int) -> float:
    """Seconds to verify a ledger, with a checkpoint of all its rows."""
    store = _filled(state_dir, rows)
    included, _ = store.prove(store.head.size)
    store.close()
    began = time.perf_counter()
    result = reading.verify(paths.ledger(state_dir), [Checkpoint("autoclave/node", included.size, included.root)])
    seconds = time.perf_counter() - began
    if result.broken is not None or result.vouched != included.size:
        raise RuntimeError(f"the ledger does not hold: {result}")
    return seconds


def _filled(state_dir: Path, rows: int) -> SqliteStore:
    """A ledger with so many rows."""
    store, _ = opening.open_or_set_aside(paths.ledger(state_dir), lives.NOW)
    store.append([replace(ROW, event=ev.Discovered(lives.DEVICE, lives.HERE))])
    for _ in range(rows // AT_ONCE):
        store.append([ROW] * AT_ONCE)
    return store
