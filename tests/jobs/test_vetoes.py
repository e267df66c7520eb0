"""A step that changes a device starts after the observation that allows it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import groupby
from typing import ClassVar

import pytest

from scrubber.core import events as ev
from scrubber.core import plans
from scrubber.core.model import Blame, Facts, Outcome, ScrubPath, State, Step, StepResult
from scrubber.core.observation import Purpose
from scrubber.jobs.path_run import PathRun, Vetoes
from scrubber.jobs.scrub_job import ScrubJob
from scrubber.ledger.ledger import NO_LOOK
from scrubber.observe.observed_since import UNOBSERVED
from scrubber.workers.worker import BrokenError
from tests.service.asking import looking, results, rows
from tests.service.node import Kind, Process
from tests.service.pretend_worker import PretendWorker

TURNS = [(Step.SETTINGS, 1), (Step.HEALTH, 1), (Step.HEALTH, 2)]  # the last is that of the last vitals
STEPS = plans.PLANS[ScrubPath.FAST]
READS = [Step.VERIFY, Step.HEALTH]
A_WHILE = 2.0  # longer than any step takes


async def until(word):
    """Return as soon as it was recorded."""
    async with asyncio.timeout(60):
        while word not in Traced.trace:  # noqa: ASYNC110 - on virtual time
            await asyncio.sleep(0.001)


class TracedPath(PathRun):
    """Says when a step begins and ends."""

    async def _result(self, worker, step, *rest, **more) -> StepResult:
        Traced.trace.append(f"begins {step.value}")
        result = await super()._result(worker, step, *rest, **more)
        Traced.trace.append(f"ends {step.value}")
        if step is Step.CLEAR:
            Traced.cleared()
        return result


class TracedVetoes(Vetoes):
    """Says when an observation begins, and waits before it ends."""

    async def _observe(self, step) -> Facts:
        Traced.trace.append("looks")
        facts = await super()._observe(step)
        await asyncio.sleep(Traced.takes)
        Traced.trace.append("has looked")
        if Traced.blinded and step is Step.VERIFY:
            Traced.blinded -= 1
            return replace(facts, holders=None)
        return facts


class Traced(ScrubJob):
    """A job whose steps and observations are listened to."""

    path_type, vetoes_type = TracedPath, TracedVetoes
    trace: ClassVar[list[str]] = []
    takes = 0.0
    blinded = 0  # so many looks at a verify can tell nothing
    cleared = staticmethod(lambda: None)  # called once a clear is over, before anybody looks again


class Busy(PretendWorker):
    """Says when a step begins, and when the worker opens the device for the steps on memory."""

    async def prepare(self) -> None:
        Traced.trace.append("prepares")

    async def do(self, step, path, order, *rest):
        Traced.trace.append(f"does {step.value}{' unused' if order.unused else ''}")
        result = await super().do(step, path, order, *rest)
        Traced.trace.append(f"did {step.value}")
        return result


@pytest.fixture
async def seen(begin, monkeypatch):
    """A clean world whose jobs are listened to from now on."""
    world = await begin(gpus=1, worker=Busy, job=Traced)
    append = world.life.ledger.append

    async def trace(op: str, *events: tuple[str, ev.Event], seen: Mapping[str, Facts] = NO_LOOK) -> None:
        await append(op, *events, seen=seen)
        Traced.trace += [f"row {it.begins.value}" for _, it in events if isinstance(it, ev.StepsRecorded) and it.begins]

    monkeypatch.setattr(world.life.ledger, "append", trace)
    Traced.trace.clear()
    return world


async def scrubbed(world, path):
    running = await world.operator_requests.scrub(world.uuids[0], path)
    await running.finished.wait()
    return running


async def test_each_changing_step_follows_an_observation_of_its_own(seen):
    await scrubbed(seen, ScrubPath.RESET)
    for step in set(Step) - set(READS):
        begun = Traced.trace.index(f"begins {step.value}") + 1
        before = Traced.trace[begun : Traced.trace.index(f"does {step.value}{' unused' * (step is Step.EVICT)}")]
        ahead = ["prepares"] if step is Step.CLEAR else []
        assert before == ahead + ["looks", "has looked"] * (2 if step is Step.RESET else 1), step
    assert Traced.trace.count("prepares") == 1


@pytest.mark.parametrize("step", [Step.RESET, Step.CLEAR])
async def test_a_row_says_first_that_a_step_destroys(seen, step):
    """So the request for a sibling, and the next scrub after a kill, cannot miss it."""
    await scrubbed(seen, ScrubPath.RESET)
    assert Traced.trace[Traced.trace.index(f"begins {step.value}") - 1] == f"row {step.value}"


async def test_evict_searches_again_after_a_holder_was_seen(seen):
    running = await seen.operator_requests.scrub(seen.uuids[0], ScrubPath.FAST)
    foreign = seen.intrude(seen.uuids[0])
    foreign.secret = True
    await running.finished.wait()
    assert running.receipt is None
    assert "does evict" in Traced.trace
    assert "does evict unused" not in Traced.trace
    seen.node.leave(foreign)
    assert (await scrubbed(seen, ScrubPath.FAST)).receipt is not None
    assert "does evict unused" in Traced.trace


@pytest.mark.parametrize("step", READS)
async def test_a_reading_step_runs_beside_its_observation(seen, monkeypatch, step):
    monkeypatch.setattr(Traced, "takes", A_WHILE)
    await scrubbed(seen, ScrubPath.FAST)
    begun = Traced.trace.index(f"begins {step.value}") + 1
    trace = [it for it in Traced.trace[begun : Traced.trace.index(f"ends {step.value}")] if it != "looks"]
    assert trace == [f"does {step.value}", f"did {step.value}", "has looked"]


async def test_a_holder_voids_the_result_of_a_reading_step(seen, monkeypatch):
    """Also after the step is done and the holder has left."""
    monkeypatch.setattr(Traced, "takes", A_WHILE)
    world, device = seen, seen.uuids[0]
    guests = []
    monkeypatch.setattr(Traced, "cleared", staticmethod(lambda: guests.append(world.intrude(device, container=True))))
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await until("did verify")
    assert "ends verify" not in Traced.trace
    for guest in guests:
        world.node.leave(guest)
    await running.finished.wait()
    last = results(world, device)[-1]
    assert (last.step, last.outcome, last.blame) == (Step.VERIFY, Outcome.ABORTED, Blame.TENANT)
    assert running.receipt is None
    assert not [it for it in world.node.gpus[device].processes.values() if it.kind is Kind.WORKER]


@pytest.mark.parametrize(
    ("path", "leftover", "searches"),
    [
        (ScrubPath.FAST, False, [Step.EVICT, Step.HEALTH]),
        (ScrubPath.FAST, True, [Step.EVICT, Step.CLEAR, Step.HEALTH]),
        (ScrubPath.RESET, False, [Step.EVICT, Step.RESET, Step.HEALTH]),
    ],
)
async def test_a_scrub_searches_until_it_is_alone_and_last(world, monkeypatch, path, leftover, searches):
    """And before a reset. Between, the driver's list says who has come: a search reads every process of the node."""
    device, holders, seen = world.uuids[0], world.life.observer.holders, list[Step]()
    search = holders.of

    async def traced(uuids, listed) -> object:
        job = world.life.jobs.of(device)
        if device in uuids and job is not None and job.step is not None and not world.life.observer.driver.releases:
            seen.append(job.step)
        return await search(uuids, listed)

    if leftover:
        tenant = await world.tenancy(device)
        await world.reach(device, State.IN_USE)
    monkeypatch.setattr(holders, "of", traced)
    if leftover:
        world.node.end_container(tenant, leaving=True)
        await world.reach(device, State.CLEAN)
    else:
        await scrubbed(world, path)
    assert (world.record(device).state, [step for step, _ in groupby(seen)]) == (State.CLEAN, searches)


async def test_the_last_search_finds_whom_the_driver_does_not_list(seen):
    world, device = seen, seen.uuids[0]
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await until("ends scratch")
    world.intrude(device, container=True).secret = True
    await running.finished.wait()
    passed = [it.step for it in results(world, device)[-len(STEPS) :]]
    assert passed == list(STEPS)
    assert (running.receipt, "a live container uses the device" in running.why) == (None, True)


@pytest.mark.parametrize(("blinded", "outcome"), [(1, Outcome.DIED), (2, Outcome.ABORTED)])
async def test_a_worker_dying_during_an_observation_is_observed_again(seen, monkeypatch, blinded, outcome):
    """The driver lists a process that has just ended: for a moment the holders cannot be determined."""

    async def die(self, step, path, *rest) -> StepResult:
        if step is Step.VERIFY:
            return StepResult(step, path, Outcome.DIED, 0.0, blame=Blame.SERVICE)
        return await PretendWorker.do(self, step, path, *rest)

    monkeypatch.setattr(Busy, "do", die)
    monkeypatch.setattr(Traced, "blinded", blinded)
    running = await scrubbed(seen, ScrubPath.FAST)
    last = results(seen, seen.uuids[0])[-1]
    assert (last.step, last.outcome, running.receipt) == (Step.VERIFY, outcome, None)


@pytest.mark.parametrize("made", ["in time", "never", "too late"])
async def test_a_worker_that_is_not_needed_is_ended(seen, monkeypatch, made):
    """A veto comes while it is being made; whether it is there by then or could not be had is all the same."""
    world, device = seen, seen.uuids[0]
    hire, workers = world.life.jobs._context.spawn, list[PretendWorker]()

    async def slowly(*who) -> PretendWorker:
        if made == "never":
            raise BrokenError("cannot start a worker")
        if made == "too late":
            await asyncio.sleep(60)
        workers.append(await hire(*who))
        return workers[-1]

    monkeypatch.setattr(world.life.jobs, "_context", replace(world.life.jobs._context, spawn=slowly))
    monkeypatch.setattr(Traced, "takes", A_WHILE)
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    world.intrude(device, container=True)
    began = world.loop.time()
    await running.finished.wait()
    assert world.loop.time() - began < 2 * A_WHILE
    assert (world.record(device).state, running.receipt) == (State.DIRTY, None)
    assert not [it for it in Traced.trace if it.startswith("does")]
    assert len(workers) == (made == "in time")
    assert not [it for it in world.node.gpus[device].processes.values() if it.kind is Kind.WORKER]
    assert not world.life.observer.holders._workers


@pytest.mark.parametrize(("step", "nth"), TURNS)
async def test_a_holder_during_a_wait_voids_the_clear(world, monkeypatch, step, nth):
    slots, waits, go, asked = world.life.jobs.slots, asyncio.Event(), asyncio.Event(), []
    at_driver = slots.at_driver

    @asynccontextmanager
    async def late(whose: str, which: Step) -> AsyncIterator[None]:
        asked.append(which)
        if which is step and asked.count(step) == nth:
            waits.set()
            await go.wait()
        async with at_driver(whose, which):
            yield

    monkeypatch.setattr(slots, "at_driver", late)
    device = world.uuids[0]
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await waits.wait()
    unannounced = world.intrude(device, container=True)
    await asyncio.sleep(A_WHILE)
    world.node.leave(unannounced)
    await asyncio.sleep(A_WHILE)
    go.set()
    await running.finished.wait()
    assert (running.receipt, "uses the device" in running.why) == (None, True)
    await world.clean(device)


async def test_a_holder_during_the_last_health_check_voids_the_clear(world, monkeypatch):
    device, observer = world.uuids[0], world.life.observer
    came: list[Process] = []
    ask = observer.health.vitals

    async def late(uuid: str, parent: str | None = None) -> object:
        job, worker = world.life.jobs.of(device), any(it.kind is Kind.WORKER for it in world.node.everybody())
        if uuid == device and job is not None and job.step is Step.HEALTH and not worker and not came:
            came.append(world.intrude(device, container=True))
            await asyncio.sleep(A_WHILE)
            world.node.leave(came[0])
        return await ask(uuid, parent)

    monkeypatch.setattr(observer.health, "vitals", late)
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert (len(came), running.receipt) == (1, None)
    await world.clean(device)


async def test_a_scrub_with_long_unobserved_time_proves_nothing(world, monkeypatch):
    """A search hangs after the memory was read back, and every round waits for it as well."""
    device, observer, go = world.uuids[0], world.life.observer, asyncio.Event()
    rounds = world.life.monitor.round

    async def hang(look, _record) -> Facts:
        if running.step is Step.SCRATCH and not go.is_set():
            await asyncio.sleep(UNOBSERVED + A_WHILE)
            go.set()
        facts: Facts = await look()
        return facts

    async def later(pace: float) -> None:
        await go.wait()
        await rounds(pace)

    monkeypatch.setattr(observer, "look", looking(observer, Purpose.STEP, does=hang))
    monkeypatch.setattr(world.life.monitor, "round", later)
    await asyncio.sleep(A_WHILE)
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert running.receipt is None
    assert re.fullmatch(
        r"scratch aborted: 18[.]. s after its clear began, the service noticed: "
        r"it was not observed for 17[.]. s; at most 15 s may pass",
        running.why,
    )
    await world.clean(device)


@pytest.mark.parametrize(("step", "passes"), [(Step.CLEAR, True), (Step.VERIFY, False)])
async def test_only_a_process_that_leaves_after_the_clear_voids_it(world, monkeypatch, step, passes):
    """The observation before the clear is recorded as a part of its step. The clear overwrites what it found."""
    device, observer = world.uuids[0], world.life.observer
    left = list[Step]()

    async def leaving(look, record) -> Facts:
        job = world.life.jobs.of(device)
        if record.device.uuid == device and job is not None and job.step is step and not left:
            left.append(step)
            await asyncio.sleep(0.1)
            observer._observed_since.interrupt(device, "somebody left")
        facts: Facts = await look()
        return facts

    monkeypatch.setattr(observer, "look", looking(observer, Purpose.STEP, does=leaving))
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert (len(left), running.receipt is not None) == (1, passes)
    assert running.why.endswith("" if passes else "s after its clear began, the service noticed: somebody left")
    await world.clean(device)


async def test_a_holder_seen_before_a_siblings_reset_ends_the_proof(begin):
    world = await begin(gpus=3, interval=60.0)
    _, device, sibling = world.uuids
    await asyncio.sleep(1)
    job = await world.operator_requests.scrub(sibling, ScrubPath.RESET)
    unexpected = world.intrude(device, container=True)
    await asyncio.sleep(0.6)
    world.node.end_container(unexpected.container)
    await job.finished.wait()
    assert unexpected.seen
    await world.acquire("next", device)
    assert len(rows(world, ev.ScrubPassed, device)) == 2
