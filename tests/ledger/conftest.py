"""What the ledger's tests share: drafts, and stores that are closed at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.core.record import Record
from scrubber.ledger import opening, reading
from scrubber.ledger.sqlite_store import SqliteStore
from scrubber.receipts import merkle
from scrubber.receipts.note import Checkpoint

NOW = Moment(1_750_000_000.25, 1234.5)


def drafted(
    why: str = "its pod is gone", device: str = "GPU-1", wall: float = NOW.wall, uptime: float = NOW.uptime
) -> LedgerEntry:
    return LedgerEntry(0, device, Moment(wall, uptime), "op-1", events.Released(why))


@dataclass(frozen=True)
class Unfolded:
    """What a store has: the records at the last compaction, the entries since then, and its head."""

    snapshot: tuple[Record, ...]
    entries: tuple[LedgerEntry, ...]
    head: merkle.Head


def verify(path: Path, checkpoints: Iterable[Checkpoint] = ()) -> reading.Audit:
    """As the command does, but the rows may contradict each other: most tests here are about rows of any kind."""
    return reading.verify(path, checkpoints, fold=lambda records, _: records)


def unfolded(kept):
    entries: list[LedgerEntry] = []

    def collect(records: tuple[Record, ...], part: Sequence[LedgerEntry]) -> tuple[Record, ...]:
        entries.extend(part)
        return records

    loaded = kept.load(collect)
    assert loaded.rows == len(entries)
    return Unfolded(loaded.records, tuple(entries), loaded.head)


@pytest.fixture
def draft():
    return drafted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


@pytest.fixture
def open_ledger(path):
    opened: list[SqliteStore] = []

    def open_() -> tuple[SqliteStore, opening.SetAside | None]:
        ledger, aside = opening.open_or_set_aside(path, NOW)
        opened.append(ledger)
        return ledger, aside

    yield open_
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger):
    return open_ledger()[0]
