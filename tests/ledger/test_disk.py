"""Disks that fill up, fail or turn read-only, processes that are killed: what was acknowledged holds, and only that."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from ground.errors import LedgerUnavailable
from scrubber.core import events
from scrubber.core.model import Moment
from scrubber.ledger import compaction, database, ledger_rows, opening, sqlite_errors
from scrubber.ledger.ledger import SLOW
from tests.ledger.conftest import unfolded, verify
from tests.patience import WITHIN
from tests.small_disk import files_of_at_most

HERE = Path(__file__).parent
NOW = Moment(1_750_000_000.0, 1.0)
KILLS = 12


def numbers(path):
    """What a ledger that somebody wrote with writer.py holds; it must open without complaint."""
    ledger, aside = opening.open_or_set_aside(path, NOW)
    entries = unfolded(ledger).entries
    ledger.close()
    assert aside is None
    assert verify(path).broken is None
    return [int(entry.event.why.split()[0]) for entry in entries if isinstance(entry.event, events.Released)]


def acknowledged(output):
    return [int(line.split()[2]) for line in output if line.startswith("acknowledged")]


@functools.cache
def can(*command):
    """Whether this machine lets us: a harmless try."""
    return (
        shutil.which(command[0]) is not None
        and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    )


def kill_mid_append(path, lines, *words):
    """A writer that was killed while it wrote, and everything it had said by then."""
    command: list[str | Path] = [sys.executable, HERE / "writer.py", path, "1000000", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        output = [child.stdout.readline() for _ in range(lines)]
        os.kill(child.pid, signal.SIGKILL)
        return [line for line in output + child.stdout.readlines() if line.endswith("\n")]


def test_killed_again_and_again_it_loses_no_acknowledged_row(path):
    expected: list[int] = []
    for kill in range(KILLS):
        expected += acknowledged(kill_mid_append(path, 2 + kill * 7))
        held = numbers(path)
        assert held[: len(expected)] == expected
        assert len(held) <= len(expected) + 1, "more than the one row that was under way"
        expected = held


def test_killed_while_it_compacts_the_ledger_is_whole(path):
    for kill in range(6):
        last = acknowledged(kill_mid_append(path, 40 + kill, "compact"))[-1]
        assert numbers(path)[-1] in {last, last + 1}


def test_a_full_ledger_refuses_rows_until_there_is_room(ledger, path, draft):
    written, refusals = [], []
    with files_of_at_most(200_000):
        for number in range(100):
            try:
                written += [entry.event.why for entry in ledger.append([draft(f"{number} " + "x" * 5000)])]
            except LedgerUnavailable as error:
                refusals.append(str(error))
    ledger.append([draft("again")])
    assert [entry.event.why for entry in unfolded(ledger).entries] == [*written, "again"]
    assert len(written) > 10
    assert len(refusals) > 1
    assert all("disk" in message for message in refusals)
    ledger.disconnect()
    with (
        files_of_at_most(0),
        pytest.raises(LedgerUnavailable, match=r"to the ledger .* a size limit is reached; free "),
    ):
        ledger.load()
    assert verify(path).broken is None


def test_a_full_disk_leaves_the_lock_free(path):
    full = "the disk is full or a size limit is reached"
    for _ in range(2):
        with files_of_at_most(0), pytest.raises(LedgerUnavailable, match=full):
            opening.open_or_set_aside(path, NOW)


def test_a_full_disk_names_the_remedy(open_ledger, path):
    open_ledger()
    with closing(database.connect(path)) as connection, database.transaction(connection):
        connection.execute("PRAGMA max_page_count = 1")
        with (
            pytest.raises(LedgerUnavailable, match=f"disk is full or .* reached; free some space under {path.parent}"),
            sqlite_errors.translated("write to the ledger", path),
        ):
            connection.execute("CREATE TABLE more (a)")


needs_strace = pytest.mark.skipif(not can("strace", "-f"), reason="strace is missing or may not trace here")


def with_failing_syncs(when, path, *words):
    """What a writer said while the n-th sync, every n-th or all from the n-th on came back with EIO."""
    inject = f"inject=fsync,fdatasync:error=EIO:when={when}"
    traced = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=fsync,fdatasync", "-e", inject]
    command: list[str | Path] = [*traced, sys.executable, HERE / "writer.py", path, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


@needs_strace
@pytest.mark.parametrize("when", ["12", "9+5"])
def test_rows_whose_sync_failed_do_not_reappear(open_ledger, path, when):
    """They have reached the file by then, and SQLite alone would find them again."""
    open_ledger()[0].close()
    output = with_failing_syncs(when, path, "40", "patient")
    refused = [line for line in output if line.startswith("refused")]
    assert refused
    assert all("the disk reports an I/O error" in line for line in refused)
    assert acknowledged(output)[-1] > int(refused[0].split()[1]), "it did not go on by itself"
    assert numbers(path) == acknowledged(output)


@needs_strace
def test_no_row_is_acknowledged_without_a_sync(open_ledger, path):
    open_ledger()[0].close()
    output = with_failing_syncs("10+", path, "30", "patient")
    answers = [line.split()[0] for line in output[1:30]]
    assert answers == sorted(answers), "a row was acknowledged after the syncs had begun to fail"
    assert set(answers) == {"acknowledged", "refused"}
    assert numbers(path)[: len(acknowledged(output))] == acknowledged(output)


@needs_strace
@pytest.mark.parametrize("when", ["1", "6", "12", "15", "16", "17"])
def test_a_birth_that_failed_is_begun_again(path, when):
    """SQLite itself shrugs at a directory that could not be synced; whatever else fails must be said."""
    assert with_failing_syncs(when, path, "0") in ([], ["open"])
    assert numbers(path) == []


@pytest.mark.skipif(not can("unshare", "-rm"), reason="takes root, or user namespaces, to mount")
def test_a_read_only_ledger_refuses_rows_and_can_be_verified(tmp_path):
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$0" "$2" "$1"'
    command = ["unshare", "-rm", "sh", "-c", script, sys.executable, tmp_path, HERE / "read_only.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    message = f"cannot open the ledger {tmp_path}/ledger.sqlite: it is read-only; mount {tmp_path} writable, "
    assert json.loads(ended.stdout) == {
        "refusals": [message + "or correct its permissions"] * 2,
        "rows": 2,
        "entries": ["a"],
        "aside": False,
    }


@pytest.mark.skipif(not can("unshare", "-rm"), reason="takes root, or user namespaces, to mount")
def test_a_read_only_copy_says_what_to_copy(ledger, path, tmp_path, draft):
    ledger.append([draft("x")])
    copy = tmp_path / "copy"
    shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns("*-shm"))
    script = (
        "import sys, pathlib; from scrubber.ledger.reading import verify; print(verify(pathlib.Path(sys.argv[1])).rows)"
    )
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$0" -c "$2" "$1/ledger.sqlite"'
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, copy, script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1].endswith(
        f"cannot read the ledger {copy}/ledger.sqlite: ledger.sqlite-wal has rows that SQLite reads only with "
        f"ledger.sqlite-shm, which is missing and cannot be created in {copy}; copy all files of {copy} to a directory "
        "that you can write to, and name that directory"
    )
    assert verify(copy / "ledger.sqlite").rows == 2


NO_EVIDENCE = compaction.Retention(rows=0)


def test_compaction_gives_the_space_back(ledger, path, draft):
    ledger.append([draft("x" * 1000)] * 1000)
    ledger.compact(lambda records, _: records, 500, NOW, NO_EVIDENCE)
    before = path.stat().st_size
    ledger.compact(lambda records, _: records, 0, NOW, NO_EVIDENCE)
    assert before > 500_000
    assert path.stat().st_size < 50_000 + 100 * ledger.head.size  # each row leaves its hash in the tree


def test_a_row_removed_by_another_program_stops_the_writer(ledger, path, draft):
    ledger.append([draft("a")])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM entries WHERE seq = 2")
    with pytest.raises(ledger_rows.CorruptLedgerError, match="the last rows are lost"):
        unfolded(ledger)
    with pytest.raises(ledger_rows.CorruptLedgerError, match="another program changed it"):
        ledger.append([draft("b")])


def test_a_lock_of_another_program_only_delays_writes(ledger, path, draft, monkeypatch):
    assert database.BUSY_SECONDS < SLOW  # otherwise the service takes it for a disk that hangs
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    ledger.disconnect()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match=f"process {os.getpid()} has it locked; end that process"):
            ledger.append([draft("a")])
        connection.execute("ROLLBACK")
    ledger.append([draft("b")])
    assert [entry.event for entry in unfolded(ledger).entries] == [events.Released("b")]


def test_a_short_lock_refuses_nothing(ledger, path, draft, monkeypatch):
    """The usual write waits once, so it may wait for all of the time."""
    held = 1.2  # seconds
    assert held < database.BUSY_SECONDS
    monkeypatch.setattr(database, "BUSY_SECONDS", WITHIN)  # a busy machine may end the lock late
    ledger.append([draft("a")])
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(held, connection.execute, ["ROLLBACK"])
        ending.start()
        ledger.append([draft("b")])
        ending.join()
    assert [entry.event.why for entry in unfolded(ledger).entries] == ["a", "b"]
