"""Whoever may write to the ledger can fold its rows: no evidence can be left out of that without a trace."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from scrubber.core import events
from scrubber.core.events import Event, LedgerEntry
from scrubber.core.model import Blame, Holder, Step
from scrubber.ledger import compaction, database, ledger_rows, opening, reading, tree
from scrubber.ledger.compaction import KEEP_ALL, Retention
from scrubber.ledger.sqlite_store import SqliteStore
from tests.core import lives
from tests.ledger.conftest import NOW, verify
from tests.receipts.signing import sealed

STEP = events.StepsRecorded("job", (), Step.CLEAR)
PASSED = lives.passed(lives.SCRUBBING)
ATTEMPTED = events.OpenAttempted(lives.OPENER, 1, held=True)


def used(container: str, times: int) -> Event:
    return events.Soiled("it was used without a grant", (Holder(7, 0.5, "python", container),), times)


def failed(container: str, times: int) -> Event:
    return events.ScrubFailed("job", "in use", Blame.TENANT, (Holder(7, 0.5, "python", container),), times=times)


SOME = st.one_of(
    st.sampled_from([STEP, PASSED, ATTEMPTED, events.Released("its pod is gone"), events.LetIn(("pod-a",))]),
    st.builds(used, st.sampled_from(["pod-a", "pod-b"]), st.integers(1, 3)),
    st.builds(failed, st.sampled_from(["pod-a", "pod-b"]), st.integers(1, 3)),
)
ROWS = st.lists(st.tuples(st.sampled_from(["GPU-1", "GPU-2"]), SOME), min_size=2, max_size=12)


@contextmanager
def as_format_9() -> Iterator[None]:
    """Rows are written as that version wrote them, also that of a compaction."""
    vouched = compaction._vouched
    with pytest.MonkeyPatch.context() as before:
        before.setattr(compaction, "_vouched", lambda snapshot, **_: vouched(snapshot, marked=False))
        before.setattr(ledger_rows, "MARKED", "")
        before.setattr(ledger_rows.LedgerRow, "is_marked", False)
        yield


class Forging:
    """A ledger whose folds leave out rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._proofs = 0
        self.store: SqliteStore = opening.open_or_set_aside(path, NOW)[0]

    def append(self, rows: Iterable[tuple[str, Event]]) -> None:
        self.store.append([LedgerEntry(0, device, NOW, "op", self._signed(device, event)) for device, event in rows])

    def _signed(self, device: str, event: Event) -> Event:
        """Each proof has a document of its own."""
        if event is not PASSED:
            return event
        self._proofs += 1
        return replace(PASSED, receipt=sealed(replace(PASSED.receipt, device=device, job=str(self._proofs))))

    def fold(self, *left_out: int, keep: int = 0, retention: Retention = KEEP_ALL) -> tuple[int, ...]:
        """Fold all but ``keep`` rows; returns which rows had to stay."""
        honest, stay = compaction.evidence, list[int]()

        def evidence(rows: Iterable[ledger_rows.LedgerRow]) -> tuple[ledger_rows.LedgerRow, ...]:
            kept = honest(tuple(rows))
            stay[:] = [row.seq for row in kept]
            return tuple(row for row in kept if row.seq not in left_out)

        with pytest.MonkeyPatch.context() as forged:
            forged.setattr(compaction, "evidence", evidence)
            self.store.compact(lambda records, _: records, keep, NOW, retention)
        return tuple(stay)

    def verify(self) -> reading.Audit:
        self.store.close()
        return verify(self.path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("left-out")


@pytest.fixture
def forging(tmp_path):
    forging = Forging(tmp_path / "ledger.db")
    yield forging
    forging.store.close()


def anew(folder: Path) -> Forging:
    for file in folder.iterdir():
        file.unlink()
    return Forging(folder / "ledger.db")


@example([("GPU-1", used("pod-a", 1))], [[("GPU-1", used("pod-b", 1)), ("GPU-1", used("pod-b", 2))]], 0, 2**62)
@given(
    older=ROWS,
    parts=st.lists(ROWS, min_size=1, max_size=3),
    keep=st.integers(0, 3),
    most=st.sampled_from([0, 8, 2**62]),
)
def test_a_ledger_that_folds_its_rows_stays_intact(folder, older, parts, keep, most):
    with as_format_9():
        forging = anew(folder)
    with closing(forging.store):
        with as_format_9():
            forging.append(older)
            forging.fold(keep=1)
        assert verify(forging.path).broken is None
        with as_format_9():
            forging.append(older)  # the rows of the next part may fall into the same batch
        before = forging.store.head.size
        for part in parts:
            forging.append(part)
            forging.fold(keep=keep, retention=Retention(most))
        audit = forging.verify()
        assert audit.broken is None
        assert audit.complete_from <= before + 1 or most < 2**62
        rows = [int(str(row.get("seq", 0))) for row in reading.export(forging.path)]
        assert not [seq for seq in rows if before < seq < audit.complete_from]


@given(rows=ROWS, data=st.data())
def test_any_evidence_left_out_of_a_fold_is_found(folder, rows, data):
    forging = anew(folder)
    with closing(forging.store):  # Hypothesis may give up an example half-way
        forging.append([*rows, ("GPU-3", PASSED)])
        with forging.store._ready() as connection:
            stay = [row.seq for row in compaction.evidence(tuple(database.rows(connection)))]
        assume(len(stay) > 1)
        left_out = data.draw(st.sets(st.sampled_from(stay[:-1]), min_size=1))
        forging.fold(*left_out)
        broken = forging.verify().broken
        assert broken is not None
        assert broken.seq == min(left_out)


def a_leaf(row: ledger_rows.LedgerRow) -> bytes:
    return tree.leaf(row)


def a_step(row: ledger_rows.LedgerRow) -> bytes:
    return tree._opening(row).replace(b'"other","GPU-1"', b'"step",""')


def nothing_to_read(row: ledger_rows.LedgerRow) -> bytes:
    return b"[[" + bytes.fromhex(row.hash)


@pytest.mark.parametrize("stored", [a_leaf, a_step, nothing_to_read], ids=lambda it: it.__name__)
def test_no_mark_makes_evidence_look_like_a_step(forging, stored):
    forging.append([("GPU-1", events.LetIn((name,))) for name in "abcde"])
    with forging.store._ready() as connection:
        [row] = database.rows(connection, 4, 4)
    forging.fold(4)
    forging.store.close()
    with closing(sqlite3.connect(forging.path, isolation_level=None)) as connection:
        connection.execute("UPDATE tree SET hash = ? WHERE level = 0 AND place = 3", (stored(row),))
    broken = forging.verify().broken
    assert broken is not None
    assert (broken.seq or 0) in {3, 4}


def test_a_snapshot_describes_no_device_otherwise_than_its_rows(forging):
    """The list of hand-overs takes from there whether a GPU is simulated."""
    forging.append([("GPU-1", events.Discovered(replace(lives.DEVICE, index=7), lives.HERE)), ("GPU-1", STEP)])
    forging.store.compact(lambda *_: (lives.CLEAN,), 0, NOW)
    broken = forging.verify().broken
    assert broken is not None
    assert "it describes GPU-1 otherwise than its rows" in broken.why


def test_a_batch_ends_with_the_rows_that_were_folded(forging, monkeypatch):
    """Otherwise rows could be shown twice."""
    forging.append([("GPU-1", events.LetIn((name,))) for name in "abcd"])
    honest = compaction.batch
    with monkeypatch.context() as forged:
        forged.setattr(compaction, "batch", lambda cut, kept: honest(cut + 1, kept))
        forging.fold(keep=2)
    broken = forging.verify().broken
    assert broken is not None
    assert "rows that were not folded" in broken.why


def test_the_document_of_a_deleted_row_is_not_used_again(forging):
    """A fold deletes proofs between uses. Otherwise an old one could be shown as the wipe of somebody else."""
    proofs = [replace(PASSED, receipt=sealed(replace(PASSED.receipt, job=job))) for job in "abc"]
    story = [it for times, proof in enumerate(proofs, 1) for it in (used("pod-a", times), proof)]
    forging.store.append([LedgerEntry(0, "GPU-1", NOW, "op", event) for event in story])
    stay = forging.fold()
    deleted, *_ = [row for row, event in enumerate(story, 2) if event in proofs and row not in stay]
    forging.store.append([LedgerEntry(0, "GPU-1", NOW, "op", story[deleted - 2])])
    broken = forging.verify().broken
    assert broken is not None
    assert (
        broken.why
        == f"row {deleted}: row {forging.store.head.size} has the same signed document, and the later row is the copy"
    )


def test_evidence_that_retention_has_dropped_is_said(forging):
    """The oldest may go, but the audit says up to where."""
    forging.append([("GPU-1", events.LetIn((name,))) for name in "abc"])
    forging.fold()
    forging.append([("GPU-1", events.LetIn((name,))) for name in "de"])
    forging.fold(retention=Retention(rows=2))
    audit = forging.verify()
    assert (audit.broken, audit.complete_from) == (None, 5)
