"""What the fence of this machine's kernel proves without another search: nobody has a device but its owner."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scrubber.core import open_attempts
from scrubber.core.events import LetIn
from scrubber.core.model import Facts, Holder, Moment
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.core.use_counter import Counted, UseCounter
from scrubber.devices.simulated.containers import MARK
from scrubber.fence.guard import Guard
from scrubber.fence.ignored import Sources, Terms
from scrubber.fence.kernel.fence import Fence
from scrubber.node import clock
from scrubber.node.processes import Processes, no_bystander
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from scrubber.service.fence_upkeep import FenceUpkeep
from tests.control_groups import FULL, OPENS, foreign, group, identity, made_group, owner, run, standing
from tests.core import lives
from tests.patience import WITHIN

__all__ = ["foreign", "group", "owner", "standing"]  # fixtures


class Fenced:
    """An observer of a simulated GPU. The fence guards /dev/full in its place."""

    observer: Observer
    fence: FenceUpkeep
    guard: Guard

    def __init__(self, uuid: str) -> None:
        self.during: tuple[Record, ...] = ()  # what it becomes during each search
        self._uuid = uuid
        self.searches = 0
        self.later = 0  # by so many seconds than it is
        self.bystanders = no_bystander
        self.on_group: Callable[[], object] = lambda: None  # called whenever the groups of an owner are looked for

    def now(self) -> Moment:
        """The time, and what a test adds."""
        now = clock.now()
        return replace(now, uptime=now.uptime + self.later)

    def search(self) -> None:
        """All processes are searched."""
        self.searches += 1
        for record in self.during:
            self.becomes(record)

    def of(self, record: Record) -> Record:
        return replace(record, device=replace(record.device, uuid=self._uuid))

    def becomes(self, record: Record) -> None:
        """There is a row about it in the ledger."""
        self.fence.recorded(self.of(record))

    def stored(self, proof: str) -> int | None:
        """After how many uses the kernel keeps this proof for a later run."""
        assert self.observer.driver.guard is not None
        then = self.observer.driver.guard.count.at_proof(self._uuid, proof)
        return then.uses if then is not None else None

    async def searched(self, record: Record) -> bool:
        """Whether a start takes a search."""
        before = self.searches
        facts = await self.observer.look(self.of(record), Purpose.START, starting_pod=lives.A)
        assert facts.holders == ()
        return self.searches > before


@pytest.fixture
def fenced(bank, standing: Fence, group: Path, owner: Path, tmp_path: Path) -> Iterator[Fenced]:
    groups = {lives.A: frozenset({identity(owner)})}
    made = Fenced(bank.first)

    def groups_of(pod: str) -> frozenset[int]:
        made.on_group()
        return groups.get(pod, frozenset())

    sources = Sources(
        lambda _pid: (),
        groups_of,
        lambda _uuid: lambda _holder: False,
        lambda _uuid: Terms(),
        lambda: None,
        lambda _group: None,
        lambda _group: False,
    )
    guard = Guard(standing, identity(made_group(group / "service")), sources)
    guard.start()
    made.guard = guard
    only = tmp_path / "proc"
    only.mkdir()
    (only / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    search = Processes(only, lambda _pid: None, whole_node=False, on_pass=made.search)
    driver = DriverCalls(bank.backend, "boot", guard=guard, patience=WITHIN)  # a late answer takes a search, too
    since = ObservedSince(0.0, made.now, bystanders=lambda _uuid: made.bystanders, counts_all=True)
    made.observer, made.fence = Observer(driver, search, tmp_path, since, lives.no_reset), FenceUpkeep(guard, since)
    guard.rules.learn({bank.first: frozenset({FULL})})
    made.becomes(lives.CLEAN)
    yield made
    guard.close()


async def test_a_start_takes_no_search_after_one_behind_the_fence(fenced: Fenced, foreign: Path) -> None:
    """However old it is, until somebody asks for the device."""
    assert await fenced.searched(lives.GRANTED), "it was not searched yet"
    assert not await fenced.searched(lives.GRANTED)
    run(foreign, OPENS)
    assert await fenced.searched(lives.GRANTED)
    assert not await fenced.searched(lives.GRANTED)


async def proven(fenced: Fenced) -> None:
    fenced.becomes(lives.GRANTED)
    while await fenced.searched(lives.GRANTED):
        pass


async def test_an_idle_device_takes_no_search_behind_the_fence(fenced: Fenced, foreign: Path) -> None:
    await proven(fenced)
    idle, searches = fenced.of(lives.CLEAN), fenced.searches
    assert (await fenced.observer.look(idle, Purpose.GRANT)).holders == ()
    [alone] = (await fenced.observer.look_at_all([idle])).values()
    assert (alone.holders, fenced.searches) == ((), searches)
    run(foreign, OPENS)
    assert await fenced.observer.look_at_all([idle]) == {}, "it needs an observation of its own"
    used = await fenced.observer.look(idle, Purpose.GRANT)
    assert (used.holders, fenced.searches) == ((), searches + 1)
    assert used.used_at > 0


async def test_a_device_that_somebody_had_is_looked_at_again(bank, fenced: Fenced) -> None:
    await proven(fenced)
    idle = fenced.of(lives.CLEAN)
    with bank.place(bank.first).memory.open():
        assert (await fenced.observer.look(idle, Purpose.CHANGE)).holders is None, "a process that cannot be found"
    assert (await fenced.observer.look(idle, Purpose.RESERVE)).holders == ()


async def test_an_owner_that_was_let_in_ends_the_proof(fenced: Fenced) -> None:
    """What it has opened is not counted."""
    await proven(fenced)
    for record in (lives.IN_USE, lives.DIRTY, lives.GRANTED):
        fenced.becomes(record)
    assert await fenced.searched(lives.GRANTED)


async def searches(fenced: Fenced, record: Record) -> int:
    """How many searches a full observation of this record takes."""
    before = fenced.searches
    fenced.becomes(record)
    assert (await fenced.observer.look(fenced.of(record), Purpose.CHANGE)).holders == ()
    return fenced.searches - before


async def test_an_opener_is_counted_in_the_tenancy_of_the_record(fenced: Fenced, foreign: Path) -> None:
    fenced.becomes(lives.GRANTED)
    run(foreign, OPENS)
    guard, uuid = fenced.observer.driver.guard, fenced.of(lives.GRANTED).device.uuid
    assert guard is not None
    guard.count.read(uuid)
    assert [period for period, _ in guard.openers.take(uuid)] == [open_attempts.period(lives.GRANTED)]


async def test_a_scrub_takes_one_search_behind_the_fence(fenced: Fenced, foreign: Path) -> None:
    await proven(fenced)
    fenced.becomes(lives.IN_USE)
    assert [await searches(fenced, it) for it in (lives.DIRTY, lives.SCRUBBING, lives.SCRUBBING)] == [1, 0, 0]
    run(foreign, OPENS)
    assert [await searches(fenced, it) for it in (lives.SCRUBBING, lives.CLEAN)] == [1, 0]
    assert (await fenced.observer.look(fenced.of(lives.CLEAN), Purpose.CHANGE)).siblings_busy is None, (
        "no sibling was asked about"
    )


async def test_an_owners_end_is_searched_for_behind_the_fence(fenced: Fenced, launch, bank, monkeypatch) -> None:
    """Until then, it may send the open device to another process."""
    await proven(fenced)
    alive = launch("import time; print(flush=True); time.sleep(60)", **{MARK: lives.A})
    assert await searches(fenced, lives.IN_USE) == 1
    alive.kill()
    alive.wait()
    assert await searches(fenced, lives.IN_USE) == 1, "only a search can tell that it has ended"
    monkeypatch.setattr(bank.backend, "has_ended", lambda container: container == lives.A)
    assert [await searches(fenced, it) for it in (lives.IN_USE, lives.DIRTY)] == [0, 1]


async def test_a_job_that_may_have_sent_its_device_is_searched(fenced: Fenced) -> None:
    """The next job can get the device with no scrub between."""
    await proven(fenced)
    kept = lives.but(lives.IN_USE, grant=replace(lives.grant(lives.CLEAN), until_release=True, group=1))
    assert [await searches(fenced, kept) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("has_ended", [True, False])
async def test_a_worker_that_has_not_ended_is_searched_for(fenced: Fenced, *, has_ended: bool) -> None:
    """The fence counts no program of the service."""
    await proven(fenced)
    fenced.observer.disown(os.getpid(), has_ended=has_ended)
    assert await searches(fenced, lives.CLEAN) == (not has_ended)


async def test_a_change_of_the_bystanders_takes_a_search(fenced: Fenced) -> None:
    """A program that the policy names no more may have the device open."""
    await proven(fenced)
    fenced.bystanders = lambda _holder: False
    assert [await searches(fenced, lives.SCRUBBING) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize(
    "look",
    [
        lambda observer, record: observer.look(record, Purpose.CHANGE),
        lambda observer, record: observer.look(record, Purpose.START, starting_pod=lives.A),
        lambda observer, record: observer.look(record, Purpose.GRANT),
        lambda observer, record: observer.look(record, Purpose.RESERVE),
    ],
    ids=["a change", "a start", "a grant", "a reservation"],
)
@pytest.mark.parametrize("granted", [lives.UNANNOUNCED, lives.live(lives.OF_CLAIM, LetIn((lives.A,)))])
async def test_who_is_let_in_and_not_counted_is_searched_for(
    fenced: Fenced, owner: Path, look: Callable[[Observer, Record], Awaitable[Facts]], granted: Record
) -> None:
    """A pod of a claim; or, while everybody may open the device, whoever could open it before."""
    await proven(fenced)
    fenced.becomes(lives.IN_USE)
    for _ in range(2):  # the first search is older than the first answer of the fence
        await searches(fenced, granted)
    run(owner, OPENS)
    before = fenced.searches
    assert (await look(fenced.observer, fenced.of(granted))).holders == ()
    assert fenced.searches == before + 1


async def test_memory_in_use_that_no_list_explains_is_searched_for(
    fenced: Fenced, bank, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """During a scrub, a worker of the service uses it."""
    await proven(fenced)
    monkeypatch.setattr(bank.backend, "has_holders", lambda _uuid: None)
    assert [await searches(fenced, it) for it in (lives.SCRUBBING, lives.CLEAN)] == [0, 1]
    assert await fenced.searched(lives.GRANTED)


async def test_a_use_while_the_starting_pod_is_looked_for_counts(
    fenced: Fenced, foreign: Path, bank, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    await proven(fenced)
    living = bank.backend.living

    def used_meanwhile(wanted: Collection[str]) -> dict[str, int]:
        run(foreign, OPENS)
        running: dict[str, int] = living(wanted)
        return running

    monkeypatch.setattr(bank.backend, "living", used_meanwhile)
    assert await fenced.searched(lives.GRANTED)


async def test_a_search_during_which_an_owner_came_proves_nothing(fenced: Fenced) -> None:
    await proven(fenced)
    fenced.during = lives.IN_USE, lives.DIRTY
    await fenced.observer.look(fenced.of(lives.GRANTED), Purpose.RESET)
    fenced.during = ()
    assert await fenced.searched(lives.GRANTED)


@pytest.mark.parametrize("opened", [False, True])
async def test_only_what_no_other_has_opened_since_its_search_survives(
    fenced: Fenced, foreign: Path, *, opened: bool
) -> None:
    """A process that came between the search and the clear may stay. The driver does not list it."""
    scrubbed = fenced.of(lives.SCRUBBING)
    for _ in range(2):  # the first search is older than the first answer of the fence
        await fenced.observer.look(scrubbed, Purpose.CHANGE)
    if opened:
        run(foreign, OPENS)
    await fenced.observer.look(scrubbed, Purpose.STEP)
    receipt = lives.CLEAN.scrubs.receipt
    assert receipt is not None
    receipt = replace(receipt, witness=UseCounter.FENCE.value, finished=clock.now())
    fenced.becomes(replace(lives.CLEAN, scrubs=replace(lives.CLEAN.scrubs, receipt=receipt)))
    assert (fenced.guard.count.at_proof(scrubbed.device.uuid, receipt.id) is None) is opened


@pytest.mark.parametrize(
    ("record", "holders", "proven"),
    [(lives.IN_USE, (lives.OF_A,), True), (lives.IN_USE, (lives.OF_B,), False), (lives.DIRTY, (lives.OF_A,), False)],
)
def test_a_search_must_find_the_owner_alone(record: Record, holders: tuple[Holder, ...], *, proven: bool) -> None:
    since, device = ObservedSince(0.0), lives.DEVICE.uuid
    since.searched(since.before_search({device: Counted(UseCounter.FENCE, 3)}), [record], {device: holders})
    assert since.fence_tells(device).no_other_user is proven


def test_a_search_that_is_not_settled_proves_nothing_new() -> None:
    since, device = ObservedSince(0.0), lives.DEVICE.uuid
    said, later = Counted(UseCounter.FENCE, 3), Counted(UseCounter.FENCE, 4)
    since.searched(since.before_search({device: said}), [lives.DIRTY], {device: ()})
    for now, settled, holders, proven in (
        (said, False, (), True),
        (later, False, (), False),
        (later, True, (), True),
        (later, False, (lives.OF_A,), False),
    ):
        since.searched(since.before_search({device: now}), [lives.DIRTY], {device: holders}, settled=settled)
        assert since.fence_tells(device).no_other_user is proven


def test_a_doubt_during_a_search_outlives_it() -> None:
    """The search passes over a worker that is ours when it begins."""
    since, device = ObservedSince(0.0), lives.DEVICE.uuid
    before = since.before_search({device: Counted(UseCounter.FENCE, 3)})
    since.doubt(device)
    since.searched(before, [lives.DIRTY], {device: ()})
    assert not since.fence_tells(device).no_other_user


async def test_restless_processes_take_a_search_for_each_start(fenced: Fenced, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them may have the device, and hand it on to the next one before it is read."""
    started = iter(range(10**6))
    with monkeypatch.context() as restless:
        restless.setattr("scrubber.node.processes.pids", lambda _proc: [next(started)])
        for _ in range(3):
            assert await fenced.searched(lives.GRANTED)
    await proven(fenced)


async def test_only_what_was_searched_is_kept_as_a_proof(fenced: Fenced) -> None:
    """A later run of the service believes it without a search."""
    receipt = replace(lives.proof(lives.CLEAN), witness=UseCounter.FENCE.value)
    clean = replace(lives.CLEAN, scrubs=replace(lives.CLEAN.scrubs, receipt=receipt))
    fenced.becomes(clean)
    assert fenced.stored(receipt.id) is None, "no search has ended behind the fence yet"
    await proven(fenced)
    fenced.becomes(clean)
    assert fenced.stored(receipt.id) == 0
