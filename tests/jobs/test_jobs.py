"""Jobs: one job for each device, joined by all callers, owned by none of them, and always with an end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from ground.errors import LedgerUnavailable, NotReady, Reason, Refused
from scrubber.core import events as ev
from scrubber.core.model import Blame, Outcome, ScrubPath, State, Step, StepResult
from scrubber.steps.orders import Report
from scrubber.workers.worker import BrokenError
from tests.service import pretend_worker
from tests.service.node import Kind
from tests.service.pretend_worker import PretendWorker


class Slow(PretendWorker):
    """Takes ten times as long."""

    async def spend(self, seconds):
        await super().spend(10 * seconds)


class Unsteady(PretendWorker):
    """Does not end well after its last step."""

    async def finish(self, last):
        return replace(await super().finish(last), outcome=Outcome.DIED)


def rows(world, kind, device=None):
    return [it.event for it in world.truth.entries if isinstance(it.event, kind) and device in (None, it.device)]


def results(world, device):
    return [result for row in rows(world, ev.StepsRecorded, device) for result in row.results]


def workers(world, device):
    return [it for it in world.node.gpus[device].processes.values() if it.kind is Kind.WORKER]


async def soiled(world, device):
    """A device whose last tenant has just gone."""
    world.node.end_container(await world.tenancy(device))
    await world.tenant_requests.release([device])
    return len(rows(world, ev.ScrubStarted, device))


async def slow(build):
    world = build(worker=Slow, policy="fast")
    await world.start()
    await world.clean()
    return world


async def test_twenty_callers_for_a_dirty_device_share_one_job(world):
    device = world.uuids[0]
    jobs = await soiled(world, device)
    callers = [world.spawn(world.acquire(f"pod-{n}", device, announced=True)) for n in range(20)]
    answers = await asyncio.gather(*callers)
    assert len({answer[0].receipt for answer in answers}) == 1
    assert len({answer[0].grant for answer in answers}) == 20
    assert len(rows(world, ev.ScrubStarted, device)) == jobs


async def test_a_caller_that_joins_sees_the_progress_and_the_end(world):
    running = await world.operator_requests.scrub(world.uuids[0], ScrubPath.RESET)
    assert await world.operator_requests.scrub(world.uuids[0], ScrubPath.FAST) is running

    async def watch() -> list[tuple[int, int]]:
        return [(running.progress.bytes_done, running.progress.bytes_total) async for _ in running.updates()]

    one, other = await asyncio.gather(watch(), watch())
    assert one == other
    assert {(done, total) for done, total in one if total} >= {(2**20, 2**22), (2**22, 2**22)}
    assert running.finished.is_set()
    assert running.receipt is not None
    assert [_ async for _ in running.updates()] == []


FAST = [["scrub"], ["evict", "clear"], ["clear", "verify", "scratch", "settings", "health", "proven"]]
RESET = [
    ["scrub"], ["evict", "reset"], ["reset"], ["clear"],
    ["clear", "verify", "scratch", "selftest", "settings", "health", "proven"],
]  # fmt: skip


def said(event: ev.Event) -> list[str]:
    match event:
        case ev.ScrubStarted():
            return ["scrub"]
        case ev.StepsRecorded(results=results, begins=begins):
            return [step.value for step in (*(it.step for it in results), begins) if step is not None]
        case ev.ScrubPassed():
            return ["proven"]
        case _:
            return [type(event).__name__]


async def transactions_of(world, monkeypatch, path):
    """What a scrub of the first device writes, each write with the words of its rows."""
    append, written = world.life.disk.append, list[list[str]]()

    def record(drafts: Sequence[ev.LedgerEntry]) -> object:
        written.append([word for draft in drafts for word in said(draft.event)])
        return append(drafts)

    monkeypatch.setattr(world.life.disk, "append", record)
    running = await world.operator_requests.scrub(world.uuids[0], path)
    await running.finished.wait()
    return written


@pytest.mark.parametrize(("path", "transactions"), [(ScrubPath.FAST, FAST), (ScrubPath.RESET, RESET)])
async def test_a_scrub_writes_only_what_a_kill_may_not_lose(begin, monkeypatch, path, transactions):
    """Before memory is overwritten, before and after a reset, and at the end."""
    assert await transactions_of(await begin(gpus=1), monkeypatch, path) == transactions


async def test_a_failed_step_has_a_row_at_once(begin, monkeypatch):
    """What fails a step may also end the service."""

    async def gives_up(*_: object) -> Report:
        return Report(Outcome.FAILED, "it gave up", Blame.SERVICE)

    world = await begin(gpus=1)
    monkeypatch.setattr(PretendWorker, "_verify", gives_up)
    assert (await transactions_of(world, monkeypatch, ScrubPath.FAST))[-2:] == [["clear", "verify"], ["ScrubFailed"]]


async def test_a_reset_begins_under_the_locks_of_its_siblings(begin):
    """A request that has observed a sibling has its decision recorded first."""
    world = await begin(gpus=3)
    device, sibling = world.uuids[1:]

    def resets() -> list[ev.StepsRecorded]:
        return [row for row in rows(world, ev.StepsRecorded, device) if row.begins is Step.RESET]

    before = len(resets())
    async with world.context.jobs.locks.of([sibling]):
        running = await world.operator_requests.scrub(device, ScrubPath.RESET)
        await asyncio.sleep(5)
        assert (len(resets()), running.step) == (before, Step.RESET)
    await running.finished.wait()
    assert (len(resets()), running.receipt is not None) == (before + 1, True)


async def test_a_cancelled_job_records_the_steps_that_have_passed(world):
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    while running.step is not Step.SETTINGS:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.01)
    passed = [Step.EVICT, Step.CLEAR, Step.VERIFY]  # the last one on memory stands once its worker has ended
    assert [it.step for it in world.record(device).scrubs.job.results] == passed[:1]
    running.cancel()
    await running.ended()
    assert [it.step for it in results(world, device)[-3:]] == passed
    assert rows(world, ev.ScrubInterrupted, device)[-1].job == running.id


async def test_a_caller_that_gives_up_leaves_the_job_running(world):
    device = world.uuids[0]
    await soiled(world, device)
    caller = world.spawn(world.acquire("pod", device))
    await asyncio.sleep(0.3)
    running = world.life.jobs.of(device)
    caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()
    await running.finished.wait()
    assert running.receipt is not None
    assert world.state(device) is State.CLEAN


async def test_a_job_outlives_a_caller_over_its_budget(build):
    world = await slow(build)
    device = world.uuids[0]
    await soiled(world, device)
    began = world.loop.time()
    with pytest.raises(NotReady, match=f"cannot hand out {device} in time") as refused:
        await world.acquire("pod", device)
    assert refused.value.reason is Reason.SCRUBBING
    assert world.loop.time() - began == pytest.approx(4.0, abs=0.1)
    assert world.state(device) is State.SCRUBBING
    await world.reach(device, State.CLEAN)
    assert world.loop.time() - began > 10


async def test_a_start_waits_longer_than_an_acquire(build):
    world = await slow(build)
    device = world.uuids[0]
    await soiled(world, device)
    began = world.loop.time()
    await world.begin("pod", device)
    assert 5 < world.loop.time() - began < 25
    assert world.record(device).tenancy.owner.container == "pod"


async def test_an_operator_who_quarantines_cancels_the_job(world):
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, None)
    await asyncio.sleep(0.3)
    began = world.loop.time()
    await world.operator_requests.quarantine(device, "smells", "ops")
    assert world.loop.time() == began
    assert running.finished.is_set()
    assert running.receipt is None
    assert workers(world, device) == []
    assert world.state(device) is State.QUARANTINED
    assert world.record(device).health.quarantine.by == "ops"
    await asyncio.sleep(300)
    assert world.state(device) is State.QUARANTINED


async def test_a_stop_cancels_a_job_and_blames_no_device(world):
    device = world.uuids[0]
    await world.operator_requests.scrub(device, None)
    await asyncio.sleep(0.3)
    await world.stop()
    record = world.truth.records[device]
    assert (record.state, record.scrubs.job, record.scrubs.setback) == (State.DIRTY, None, None)
    assert "the service was stopped" in rows(world, ev.ScrubInterrupted, device)[-1].why
    assert workers(world, device) == []


async def test_a_stop_during_probation_leaves_the_device_in_quarantine(world):
    device = world.uuids[0]
    world.node.gpus[device].lost = True
    before = (await world.reach(device, State.QUARANTINED)).health.quarantine
    world.node.heal()
    await world.reach(device, State.SCRUBBING)
    await asyncio.sleep(0.3)
    await world.stop()
    record = world.truth.records[device]
    assert record.state is State.QUARANTINED
    assert (record.health.quarantine.ailment, record.health.quarantine.probes) == (before.ailment, before.probes + 1)
    await world.start()
    await world.reach(device, State.CLEAN)


async def test_the_next_round_closes_a_job_without_a_ledger(world):
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, None)
    await asyncio.sleep(0.3)
    world.life.disk.full = True
    await running.finished.wait()
    assert workers(world, device) == []
    assert world.state(device) is State.SCRUBBING
    with pytest.raises((LedgerUnavailable, NotReady)):
        await world.acquire("pod", device)
    world.life.disk.full = False
    await world.clean(device)
    assert rows(world, ev.ScrubInterrupted, device)[-1].why == "the end of the job could not be recorded"


async def test_an_operator_takes_over_from_a_job_without_a_ledger(world):
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    world.life.disk.failures = 1  # while the job's end is written
    taken = await world.operator_requests.scrub(device, ScrubPath.SLOW)
    await taken.finished.wait()
    assert (running.receipt, taken.why) == (None, "")


async def test_no_device_is_granted_when_one_of_two_is_refused(world):
    await world.operator_requests.quarantine(world.uuids[1], "smells", "ops")
    with pytest.raises(Refused) as refused:
        await world.acquire("pod", *world.uuids)
    assert refused.value.reason is Reason.QUARANTINED
    assert rows(world, ev.Granted) == []
    assert world.state(world.uuids[0]) is State.CLEAN


async def test_no_device_is_granted_when_one_of_two_stays_dirty(world):
    world.node.gpus[world.uuids[1]].bad_memory = True
    await soiled(world, world.uuids[1])
    granted = len(rows(world, ev.Granted))
    with pytest.raises((NotReady, Refused)):
        await world.acquire("pod", *world.uuids)
    assert len(rows(world, ev.Granted)) == granted


async def test_two_devices_are_granted_in_one_write(world):
    grants = await world.acquire("pod", *reversed(world.uuids))
    written = [it for it in world.truth.entries if isinstance(it.event, ev.Granted)]
    assert [it.device for it in written] == sorted(world.uuids)
    assert [it.event.grant.id for it in written] == [granted.grant for granted in grants]
    assert len({it.op for it in written}) == 1


async def test_a_foreign_process_during_a_clear_ends_the_worker(world):
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, None)
    await asyncio.sleep(0.35)
    unexpected_holder = world.intrude(device, container=True)
    await asyncio.sleep(0.3)
    assert running.finished.is_set()
    assert workers(world, device) == []
    assert unexpected_holder.alive
    last = results(world, device)[-1]
    assert (last.step, last.outcome, last.blame) == (Step.CLEAR, Outcome.ABORTED, Blame.TENANT)
    assert world.record(device).scrubs.setback.count == 1


async def test_no_step_runs_while_the_device_has_a_holder(build):
    done = []

    class Overrun(PretendWorker):
        """Somebody takes the device the moment it was found free."""

        async def do(self, step, *rest) -> StepResult:
            done.append(step)
            result = await super().do(step, *rest)
            if len(done) == 1:
                world.intrude(self.gpu.info.uuid, container=True)
            return result

    world = build(worker=Overrun, gpus=1)
    await world.start()
    await asyncio.sleep(1)
    assert done == [Step.EVICT]
    last = results(world, world.uuids[0])[-1]
    assert (last.outcome, last.blame) == (Outcome.ABORTED, Blame.TENANT)


async def test_unknown_holders_end_no_evict(world, monkeypatch):
    """A process that it has just ended may still be on the driver's list."""
    device = world.uuids[0]
    monkeypatch.setitem(pretend_worker.TAKES, Step.EVICT, 2.0)
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await asyncio.sleep(0.5)
    world.node.gpus[device].blind = True
    await asyncio.sleep(1.0)
    world.node.gpus[device].blind = False
    await running.finished.wait()
    assert running.receipt is not None


async def test_a_late_step_ends_at_its_deadline_on_both_paths(world):
    device = world.uuids[0]
    world.node.gpus[device].stalls = True
    began = world.loop.time()
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert [(it.step, it.path, it.outcome) for it in results(world, device)[-2:]] == [
        (Step.EVICT, ScrubPath.FAST, Outcome.TIMED_OUT),
        (Step.EVICT, ScrubPath.RESET, Outcome.TIMED_OUT),
    ]
    assert world.loop.time() - began == pytest.approx(30, abs=1)
    assert world.state(device) is State.QUARANTINED
    assert workers(world, device) == []


async def test_a_worker_that_dies_ends_the_path(world):
    device = world.uuids[0]
    world.node.gpus[device].crashes = True
    running = await world.operator_requests.scrub(device, ScrubPath.RESET)
    await running.finished.wait()
    assert [it.step for it in results(world, device)[-3:]] == [Step.EVICT, Step.RESET, Step.CLEAR]
    assert results(world, device)[-1].outcome is Outcome.DIED
    assert running.receipt is None
    assert world.state(device) is State.QUARANTINED


async def test_a_fault_in_a_report_ends_the_path(world):
    device = world.uuids[0]
    world.node.gpus[device].bad_memory = True
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    on_memory = [(it.step, it.path, it.outcome) for it in results(world, device) if it.step is not Step.EVICT]
    assert on_memory[-3:] == [
        (Step.CLEAR, ScrubPath.FAST, Outcome.FAILED),
        (Step.RESET, ScrubPath.RESET, Outcome.PASSED),
        (Step.CLEAR, ScrubPath.RESET, Outcome.FAILED),
    ]


async def test_a_worker_that_does_not_end_well_proves_nothing(build):
    world = build(worker=Unsteady)
    await world.start()
    await world.reach(world.uuids[0], State.QUARANTINED)
    last = results(world, world.uuids[0])[-1]
    assert (last.step, last.outcome) == (Step.SELFTEST, Outcome.DIED)
    assert rows(world, ev.ScrubPassed) == []


class SlowToDie(PretendWorker):
    """Its end takes a while, as on a card."""

    async def kill(self):
        await super().kill()
        await asyncio.sleep(0.5)


class Refuses(SlowToDie):
    """The driver refuses to set what has drifted."""

    async def perform(self, step, order, progress):
        if step is Step.SETTINGS and self.gpu.drift:
            await self.spend(0.05)
            return Report(Outcome.FAILED, "refused")
        return await super().perform(step, order, progress)


@pytest.mark.parametrize(("worker", "step"), [(SlowToDie, Step.SELFTEST), (Refuses, Step.SETTINGS)])
async def test_a_cancelled_job_loses_no_fault_of_its_device(begin, worker, step):
    """A request cancels the job. The fault that its last step has just found counts all the same."""
    world = await begin(gpus=1, worker=worker)
    device = world.uuids[0]
    gpu = world.node.gpus[device]
    gpu.computes_wrongly, gpu.drift = step is Step.SELFTEST, step is Step.SETTINGS
    job = await world.operator_requests.scrub(device, ScrubPath.SLOW)
    runs = [False, True, False]  # before, meanwhile, afterwards
    for wanted in runs:
        while (job.step is step) is not wanted:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    job.cancel("somebody needs it")
    await job.ended()
    failed = [(it.step, it.outcome) for it in results(world, device) if it.outcome is not Outcome.PASSED]
    assert failed == [(step, Outcome.FAILED)]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError("cannot fork"), "a fault inside the service: OSError('cannot fork')"),
        (BrokenError("cannot start a worker: its zygote is lost"), "cannot start a worker: its zygote is lost"),
    ],
    ids=["an unexpected error", "no zygote"],
)
async def test_a_job_without_a_worker_leaves_its_device_dirty(build, error, why):
    class NoMore(PretendWorker):
        def __init__(self, *_: object) -> None:
            raise error

    world = build(worker=NoMore, gpus=1)
    await world.start(watching=False)
    running = await world.operator_requests.scrub(world.uuids[0], ScrubPath.FAST)
    await running.finished.wait()
    assert world.state(world.uuids[0]) is State.DIRTY
    assert rows(world, ev.ScrubFailed)[-1].why == running.why == why


async def test_a_hung_device_delays_no_other_device(world):
    hung, well = world.uuids
    await world.acquire("pod-a", well)
    pod = world.run("pod-a", well)
    await world.reach(well, State.IN_USE)
    world.node.gpus[hung].hangs = True
    await asyncio.sleep(0.1)
    began = world.loop.time()
    world.node.end_container(pod.container)
    await world.acquire("pod-b", well)
    assert world.loop.time() - began < 3.5
    await world.reach(hung, State.QUARANTINED)
    assert world.record(hung).health.quarantine.ailment.kind.value == "unresponsive"


async def test_devices_of_one_reset_domain_are_reset_one_by_one(build):
    world = build(gpus=4, policy="strict")
    await world.start()
    await world.clean()
    assert rows(world, ev.ScrubFailed) == []
    resets = [it for it in world.truth.entries if getattr(it.event, "begins", None) is Step.RESET]
    assert len(resets) == 4


async def test_no_device_is_reset_while_a_sibling_is_in_use(build):
    world = build(gpus=3)
    await world.start()
    await world.clean()
    one, other = world.uuids[1:]
    await world.tenancy(other)
    running = await world.operator_requests.scrub(one, ScrubPath.RESET)
    await running.finished.wait()
    assert "a device of the same reset domain is in use" in world.record(one).scrubs.setback.detail
    assert Step.RESET not in world.node.gpus[one].deeds


async def test_a_reset_waits_for_the_scrub_of_a_sibling(build, monkeypatch):
    """Each prevented the other, again and again: the reset found its sibling in use, and the scrub found a reset."""
    world = build(gpus=3)
    for gpu in world.node.gpus.values():
        gpu.info = replace(gpu.info, reset_domain="nvswitch")
    await world.start()
    await world.clean()
    health = world.life.observer.health
    read = health.vitals

    async def slowly(device) -> object:
        await asyncio.sleep(1.0)
        return await read(device)

    monkeypatch.setattr(health, "vitals", slowly)
    asked = (ScrubPath.SLOW, ScrubPath.RESET, ScrubPath.FAST)
    jobs = [
        await world.operator_requests.scrub(device, path) for device, path in zip(world.uuids[::-1], asked, strict=True)
    ]
    await asyncio.gather(*(job.finished.wait() for job in jobs))
    assert [job.why for job in jobs] == [""] * 3
    assert [row.receipt.path for row in rows(world, ev.ScrubPassed)][-3:] == [asked[2], asked[0], asked[1]]


@pytest.mark.parametrize("room", [16, 2], ids=["asked for by hand", "after it waited for a worker"])
async def test_no_step_runs_while_a_sibling_is_reset(build, monkeypatch, room):
    """Its worker would be taken for a user, and the reset cut off in the middle."""
    monkeypatch.setitem(pretend_worker.TAKES, Step.RESET, 3.0)
    world = build(gpus=3)
    await world.start()
    await world.clean()
    zero, one, other = world.uuids
    world.context.jobs.slots.workers = asyncio.Semaphore(room)
    jobs = [
        await world.operator_requests.scrub(zero, ScrubPath.FAST),
        await world.operator_requests.scrub(one, ScrubPath.RESET),
    ]
    if room > len(jobs):
        while jobs[-1].step is not Step.RESET:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    jobs.append(await world.operator_requests.scrub(other, ScrubPath.FAST))
    await asyncio.gather(*(job.finished.wait() for job in jobs))
    assert [it.receipt is not None for it in jobs] == [True, True, True]
    assert [it.device for it in rows(world, ev.ScrubFailed)] == []


async def test_a_job_that_waits_for_a_slot_shows_its_place(build):
    world = build(gpus=4)
    await world.start()
    await world.clean()
    world.context.jobs.slots.workers = asyncio.Semaphore(1)

    def places() -> list[int | None]:
        return [status.job and status.job.queue_place for status in map(world.life.reporter.device, world.uuids)]

    jobs = [await world.operator_requests.scrub(device, ScrubPath.FAST) for device in world.uuids]
    while places() != [None, 1, 2, 3]:
        await anext(jobs[0].updates())
    moved = asyncio.create_task(anext(jobs[3].updates()))
    await asyncio.sleep(0)  # it listens
    await world.context.jobs.cancel(world.uuids[1])
    assert places() == [None, None, 1, 2]
    await moved
    assert places()[3] == 2  # told before its turn came
    await asyncio.gather(*(job.finished.wait() for job in jobs))
    assert places() == [None] * 4


async def test_a_job_cancelled_before_it_runs_leaves_nothing_behind(world):
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, None)
    await world.context.jobs.cancel(device)
    assert running.finished.is_set()
    assert world.context.jobs.of(device) is None
    await world.life.monitor.round()
    assert world.state(device) is not State.SCRUBBING or world.context.jobs.of(device) is not None


async def cut_in_the_middle(world, work):
    """The caller is gone while its row is being written."""
    asking = asyncio.create_task(work)
    while not world.life.ledger._lock.locked():  # noqa: ASYNC110 - a lock tells nobody when it is taken
        await asyncio.sleep(0)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


async def test_the_next_caller_joins_a_scrub_whose_caller_left(world):
    device = world.uuids[0]
    await cut_in_the_middle(world, world.operator_requests.scrub(device, ScrubPath.FAST))
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert world.state(device) is State.CLEAN


async def test_a_job_exists_as_soon_as_its_row(world):
    device = world.uuids[0]
    await cut_in_the_middle(world, world.operator_requests.scrub(device, ScrubPath.FAST))
    assert world.state(device) is State.SCRUBBING
    assert world.life.jobs.of(device) is not None


async def test_no_decision_before_the_last_decision_is_recorded(world):
    """The lock outlives a caller that was cut off, for as long as its row is being written."""
    device = world.uuids[0]
    await cut_in_the_middle(world, world.acquire("pod", device, announced=True))
    assert world.state(device) is State.GRANTED
    assert not world.life.ledger._lock.locked()
