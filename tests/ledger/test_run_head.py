"""The head in the run directory: it shows that the state directory was put back to an older copy."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from ground.errors import LedgerUnavailable
from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.ledger import ledger_rows, opening
from scrubber.ledger.sqlite_store import SqliteStore
from tests.ledger.conftest import NOW, unfolded


class Node:
    """The state directory, the run directory, and a ledger that is opened anew each time."""

    def __init__(self, root, draft) -> None:
        self.state, self.copy, self.head = root / "state", root / "copy", root / "run" / "ledger.head"
        self.head.parent.mkdir()
        self.draft, self.written = draft, 0
        self.opened: list[SqliteStore] = []

    def may_be_old(self, *, rows=0):
        """What a service finds that starts, writes some rows and ends."""
        ledger, aside = opening.open_or_set_aside(self.state / "ledger.db", NOW, run_head=self.head)
        self.opened.append(ledger)
        assert aside is None
        may_be_old = ledger.load().may_be_old
        for _ in range(rows):
            self.written += 1
            ledger.append([self.draft(f"row {self.written}")])
        ledger.close()
        return may_be_old

    def keep_copy(self):
        shutil.copytree(self.state, self.copy)

    def put_copy_back(self):
        shutil.rmtree(self.state)
        shutil.copytree(self.copy, self.state)


@pytest.fixture
def node(tmp_path, draft):
    """A ledger of some rows."""
    it = Node(tmp_path, draft)
    it.may_be_old(rows=3)
    yield it
    for each in it.opened:
        each.close()


def test_a_restart_finds_the_newest_ledger(node):
    assert [node.may_be_old(rows=2) for _ in range(3)] == [False] * 3


def test_an_older_copy_may_be_old_until_its_next_row(node):
    node.keep_copy()
    node.may_be_old(rows=1)
    node.put_copy_back()
    assert [node.may_be_old(rows=rows) for rows in (0, 0, 1, 0)] == [True, True, True, False]


def test_a_note_does_not_vouch_for_an_older_copy(node):
    node.keep_copy()
    node.may_be_old(rows=1)
    node.put_copy_back()
    ledger, _ = opening.open_or_set_aside(node.state / "ledger.db", NOW, run_head=node.head)
    ledger.load()
    ledger.write_note(ledger_rows.KEY, NOW, {"key": "ab"})
    ledger.append([LedgerEntry(0, ev.NODE, NOW, "", ev.ServiceStarted("0.1.0"))])
    ledger.close()
    assert node.may_be_old()


def test_an_older_copy_that_has_grown_since_may_be_old(node):
    node.keep_copy()
    node.may_be_old(rows=1)
    head = node.head.read_bytes()
    node.put_copy_back()
    node.may_be_old(rows=5)
    node.head.write_bytes(head)
    assert node.may_be_old()


NOTHING = f"{0:020d} {hashlib.sha256().hexdigest()}\n".encode()  # the head of a ledger without rows


@pytest.mark.parametrize("content", [None, b"", b"nonsense", NOTHING], ids=["missing", "empty", "damaged", "of no row"])
def test_a_ledger_without_a_run_head_may_be_old(node, content):
    node.head.unlink()
    if content is not None:
        node.head.write_bytes(content)
    assert node.may_be_old()


def test_a_kill_between_row_and_head_is_no_rollback(node):
    head = node.head.read_bytes()
    node.may_be_old(rows=1)
    node.head.write_bytes(head)
    assert not node.may_be_old()


def test_a_row_whose_head_cannot_be_stored_never_counts(tmp_path, draft):
    run = tmp_path / "run"
    run.mkdir()
    ledger, _ = opening.open_or_set_aside(tmp_path / "state/ledger.db", NOW, run_head=run / "ledger.head")
    ledger.disconnect()  # as after a failed write
    run.rename(tmp_path / "away")
    with pytest.raises(LedgerUnavailable):
        ledger.append([draft("a")])
    (tmp_path / "away").rename(run)
    assert unfolded(ledger).entries == ()
    [entry] = ledger.append([draft("b")])
    assert unfolded(ledger).entries == (entry,)
    ledger.close()
