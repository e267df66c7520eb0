"""Ledgers that older versions have left: each is taken over where it lies, and nothing in it is forgotten."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ground.errors import FatalError
from scrubber.core import states
from scrubber.core.events import StepsRecorded
from scrubber.core.model import Step
from scrubber.ledger import compaction, database, ledger_rows, opening, reading
from scrubber.receipts.note import Checkpoint
from tests import older_states
from tests.ledger.conftest import NOW, drafted


@pytest.fixture(
    params=[it for it in older_states.ALL if older_states.number(it) < database.VERSION], ids=older_states.name
)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The ledger in such a state."""
    older_states.unpack(request.param, tmp_path)
    return tmp_path / "ledger.db"


def take_over(path: Path) -> opening.SetAside | None:
    store, aside = opening.open_or_set_aside(path, NOW, lambda it: it.load(states.replay))
    store.close()
    return aside


def test_each_older_ledger_is_taken_over(path):
    before = reading.verify(path)
    records = reading.read(path).records
    assert before.broken is None
    assert before.head is not None
    assert [take_over(path) for _ in range(2)] == [None, None]
    old = Checkpoint("autoclave/vm", before.head.size, bytes.fromhex(before.head.root))
    after = reading.verify(path, [old])
    assert (after.broken, after.vouched, after.rows) == (None, before.rows, before.rows + 1), "a note, once"
    assert reading.read(path).records == records
    with closing(database.connect(path)) as connection:
        assert database.version(connection) == database.VERSION
        note = json.loads(next(database.notes(connection, ledger_rows.TAKEN_OVER)))
        evidence = compaction.evidence(tuple(database.rows(connection)))
    assert note["to"] == database.VERSION
    assert {it.kind for it in evidence}.isdisjoint({"step-started", "step-finished"})
    newest = asyncio.run(reading.read(path).history(None, None, 1))
    assert len(newest.entries) == 1, "the note is no event"


@pytest.mark.parametrize("path", older_states.ALL, ids=older_states.name, indirect=True)
def test_what_the_older_version_knew_is_still_known(path):
    take_over(path)
    by_index = {it.device.index: it for it in reading.read(path).records.values()}
    ailments = {index: it.health.quarantine.ailment for index, it in by_index.items() if it.health.quarantine}
    assert {index: it.kind.value for index, it in ailments.items()} == {1: "operator", 4: "xid"}
    assert ailments[1].detail == "its riser is loose"
    grant, receipt = by_index[2].tenancy.grant, by_index[2].scrubs.receipt
    assert grant is not None
    assert receipt is not None
    assert (grant.owner, grant.receipt) == ("job 7", receipt.id)
    cut_off = by_index[0].scrubs.job
    assert cut_off is not None
    assert Step.CLEAR in {cut_off.begun, *(it.step for it in cut_off.results)}, "its memory is half cleared"


def test_rows_from_the_takeover_on_cannot_be_left_out(path):
    """A deleted row of an older version may have been evidence: the audit says from where on that is known."""
    before = reading.verify(path)
    take_over(path)
    store, _ = opening.open_or_set_aside(path, NOW)
    store.append([drafted(), replace(drafted(), event=StepsRecorded("job", (), Step.CLEAR)), drafted()])
    for keep in (before.rows // 2, 2, 0):  # in one of the folds are rows of both versions
        store.compact(lambda records, _: records, keep, NOW)
    store.close()
    after = reading.verify(path)
    assert after.broken is None
    assert 1 < after.complete_from <= before.last + 1, "the note of the takeover"


def test_a_row_of_a_format_before_is_not_damaged():
    row = ledger_rows.new_row(7, "GPU-1", NOW, "", "step-started", '{"job":"job-1","path":"fast","step":"clear"}')
    with pytest.raises(ledger_rows.CorruptLedgerError, match="row 7: cannot read an event: unknown kind"):
        ledger_rows.entry(row)
    with pytest.raises(FatalError, match="row 7 of the ledger: it is of a format before 9"):
        ledger_rows.entry(row._replace(salt="0" * 32))


def test_the_last_formats_are_tried():
    assert [*map(older_states.number, older_states.ALL)] == [database.VERSION - 1, database.VERSION]
