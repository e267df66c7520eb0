"""A round asks the driver who uses a device, and searches for what the driver cannot say. A use takes a search."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Holder, Incarnation, Moment, Owner, State
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.core.states import apply
from scrubber.devices.simulated import drills
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
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
    observer = Observer(DriverCalls(backend, "boot"), processes, directory, ObservedSince(0.0), lives.no_reset)
    return observer, backend, processes


@pytest.fixture
def parts(bank, tmp_path) -> Iterator[Parts]:
    backend = Listing(bank.root)
    yield observing(backend, tmp_path)
    backend.close()


@pytest.mark.parametrize("place", ["first", "second"], ids=["on the device", "idle, as a notebook for days"])
async def test_a_running_owner_saves_the_search_of_processes(bank, parts, place):
    observer, backend, processes = parts
    pid = drills.occupy(bank.root, getattr(bank, place), b"x", POD)
    backend.named = frozenset({pid} if place == "first" else ())
    record = in_use(backend, bank.first, POD)
    await observer.look(record, Purpose.CHANGE)  # at its start
    seen = [await observer.look(record, Purpose.ROUND) for _ in range(3)]
    holders = 1 if place == "first" else 0
    assert [(it.owner_alive, len(it.holders or ())) for it in seen] == [(True, holders)] * 3
    assert processes.walks == 1
    end(pid)
    backend.named = frozenset()
    left = await observer.look(record, Purpose.ROUND)
    assert (processes.walks, left.owner_alive, left.holders) == (2, False, ())


async def test_an_owner_unreadable_without_free_files_is_searched_for(bank, parts, monkeypatch):
    observer, backend, processes = parts
    backend.named = frozenset({drills.occupy(bank.root, bank.first, b"x", POD)})
    record = in_use(backend, bank.first, POD)
    await observer.look(record, Purpose.CHANGE)

    def unreadable(_pid: int) -> tuple[Holder, ...]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as short:
        short.setattr(processes, "process", unreadable)
        seen = await observer.look(record, Purpose.ROUND)
    assert (processes.walks, seen.owner_alive, len(seen.holders or ())) == (2, True, 1)


async def test_a_former_owner_does_not_keep_a_released_device(bank, parts):
    observer, backend, _ = parts
    drills.occupy(bank.root, bank.second, b"x", POD)
    record = in_use(backend, bank.first, POD)
    await observer.look(record, Purpose.ROUND)
    released = lives.but(record, state=State.DIRTY, owner=None)
    assert (await observer.look(released, Purpose.ROUND)).owner_alive is None


class Forgetful(Listing):
    """A driver that leaves out who has no context."""

    def has_holders(self, uuid: str) -> bool | None:  # noqa: ARG002 - the port's
        return False


@pytest.fixture
def forgetful(bank, tmp_path) -> Parts:
    return observing(Forgetful(bank.root), tmp_path)


async def test_who_only_has_it_open_is_found_before_a_use(bank, forgetful):
    observer, backend, processes = forgetful
    record = lives.but(in_use(backend, bank.first, POD), state=State.CLEAN, owner=None)
    drills.occupy(bank.root, bank.first, b"x", POD)
    assert ((await observer.look(record, Purpose.ROUND)).holders, processes.walks) == ((), 0)
    assert len((await observer.look(record, Purpose.GRANT)).holders or ()) == 1


@pytest.mark.parametrize("meanwhile", [False, True], ids=["only the pod", "somebody else meanwhile"])
async def test_both_hooks_take_one_pass_over_all_processes(bank, tmp_path, meanwhile):
    """Without a fence, also for a pod whose control group no usual place shows. The pass is that of the start."""
    backend, passes = Forgetful(bank.root), list[State]()
    clean = lives.but(in_use(backend, bank.first, POD), state=State.CLEAN, owner=None)
    granted = lives.but(clean, state=State.GRANTED)
    hook = clean

    def count() -> None:
        passes.append(hook.state)

    processes = Processes(Path("/proc"), backend.container_of, whole_node=False, on_pass=count)
    observer = Observer(
        DriverCalls(backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset, on_pass=count
    )
    drills.occupy(bank.root, bank.second, b"", POD)  # its sandbox, which is not on this GPU
    assert (await observer.look(clean, Purpose.RESERVE)).holders == ()
    who = [drills.occupy(bank.root, bank.first, b"", f"other-{POD}")] if meanwhile else []
    hook = granted
    facts = await observer.look(granted, Purpose.START, starting_pod=POD)
    assert ([it.pid for it in facts.holders or ()], facts.starting_pod_alive, passes) == (who, True, [State.GRANTED])


@pytest.mark.parametrize(
    "owner",
    [Owner(None, NOW, seen=True), Owner(POD, NOW, seen=True, unannounced=True)],
    ids=["a person", "nobody had announced it"],
)
async def test_who_only_has_it_open_keeps_his_device(bank, forgetful, owner):
    """With nobody on it, the device would be taken from such an owner."""
    observer, backend, processes = forgetful
    record = lives.but(in_use(backend, bank.first, POD), owner=owner)
    drills.occupy(bank.root, bank.first, b"x", POD)
    seen = await observer.look(record, Purpose.ROUND)
    assert (len(seen.holders or ()), processes.walks) == (1, 1)


async def test_a_newly_listed_process_is_named_without_a_search(bank, parts):
    observer, backend, processes = parts
    mine, foreign = (drills.occupy(bank.root, bank.first, b"x", pod) for pod in (POD, "pod-b"))
    record = in_use(backend, bank.first, POD)
    await observer.look(record, Purpose.CHANGE)
    backend.named = frozenset({mine, foreign})
    seen = await observer.look(record, Purpose.ROUND)
    assert {holder.container for holder in seen.holders or ()} == {POD, "pod-b"}
    assert processes.walks == 1


@pytest.mark.parametrize("known", [True, False])
async def test_a_bystander_on_the_list_is_no_use(bank, tmp_path, known):
    backend = Listing(bank.root)
    monitor = drills.occupy(bank.root, bank.first, b"x", "")
    processes = Counted(Path("/proc"), backend.container_of, whole_node=False)
    clock, driver = ObservedSince(0.0), DriverCalls(backend, "boot")
    is_monitor = lambda holder: known and holder.pid == monitor  # noqa: E731 - its name says it
    observer = Observer(driver, processes, tmp_path, clock, lives.no_reset, lambda _: is_monitor)
    record = lives.but(in_use(backend, bank.first, POD), state=State.CLEAN, owner=None)
    backend.named = frozenset({monitor})
    seen = await observer.look(record, Purpose.ROUND)
    assert (len(seen.holders or ()), processes.walks) == (0 if known else 1, 0)
    assert seen.used_at == lives.facts().used_at
    backend.close()
