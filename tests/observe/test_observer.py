"""An observation of one device does not wait for what another device needs."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from scrubber.core import events as ev
from scrubber.core.model import Holder, Incarnation, Moment, Owner, State, Vitals
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.core.states import apply
from scrubber.core.use_counter import NoUseCounter, UseReading
from scrubber.devices.base import DriverClosedError
from scrubber.devices.blocking_calls import Caller, UnresponsiveError
from scrubber.devices.simulated import drills
from scrubber.devices.simulated.containers import MARK
from scrubber.node import clock
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from tests.core import lives
from tests.node.conftest import NodeProc
from tests.node.open_programs import WRITE as WRITE_AND_WAIT
from tests.patience import WITHIN

POD = f"pod-{os.getpid()}"  # of this test alone: the marks of processes count on the whole machine
UNREADABLE = '"program" (pid 7, no container) cannot be read: permission denied'


class Slow(Processes):
    """A search of all processes that ends when the test says so."""

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.searching, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def _pass(self, *args) -> dict[str, tuple[Holder, ...] | None]:
        self.searching.set()
        assert self.go_on.wait(WITHIN)
        return super()._pass(*args)


class Late(Caller):
    """Some answers take longer than anybody waits: those of the search, and those of a device."""

    def __init__(self, *late: str) -> None:
        super().__init__()
        self.late = late

    async def ask(self, key, question, deadline):
        if key in self.late:
            raise UnresponsiveError("too late")
        return await super().ask(key, question, deadline)


@pytest.fixture
def processes(bank):
    slow = Slow(Path("/proc"), bank.backend.container_of, whole_node=False)
    yield slow
    slow.go_on.set()


def record(bank, uuid: str) -> Record:
    info = next(it for it in bank.backend.inventory() if it.uuid == uuid)
    found = ev.Discovered(info, Incarnation("boot", bank.backend.driver()))
    return apply(None, ev.LedgerEntry(0, uuid, Moment(0.0, 0.0), "op", found))


def scrubbed(device: Record) -> Record:
    return lives.but(device, state=State.SCRUBBING)


MANY_FILES_FIVE_TIMES = """
import ctypes, os, signal, sys, time
handle = os.open(sys.argv[1], os.O_RDWR)
for _ in range(600):
    os.dup(handle)
for _ in range(4):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
        time.sleep(60)
print(1, flush=True)
time.sleep(60)
"""


def only(directory: Path, pid: int) -> Path:
    """A /proc that shows one process and its children."""
    directory.mkdir()
    for it in (str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        (directory / it).symlink_to(f"/proc/{it}")
    return directory


async def test_forks_with_many_files_hold_up_each_device(bank, launch, tmp_path):
    """They may hold any: sixty processes with 20,000 files each stop all scrubs of the node. They are named."""
    heavy = launch(MANY_FILES_FIVE_TIMES, bank.place(bank.first).memory, **{MARK: POD})
    seen = only(tmp_path / "proc", heavy.pid)  # other processes of this machine may have many files as well
    processes = Processes(seen, bank.backend.container_of, whole_node=False, each_within=0.0)
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    for uuid in (bank.first, bank.second):
        held = await observer.look(record(bank, uuid), Purpose.CHANGE)
        assert held.holders is None
        assert re.fullmatch(rf'"python.*" [(]pid \d+, {POD}[)] took .* s to read', held.held_up)


async def test_a_slow_search_names_the_slowest_process_once(bank, processes, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "slowest", lambda: (3.0, 4711))
    observer = Observer(
        DriverCalls(bank.backend, "boot", caller=Late("processes")),
        processes,
        tmp_path,
        ObservedSince(0.0),
        resetting=lives.no_reset,
    )
    drills.occupy(bank.root, bank.first, b"x", POD)
    with capture_logs() as logs:
        assert [(await observer.look(record(bank, bank.first), Purpose.CHANGE)).holders for _ in range(2)] == [
            None,
            None,
        ]
    assert [it["slowest_pid"] for it in logs if it["event"] == "reading all processes takes too long"] == [4711]


async def test_a_process_that_cannot_be_read_is_named(bank, tmp_path):
    """A hardened kernel, SELinux or AppArmor can hide it from root: then no device that is open is proven free."""
    seen = only(tmp_path / "proc", os.getpid())
    (seen / "self").symlink_to("/proc/self")
    NodeProc(seen).add_unreadable(7)
    namespace = (seen / "self/ns/pid").stat().st_ino
    processes = Processes(seen, lambda _: None, whole_node=True, namespace=namespace)
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    drills.occupy(bank.root, bank.first, b"x", POD)
    with capture_logs() as logs:
        held, again = [await observer.look(record(bank, bank.first), Purpose.CHANGE) for _ in range(2)]
    assert (held.holders, held.held_up, again.held_up) == (None, UNREADABLE, UNREADABLE)
    assert [it["error"] for it in logs if it["event"] == "a process cannot be read"] == [UNREADABLE]


async def test_a_reset_found_during_a_search_hides_the_holders(bank, processes, tmp_path, monkeypatch):
    """Its worker has died meanwhile, and the tool goes on: the use counter, asked last, must not be asked then."""
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device = record(bank, bank.first)
    assert (await observer.look(device, Purpose.CHANGE)).holders == ()
    processes.searching.clear()
    processes.go_on.clear()
    searched = asyncio.create_task(observer.look(device, Purpose.CHANGE))
    assert await asyncio.to_thread(processes.searching.wait, WITHIN)
    monkeypatch.setattr(bank.backend, "in_reset", lambda _uuid: True)
    processes.go_on.set()
    assert (await searched).holders is None


async def test_a_driver_that_names_no_holder_says_why(bank, processes, tmp_path):
    """For a person whose release is refused: somebody has the GPU open, and nobody knows who."""
    observer = Observer(
        DriverCalls(bank.backend, "boot", caller=Late(bank.first)),
        processes,
        tmp_path,
        ObservedSince(0.0),
        resetting=lives.no_reset,
    )
    assert (await observer.look(record(bank, bank.first), Purpose.CHANGE)).held_up == "too late"
    observer = Observer(
        DriverCalls(bank.backend, "boot", caller=Late("driver")),
        processes,
        tmp_path,
        ObservedSince(0.0),
        resetting=lives.no_reset,
    )
    assert (await observer.look(record(bank, bank.first), Purpose.CHANGE)).held_up == "too late"


@pytest.fixture
def lacking(bank) -> str:
    """The first file of the first device, which is missing."""
    file: str = bank.backend.files(bank.first)[0]
    Path(file).unlink()
    return file


async def test_a_file_that_is_not_here_is_named(bank, lacking, tmp_path):
    processes = Processes(only(tmp_path / "proc", os.getpid()), bank.backend.container_of, whole_node=False)
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    seen = await observer.look(record(bank, bank.first), Purpose.CHANGE)
    assert (seen.holders, seen.held_up.startswith(f"{lacking} is not here; ")) == (None, True)


@pytest.fixture
def no_uses(bank, monkeypatch) -> None:
    """The backend keeps no uses that have ended: the observations alone end a proof."""
    monkeypatch.setattr(bank.backend, "read_uses", lambda *_: NoUseCounter("of this test"))


async def test_one_late_answer_before_a_use_calls_no_device_sick(bank, processes, tmp_path):
    """A busy machine delays answers. The device is not free either, as long as it does not answer."""
    driver = DriverCalls(bank.backend, "boot", patience=0.05, caller=Late(bank.first))
    observer = Observer(driver, processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device = record(bank, bank.first)
    seen = await observer.look(device, Purpose.GRANT)
    assert (seen.vitals, seen.holders) == (None, None)
    await asyncio.sleep(driver.patience)
    seen = await observer.look(device, Purpose.GRANT)
    assert seen.vitals == Vitals(unresponsive=True, why="too late")


async def test_a_service_that_cannot_run_calls_no_device_sick(bank, processes, tmp_path):
    driver = DriverCalls(bank.backend, "boot", patience=0.5, caller=Late(bank.first))
    observer = Observer(driver, processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    late = [await observer.look(record(bank, bank.first), Purpose.ROUND) for _ in range(2)]
    await asyncio.sleep(driver.patience)
    driver.caller._lost.seconds += driver.patience
    late.append(await observer.look(record(bank, bank.first), Purpose.ROUND))
    assert [seen.vitals for seen in late] == [None, None, None]


@pytest.mark.usefixtures("no_uses")
@pytest.mark.parametrize("asked", ["the device", "its sibling"])
async def test_a_holder_that_no_search_can_name_ends_earlier_proofs(bank, processes, tmp_path, asked):
    """It may write and leave before the next observation."""
    caller = Late("processes")
    observer = Observer(
        DriverCalls(bank.backend, "boot", caller=caller),
        processes,
        tmp_path,
        ObservedSince(0.0),
        resetting=lives.no_reset,
    )
    device, other = record(bank, bank.first), record(bank, bank.second)
    drills.occupy(bank.root, bank.first, b"x", POD)
    before = clock.now().uptime
    if asked == "the device":
        assert (await observer.look(device, Purpose.CHANGE)).holders is None
    else:
        seen = await observer.look(other, Purpose.RESET, siblings=[device])
        assert (seen.holders, seen.used_at < before) == (None, True)
    drills.release(bank.root, bank.first)
    caller.late = ()
    left = await observer.look(device, Purpose.CHANGE)
    assert left.holders == ()
    assert left.used_at >= before
    assert left.unobserved == "a process had it open that the service did not find: pid 0 took 0.0 s to read"


@pytest.mark.usefixtures("no_uses")
async def test_a_holder_that_left_before_the_search_ends_earlier_proofs(bank, processes, launch, tmp_path, monkeypatch):
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device, listed = record(bank, bank.first), bank.backend.listed_holders

    def leaving(uuid: str) -> frozenset[int]:
        found: frozenset[int] = listed(uuid)
        holder.kill()
        holder.wait()
        return found

    holder = launch(WRITE_AND_WAIT, bank.place(bank.first).memory, **{MARK: POD})
    before = clock.now().uptime
    with monkeypatch.context() as patch:
        patch.setattr(bank.backend, "listed_holders", leaving)
        left = await observer.look(device, Purpose.CHANGE)
    assert left.holders == ()
    assert left.used_at >= before
    assert left.observed_since >= before, "a scrub under way is not valid either"
    assert left.unobserved == "a process had it open, and left before the service found it"


@pytest.mark.usefixtures("no_uses")
async def test_a_worker_that_ends_during_a_search_interrupts_nothing(bank, processes, launch, tmp_path, monkeypatch):
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device, listed = record(bank, bank.first), bank.backend.listed_holders
    worker = launch(WRITE_AND_WAIT, bank.place(bank.first).memory)
    observer.holders.own(worker.pid)

    def ending(uuid: str) -> frozenset[int]:
        found: frozenset[int] = listed(uuid)
        worker.kill()
        worker.wait()
        observer.holders.disown(worker.pid)
        return found

    monkeypatch.setattr(bank.backend, "listed_holders", ending)
    seen = await observer.look(device, Purpose.CHANGE)
    assert (seen.holders, seen.unobserved, seen.used_at) == ((), "", -math.inf)


@pytest.mark.usefixtures("no_uses")
@pytest.mark.parametrize("ask", ["alone", "with all"])
async def test_a_holder_of_a_quick_observation_ends_earlier_proofs(bank, processes, tmp_path, monkeypatch, ask):
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device, asked = record(bank, bank.first), "has_holders" if ask == "alone" else "quick_observation"
    answer = getattr(bank.backend, asked)
    await observer.look(device, Purpose.CHANGE)

    def leaving(uuid: str) -> object:
        found = answer(uuid)
        drills.release(bank.root, uuid)
        return found

    drills.occupy(bank.root, bank.first, b"x", POD)
    before = clock.now().uptime
    with monkeypatch.context() as patch:
        patch.setattr(bank.backend, asked, leaving)
        if ask == "alone":
            left = await observer.look(device, Purpose.ROUND)
        else:
            await observer.look_at_all([device])
            left = await observer.look(device, Purpose.ROUND)
    assert left.holders == ()
    assert left.used_at >= before


@pytest.mark.usefixtures("no_uses")
async def test_a_worker_that_begins_during_a_search_is_no_holder(bank, processes, launch, tmp_path, monkeypatch):
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device, search = record(bank, bank.first), processes.holders
    worker = launch(WRITE_AND_WAIT, bank.place(bank.first).memory)

    def beginning(*asked: object, **more: object) -> object:
        observer.holders.own(worker.pid)
        return search(*asked, **more)

    monkeypatch.setattr(processes, "holders", beginning)
    assert (await observer.look(device, Purpose.CHANGE)).holders == ()


@pytest.mark.usefixtures("no_uses")
async def test_a_round_finds_the_bystander_of_the_owner(bank, processes, launch, tmp_path):
    bystander = launch(WRITE_AND_WAIT, bank.place(bank.first).memory, **{MARK: POD})
    driver, since = DriverCalls(bank.backend, "boot"), ObservedSince(0.0)
    observer = Observer(
        driver, processes, tmp_path, since, lives.no_reset, lambda _: lambda it: it.pid == bystander.pid
    )
    owner = Owner(POD, Moment(0.0, 0.0), seen=True, unannounced=True)
    facts = await observer.look(lives.but(record(bank, bank.first), state=State.IN_USE, owner=owner), Purpose.ROUND)
    assert (facts.holders, facts.owner_alive, facts.bystander_pods) == ((), True, frozenset({POD}))
    assert (await observer.look(record(bank, bank.second), Purpose.ROUND)).bystander_pods == frozenset()


@pytest.mark.parametrize("listed", ["nobody", "a worker", "a holder", "no answer", "released"])
async def test_the_list_is_enough_only_without_a_name(bank, processes, tmp_path, monkeypatch, launch, listed):
    """A driver that does not answer, or that is released, proves nothing."""
    driver = DriverCalls(bank.backend, "boot")
    observer = Observer(driver, processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device, memory = scrubbed(record(bank, bank.first)), bank.place(bank.first).memory
    if listed == "a worker":
        observer.holders.own(launch(WRITE_AND_WAIT, memory).pid)
    elif listed == "a holder":
        drills.occupy(bank.root, bank.first, b"x", POD)
    elif listed != "nobody":
        driver.releases = listed == "released"
        monkeypatch.setattr(bank.backend, "listed_holders", _no_answer)
    facts = await observer.look(device, Purpose.STEP)
    assert processes.searching.is_set() is (listed in ("a holder", "released"))
    found = None if facts.holders is None else [it.container for it in facts.holders]
    assert found == {"a holder": [POD], "no answer": None}.get(listed, [])


@pytest.mark.parametrize("is_reset", [False, True])
async def test_each_look_tells_whether_a_sibling_is_being_reset(bank, processes, tmp_path, is_reset):
    observer = Observer(
        DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lambda _record: is_reset
    )
    alone = record(bank, bank.first)
    device = scrubbed(replace(alone, device=replace(alone.device, reset_domain="switch")))
    looks = [await observer.look(device, it) for it in (Purpose.ROUND, Purpose.CHANGE, Purpose.STEP)]
    assert [seen.domain_resetting for seen in looks] == [is_reset] * 3
    assert not (await observer.look(alone, Purpose.CHANGE)).domain_resetting, "it has no sibling"


def _no_answer(_uuid: str) -> frozenset[int]:
    raise DriverClosedError("the driver is closed")


async def test_an_owner_that_starts_during_the_search_lives(bank, processes, tmp_path, launch, monkeypatch):
    """The next container of a pod: a search can take seconds, and the owner is asked about beside it."""
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    owned = lives.but(record(bank, bank.first), owner=Owner(POD, Moment(0.0, 0.0)))
    asked, living = threading.Event(), bank.backend.living

    def none_so_far() -> dict[str, int]:
        found: dict[str, int] = living()
        asked.set()
        return found

    monkeypatch.setattr(bank.backend, "living", none_so_far)
    processes.go_on.clear()
    observing = asyncio.create_task(observer.look(owned, Purpose.CHANGE))
    assert await asyncio.to_thread(asked.wait, WITHIN)
    launch("import time; print(flush=True); time.sleep(60)", **{MARK: POD})
    processes.go_on.set()
    facts = await observing
    assert (facts.holders, facts.owner_alive) == ((), True)


async def test_where_the_kernel_tells_an_end_no_process_is_read(bank, processes, tmp_path, monkeypatch):
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    owned = lives.but(record(bank, bank.first), owner=Owner(POD, Moment(0.0, 0.0)))
    monkeypatch.setattr(bank.backend, "has_ended", lambda container: container == POD)
    monkeypatch.setattr(bank.backend, "living", lambda: pytest.fail("went through all processes"))
    assert (await observer.look(owned, Purpose.CHANGE)).owner_alive is False


async def test_an_owner_that_starts_during_the_list_lives(bank, processes, tmp_path, launch, monkeypatch):
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    owned = lives.but(scrubbed(record(bank, bank.first)), owner=Owner(POD, Moment(0.0, 0.0)))
    read_uses = bank.backend.read_uses

    def starts_meanwhile(uuid: str) -> UseReading:
        launch("import time; print(flush=True); time.sleep(60)", **{MARK: POD})
        said: UseReading = read_uses(uuid)
        return said

    monkeypatch.setattr(bank.backend, "read_uses", starts_meanwhile)
    facts = await observer.look(owned, Purpose.STEP)
    assert (facts.holders, facts.owner_alive) == ((), True)


async def test_a_live_process_of_the_owner_is_named(bank, processes, tmp_path, launch, monkeypatch):
    """For a person whose release is refused, although no process has the GPU open."""
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    owned = lives.but(record(bank, bank.first), owner=Owner(POD, Moment(0.0, 0.0)))
    assert await observer.process_of_owner(owned) == ()
    process = launch("import time; print(flush=True); time.sleep(60)", **{MARK: POD})
    [named] = await observer.process_of_owner(owned)
    assert (named.pid, named.container) == (process.pid, POD)
    monkeypatch.setattr(processes, "process", lambda _pid: (replace(named, container=None),))
    monkeypatch.setattr(bank.backend, "has_ended", lambda _container: True)
    assert await observer.process_of_owner(owned) == (), "another process has its pid by now"


WRITE = "import os, sys; os.write(os.open(sys.argv[1], os.O_RDWR), b'secret')"
MAP = (
    "import mmap, os, sys; file = os.open(sys.argv[1], os.O_RDWR);"
    "cells = mmap.mmap(file, 16); os.close(file); cells[:2] = b'ab'"
)
SEND = (
    "import os, socket, sys; ours, theirs = socket.socketpair(); file = os.open(sys.argv[1], os.O_RDWR);"
    "socket.send_fds(ours, [b'x'], [file]); os.close(file)"
)
READ = "import os, sys; os.read(os.open(sys.argv[1], os.O_RDONLY), 16)"


@pytest.mark.parametrize(
    ("ask", "file", "program", "counts"),
    [
        (Purpose.ROUND, "memory", WRITE, True),
        (None, "memory", WRITE, True),
        (Purpose.CHANGE, "memory", WRITE, True),
        (Purpose.ROUND, "chip", WRITE, True),
        (Purpose.ROUND, "memory", MAP, True),
        (Purpose.ROUND, "memory", SEND, True),
        (Purpose.ROUND, "memory", READ, False),
    ],
)
async def test_a_use_between_two_observations_is_noticed(bank, processes, tmp_path, ask, file, program, counts):
    """Whoever can only read leaves nothing behind. No purpose: in a round of all devices."""
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device, other = record(bank, bank.first), record(bank, bank.second)
    for it in (device, other):
        await observer.look(it, Purpose.CHANGE)
    before = clock.now().uptime
    user = await asyncio.create_subprocess_exec(sys.executable, "-c", program, getattr(bank.place(bank.first), file))
    assert await user.wait() == 0
    if ask is None:
        seen = await observer.look_at_all([lives.but(it, state=State.CLEAN) for it in (device, other)])
        left, elsewhere = seen[bank.first], seen[bank.second]
    else:
        left, elsewhere = [await observer.look(it, ask) for it in (device, other)]
    assert left.holders == ()
    assert (left.used_at >= before) is counts
    assert elsewhere.used_at < before


MOST_EVENTS = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


async def test_too_many_uses_count_for_their_device_only(bank, processes, tmp_path):
    """The kernel drops what does not fit into its queue: an owner of one device must not soil the free ones."""
    observer = Observer(DriverCalls(bank.backend, "boot"), processes, tmp_path, ObservedSince(0.0), lives.no_reset)
    device, other = record(bank, bank.first), record(bank, bank.second)
    queues = _inotify_instances()
    for it in (device, other):
        await observer.look(it, Purpose.CHANGE)
    assert _inotify_instances() == queues + 2, "all programs of a user share few instances"
    before, place = clock.now().uptime, bank.place(bank.first)
    for number in range(MOST_EVENTS + 1):  # in turns: the kernel joins equal events
        os.close(os.open(place.memory if number % 2 else place.chip, os.O_RDWR))
    assert (await observer.look(other, Purpose.ROUND)).used_at < before
    used = (await observer.look(device, Purpose.ROUND)).used_at
    assert used >= before
    assert (await observer.look(device, Purpose.ROUND)).used_at == used, "the next reports fit again"
    os.close(os.open(place.memory, os.O_RDWR))
    assert (await observer.look(device, Purpose.ROUND)).used_at > used


def _inotify_instances() -> int:
    gc.collect()
    return sum("inotify" in str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
