"""`ledger verify`: one flipped byte is found and its row named, whatever the byte was."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ground.errors import FatalError, LedgerUnavailable
from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.ledger import ledger_rows, opening, reading, tree
from tests.ledger.conftest import unfolded, verify

NOW = Moment(1_750_000_000.25, 1234.5)
COLUMNS = ("device", "wall", "uptime", "op", "kind", "body", "salt")
READ = {name: f"SELECT {name} FROM entries WHERE seq = ?" for name in COLUMNS}  # noqa: S608 - our own column names
CAST = "CASE typeof(?1) WHEN 'blob' THEN CAST(?1 AS TEXT) ELSE ?1 END"  # bytes that are no longer text, as text
WRITE = {name: f"UPDATE entries SET {name} = {CAST} WHERE seq = ?2" for name in COLUMNS}  # noqa: S608 - our own column names


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A compacted ledger of rows 16 to 36, closed."""
    path = tmp_path_factory.mktemp("sample") / "ledger.sqlite"
    ledger, _ = opening.open_or_set_aside(path, NOW)
    for number in range(34):
        ledger.append([LedgerEntry(0, f"GPU-{number % 2}", NOW, "op-1", events.Released(f"reason {number}"))])
    ledger.compact(lambda records, _: records, 20, NOW)
    ledger.close()
    return path


@pytest.fixture(scope="module")
def scratch(sample, tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / sample.name


def renew(sample, scratch):
    for child in scratch.parent.iterdir():
        child.unlink()
    for name in (sample.name, "ledger.head"):
        shutil.copy(sample.with_name(name), scratch.with_name(name))


@contextmanager
def changing(sample, scratch):
    """A connection to a new copy."""
    renew(sample, scratch)
    with closing(sqlite3.connect(scratch, isolation_level=None)) as connection:
        yield connection


def everything(path):
    """All that is stored, None when it cannot be read."""
    try:
        return list(reading.export(path))
    except (ledger_rows.CorruptLedgerError, FatalError):
        return None


def test_a_sound_ledger_is_found_sound(sample):
    verdict = verify(sample)
    assert verdict.broken is None
    assert verdict.rows == 21
    assert verdict.head is not None
    assert verdict.head.size == verdict.last == 36


@given(seq=st.integers(16, 36), column=st.sampled_from(COLUMNS), data=st.data())
def test_one_flipped_byte_of_a_row_names_the_row(sample, scratch, seq, column, data):
    with changing(sample, scratch) as connection:
        value = connection.execute(READ[column], (seq,)).fetchone()[0]
        if isinstance(value, str):
            flipped = bytearray(value.encode() or b"\0")  # a note of the ledger's own names no device
            flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= data.draw(st.integers(1, 255))
            connection.execute(WRITE[column], (flipped, seq))
        else:
            other = data.draw(st.floats(allow_nan=False).filter(lambda it: it != value))
            connection.execute(WRITE[column], (other, seq))
    broken = verify(scratch).broken
    assert broken is not None
    assert broken.seq == seq


def test_a_row_of_nested_json_is_named_and_exported(sample, scratch):
    nested = '{"receipt":' * 25_000
    with changing(sample, scratch) as connection:
        connection.execute("UPDATE entries SET kind = ?, body = ? WHERE seq = 20", (tree.PASSED, nested))
    broken = verify(scratch).broken
    assert broken is not None
    assert (broken.seq, nested in broken.why) == (20, False)
    assert [row["body"] for row in reading.export(scratch) if row.get("seq") == 20] == [nested]


@given(seq=st.integers(16, 36), other=st.integers(-(2**63), 2**63 - 1))
def test_a_row_that_was_renumbered_is_noticed(sample, scratch, seq, other):
    with changing(sample, scratch) as connection:
        taken = {row[0] for row in connection.execute("SELECT seq FROM entries")}
        if other in taken:
            return
        connection.execute("UPDATE entries SET seq = ? WHERE seq = ?", (other, seq))
    broken = verify(scratch).broken
    assert broken is not None
    assert broken.seq in {seq, 16}


def believed(sample):
    """What decisions depend on."""
    ledger, _ = opening.open_or_set_aside(sample, NOW)
    loaded = unfolded(ledger)
    ledger.close()
    return loaded.snapshot, loaded.entries


@pytest.mark.parametrize(
    "change",
    ["UPDATE evidence SET body = replace(body, 'reason', 'season') WHERE seq = 3", "DELETE FROM evidence WHERE seq = 3",
     "UPDATE evidence SET seq = 500 WHERE seq = 3", "UPDATE evidence SET seq = -9223372036854775808 WHERE seq = 3",
     "DELETE FROM evidence", "UPDATE evidence SET salt = op", "UPDATE evidence SET warning = 1 WHERE seq = 3",
     "INSERT INTO tree VALUES (-1, 0, zeroblob(32))", "INSERT INTO tree VALUES (0, -1, zeroblob(32))"],
)  # fmt: skip
def test_changed_evidence_is_noticed_and_stops_nothing(sample, scratch, change):
    with changing(sample, scratch) as connection:
        connection.execute(change)
    assert verify(scratch).broken is not None
    assert believed(scratch) == believed(sample)


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO evidence SELECT -seq, device, wall, uptime, op, kind, body, salt, 1 FROM entries",
        "INSERT INTO evidence SELECT seq + 900, device, wall, uptime, op, kind, body, salt, 1 FROM entries",
        "INSERT INTO batches VALUES (1, 1, 1.0, 'x')",
    ],
)
def test_evidence_in_a_ledger_that_folded_no_row_is_noticed(tmp_path, change):
    """History and the list of hand-overs show such rows."""
    ledger, _ = opening.open_or_set_aside(path := tmp_path / "ledger.db", NOW)
    ledger.append([LedgerEntry(0, "GPU-0", NOW, "op-1", events.Released("reason"))])
    ledger.close()
    assert verify(path).broken is None
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(change)
    assert verify(path).broken is not None


@given(data=st.data())
def test_one_flipped_byte_of_the_file_is_found_or_harmless(sample, scratch, data):
    """Never a traceback, and never "sound" when anything that was stored reads differently."""
    renew(sample, scratch)
    raw = bytearray(sample.read_bytes())
    offset = data.draw(st.one_of(st.integers(0, 99), st.integers(0, len(raw) - 1)))
    raw[offset] ^= data.draw(st.integers(1, 255))
    scratch.write_bytes(raw)
    try:
        verdict = verify(scratch)
    except FatalError:
        return  # the schema version itself was hit: refused as newer
    if verdict.broken is None:
        assert everything(scratch) == everything(sample)
    ledger, aside = opening.open_or_set_aside(scratch, NOW)
    loaded = unfolded(ledger)
    ledger.close()
    # No decision depends on the evidence. If its damage set the ledger aside, the quarantines would be lost.
    assert (aside is not None) <= (verdict.broken is not None)
    assert len(loaded.entries) == (0 if aside else 20)
    if aside is None:
        assert (loaded.snapshot, loaded.entries) == believed(sample)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("CREATE TABLE more (a)", "table more is not as this program creates it"),
        ("CREATE INDEX quick ON entries (op)", "index quick is not as"),
        ("CREATE VIEW seen AS SELECT * FROM entries", "view seen is not as"),
        ("CREATE TRIGGER never BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END", "trigger never is not as"),
        ("DROP TABLE snapshot; CREATE TABLE snapshot (one, cut, records)", "table snapshot is not as"),
        ("UPDATE snapshot SET records = '[ ]'", "the snapshot is not valid"),
        ("UPDATE batches SET cut = cut + 1", "the snapshot is not valid"),
        ("PRAGMA application_id = 1", "the file is not a ledger"),
    ],
)
def test_an_object_outside_the_schema_is_named(sample, scratch, change, why):
    with changing(sample, scratch) as connection:
        rows = connection.execute("SELECT * FROM snapshot").fetchall()
        connection.executescript(change)
        connection.executemany("INSERT OR IGNORE INTO snapshot VALUES (?, ?, ?)", rows)
    broken = verify(scratch).broken
    assert broken is not None
    assert why in broken.why
    ledger, aside = opening.open_or_set_aside(scratch, NOW)
    ledger.close()
    assert aside is not None


def test_the_tables_that_analyze_makes_are_no_damage(sample, scratch):
    with changing(sample, scratch) as connection:
        connection.execute("ANALYZE")
        assert connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'sqlite_stat%'").fetchall()
    assert verify(scratch).broken is None
    ledger, aside = opening.open_or_set_aside(scratch, NOW)
    ledger.close()
    assert aside is None


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("read", [reading.verify, lambda path: list(reading.export(path))], ids=["verify", "export"])
def test_a_link_or_pipe_is_not_read_as_ledger(sample, tmp_path, kind, read):
    path = tmp_path / "place.sqlite"
    if kind == "link":
        path.symlink_to(sample)
    else:
        os.mkfifo(path)
    with pytest.raises(LedgerUnavailable, match=rf"{re.escape(str(path))}: it is .*; else remove it"):
        read(path)


def test_beside_a_running_writer_it_sees_what_was_acknowledged(ledger, path, draft):
    for number in range(2, 20):
        ledger.append([draft()])
        verdict = verify(path)
        assert (verdict.broken, verdict.rows) == (None, number)


def test_an_export_says_every_row_and_the_snapshot(sample):
    [*evidence, snapshot] = list(reading.export(sample))[:16]
    rows = list(reading.export(sample))[16:]
    assert [row["seq"] for row in evidence] == list(range(1, 16))
    assert (snapshot["kind"], snapshot["cut"], snapshot["records"]) == ("snapshot", 15, [])
    assert [row["seq"] for row in rows] == list(range(16, 37))
    assert rows[0]["body"] == {"why": "reason 14", "restart": False, "fence": None}


def test_a_missing_ledger_is_reported(tmp_path):
    with pytest.raises(FatalError, match="there is no such file"):
        verify(tmp_path / "ledger.sqlite")
