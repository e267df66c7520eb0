"""The tree over the rows: what a checkpoint that was kept elsewhere shows, and what a compaction leaves."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Never

import pytest

from ground.errors import LedgerUnavailable
from scrubber.ledger import file, stored, tree
from scrubber.receipts import merkle
from scrubber.receipts.note import Checkpoint
from tests.core import lives
from tests.ledger.conftest import NOW, drafted


def checkpoint(ledger: file.SqliteStore) -> Checkpoint:
    included, _ = ledger.prove(ledger.head.seq)
    return Checkpoint("autoclave/node", included.size, included.root)


def changing(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def forge_tail(path, count: int) -> None:
    """Cut rows off the end as somebody with all rights would: chain, head file and tree agree afterwards."""
    with closing(file.connect(path)) as connection:
        size = file.head_of(connection).seq - count
        connection.execute("DELETE FROM entries WHERE seq > ?", (size,))
        tree.cut(connection, size)
        head = file.head_of(connection)
    path.with_name("ledger.head").write_text(f"{head.seq:020d} {head.hash}\n")


def broken_at(path, newest: Checkpoint) -> int | None:
    broken = file.verify(path, [newest]).broken
    assert broken is not None
    return broken.seq


def test_a_ledger_that_grew_agrees_with_every_older_checkpoint(ledger, path):
    older = []
    for number in range(9):
        ledger.append([drafted(f"tenant {number}")] * (number % 3 + 1))
        older.append(checkpoint(ledger))
    ledger.append([drafted("after the last checkpoint")])
    ledger.close()
    audit = file.verify(path, older)
    assert (audit.broken, audit.vouched, audit.rows) == (None, older[-1].size, older[-1].size + 1)


def test_a_checkpoint_finds_a_tail_cut_off_with_all_rights(ledger, path):
    ledger.append([drafted("a tenant")] * 4)
    first = checkpoint(ledger)
    ledger.append([drafted("a tenant")] * 4)
    newest = checkpoint(ledger)
    ledger.close()
    forge_tail(path, 3)
    assert file.verify(path).broken is None  # nothing else shows it
    audit = file.verify(path, [newest, first])
    assert audit.vouched == first.size
    why = "row 7 is missing: the checkpoint counts 9 rows, and the last one here is 6"
    assert audit.broken == file.Broken(7, f"{why}; rows were cut off, or an older copy was put back")


def test_the_database_of_yesterday_put_back_is_found(open_ledger, path):
    ledger, _ = open_ledger()
    ledger.append([drafted("yesterday")] * 3)
    ledger.close()
    shutil.copytree(path.parent, path.parent.with_name("yesterday"))
    ledger, _ = open_ledger()
    ledger.append([drafted("today")] * 5)
    newest = checkpoint(ledger)
    ledger.close()
    shutil.rmtree(path.parent)
    shutil.copytree(path.parent.with_name("yesterday"), path.parent)
    assert file.verify(path).broken is None
    assert broken_at(path, newest) == 5

    ledger, _ = open_ledger()  # and it goes on from there: two histories of the same length
    ledger.append([drafted("instead of today")] * 5)
    ledger.close()
    audit = file.verify(path, [newest])
    assert audit.broken == file.Broken(
        1, "the rows from 1 to 9 are not those of the checkpoint of 9 rows: there are two histories"
    )


def test_a_compaction_keeps_every_leaf(ledger, path):
    ledger.append([drafted(f"tenant {number}") for number in range(20)])
    before = checkpoint(ledger)
    ledger.compact(lambda records, _: records, 3, NOW, stored.Retention(rows=0))
    ledger.append([drafted("after it")])
    ledger.close()
    audit = file.verify(path, [before])
    assert (audit.broken, audit.vouched) == (None, before.size)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE tree SET hash = zeroblob(32) WHERE level = 0 AND place = 2", "row 3 has another leaf in the tree"),
        ("UPDATE tree SET hash = zeroblob(32) WHERE level = 1 AND place = 0", "level 1 of the tree does not follow"),
        ("DELETE FROM tree WHERE level = 2", "level 2 of the tree does not follow"),
        ("DELETE FROM tree WHERE level = 0 AND place = 4", "the tree has no node 4 on level 0"),
        ("INSERT INTO tree VALUES (0, 5, zeroblob(32))", "the tree has 6 leaves, although the last row is 5"),
        ("INSERT INTO tree VALUES (3, 0, zeroblob(32))", "level 3 of the tree does not follow"),
    ],
)
def test_a_tree_other_than_that_of_the_rows_is_found(ledger, path, change, why):
    ledger.append([drafted("a tenant")] * 4)
    ledger.close()
    changing(path, change)
    broken = file.verify(path).broken
    assert broken is not None
    assert why in broken.why


def test_a_start_finds_the_leaf_of_another_row(open_ledger, path):
    ledger, _ = open_ledger()
    ledger.append([drafted("a tenant")] * 4)
    ledger.close()
    changing(path, "UPDATE tree SET hash = zeroblob(32) WHERE level = 0 AND place = 2")
    _, aside = open_ledger()
    assert aside.why == "row 3 has another leaf in the tree"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DELETE FROM tree WHERE level = 2 AND place = 0", "the tree has no node 0 on level 2"),
        ("INSERT INTO tree VALUES (1, 2, zeroblob(32))", "the tree has nodes on level 1 beyond the last row, of 5"),
    ],
)
def test_a_start_finds_a_tree_that_takes_no_row(open_ledger, path, change, why):
    ledger, _ = open_ledger()
    ledger.append([drafted("a tenant")] * 4)
    ledger.close()
    changing(path, change)
    ledger, aside = open_ledger()
    assert aside is not None
    assert aside.why == why
    ledger.append([drafted("a tenant")] * 4)


def test_evidence_without_its_leaf_is_found(ledger, path):
    ledger.append([drafted(f"tenant {number}") for number in range(9)])
    ledger.compact(lambda records, _: records, 2, NOW)
    ledger.close()
    changing(path, "UPDATE tree SET hash = zeroblob(32) WHERE level = 0 AND place = 1")
    assert file.verify(path).broken == file.Broken(2, "row 2 has another leaf in the tree")


def test_rows_of_a_failed_write_leave_the_tree_with_them(ledger, path, monkeypatch):
    ledger.append([drafted("a tenant")] * 6)

    def fails(*_args: object, **_options: object) -> Never:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(ledger, "_acknowledge", fails)
        with pytest.raises(LedgerUnavailable):
            ledger.append([drafted("not acknowledged")] * 3)
    ledger.append([drafted("the next")])
    ledger.close()
    audit = file.verify(path)
    assert (audit.broken, audit.rows) == (None, 8)


def test_a_forged_row_without_its_receipt_is_named(ledger, path):
    """Whoever computes the chain anew may leave fields out."""
    with ledger._ready() as connection:
        row = stored.unsealed("GPU-1", NOW, "op", "scrub-passed", "{}")
        [forged] = stored.seal(ledger.head, [row])
        connection.execute(file._INSERT, forged)
        connection.execute("INSERT INTO tree VALUES (0, ?, zeroblob(32))", (forged.seq - 1,))
    ledger.close()
    broken = file.verify(path).broken
    assert broken is not None
    assert (broken.seq, "cannot read an event" in broken.why) == (2, True)


def test_the_entry_of_a_receipt_also_names_its_document():
    event = lives.passed(lives.SCRUBBING)
    signed = replace(event, receipt=replace(event.receipt, envelope='{"payload":"e30="}'))
    [row] = stored.rows_after(stored.START, [replace(drafted(), event=signed)])
    row, body = row._replace(hash="ab" * 32), row.body
    assert tree.leaf(row) == merkle.leaf(merkle.entry("ab" * 32, '{"payload":"e30="}'))
    assert tree.leaf(row) != tree.leaf(row._replace(body=body.replace("e30=", "e31=")))
    assert tree.leaf(row._replace(kind="released")) == merkle.leaf(b"ab" * 32)
