"""The tree over the rows: what a checkpoint that was kept elsewhere shows, and what a compaction leaves."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Never

import pytest

from ground.errors import LedgerUnavailable
from scrubber.core import events
from scrubber.core.model import Moment, Step
from scrubber.ledger import compaction, database, ledger_rows, reading, tree
from scrubber.ledger.sqlite_store import SqliteStore
from scrubber.receipts import merkle
from scrubber.receipts.note import Checkpoint
from tests.core import lives
from tests.ledger.conftest import NOW, drafted, verify

STEP = events.StepsRecorded("job", (), Step.CLEAR)


def checkpoint(ledger: SqliteStore) -> Checkpoint:
    included, _ = ledger.prove(ledger.head.size)
    return Checkpoint("autoclave/node", included.size, included.root)


def changing(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def forge_tail(path, count: int) -> None:
    """Cut rows off the end as somebody with all rights would: rows, tree and head file agree afterwards."""
    with closing(database.connect(path)) as connection:
        size = database.tree_of(connection).size - count
        connection.execute("DELETE FROM entries WHERE seq > ?", (size,))
        tree.cut(connection, size)
        head = merkle.Head.of(database.tree_of(connection))
    path.with_name("ledger.head").write_text(f"{head.size:020d} {head.root}\n")


def broken_at(path, newest: Checkpoint) -> int | None:
    broken = verify(path, [newest]).broken
    assert broken is not None
    return broken.seq


def test_a_ledger_that_grew_agrees_with_every_older_checkpoint(ledger, path):
    older = []
    for number in range(9):
        ledger.append([drafted(f"tenant {number}")] * (number % 3 + 1))
        older.append(checkpoint(ledger))
    ledger.append([drafted("after the last checkpoint")])
    ledger.close()
    result = verify(path, older)
    assert (result.broken, result.vouched, result.rows) == (None, older[-1].size, older[-1].size + 1)


def test_a_checkpoint_finds_a_tail_cut_off_with_all_rights(ledger, path):
    ledger.append([drafted("a tenant")] * 4)
    first = checkpoint(ledger)
    ledger.append([drafted("a tenant")] * 4)
    newest = checkpoint(ledger)
    ledger.close()
    forge_tail(path, 3)
    assert verify(path).broken is None  # nothing else shows it
    result = verify(path, [newest, first])
    assert result.vouched == first.size
    why = "row 7 is missing: the checkpoint counts 9 rows, and the last one here is 6"
    assert result.broken == reading.Broken(
        7,
        f"{why}; rows were cut off, an older copy was put back, or the checkpoint was signed after this copy was made",
    )


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
    assert verify(path).broken is None
    assert broken_at(path, newest) == 5

    ledger, _ = open_ledger()  # and it goes on from there: two histories of the same length
    ledger.append([drafted("instead of today")] * 5)
    ledger.close()
    result = verify(path, [newest])
    assert result.broken == reading.Broken(
        1,
        "the rows from 1 to 9 are not those of the checkpoint of 9 rows: "
        "there are two histories, or the checkpoint is of another ledger that this node had",
    )


def test_a_compaction_keeps_every_leaf(ledger, path):
    ledger.append([drafted(f"tenant {number}") for number in range(20)])
    before = checkpoint(ledger)
    ledger.compact(lambda records, _: records, 3, NOW, compaction.Retention(rows=0))
    ledger.append([drafted("after it")])
    ledger.close()
    result = verify(path, [before])
    assert (result.broken, result.vouched) == (None, before.size)


# -- the rows and their tree, as values

AT = Moment(1.5, 2.5)
ROWS = tuple(ledger_rows.new_row(seq, "GPU-1", AT, "op", "released", '{"why":"x"}') for seq in range(1, 5))
FORGED = (ROWS[0]._replace(device="GPU-2"), *ROWS[1:])
SNAPSHOT = compaction.Snapshot(4, "[]")
COMPACTION = (compaction.compaction(5, AT, SNAPSHOT),)
NOTE = (ledger_rows.new_note(5, ledger_rows.BEGUN, AT, {}),)


def head_of(rows):
    frontier = merkle.Frontier()
    for row in rows:
        frontier, _ = frontier.grown(tree.leaf(row))
    return merkle.Head.of(frontier)


@contextmanager
def planted(rows):
    """A file with the tree of these rows, and no row."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(tree.SCHEMA)
        tree.append(connection, merkle.Frontier(), rows)
        yield connection


def refused(connection, snapshot, rows, noted) -> ledger_rows.CorruptLedgerError:
    with pytest.raises(ledger_rows.CorruptLedgerError) as caught:
        list(tree.check(connection, snapshot, rows, noted))
    return caught.value


@pytest.mark.parametrize(
    ("snapshot", "rows", "noted"),
    [
        (None, ROWS, head_of(ROWS)),
        (None, ROWS, head_of(ROWS[:2])),
        (None, ROWS[:1], None),
        (SNAPSHOT, COMPACTION, head_of(ROWS + COMPACTION)),
        (SNAPSHOT, COMPACTION, head_of(ROWS[:3])),
    ],
    ids=["up to the head", "beyond the head", "the first row without a head", "compacted", "a head before the cut"],
)
def test_rows_as_they_were_written_are_sound(snapshot, rows, noted):
    with planted((ROWS if snapshot else ()) + rows) as connection:
        assert tuple(tree.check(connection, snapshot, rows, noted)) == rows


@pytest.mark.parametrize(
    ("rows", "of_tree", "noted", "named", "why"),
    [
        (ROWS[1:], ROWS, head_of(ROWS), 1, "expected row 1, found row 2"),
        (ROWS[:1] + ROWS[2:], ROWS, head_of(ROWS), 2, "expected row 2, found row 3"),
        (ROWS[:3], ROWS, head_of(ROWS), 4, "the last rows are lost, the head file counts 4 rows"),
        (ROWS[:2], ROWS[:2], head_of(ROWS), 3, "the last rows are lost, the head file counts 4 rows"),
        ((*ROWS[:2], ROWS[3]._replace(seq=3), ROWS[2]._replace(seq=4)), ROWS, head_of(ROWS), 3, "does not match its"),
        (FORGED, ROWS, head_of(ROWS), 1, "row 1 does not match its leaf"),
        (FORGED, FORGED, head_of(ROWS), None, "the rows up to 4 are not those of the head file"),
        (FORGED, FORGED, head_of(ROWS[:2]), None, "the rows up to 2 are not those of the head file"),
        (ROWS[:2], ROWS, head_of(ROWS[:2]), None, "nodes on level 0 beyond the last row, of 2"),
        (ROWS, ROWS, None, None, "the head file is missing"),
        (ROWS, ROWS, head_of(()), None, "the rows up to 0 are not those of the head file"),
        ((), (), None, None, "the head file is missing"),
    ],
    ids=["first missing", "second missing", "last missing", "two missing", "another order", "changed",
         "a tree computed anew", "a tree computed anew, an older head", "a longer tree",
         "no head", "a head of nothing", "nothing"],
)  # fmt: skip
def test_rows_other_than_those_of_the_head_are_found(rows, of_tree, noted, named, why):
    with planted(of_tree) as connection:
        error = refused(connection, None, rows, noted)
    assert error.seq == named
    assert why in error.message


@pytest.mark.parametrize(
    ("snapshot", "rows"),
    [
        (replace(SNAPSHOT, records="[ ]"), COMPACTION),
        (replace(SNAPSHOT, batches=(compaction.Batch(4, 1, 1.0, "ab"),)), COMPACTION),
        (replace(SNAPSHOT, cut=3), ROWS[3:] + COMPACTION),
        (None, ROWS + COMPACTION),
        (SNAPSHOT, NOTE),
    ],
    ids=["records", "evidence", "cut", "rows came back", "no row of a compaction"],
)
def test_a_snapshot_that_no_row_vouches_for_is_found(snapshot, rows):
    every = ROWS + rows[-1:]
    with planted(every) as connection:
        assert "the snapshot is not valid" in refused(connection, snapshot, rows, head_of(every)).message


# -- and in a file


FOLLOWS = "does not follow from them"


@pytest.mark.parametrize(
    ("change", "named", "why"),
    [
        ("UPDATE tree SET hash = zeroblob(32) WHERE level = 0 AND place = 2", 3, "row 3 does not match its leaf"),
        ("UPDATE tree SET hash = zeroblob(32) WHERE level = 1 AND place = 1", 3, f"above the rows 3 to 4 {FOLLOWS}"),
        ("DELETE FROM tree WHERE level = 2", 1, f"above the rows 1 to 4 {FOLLOWS}"),
        ("DELETE FROM tree WHERE level = 0 AND place = 4", 5, "row 5 does not match its leaf"),
        ("INSERT INTO tree VALUES (0, 5, zeroblob(32))", None, "nodes on level 0 beyond the last row, of 5"),
        ("INSERT INTO tree VALUES (3, 0, zeroblob(32))", None, "nodes on level 3 beyond the last row, of 5"),
    ],
)
def test_a_tree_other_than_that_of_the_rows_is_found(open_ledger, path, change, named, why):
    ledger, _ = open_ledger()
    ledger.append([drafted("a tenant")] * 4)
    ledger.close()
    changing(path, change)
    broken = verify(path).broken
    assert broken is not None
    assert broken.seq == named
    assert why in broken.why
    ledger, aside = open_ledger()
    assert aside is not None
    assert aside.why == broken.why
    ledger.append([drafted("a tenant")] * 4)


@pytest.mark.parametrize(("levels", "named"), [(0, 6), (1, 5), (2, 5), (3, 1), (4, None)])
def test_a_changed_row_is_found_however_much_is_recomputed(open_ledger, path, levels, named):
    """So many levels of the tree are those of the changed row; only the last case has all of them."""
    ledger, _ = open_ledger()
    ledger.append([drafted(f"tenant {number}") for number in range(8)])
    ledger.close()
    with closing(database.connect(path)) as connection:
        connection.execute("UPDATE entries SET body = replace(body, 'tenant', 'nobody') WHERE seq = 6")
        frontier = merkle.Frontier()
        for row in list(database.rows(connection)):
            frontier, completed = frontier.grown(tree.leaf(row))
            for level, place, node in completed:
                if level < levels:
                    connection.execute("UPDATE tree SET hash = ? WHERE level = ? AND place = ?", (node, level, place))
    broken = verify(path).broken
    assert broken is not None
    assert (broken.seq, "of the head file" in broken.why) == (named, levels == 4)
    assert open_ledger()[1] is not None


@pytest.mark.parametrize(
    ("change", "named"),
    [("level = 0 AND place = 1", 2), ("level = 0 AND place = 2", 3), ("level = 1 AND place = 0", 1)],
)
def test_the_tree_above_folded_rows_is_verified_too(ledger, path, change, named):
    """Row 3 is no evidence, so that only the node above it shows another leaf."""
    ledger.append([drafted("a tenant"), replace(drafted(), event=STEP), *(drafted(str(it)) for it in range(7))])
    ledger.compact(lambda records, _: records, 2, NOW)
    ledger.close()
    assert verify(path).broken is None
    changing(path, f"UPDATE tree SET hash = zeroblob(32) WHERE {change}")  # noqa: S608 - our own words
    broken = verify(path).broken
    assert broken is not None
    assert broken.seq == named


def test_a_row_changed_since_the_start_is_not_folded(ledger, path):
    ledger.append([drafted(f"tenant {number}") for number in range(9)])
    changing(path, "UPDATE entries SET body = replace(body, 'tenant', 'nobody') WHERE seq = 4")
    with pytest.raises(ledger_rows.CorruptLedgerError, match="row 4 does not match its leaf"):
        ledger.compact(lambda records, _: records, 2, NOW)


def test_two_equal_events_have_leaves_that_tell_nothing(ledger):
    """A tenant gets the leaf beside its own: whoever guesses what happened must not find out from it."""
    ledger.append([drafted("a tenant")] * 2)
    with ledger._ready() as connection:
        [first, second] = database.rows(connection, first=2)
    salts = [row.salt.removeprefix(ledger_rows.MARKED) for row in (first, second)]
    assert [len(bytes.fromhex(salt)) for salt in salts] == [16, 16]
    assert first._replace(seq=second.seq).hash != second.hash


@pytest.mark.parametrize(
    ("write", "rows", "last"),
    [
        (lambda ledger: ledger.append([drafted("not acknowledged")] * 3), 8, 8),
        (lambda ledger: ledger.compact(lambda records, _: records, 2, NOW), 4, 9),
    ],
    ids=["an append is removed", "a compaction stays"],
)
def test_after_a_failed_write_the_tree_is_that_of_rows(ledger, path, monkeypatch, write, rows, last):
    """It failed when it was in the file: a compaction changes no fact, and its rows are gone."""

    def fails(*_args: object, **_options: object) -> Never:
        raise OSError(5, "Input/output error")

    ledger.append([drafted("a tenant")] * 6)
    with monkeypatch.context() as broken:
        broken.setattr(ledger, "_acknowledge", fails)
        with pytest.raises(LedgerUnavailable):
            write(ledger)
    ledger.append([drafted("the next")])
    ledger.close()
    result = verify(path)
    assert (result.broken, result.rows, result.last) == (None, rows, last)


def test_a_tree_changed_by_another_program_stops_the_writer(ledger, path):
    """The next row would be of a tree that nobody has acknowledged."""
    ledger.append([drafted("a tenant")] * 6)
    ledger.disconnect()  # as after a failed write
    changing(path, "UPDATE tree SET hash = zeroblob(32) WHERE level = 2 AND place = 0")
    with pytest.raises(ledger_rows.CorruptLedgerError, match="another program changed it"):
        ledger.append([drafted("the next")])


def test_a_forged_row_without_its_receipt_is_named(ledger, path):
    """Whoever computes the tree anew may leave fields out."""
    with ledger._ready() as connection:
        forged = ledger_rows.new_row(2, "GPU-1", NOW, "op", "scrub-passed", "{}")
        connection.execute(database._INSERT, forged)
        connection.execute("INSERT INTO tree VALUES (0, ?, zeroblob(32))", (forged.seq - 1,))
    ledger.close()
    broken = verify(path).broken
    assert broken is not None
    assert (broken.seq, "cannot read an event" in broken.why) == (2, True)


def test_the_entry_of_a_receipt_also_names_its_document():
    event = lives.passed(lives.SCRUBBING)
    signed = replace(event, receipt=replace(event.receipt, envelope='{"payload":"e30="}'))
    [row] = ledger_rows.rows_after(0, [replace(drafted(), event=signed)])
    assert tree.leaf(row) == merkle.leaf_of_row(row.hash, '{"payload":"e30="}')
    other = row._replace(kind="released")
    assert tree.leaf(other) == merkle.leaf(other.hash.encode())
