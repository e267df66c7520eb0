"""Ledgers that older versions have left: each is taken over where it lies, and nothing in it is forgotten."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scrubber.core import states
from scrubber.core.events import StepsRecorded
from scrubber.core.measured import Restored
from scrubber.core.model import Evicted, Holder, Step, Stuck, Trigger
from scrubber.ledger import compaction, database, ledger_rows, older, opening, reading
from scrubber.receipts.note import Checkpoint
from tests import older_states
from tests.ledger.conftest import NOW, drafted

HERE = Path(__file__).parent


@pytest.fixture(params=older_states.ALL, ids=older_states.name)
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


@pytest.mark.parametrize("path", older_states.OF_ONE_STORY, ids=older_states.name, indirect=True)
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


@pytest.mark.parametrize(("step", "begins"), [("reset", Step.RESET), ("clear", Step.CLEAR), ("evict", None)])
def test_the_start_of_a_step_is_read_where_it_counts(step, begins):
    body = json.dumps({"job": "job-1", "path": "fast", "step": step})
    assert ledger_rows.decode("step-started", body) == StepsRecorded("job-1", (), begins)


def finished(step: str, **findings: Any) -> str:  # noqa: ANN401 - any value
    result = {"blame": "device", "detail": "", "outcome": "passed", "path": "fast", "seconds": 1.0, "step": step}
    return json.dumps({"job": "job-1", "result": {**result, "findings": findings}})


EMPTY: dict[str, Any] = {"holders": [], "terminated": [], "drift": [], "covered_bytes": None, "vitals": None}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (finished("evict", **EMPTY), Evicted((), ())),
        (finished("settings", **EMPTY | {"drift": ["power"]}), Restored(("power",))),
        (finished("verify", **EMPTY), None),  # a proof without a number proves nothing
        (finished("reset", **EMPTY), None),
    ],
)
def test_a_step_found_what_its_own_kind_finds(body, found):
    event = ledger_rows.decode("step-finished", body)
    assert isinstance(event, StepsRecorded)
    assert [it.findings for it in event.results] == [found]


def test_what_followed_from_a_failed_scrub_is_read():
    text = (HERE / "golden_records.json").read_text()
    [now, *_] = ledger_rows.decode_records(text.strip())
    [plain, *_] = json.loads(text)
    assert now.scrubs.job is not None
    at, holder = plain["since"], {"command": "python", "container": None, "pid": 7, "started": 0.5, "state": "D"}
    plain["scrubs"]["setback"] |= {
        "stuck": [holder], "stuck_since": at, "undecided": True, "node_or_device": at,
    }  # fmt: skip
    job = {name: value for name, value in plain["scrubs"]["job"].items() if name != "begun"}
    plain["scrubs"] |= {"burn_in_begun": 5.0, "job": job | {"trigger": "burn-in", "step": "reset"}}
    past = {"last": {"pod": "a", "at": 1.5, "counts": True}, "pods": ["a"], "unproven": 2.0}
    [read] = ledger_rows.decode_records(json.dumps([plain | {"bypasses": past}]))
    assert read.scrubs == replace(
        now.scrubs,
        stuck=Stuck((Holder(7, 0.5, "python", None, "D"),), now.since),
        undecided=True,
        node_or_device=now.since,
        job=replace(now.scrubs.job, trigger=Trigger.REQUEST, begun=Step.RESET),
    )
    assert (read.device, read.tenancy, read.health) == (now.device, now.tenancy, now.health)


@pytest.mark.parametrize("kind", ["step-started", "step-finished", "scrub-started", "steps-recorded", "no kind"])
@pytest.mark.parametrize("body", ["{}", "[]", "{", '{"job": 1, "step": "clear", "result": null, "results": [null]}'])
def test_what_no_version_has_written_is_damaged(kind, body):
    with pytest.raises(ledger_rows.CorruptLedgerError, match="cannot read an event"):
        ledger_rows.decode(kind, body)


def test_each_format_is_tried():
    tried = {int(path.name.partition("-")[0]) for path in older_states.ALL}
    assert tried == set(range(older.OLDEST, database.VERSION))
