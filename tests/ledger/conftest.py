"""What the ledger's tests share: drafts, and stores that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ledger import opening, sqlite

NOW = Moment(1_750_000_000.25, 1234.5)

Drafter = Callable[..., LedgerEntry]
Opener = Callable[[], tuple[sqlite.SqliteStore, opening.SetAside | None]]


@pytest.fixture
def draft() -> Drafter:
    def make(why: str = "its pod is gone", device: str = "GPU-1", wall: float = NOW.wall) -> LedgerEntry:
        return LedgerEntry(0, device, Moment(wall, NOW.uptime), "op-1", events.Released(why))

    return make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.sqlite"


@pytest.fixture
def open_ledger(path: Path) -> Iterator[Opener]:
    opened: list[sqlite.SqliteStore] = []

    def open_() -> tuple[sqlite.SqliteStore, opening.SetAside | None]:
        it, aside = opening.open_or_set_aside(path, NOW)
        opened.append(it)
        return it, aside

    yield open_
    for it in opened:
        it.close()


@pytest.fixture
def ledger(open_ledger: Opener) -> sqlite.SqliteStore:
    return open_ledger()[0]
