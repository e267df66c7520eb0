"""One contract, every store."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Never

import pytest

from ground.errors import LedgerUnavailable
from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Ailment, AilmentKind, DeviceInfo, Incarnation, Moment, State, Step
from scrubber.core.record import Record
from scrubber.ledger import compaction, ledger_rows
from scrubber.ledger.entry_queries import Window
from scrubber.ledger.ledger import Store
from tests.ledger import memory_store
from tests.ledger.conftest import unfolded

AT = Moment(1_750_000_000.0, 1.0)
FIRST = Record(DeviceInfo("GPU-1", 0, "H100", 1), Incarnation("boot", "driver"), State.UNKNOWN, Moment(0.0, 0.0))


@pytest.fixture(params=["memory", "sqlite"])
def kept(request):
    it: Store = memory_store.MemoryStore() if request.param == "memory" else request.getfixturevalue("ledger")
    unfolded(it)
    return it


def whys(entries):
    return [entry.event.why for entry in entries if isinstance(entry.event, events.Released)]


def concatenate(records, entries):
    """A fold that shows what it was given, and in which order."""
    before = records[0] if records else FIRST
    whole = "".join([before.device.model if records else "", *whys(entries)])
    return (replace(before, device=replace(before.device, model=whole)),)


def test_appended_rows_are_loaded_in_order(kept, draft):
    first = kept.append([draft("a"), draft("b", "GPU-2")])
    second = kept.append([draft("c")])
    loaded = unfolded(kept)
    assert loaded.entries == first + second
    assert [entry.seq for entry in loaded.entries] == sorted({entry.seq for entry in loaded.entries})
    assert loaded.head.size == loaded.entries[-1].seq
    assert [(entry.device, entry.at, entry.op) for entry in first] == [
        (entry.device, entry.at, entry.op) for entry in (draft("a"), draft("b", "GPU-2"))
    ]


def test_an_empty_batch_is_no_error(kept):
    assert kept.append([]) == ()


def test_odd_moments_and_texts_come_back_as_they_are(kept, draft):
    for wall in (0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 3):
        kept.append([draft("x\x00\n'é\U0001f9ea", "GPU-\x00'", wall)])
    assert [entry.at.wall for entry in unfolded(kept).entries] == [
        0.30000000000000004,
        0.0,
        5e-324,
        1.7976931348623157e308,
        3.0,
    ]
    assert whys(unfolded(kept).entries) == ["x\x00\n'é\U0001f9ea"] * 5


@pytest.mark.parametrize("spoilt", ["why", "device", "wall"])
def test_a_batch_with_an_invalid_event_stores_no_row(kept, draft, spoilt):
    bad = {"why": draft("\udc80"), "device": draft("b", "\udc80"), "wall": draft("b", wall=float("nan"))}[spoilt]
    with pytest.raises(ValueError, match=r"."):
        kept.append([draft("a"), bad])
    kept.append([draft("c")])
    assert whys(unfolded(kept).entries) == ["c"]


def test_history_returns_the_newest_rows_of_a_device_in_order(kept, draft):
    for number in range(6):
        kept.append([draft(str(number), f"GPU-{number % 2}", wall=float(number))])
    assert whys(kept.history(None, None, 100)) == ["0", "1", "2", "3", "4", "5"]
    assert whys(kept.history(None, None, 2)) == ["4", "5"]
    assert whys(kept.history("GPU-1", None, 2)) == ["3", "5"]
    assert whys(kept.history(None, 4.0, 100)) == ["4", "5"]
    assert whys(kept.history("GPU-7", None, 100)) == []


def test_history_can_be_read_page_by_page_in_both_directions(kept, draft):
    for number in range(6):
        kept.append([draft(str(number))])
    rows = [entry.seq for entry in kept.history(None, None, 100)]
    assert whys(kept.history(None, None, 2, Window(before=rows[4]))) == ["2", "3"]
    assert whys(kept.history(None, None, 2, Window(before=rows[4], after=rows[2]))) == ["3"]
    assert whys(kept.history(None, None, 9, Window(after=rows[3]))) == ["4", "5"]
    assert whys(kept.history(None, None, 9, Window(after=rows[5]))) == []


def test_history_can_be_read_by_the_kinds_of_events(kept, draft):
    kept.append([draft("a")])
    [entry] = kept.history(None, None, 9)
    kind, _ = ledger_rows.encode(entry.event)
    assert whys(kept.history(None, None, 9, Window(kinds=frozenset({"quarantined", kind})))) == ["a"]
    assert kept.history(None, None, 9, Window(kinds=frozenset({"quarantined"}))) == ()


def test_history_may_be_asked_from_another_thread(kept, draft):
    kept.append([draft("a")])
    seen: list[tuple[LedgerEntry, ...]] = []
    thread = threading.Thread(target=lambda: seen.append(kept.history(None, None, 10)))
    thread.start()
    thread.join()
    assert [whys(entries) for entries in seen] == [["a"]]


def test_compaction_folds_what_is_old_and_keeps_the_newest(kept, draft):
    kept.append([draft(letter) for letter in "abcdefgh"])
    assert kept.compact(concatenate, 3, AT) >= 5
    loaded = unfolded(kept)
    assert [record.device.model for record in loaded.snapshot] == ["abcde"]
    assert whys(loaded.entries) == ["f", "g", "h"]
    kept.append([draft("i")])
    kept.compact(concatenate, 1, AT)
    assert [record.device.model for record in unfolded(kept).snapshot] == ["abcdefgh"]
    assert whys(unfolded(kept).entries) == ["i"]


def test_evidence_outlives_the_steps_of_scrubs(kept, draft):
    step = replace(draft(), event=events.StepsRecorded("job", (), Step.CLEAR))
    sick = replace(draft(), event=events.AilmentFound(Ailment(AilmentKind.XID, "xid 79", xid=79)))
    for number in range(4):
        kept.append([draft(f"a{number}", wall=100.0 + number), step, *([sick] if number == 1 else [])])
    rows = [entry.seq for entry in kept.history(None, None, 100)]
    kept.compact(concatenate, 4, AT)
    kept.append([draft("b"), step])
    kept.compact(concatenate, 4, AT)
    whole = kept.history(None, None, 100)
    assert whys(whole) == ["a0", "a1", "a2", "a3", "b"]
    assert [entry.event for entry in whole].count(step.event) == 2
    assert whys(kept.history(None, None, 2, Window(before=rows[3]))) == ["a0", "a1"]
    assert whys(kept.history(None, 101.0, 9, Window(until=102.0))) == ["a1", "a2"]
    assert kept.history(None, None, 9, Window(before=rows[5], warnings=True))[0].event == sick.event


def test_a_history_survives_a_jump_of_the_clock(kept, draft):
    """The clock was set forward by an hour, and the node was rebooted before that."""
    times = {"earlier boot": (100.0, 960.0), "older": (200.0, 10.0), "before": (490.0, 300.0), "after": (4100.0, 310.0)}
    kept.append([draft(why, wall=wall, uptime=uptime) for why, (wall, uptime) in times.items()])
    assert whys(kept.history(None, 4000.0, 9)) == ["after"]
    assert whys(kept.history(None, 4000.0, 9, Window(uptime=210.0))) == ["before", "after"]


@pytest.mark.parametrize(("wall", "counted"), [(450.0, ["last run", "now"]), (9000.0, ["now"])])
def test_an_earlier_shorter_boot_is_another_one(kept, draft, wall, counted):
    """The service started again 50 seconds later, or in a new boot that is longer. A row of the ledger comes before."""
    folded = draft("folded", wall=399.0, uptime=9.0)
    kept.append([folded, folded, draft("last run", wall=400.0, uptime=10.0)])
    kept.compact(concatenate, 1, Moment(wall - 5, 55.0))
    started = replace(draft(wall=wall, uptime=60.0), device="", event=events.ServiceStarted("0", True))
    kept.append([started, draft("now", wall=wall + 3600, uptime=3660.0)])
    shown = kept.history(None, wall + 3000, 9, Window(uptime=-500.0))
    assert [it.event.why for it in shown if it.device] == counted


def test_the_oldest_evidence_goes_by_count_and_by_age(kept, draft):
    def shown(wall: float, retention: compaction.Retention) -> object:
        kept.compact(concatenate, 1, Moment(wall, 1.0), retention)
        return whys(kept.history(None, None, 100))

    kept.append([draft("a", wall=1.0), draft("b", wall=2.0), draft("c", wall=3.0)])
    assert shown(1000.0, compaction.Retention(3, 1e9)) == ["a", "b", "c"]
    kept.append([draft("d", wall=900.0), draft("e", wall=901.0)])
    assert shown(1000.0, compaction.Retention(3, 1e9)) == ["c", "d", "e"]
    unfolded(kept)
    assert (kept.kept.since, kept.kept.steps_since) == (3.0, 901.0)
    kept.append([draft("f", wall=2000.0)])
    assert shown(2000.0, compaction.Retention(9, 1099.5)) == ["e", "f"]


def test_compaction_may_keep_no_rows(kept, draft):
    kept.append([draft("a"), draft("b")])
    kept.compact(concatenate, 0, AT)
    loaded = unfolded(kept)
    assert ([record.device.model for record in loaded.snapshot], loaded.entries) == (["ab"], ())
    assert kept.append([draft("c")])[0].seq > loaded.head.size
    assert whys(unfolded(kept).entries) == ["c"]


def test_compaction_without_old_rows_changes_nothing(kept, draft):
    kept.append([draft("a")])
    before = unfolded(kept)
    assert kept.compact(concatenate, 10, AT) == 0
    assert unfolded(kept) == before


def test_a_fold_that_fails_changes_nothing(kept, draft):
    def fails(_records, _entries) -> Never:
        raise KeyError("no such state")

    kept.append([draft("a"), draft("b"), draft("c")])
    before = unfolded(kept)
    with pytest.raises(KeyError):
        kept.compact(fails, 1, AT)
    assert unfolded(kept) == before
    kept.append([draft("d")])
    assert whys(unfolded(kept).entries) == ["a", "b", "c", "d"]


def test_a_closed_store_says_so(kept, draft):
    kept.close()
    kept.close()
    for call in (lambda: unfolded(kept), lambda: kept.append([draft()]), lambda: kept.compact(concatenate, 0, AT)):
        with pytest.raises(LedgerUnavailable, match="it is closed"):
            call()
