"""Sound, new or damaged: what opening does, and that nothing is ever thrown away."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ground.errors import FatalError, LedgerUnavailable
from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Moment
from scrubber.core.record import Record
from scrubber.ledger import database, ledger_files, ledger_rows, opening, reading
from scrubber.ledger.sqlite_store import SqliteStore
from scrubber.receipts import merkle
from tests.ledger.conftest import NOW, unfolded

NAME = "ledger.sqlite.corrupt-20250615T150640Z"


def fill(open_ledger, draft, rows=40):
    """A ledger with some rows, cleanly closed: number n holds "n"."""
    ledger, _ = open_ledger()
    for number in range(2, rows + 2):
        ledger.append([draft(str(number))])
    ledger.close()


def contents(directory):
    """What is stored; SQLite's empty log and its index come and go with every look."""
    return {
        child.name: child.read_bytes()
        for child in directory.iterdir()
        if not child.name.endswith((".lock", "-wal", "-shm"))
    }


def test_a_new_ledger_is_private(open_ledger, draft, path):
    ledger, aside = open_ledger()
    ledger.append([draft()])
    assert aside is None
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {child.name for child in path.parent.iterdir()} == {
        "ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.head", "ledger.lock",
    }  # fmt: skip
    assert {child.stat().st_mode & 0o777 for child in path.parent.iterdir()} == {0o600}


def test_files_of_an_interrupted_start_do_not_matter(open_ledger, path):
    path.parent.mkdir()
    for name in ("ledger.sqlite.new", "ledger.sqlite.new-wal", "ledger.sqlite.new-shm", "ledger.lock"):
        (path.parent / name).write_bytes(b"half")
    assert open_ledger()[1] is None


def test_a_crash_before_the_first_head_does_not_matter(open_ledger, path):
    open_ledger()[0].close()
    ledger_files.LedgerPaths(path).head.unlink()
    assert open_ledger()[1] is None


def test_a_second_writer_is_refused_by_name(open_ledger, path):
    open_ledger()
    program = "import sys; from pathlib import Path; from scrubber.ledger import ledger_files; \
ledger_files.lock(ledger_files.LedgerPaths(Path(sys.argv[1])))"
    refused = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert "cannot open the ledger" in refused.stderr
    with pytest.raises(FatalError, match=r"process \d+ writes to it; stop that process first"):
        opening.open_or_set_aside(path, NOW)


@pytest.mark.parametrize(
    "name", ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.head", "ledger.lock"]
)
@pytest.mark.parametrize("target", ["precious", "absent"])
def test_a_foreign_file_is_refused_and_left_alone(open_ledger, draft, path, tmp_path, name, target):
    fill(open_ledger, draft, 2)
    linked, precious = path.with_name(name), tmp_path / "precious"
    before = linked.read_bytes() if linked.exists() else b"precious"
    precious.write_bytes(before)
    linked.unlink(missing_ok=True)
    linked.symlink_to(tmp_path / target)
    with pytest.raises(LedgerUnavailable, match=rf"{re.escape(str(linked))}: it is a link; if it is our file"):
        open_ledger()
    assert precious.read_bytes() == before
    assert not (tmp_path / "absent").exists()


def test_a_file_replaced_by_a_link_is_refused(open_ledger, draft, path, tmp_path):
    ledger, _ = open_ledger()
    ledger.disconnect()  # as after a failed write
    head = path.with_name("ledger.head")
    head.rename(tmp_path / "head")
    head.symlink_to(tmp_path / "head")
    with pytest.raises(LedgerUnavailable, match="it is a link"):
        ledger.append([draft()])


def test_a_ledger_replaced_by_a_link_shows_no_history(open_ledger, draft, path, tmp_path):
    ledger, _ = open_ledger()
    ledger.append([draft()])
    assert ledger.history(None, None, 1)
    path.rename(tmp_path / "another's")
    path.symlink_to(tmp_path / "another's")
    with pytest.raises(LedgerUnavailable, match="it is a link"):
        ledger.history(None, None, 1)


def test_a_newer_schema_is_refused_and_left_alone(open_ledger, draft, path):
    fill(open_ledger, draft)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = contents(path.parent)
    with pytest.raises(FatalError, match="format 99"):
        open_ledger()
    with pytest.raises(FatalError, match="format 99"):
        reading.verify(path)
    assert contents(path.parent) == before


def test_a_format_that_is_too_old_is_refused_and_exported(open_ledger, draft, path):
    fill(open_ledger, draft, 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ALTER TABLE entries RENAME COLUMN salt TO prev")
        connection.execute("ALTER TABLE entries ADD COLUMN hash TEXT NOT NULL DEFAULT 'ab'")
        connection.execute("PRAGMA user_version = 2")
    for asks in (reading.verify, reading.read, lambda _: open_ledger()):
        with pytest.raises(FatalError, match="it has format 2, and this program reads 9 and 10") as refused:
            asks(path)
        assert any("94afefca" in remedy for remedy in refused.value.remedies)
    exported = [(row["body"], row["hash"]) for row in list(reading.export(path))[1:]]
    assert exported == [({"why": why, "restart": False, "fence": None}, "ab") for why in ("2", "3")]


def test_a_damaged_ledger_is_set_aside_whole(open_ledger, draft, path):
    fill(open_ledger, draft)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE entries SET body = replace(body, '7', '8') WHERE seq = 17")
    connection.close()
    before = contents(path.parent)
    ledger, aside = open_ledger()
    assert aside is not None
    assert (aside.path.name, aside.why) == (
        NAME,
        "row 17 does not match its leaf in the tree: the row was changed, or the tree",
    )
    assert unfolded(ledger).entries == ()
    after = contents(path.parent)
    assert after[NAME] == before["ledger.sqlite"]
    assert after[f"{NAME}.head"] == before["ledger.head"]
    assert reading.verify(aside.path).broken == reading.Broken(17, aside.why), "it can still be read where it lies"
    ledger.append([draft()])
    [first, _] = reading.export(path)
    assert (first["kind"], first["body"]) == ("ledger-begun", {"set_aside": NAME, "why": aside.why})
    assert reading.verify(path).set_aside == (NAME,)


def test_who_sets_aside_announces_no_later_start(open_ledger, draft, path):
    fill(open_ledger, draft)
    path.write_bytes(b"no ledger" * 500)
    broken, aside = reading.verify(path).broken, open_ledger()[1]
    assert aside is not None
    assert aside.why.endswith("it is not a ledger, or its first bytes are damaged")
    assert broken is not None
    assert "the next start of the service sets it aside" in broken.why


GOLDEN = (Path(__file__).parent / "golden.jsonl").read_text().splitlines()
PASSED = next(body for row in map(json.loads, GOLDEN) if row["kind"] == "scrub-passed" for body in [row["body"]])


def write(path, kind, body):
    """One more row whose leaf is right, as another version would have written it."""
    with closing(database.connect(path)) as connection, database.transaction(connection):
        before = database.tree_of(connection)
        row = ledger_rows.new_row(before.size + 1, "GPU-1", NOW, "op-1", kind, body)
        head = merkle.Head.of(database.insert(connection, before, [row]))
    with closing(ledger_files.HeadFiles(ledger_files.LedgerPaths(path))) as kept:
        kept.write(head, vouch=False)


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("scrub-passed", lambda it: it["receipt"].update(pledge=1), "Unexpected keyword argument .*receipt.pledge"),
        ("scrub-passed", lambda it: it["receipt"].pop("covered_bytes"), "Field required .*receipt.covered_bytes"),
        ("scrub-praised", lambda _: None, "unknown kind 'scrub-praised'"),
    ],
)
def test_an_incompatible_ledger_is_set_aside_whole(open_ledger, draft, path, kind, change, why):
    fill(open_ledger, draft, 3)
    body = json.loads(PASSED)
    change(body)
    write(path, kind, json.dumps(body))
    before = path.read_bytes()
    broken = reading.verify(path).broken
    assert broken is not None
    assert re.search(f"^row 5: cannot read an event: .*{why}", broken.why)
    ledger, aside = open_ledger()
    assert (aside and aside.why) == broken.why
    assert aside is not None
    assert (unfolded(ledger).snapshot, unfolded(ledger).entries) == ((), ())
    assert aside.path.read_bytes() == before


def test_a_compatible_row_of_another_version_is_read(open_ledger, draft, path):
    """So that it is what was changed that makes the test above set the file aside. What it does not say is nothing."""
    fill(open_ledger, draft, 3)
    write(path, "scrub-passed", PASSED)
    ledger, aside = open_ledger()
    assert aside is None
    event = unfolded(ledger).entries[-1].event
    assert isinstance(event, events.ScrubPassed)
    assert (event.receipt.patterns, event.receipt.tests, event.receipt.units) == ((), (), None)


@pytest.mark.parametrize(("wall", "stamp"), [(1e18, "99991230T000000Z"), (-1e18, "00010102T000000Z")])
def test_a_clock_without_a_calendar_does_not_stop_the_start(open_ledger, draft, path, wall, stamp):
    fill(open_ledger, draft)
    path.write_bytes(b"damaged")
    ledger, aside = opening.open_or_set_aside(path, Moment(wall, 1.0))
    ledger.close()
    assert aside is not None
    assert aside.path.name == f"{path.name}.corrupt-{stamp}"


def test_a_second_damage_makes_a_second_file(open_ledger, draft, path):
    for _ in range(3):
        fill(open_ledger, draft, 3)
        path.write_bytes(b"not a database at all" * 100)
        open_ledger()[0].close()
    assert {NAME, f"{NAME}-1", f"{NAME}-2"} <= set(reading.verify(path).set_aside)


@pytest.mark.parametrize("share", [0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_truncated_ledger_is_set_aside(open_ledger, draft, path, share):
    fill(open_ledger, draft)
    left = path.read_bytes()[: int(path.stat().st_size * share)]
    path.write_bytes(left)
    verdict = reading.verify(path)
    ledger, aside = open_ledger()
    assert verdict.broken is not None
    assert aside.path.read_bytes() == left
    assert unfolded(ledger).entries == ()


@pytest.mark.parametrize("share", [0, 0.2, 0.5, 0.8, 0.99])
def test_a_truncated_log_is_noticed_and_not_touched(open_ledger, draft, path, tmp_path, share):
    """SQLite takes the part of its log that is sound for the whole: only the head file knows better."""
    ledger, _ = open_ledger()
    for number in range(30):
        ledger.append([draft(str(number))])
    crashed = tmp_path / "crashed"
    shutil.copytree(path.parent, crashed, ignore=shutil.ignore_patterns("*-shm"))
    log = crashed / "ledger.sqlite-wal"
    cut = log.read_bytes()[: int(log.stat().st_size * share)]
    log.write_bytes(cut)
    broken = reading.verify(crashed / path.name).broken
    opened, aside = opening.open_or_set_aside(crashed / path.name, NOW)
    opened.close()
    assert broken is not None
    assert "the last rows are lost" in broken.why
    assert aside is not None
    assert "the last rows are lost" in aside.why
    assert (crashed / f"{NAME}-wal").read_bytes() == cut


def test_a_whole_log_without_its_index_is_recovered(open_ledger, draft, path, tmp_path):
    ledger, _ = open_ledger()
    entries = ledger.append([draft("a")]) + ledger.append([draft("b")])
    crashed = tmp_path / "crashed"
    shutil.copytree(path.parent, crashed, ignore=shutil.ignore_patterns("*-shm"))
    opened, aside = opening.open_or_set_aside(crashed / path.name, NOW)
    assert aside is None
    assert unfolded(opened).entries == entries
    opened.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path, old: path.write_bytes(old), "the last rows are lost"),
        (lambda path, _: path.unlink(), "is missing, although ledger.head exists"),
        (lambda path, _: (path.unlink(), path.with_name(f"{path.name}-wal").touch()), "-wal and ledger.head exist"),
        (lambda path, _: path.with_name("ledger.head").unlink(), "the head file is missing"),
        (lambda path, _: path.with_name("ledger.head").write_bytes(b"\xff" * 86), "ledger.head is damaged"),
    ],
    ids=["an older copy put back", "the database lost", "only the database lost", "the head lost", "the head damaged"],
)
def test_a_ledger_file_that_was_exchanged_is_set_aside(open_ledger, draft, path, change, why):
    fill(open_ledger, draft, 5)
    old = path.read_bytes()
    fill(open_ledger, draft, 5)
    change(path, old)
    broken, aside = reading.verify(path).broken, open_ledger()[1]
    assert why in aside.why
    assert broken is not None
    assert why in broken.why, "who reads it says so before"
    head = ledger_files.read_head(ledger_files.LedgerPaths(path).head)
    assert head is not None
    assert head.size == 1


@pytest.mark.parametrize("moved", [1, 2, 3])
def test_a_crash_while_setting_aside_is_not_believed_either(open_ledger, draft, path, moved):
    """Killed between two renames, the next start finds some of a ledger: it must not take it for all of it."""
    ledger, _ = open_ledger()
    ledger.append([draft()])
    kept = {child.name: child.read_bytes() for child in path.parent.iterdir()}
    ledger.close()
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite", "ledger.head")[moved:]:
        (path.parent / name).write_bytes(kept[name])
    if moved < 3:
        (path.parent / "ledger.sqlite-shm").unlink(missing_ok=True)
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite", "ledger.head")[:moved]:
        (path.parent / name).unlink(missing_ok=True)
    reopened, aside = open_ledger()
    assert aside is not None
    assert unfolded(reopened).entries == ()


def test_a_history_that_cannot_have_happened_is_set_aside_too(open_ledger, draft, path):
    def refuse(opened: SqliteStore) -> None:
        if opened.load().rows:
            raise ledger_rows.CorruptLedgerError("row 2 cannot follow")

    fill(open_ledger, draft)
    ledger, aside = opening.open_or_set_aside(path, NOW, refuse)
    ledger.close()
    assert aside is not None
    assert aside.why == "row 2 cannot follow"


def test_when_it_cannot_be_opened_the_lock_is_free_again(path):
    path.mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match="it is not a regular file"):
            opening.open_or_set_aside(path, NOW)


def test_a_load_holds_few_rows_at_once(open_ledger, draft, monkeypatch):
    """Else the memory of the service would grow with its ledger, and stay."""
    ledger, _ = open_ledger()
    ledger.append([draft(letter) for letter in "abcdefgh"])
    monkeypatch.setattr(database, "AT_ONCE", 3)
    parts: list[int] = []

    def count(records: tuple[Record, ...], entries: Sequence[LedgerEntry]) -> tuple[Record, ...]:
        parts.append(len(entries))
        return records

    assert ledger.load(count).rows == 8
    assert parts == [2, 3, 3]  # the first row says how the ledger began
