"""What is counted of the ledger's rows, over devices at every point of their life."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from prometheus_client import CollectorRegistry

from ground.metric_table import Row
from policies import xids
from policies.values import FenceMode
from scrubber.core import events as ev
from scrubber.core import states, step_results
from scrubber.core.model import (
    Ailment,
    AilmentKind,
    Blame,
    Holder,
    InTheWay,
    Outcome,
    ScrubPath,
    Step,
    StepResult,
    Trigger,
    Vitals,
    Xid,
)
from scrubber.core.use_counter import FenceReading
from scrubber.ledger.ledger import Ledger
from scrubber.metrics import service_metrics
from scrubber.metrics.counters import ServiceCounters
from scrubber.receipts.notary import SigningState
from tests.core import lives
from tests.core.lives import DEVICE, NOW, later
from tests.ledger import memory_store

DEVICE_LABELS = {"gpu": "0", "uuid": DEVICE.uuid}


class Counted:
    """A tally and what it shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.counters = ServiceCounters(self.registry)

    def tell(self, before, *events, at=NOW):
        for event in events:
            entry = ev.LedgerEntry(1, DEVICE.uuid, at, "op", event)
            after = states.apply(before, entry)
            self.counters.row(entry, before)
            before = after
        return before

    def of(self, row: Row, suffix: str = "", **labels: str) -> float | None:
        return self.registry.get_sample_value(row.name + suffix, labels)

    def series(self) -> dict[str, float]:
        return {
            f"{it.name}{sorted(it.labels.items())}": it.value
            for family in self.registry.collect()
            for it in family.samples
        }


@pytest.fixture
def book() -> Counted:
    return Counted()


def test_a_life_is_counted_once_in_all_its_parts(book):
    running = book.tell(None, ev.Discovered(DEVICE, lives.HERE))
    running = book.tell(running, ev.ScrubStarted(lives.job(ScrubPath.RESET, Trigger.FIRST_LOOK)))
    done = lives.passed(running, later(3))
    for result in lives.results(ScrubPath.RESET, clear={"residue_bytes": 7}):
        running = book.tell(
            running,
            ev.StepsRecorded("job-1", (result,)),
            at=later(1),
        )
    clean = book.tell(running, done, at=later(3))
    assert book.of(service_metrics.SCRUB_ENDS, path="reset", trigger="first-look", outcome="passed") == 1
    assert book.of(service_metrics.SCRUB_TIME, "_sum", path="reset") == 3
    assert book.of(service_metrics.TIME_TO_CLEAN, "_sum") == 3
    assert book.of(service_metrics.STEP_TIME, "_count", step="clear") == 1
    assert book.of(service_metrics.RESETS, outcome="passed") == 1
    assert book.of(service_metrics.SCRUBBED) == 1000
    assert book.of(service_metrics.RESIDUE, **DEVICE_LABELS) == 1
    assert book.of(service_metrics.RESIDUE_BYTES, **DEVICE_LABELS) == 7
    assert book.counters.proven[DEVICE.uuid] == done.receipt
    book.tell(clean, ev.Granted(lives.grant(clean)))
    assert book.of(service_metrics.GRANTS, proof="receipt") == 1
    assert book.of(service_metrics.GRANTS, proof="none") == 0


def test_patterns_of_an_interrupted_scrub_are_no_residue(book):
    running = book.tell(None, ev.Discovered(DEVICE, lives.HERE))
    running = book.tell(running, ev.ScrubStarted(lives.job()), ev.StepsRecorded("job-1", (), Step.CLEAR))
    running = book.tell(running, ev.ScrubInterrupted("job-1", "the service was stopped"))
    running = book.tell(running, ev.ScrubStarted(lives.job(name="job-2")))
    found = step_results.judged(lives.result(Step.CLEAR, residue_bytes=7), running)
    book.tell(running, ev.StepsRecorded("job-2", (found,)))
    assert book.of(service_metrics.RESIDUE, **DEVICE_LABELS) == 0


def test_unsigned_receipts_count_where_the_service_has_a_key(book):
    unsigned = lives.passed(lives.FIRST_LOOK)
    signed = ev.ScrubPassed("job-1", replace(unsigned.receipt, envelope=lives.ENVELOPE))
    book.tell(lives.FIRST_LOOK, unsigned)
    assert book.of(service_metrics.UNSIGNED) == 0
    book.counters.signing = SigningState()
    book.tell(lives.FIRST_LOOK, signed)
    assert book.of(service_metrics.UNSIGNED) == 0
    book.tell(lives.FIRST_LOOK, unsigned)
    assert book.of(service_metrics.UNSIGNED) == 1


def test_the_time_to_clean_starts_at_the_first_cause(book):
    dirty = book.tell(lives.IN_USE, ev.Released("its pod is gone"))
    unknown = book.tell(dirty, ev.Distrusted("the node was rebooted", lives.REBOOTED), at=later(4))
    running = book.tell(unknown, ev.ScrubStarted(lives.job()), at=later(5))
    book.tell(running, lives.passed(running, later(9)), at=later(9))
    assert book.of(service_metrics.TIME_TO_CLEAN, "_sum") == 9
    assert book.of(service_metrics.TIME_TO_CLEAN, "_count") == 1


def test_the_time_in_quarantine_is_no_time_to_clean(book):
    dirty = book.tell(lives.IN_USE, ev.Released("its pod is gone"))
    running = book.tell(dirty, ev.ScrubStarted(lives.job()), at=later(1))
    out = book.tell(running, ev.Quarantined(lives.quarantine()), at=later(2))
    out = book.tell(out, ev.Distrusted("the node was rebooted", lives.REBOOTED), at=later(3))
    tried = book.tell(
        out, ev.ProbationStarted(lives.job(ScrubPath.RESET, Trigger.PROBATION), "autoclave"), at=later(7000)
    )
    book.tell(tried, lives.passed(tried, later(7009)), at=later(7009))
    assert book.of(service_metrics.RETURNS, by="evidence") == 1
    assert book.of(service_metrics.TIME_TO_CLEAN, "_count") == 0


def test_a_scrub_that_fails_is_counted_by_its_end(book):
    book.tell(lives.SCRUBBING, ev.ScrubFailed("job-1", "a process is on it"))
    book.tell(lives.SCRUBBING, ev.ScrubInterrupted("job-1", "the service was stopped"))
    book.tell(lives.SCRUBBING, ev.Quarantined(lives.quarantine()))
    for outcome in ("failed", "interrupted", "quarantined"):
        assert book.of(service_metrics.SCRUB_ENDS, path="fast", trigger="release", outcome=outcome) == 1
    assert book.of(service_metrics.TIME_TO_CLEAN, "_count") == 0


def test_a_failed_step_is_counted_under_its_fault(book):
    result = StepResult(Step.RESET, ScrubPath.FAST, Outcome.TIMED_OUT, 60.0, blame=Blame.DEVICE)
    book.tell(lives.SCRUBBING, ev.StepsRecorded("job-1", (result,)))
    assert book.of(service_metrics.STEP_FAILURES, step="reset", outcome="timed-out", blame="device") == 1
    assert book.of(service_metrics.RESETS, outcome="timed-out") == 1
    assert book.of(service_metrics.SCRUBBED) == 0


def test_processes_are_counted_by_kind_and_those_that_were_ended(book):
    stuck = Holder(9, 1.0, "stuck", None, state="D")
    found = lives.result(Step.EVICT, holders=(lives.OF_A, lives.LEFTOVER, stuck), terminated=(41, 43))
    cut = replace(lives.result(Step.CLEAR, outcome=Outcome.ABORTED), findings=InTheWay((lives.OF_B,), unnamed=False))
    book.tell(lives.SCRUBBING, ev.StepsRecorded("job-1", (found, cut)))
    kinds = {kind: book.of(service_metrics.PROCESSES, kind=kind) for kind in ("container", "host", "stuck")}
    assert kinds == {"container": 2, "host": 1, "stuck": 1}
    assert book.of(service_metrics.TERMINATED) == 2


def test_escalations_quarantines_and_their_ends_are_counted(book):
    book.tell(lives.SCRUBBING, ev.Escalated("job-1", "clear failed", ScrubPath.RESET))
    assert book.of(service_metrics.ESCALATIONS) == 1
    book.tell(lives.PROBED, lives.passed(lives.PROBED))
    assert book.of(service_metrics.RETURNS, by="evidence") == 1
    book.tell(lives.STICKY, ev.Reinstated("ann"))
    assert book.of(service_metrics.RETURNS, by="person") == 1


def test_only_what_was_in_is_taken_out(book):
    out = book.tell(lives.CLEAN, ev.Quarantined(lives.quarantine()))
    assert book.of(service_metrics.QUARANTINES, reason="lost") == 1
    book.tell(out, ev.Quarantined(lives.quarantine()))  # told in other words
    book.tell(lives.PROBED, ev.Quarantined(lives.quarantine()))  # a trial that failed
    assert book.of(service_metrics.QUARANTINES, reason="lost") == 1


def test_unauthorised_use_is_counted_and_an_expired_proof_not(book):
    book.tell(lives.CLEAN, ev.Soiled("it was used without a grant", (lives.FOREIGN,)))
    book.tell(lives.CLEAN, ev.Soiled("its proof is too old"))
    assert book.of(service_metrics.UNAUTHORISED, **DEVICE_LABELS, had_by="nobody") == 1
    book.tell(lives.CLEAN, ev.Soiled("it was used without a grant, by a process of pod 7", unnamed=True))
    assert book.of(service_metrics.UNAUTHORISED, **DEVICE_LABELS, had_by="nobody") == 2
    assert book.of(service_metrics.UNAUTHORISED, **DEVICE_LABELS, had_by="tenant") is None


def test_a_device_with_two_tenants_is_counted_once(book):
    owner, grant = lives.CROWDED.tenancy.owner, lives.GRANTED.tenancy.grant
    assert owner is not None
    assert grant is not None
    crowded = book.tell(lives.IN_USE, ev.PutInUse(owner))
    book.tell(crowded, ev.PutInUse(replace(owner, name="main")))
    fenced = lives.live(lives.CLEAN, ev.Granted(grant, FenceReading(NOW, FenceMode.WATCH, counter="c")))
    book.tell(lives.live(fenced, ev.PutInUse(replace(owner, crowded=False))), ev.PutInUse(owner))
    assert book.of(service_metrics.UNAUTHORISED, **DEVICE_LABELS, had_by="tenant") == 1
    assert book.of(service_metrics.UNAUTHORISED, **DEVICE_LABELS, had_by="nobody") is None


def test_a_container_that_is_let_through_is_counted_once(book):
    attempts = [
        ev.OpenAttempted(replace(lives.OPENER, **fields), 1, held=held, ended=ended)
        for fields, held, ended in (
            ({}, True, False), ({"times": 9}, True, True), ({"refused": 3}, True, False),
            ({"exempt": True}, True, False), ({}, False, False), ({"place": ""}, True, False),
            ({"place": "/system.slice/monitor.service"}, True, False), ({"place": "/kubepods"}, True, False),
        )
    ]  # fmt: skip
    book.tell(lives.IN_USE, *attempts)
    counted = book.of(service_metrics.UNAUTHORISED, **DEVICE_LABELS, had_by="tenant")
    assert counted == 2, "a pod, and a pod that is gone"


def test_an_error_is_counted_once(book):
    vitals = Vitals(xids=(Xid(1, 79), Xid(2, 13), Xid(3, 13)))
    book.counters.vitals(lives.CLEAN, vitals)
    book.counters.vitals(lives.CLEAN, vitals)
    assert book.of(service_metrics.XIDS, **DEVICE_LABELS, xid="13") == 2
    assert book.of(service_metrics.XIDS, **DEVICE_LABELS, xid="79") == 1


def test_errors_recorded_before_the_start_are_not_counted(book):
    known = lives.live(lives.CLEAN, ev.ErrorsNoted(((13, 2),), 2))
    book.counters.vitals(known, Vitals(xids=(Xid(1, 13), Xid(2, 13), Xid(3, 13))))
    assert book.of(service_metrics.XIDS, **DEVICE_LABELS, xid="13") == 1


def test_only_a_lost_device_keeps_its_series(book):
    cases = (AilmentKind.LOST, 2.0), (AilmentKind.RELAID, None), (AilmentKind.REPLACED, None)
    for number, (kind, left) in enumerate(cases, start=1):
        record = book.tell(lives.CLEAN, ev.Soiled("somebody", (lives.FOREIGN,)))
        book.tell(lives.CLEAN, ev.Soiled("somebody", (lives.FOREIGN,)))
        out = book.tell(record, ev.Quarantined(lives.quarantine(Ailment(kind, "x"))))
        assert book.of(service_metrics.UNAUTHORISED, **DEVICE_LABELS, had_by="nobody") == left
        book.counters.vitals(out, Vitals(lost=True, xids=(Xid(number, 13),)))  # of what is in its place
        assert book.of(service_metrics.XIDS, **DEVICE_LABELS, xid="13") == (None if left is None else 1.0)


def test_an_unknown_xid_adds_no_series(book):
    unknown = [code for code in range(100_000, 100_050) if xids.ROWS.get(code) is None]
    book.counters.vitals(lives.CLEAN, Vitals(xids=tuple(Xid(number, code) for number, code in enumerate(unknown, 1))))
    assert book.of(service_metrics.XIDS, **DEVICE_LABELS, xid="other") == len(unknown) == 50


def test_answers_are_timed_and_refusals_are_counted_by_reason(book):
    book.counters.answered("acquire", "ok", "", 0.002)
    book.counters.answered("acquire", "refused", "in-use", 2.0)
    assert book.of(service_metrics.REQUESTS, "_count", request="acquire", outcome="ok") == 1
    assert book.of(service_metrics.REQUEST_REFUSALS, request="acquire", reason="in-use") == 1


@given(lives.walks())
def test_every_event_can_be_counted_and_counters_grow(steps):
    book = Counted()
    for before, event, _ in steps:
        earlier = book.series()
        book.counters.row(ev.LedgerEntry(1, DEVICE.uuid, NOW, "op", event), before)
        later_on = book.series()
        assert all(later_on[name] >= value for name, value in earlier.items())


async def test_the_ledger_counts_only_recorded_events(book):
    store = memory_store.MemoryStore()
    ledger = Ledger(store, lambda: NOW, listener=book.counters.recorded)
    await ledger.append(
        "op", (DEVICE.uuid, ev.Discovered(DEVICE, lives.HERE)), (DEVICE.uuid, ev.ErrorsNoted(((13, 1),), 1))
    )
    assert book.of(service_metrics.LEDGER_APPEND, "_count") == 1
    with pytest.raises(ev.IllegalEventError):
        await ledger.append("op", (DEVICE.uuid, ev.Granted(lives.grant(lives.CLEAN))))
    assert book.of(service_metrics.GRANTS, proof="receipt") == 0
    assert book.of(service_metrics.LEDGER_APPEND, "_count") == 1
    await ledger.close()


async def test_a_row_that_cannot_be_counted_stays_recorded():
    def broken(*_written) -> None:
        raise RuntimeError("no more room")

    ledger = Ledger(memory_store.MemoryStore(), lambda: NOW, listener=broken)
    await ledger.append("op", (DEVICE.uuid, ev.Discovered(DEVICE, lives.HERE)))
    assert DEVICE.uuid in ledger.records
    await ledger.close()
