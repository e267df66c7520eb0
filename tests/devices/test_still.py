"""Devices in use are looked after cheaply: no walk while the owner that was met still runs, and that is no proof."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Holder, Incarnation, Moment, Owner, State
from scrubber.core.record import Record
from scrubber.core.states import apply
from scrubber.devices.simulated import drills
from scrubber.devices.simulated.backend import Simulated
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observation_cache import ObservedSince
from scrubber.observe.observer import Observer
from tests.core import lives
from tests.devices.conftest import end

NOW = Moment(0.0, 0.0)
POD = f"pod-{os.getpid()}"  # simulated containers are those of the whole machine, and tests run side by side


class Listing(Simulated):
    """A driver that lists users, whom a test names."""

    named: frozenset[int] = frozenset()

    def listed_holders(self, uuid: str) -> frozenset[int]:  # noqa: ARG002 - the port's
        return self.named


class Counted(Processes):
    """Counts its walks."""

    walks = 0
    passes_over: Collection[int] = ()  # they have closed it, and live on

    def holders(self, files, *_, **more):
        self.walks += 1
        return super().holders(files, self.passes_over, **more)


def in_use(backend: Simulated, uuid: str, pod: str) -> Record:
    info = next(it for it in backend.inventory() if it.uuid == uuid)
    record: Record | None = None
    for event in (ev.Discovered(info, Incarnation("boot", backend.driver())), ev.PutInUse(Owner(pod, NOW, seen=True))):
        record = apply(record, LedgerEntry(0, uuid, NOW, "op", event))
    assert record is not None
    return record


Parts = tuple[Observer, Simulated, Counted]


def observing(backend: Simulated, directory: Path) -> Parts:
    processes = Counted(Path("/proc"), backend.container_of, whole_node=False)
    return Observer(DriverCalls(backend, "boot"), processes, directory, ObservedSince(0.0)), backend, processes


@pytest.fixture(autouse=True)
def costly(monkeypatch) -> None:
    """A walk may stand for a long time."""
    monkeypatch.setattr("scrubber.observe.observation_cache.CPU_SHARE", 1e-6)


@pytest.fixture
def parts(bank, tmp_path) -> Iterator[Parts]:
    backend = Listing(bank.root)
    yield observing(backend, tmp_path)
    backend.close()


@pytest.mark.parametrize("place", ["first", "second"], ids=["on the device", "idle, as a notebook for days"])
async def test_a_running_owner_saves_the_search_of_processes(bank, parts, place):
    observer, backend, processes = parts
    pid = drills.occupy(bank.root, getattr(bank, place), b"x", POD)
    record = in_use(backend, bank.first, POD)
    seen = [await observer.quick(record) for _ in range(3)]
    holders = 1 if place == "first" else 0
    assert [(it.owner_alive, len(it.holders or ())) for it in seen] == [(True, holders)] * 3
    assert processes.walks == 1
    end(pid)
    left = await observer.quick(record)
    assert (processes.walks, left.owner_alive, left.holders) == (2, False, ())


async def test_an_owner_unreadable_without_free_files_is_searched_again(bank, parts, monkeypatch):
    observer, backend, processes = parts
    drills.occupy(bank.root, bank.first, b"x", POD)
    record = in_use(backend, bank.second, POD)  # the owner runs, and does not use the device

    def unreadable(_pid: int) -> tuple[Holder, ...]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        short.setattr(processes, "process", unreadable)
        assert (await observer.full(record)).owner_alive is True
    assert (await observer.quick(record)).owner_alive is True
    assert processes.walks == 2


async def test_a_former_owner_does_not_keep_a_released_device(bank, parts):
    observer, backend, _ = parts
    drills.occupy(bank.root, bank.second, b"x", POD)
    record = in_use(backend, bank.first, POD)
    await observer.quick(record)
    released = lives.but(record, state=State.DIRTY, owner=None)
    assert (await observer.quick(released)).owner_alive is None


def clean(backend: Simulated, uuid: str) -> Record:
    return lives.but(in_use(backend, uuid, POD), state=State.CLEAN, owner=None)


class Forgetful(Listing):
    """A driver that leaves out who has no context."""

    def has_holders(self, uuid: str) -> bool | None:  # noqa: ARG002 - the port's
        return False


@pytest.fixture
def forgetful(bank, tmp_path) -> Parts:
    return observing(Forgetful(bank.root), tmp_path)


async def test_after_a_search_empty_driver_lists_count_for_a_while(bank, forgetful):
    observer, backend, processes = forgetful
    record = clean(backend, bank.first)
    assert [(await observer.quick(record)).holders for _ in range(3)] == [(), (), ()]
    assert processes.walks == 1
    drills.occupy(bank.root, bank.first, b"x", POD)
    assert (await observer.quick(record)).holders == ()
    observer._cache.forget(record)  # it is time
    assert len((await observer.quick(record)).holders or ()) == 1


async def test_the_last_observation_before_use_searches_processes(bank, forgetful):
    observer, backend, _ = forgetful
    record = clean(backend, bank.first)
    await observer.quick(record)
    drills.occupy(bank.root, bank.first, b"x", POD)
    assert len((await observer.quick(record, before_use=True)).holders or ()) == 1


async def test_a_request_searches_again_for_an_awaited_holder(bank, forgetful):
    """A former holder may live on for days."""
    observer, backend, processes = forgetful
    pid = drills.zombie(bank.root, bank.first)
    record = replace(clean(backend, bank.first), state=State.DIRTY)
    seen = await observer.quick(record)
    assert len(seen.holders or ()) == 1
    assert await observer.quick(record) == seen
    assert processes.walks == 1
    processes.passes_over = {pid}
    assert (await observer.quick(record, before_use=True)).holders == ()
    assert processes.walks == 2


async def test_open_files_of_a_newly_listed_process_are_read(bank, parts):
    observer, backend, processes = parts
    drills.occupy(bank.root, bank.first, b"x", POD)
    record = in_use(backend, bank.first, POD)
    await observer.quick(record)
    foreign = drills.occupy(bank.root, bank.second, b"x", "pod-b")
    backend.named = frozenset({foreign})
    seen = await observer.quick(record)
    assert {holder.container for holder in seen.holders or ()} == {POD, "pod-b"}
    assert processes.walks == 2
    assert await observer.quick(record) == seen  # known by now
    assert processes.walks == 2


@pytest.mark.parametrize(
    "change", ["another owner", "another driver", "it is time", "no process of the owner was seen"]
)
async def test_an_observation_of_another_state_is_not_reused(bank, parts, monkeypatch, change):
    observer, backend, processes = parts
    drills.occupy(bank.root, bank.first, b"x", POD)
    record = in_use(backend, bank.first, POD)
    if change == "no process of the owner was seen":
        record = lives.but(record, owner=Owner("pod-c", NOW))
    if change == "it is time":
        monkeypatch.setattr(observer, "_remember", lambda *_: None)
    await observer.quick(record)
    if change == "another owner":
        record = lives.but(record, owner=Owner("pod-b", NOW))
    if change == "another driver":
        monkeypatch.setattr(backend, "driver", lambda: "anew")
    await observer.quick(record)
    assert processes.walks == 2
