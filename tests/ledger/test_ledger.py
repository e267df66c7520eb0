"""Legal, then durable, then true; and what is on the disk is what is believed."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from ground.errors import LedgerUnavailable
from scrubber.core import events as ev
from scrubber.core import states
from scrubber.core.events import IllegalEventError, LedgerEntry
from scrubber.core.model import DeviceInfo, Incarnation, Moment, Owner, State
from scrubber.ledger import ledger as module
from scrubber.ledger.entry_queries import EVERYTHING, Window
from scrubber.ledger.ledger import Ledger
from tests.ledger.conftest import unfolded
from tests.ledger.memory_store import MemoryStore

BOOT = Incarnation("boot-1", "driver-1")
NOW = Moment(1_750_000_000.0, 100.0)


def discovered(name):
    return name, ev.Discovered(DeviceInfo(name, 0, "GPU", 1000), BOOT)


def described(name, index):
    return name, ev.Described(DeviceInfo(name, index, "GPU", 1000))


def used(name):
    return name, ev.PutInUse(Owner("somebody", NOW, seen=True, unannounced=True))


class FailingStore(MemoryStore):
    """A store whose disk fails on demand, and can be held in the middle of a write."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = self.unreadable = False
        self.appended = 0
        self.loaded = 0
        self.on_append: Callable[[], object] = lambda: None
        self.on_history: Callable[[], object] = lambda: None

    def load(self, fold):
        self.loaded += 1
        if self.unreadable:
            raise LedgerUnavailable("cannot read: the disk is full")
        return super().load(fold)

    def history(self, *wanted):
        self.on_history()
        return super().history(*wanted)

    def append(self, drafts):
        self.appended += 1
        self.on_append()
        if self.broken:
            raise LedgerUnavailable("cannot write: the disk is full")
        return super().append(drafts)


@pytest.fixture
def store():
    return FailingStore()


@pytest.fixture
async def ledger(store):
    ledger = Ledger(store, lambda: NOW)
    yield ledger
    await ledger.close()


@pytest.fixture
def go():
    """What a write or a read waits for, at the latest until the test ends: one that fails leaves no thread behind."""
    event = threading.Event()
    yield event
    event.set()


async def test_an_appended_event_is_durable_before_it_is_true(ledger, store):
    await ledger.append("op", discovered("GPU-1"))
    assert ledger.records["GPU-1"].state is State.UNKNOWN
    assert states.replay((), unfolded(store).entries) == (ledger.records["GPU-1"],)


async def test_several_devices_are_recorded_all_or_none(ledger, store):
    with pytest.raises(IllegalEventError):
        await ledger.append("op", discovered("GPU-1"), described("GPU-2", 1))
    assert (store.appended, dict(ledger.records)) == (0, {})
    await ledger.append("op", discovered("GPU-1"), discovered("GPU-2"), described("GPU-2", 7))
    assert ledger.records["GPU-2"].device.index == 7


async def test_after_a_failed_write_the_disk_is_read_again(ledger, store):
    store.broken = True
    with pytest.raises(LedgerUnavailable):
        await ledger.append("op", discovered("GPU-1"))
    assert dict(ledger.records) == {}
    faults: list[str] = []
    store.on_append = lambda: faults.append(str(ledger.fault))  # a disk that can be read again may not be writable
    store.broken, before = False, store.loaded
    await ledger.append("op", discovered("GPU-1"))
    assert (store.loaded, ledger.fault) == (before + 1, None)
    assert faults == ["cannot write: the disk is full", "None"]


@pytest.mark.parametrize("next_write", ["try_again", "append", "append_of_node"])
async def test_an_outage_is_one_row_before_the_next(store, next_write):
    uptime = 100.0
    ledger = Ledger(store, lambda: Moment(NOW.wall + uptime, uptime))
    store.broken = True
    for uptime in (200.0, 300.0, 447.0):
        with pytest.raises(LedgerUnavailable):
            await (ledger.append("op", discovered("GPU-1")) if uptime < 300 else ledger.try_again())
    store.broken, uptime = False, 450.0
    match next_write:
        case "append":
            await ledger.append("op", discovered("GPU-1"))
        case "append_of_node":
            await ledger.append_of_node(ev.ServiceStopped())
        case _:
            await ledger.try_again()
    for _ in range(2):
        await ledger.try_again()
    [first, *others] = unfolded(store).entries
    began, ended = Moment(NOW.wall + 200, 200.0), Moment(NOW.wall + 450, 450.0)
    assert first.event == ev.WritesFailed(began, ended, "cannot write: the disk is full")
    assert (first.device, ledger.fault, len(others)) == (ev.NODE, None, 0 if next_write == "try_again" else 1)
    await ledger.close()


@pytest.mark.parametrize(("took", "rows"), [(4.9, 0), (5.0, 1)])
async def test_a_write_that_took_seconds_is_recorded(store, go, monkeypatch, took, rows):
    monkeypatch.setattr(module, "SLOW", 0.0)
    uptime = 100.0
    ledger = Ledger(store, lambda: Moment(NOW.wall + uptime, uptime))
    store.on_append = go.wait
    writing = asyncio.create_task(ledger.append("op", discovered("GPU-1")))
    await ledger.changed.until(lambda: ledger.fault is not None)
    uptime += took
    go.set()
    await writing
    monkeypatch.setattr(module, "SLOW", 60.0)
    await ledger.try_again()
    outages = [entry.event for entry in unfolded(store).entries if entry.device == ev.NODE]
    assert [event.until.uptime - event.since.uptime for event in outages] == [took] * rows
    await ledger.close()


@pytest.mark.parametrize("unreadable", [True, False])
async def test_holders_seen_during_a_disk_failure_are_recorded_later(ledger, store, unreadable):
    await ledger.append("op", discovered("GPU-1"), discovered("GPU-2"))
    store.broken, store.unreadable = True, unreadable
    for _ in range(2):
        for device in ("GPU-1", "GPU-2"):
            with pytest.raises(LedgerUnavailable):
                await ledger.append("op", used(device))
    store.broken = store.unreadable = False
    await ledger.append("op", discovered("GPU-3"))
    assert [ledger.records[device].state for device in ("GPU-1", "GPU-2")] == [State.IN_USE] * 2


async def test_each_recorded_event_is_logged_with_its_row(ledger, store):
    """Also a sighting that was recorded late: it may be a warning."""
    await ledger.append("op", discovered("GPU-1"))
    store.broken = True
    with pytest.raises(LedgerUnavailable):
        await ledger.append("op", ("GPU-1", ev.Distrusted("a reboot", BOOT)))
    store.broken = False
    with capture_logs() as lines:
        await ledger.append("op", discovered("GPU-2"), described("GPU-2", 7))
    assert [(line["row"], line["device"], line["log_level"]) for line in lines] == [
        (2, "", "warning"),  # the outage
        (3, "GPU-1", "warning"),
        (4, "GPU-2", "debug"),
        (5, "GPU-2", "debug"),
    ]


async def test_a_failed_admission_keeps_the_earlier_owner(ledger, store):
    await ledger.append("op", discovered("GPU-1"))
    store.broken = True
    for event in (used("GPU-1"), ("GPU-1", ev.PutInUse(Owner("pod", NOW, seen=True)))):
        with pytest.raises(LedgerUnavailable):
            await ledger.append("op", event)
    store.broken = False
    await ledger.append("op", discovered("GPU-2"))
    assert ledger.records["GPU-1"].tenancy.owner.container == "somebody"


async def test_a_decision_before_an_unrecorded_event_is_repeated(ledger, store):
    await ledger.append("op", discovered("GPU-1"))
    store.broken = True
    with pytest.raises(LedgerUnavailable):
        await ledger.append("op", used("GPU-1"))
    store.broken = False
    with pytest.raises(LedgerUnavailable, match="had to be recorded first; try again"):
        await ledger.append("op", described("GPU-1", 7))
    assert (ledger.records["GPU-1"].state, ledger.records["GPU-1"].device.index) == (State.IN_USE, 0)
    await ledger.append("op", described("GPU-1", 7))
    assert ledger.records["GPU-1"].device.index == 7


async def test_a_row_left_by_a_failed_write_counts_once(ledger, store):
    await ledger.append("op", discovered("GPU-1"), discovered("GPU-2"))
    store.broken = True
    with pytest.raises(LedgerUnavailable):
        await ledger.append("op", used("GPU-1"), used("GPU-2"))
    store.broken = False
    MemoryStore.append(store, [LedgerEntry(0, "GPU-1", NOW, "op", ev.PutInUse(Owner("somebody", NOW, seen=True))),
                               LedgerEntry(0, "GPU-1", NOW, "op", ev.Released("it left"))])  # fmt: skip
    await ledger.append("op", discovered("GPU-3"))
    assert (ledger.records["GPU-1"].state, ledger.records["GPU-2"].state) == (State.DIRTY, State.IN_USE)


async def test_a_pod_seen_during_a_failed_write_crowds_the_device(ledger, store):
    await ledger.append("op", discovered("GPU-1"))
    store.broken = True
    with pytest.raises(LedgerUnavailable):
        await ledger.append("op", ("GPU-1", ev.PutInUse(Owner("other", NOW, seen=True, unannounced=True))))
    store.broken = False
    MemoryStore.append(store, [LedgerEntry(0, "GPU-1", NOW, "op", ev.PutInUse(Owner("somebody", NOW, seen=True)))])
    await ledger.append("op", discovered("GPU-2"))
    assert ledger.records["GPU-1"].tenancy.owner == Owner("somebody", NOW, seen=True, crowded=True)


async def test_the_ledger_reports_a_fault_while_a_write_hangs(ledger, store, go, monkeypatch):
    monkeypatch.setattr(module, "SLOW", 0.05)
    store.on_append = go.wait
    writing = asyncio.create_task(ledger.append("op", discovered("GPU-1")))
    with capture_logs() as lines:
        async with asyncio.timeout(5):
            await ledger.changed.after(ledger.changed.notifications, 5)
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "the ledger has stopped writing: no device is granted until the disk answers"
    ]
    assert "taken longer" in ledger.fault.message
    go.set()
    await writing
    assert ledger.fault is None


WINDOWS = (
    EVERYTHING, Window(after=2), Window(kinds=frozenset({"described"})), Window(until=NOW.wall - 1),
)  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("asked", [(None, None, 9), ("GPU-1", NOW.wall, 1), (None, 1e12, 9)])
async def test_a_history_comes_from_memory_while_a_read_hangs(ledger, store, go, monkeypatch, asked, window):
    await ledger.append("op", discovered("GPU-1"), discovered("GPU-2"), described("GPU-1", 7), described("GPU-2", 8))
    wanted = await ledger.history(*asked, window)
    assert not wanted.partial
    monkeypatch.setattr(module, "READ", 0.05)
    store.on_history = go.wait
    assert await ledger.history(*asked, window) == (wanted.entries, len(wanted.entries) < asked[-1])
    assert ledger.kept.since == 0.0  # the rows on the disk are still there
    go.set()
    monkeypatch.undo()
    assert await ledger.history(*asked, window) == wanted


async def test_a_history_asks_for_its_time_by_both_clocks(ledger, store, monkeypatch):
    asked = []

    def history(*wanted) -> tuple[()]:
        asked.append(wanted[3].uptime)
        return ()

    monkeypatch.setattr(store, "history", history)
    for since in (None, NOW.wall - 30):
        await ledger.history(None, since, 1)
    assert asked == [None, NOW.uptime - 30]


async def test_a_later_page_of_the_history_waits_for_the_disk(ledger, store, go, monkeypatch):
    """Memory does not reach that far back: a page from memory would end the history in the middle."""
    await ledger.append("op", discovered("GPU-1"), discovered("GPU-2"), described("GPU-1", 7))
    ledger._recent.clear()
    monkeypatch.setattr(module, "READ", 0.0)
    store.on_history = go.wait
    reading = asyncio.create_task(ledger.history(None, None, 9, Window(before=3)))
    assert (await ledger.history(None, None, 9)).partial  # the first page of another caller
    go.set()
    assert [entry.seq for entry in (await reading).entries] == [1, 2]


async def test_a_caller_that_leaves_does_not_tear_memory_from_disk(ledger, store):
    await ledger.append("op", discovered("GPU-1"))
    caller = asyncio.create_task(ledger.append("op", described("GPU-1", 5)))
    await asyncio.sleep(0)  # it has begun, and no more
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await ledger.append("op", discovered("GPU-2"))
    assert ledger.records["GPU-1"].device.index == 5
    assert states.replay((), unfolded(store).entries) == tuple(ledger.records.values())


async def test_a_waiting_listener_gets_the_next_row(ledger):
    waiting = asyncio.create_task(ledger.changed.after(ledger.changed.notifications, 60))
    await asyncio.sleep(0)
    await ledger.append("op", discovered("GPU-1"))
    assert await waiting is True


async def test_folding_old_rows_changes_no_record(store):
    ledger = Ledger(store, lambda: NOW, keep=20, fold_at_once=10)
    await ledger.append("op", discovered("GPU-1"))
    for index in range(100):
        await ledger.append("op", described("GPU-1", index))
    believed = dict(ledger.records)
    loaded = unfolded(store)
    assert len(loaded.entries) < 40
    again = Ledger(store, lambda: NOW)
    assert dict(again.records) == believed
    assert (again.head, again.seq) == (ledger.head, ledger.seq)
    await ledger.close()
