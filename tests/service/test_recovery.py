"""How devices return: by proof, by an operator, and what burn-in does with idle devices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Ailment, AilmentKind, Blame, Outcome, ScrubPath, State, Step, Trigger, Vitals, Xid
from scrubber.ground.errors import LedgerUnavailable, Refused
from scrubber.ledger import store
from scrubber.steps.base import Report
from tests.ledger import memory_store
from tests.service.asking import let_on, rows, written_down
from tests.service.pretend_worker import PretendWorker
from tests.service.world import World

TESTED_HOURLY = """\
name: tested
defaults:
  timeouts: {evict: 5s}
  periodic: {every: 1h, keep_free: KEEP}
"""


@pytest.fixture
def tested(build, tmp_path):
    """A node whose idle devices are tested every hour."""

    async def node(
        gpus: int = 2, keep: int = 1, interval: float = 20.0, worker: type[PretendWorker] = PretendWorker
    ) -> World:
        file = tmp_path / "tested.yaml"
        file.write_text(TESTED_HOURLY.replace("KEEP", str(keep)))
        world: World = build(policy=str(file), gpus=gpus, interval=interval, worker=worker)
        await world.start()
        await world.clean()
        return world

    return node


def burn_ins(world, *devices):
    started = (it for device in devices or world.uuids for it in rows(world, ev.ScrubStarted, device))
    return [it.job for it in started if it.job.trigger is Trigger.BURN_IN]


async def out(world, device):
    await world.operations.quarantine(device, "suspect", "ops")
    await world.reach(device, State.QUARANTINED)


async def test_reinstate_without_proof_still_scrubs_the_device(world):
    device = world.uuids[0]
    await out(world, device)
    running = await world.operations.reinstate_without_proof(device, "it was the cable", "ann")
    await running.finished.wait()
    assert world.state(device) is State.CLEAN
    assert rows(world, ev.Reinstated, device) == [ev.Reinstated("ann: it was the cable")]
    assert world.record(device).receipt.path is ScrubPath.FAST


async def test_reinstate_without_proof_proves_nothing(world):
    device = world.uuids[0]
    await out(world, device)
    world.intrude(device)
    with pytest.raises(Refused, match="it is used by"):
        await world.operations.reinstate_without_proof(device, "it was the cable", "ann")
    assert world.state(device) is State.QUARANTINED


async def test_reinstate_without_proof_cancels_a_probation(world):
    device = world.uuids[0]
    await out(world, device)
    trial = await world.operations.reinstate(device, "", "ops")
    await asyncio.sleep(0.05)
    running = await world.operations.reinstate_without_proof(device, "no time", "ann")
    await running.finished.wait()
    assert trial.finished.is_set()
    assert trial.receipt is None
    assert world.state(device) is State.CLEAN
    assert "it was cancelled" in world.story(device)


async def test_only_a_quarantined_device_can_be_reinstated(world):
    with pytest.raises(Refused, match="it is not quarantined"):
        await world.operations.reinstate_without_proof(world.uuids[0], "", "ann")


async def test_a_reinstated_device_that_is_sick_is_quarantined_again(world):
    device = world.uuids[0]
    world.node.gpus[device].lost = True
    await world.reach(device, State.QUARANTINED)
    await world.operations.reinstate_without_proof(device, "it looks fine from here", "ann")
    await world.reach(device, State.QUARANTINED)
    assert "fallen off its bus" in world.record(device).quarantine.ailment.detail


class WithoutErrorLog(PretendWorker):
    """A worker as the real ones are: it reads counters, and has no error log."""

    async def perform(self, step, order, progress):
        report = await super().perform(step, order, progress)
        vitals = report.findings.vitals
        read = replace(vitals, xids=()) if vitals else None
        return replace(report, findings=replace(report.findings, vitals=read))


async def test_an_error_during_a_job_is_judged_after_the_job(build):
    world = build(gpus=1, worker=WithoutErrorLog, policy="fast")
    await world.start()
    await world.clean()
    [device] = world.uuids
    running = await world.operations.scrub(device, ScrubPath.RESET)
    world.node.gpus[device].xids.append(Xid(900, 79))
    await running.finished.wait()
    assert running.receipt is None
    assert world.record(device).quarantine.ailment == Ailment(AilmentKind.XID, running.why, xid=79)
    assert world.record(device).quarantine.baseline.last_xid == 900
    await world.reach(device, State.CLEAN)


async def test_burn_ins_run_in_turn_and_keep_devices_free(tested):
    world = await tested(gpus=2)
    most = 0
    for _ in range(5400):
        await asyncio.sleep(2.0)
        scrubbing = [device for device in world.uuids if world.state(device) is State.SCRUBBING]
        most = max(most, len(scrubbing))
    assert most == 1
    for device in world.uuids:
        assert 1 <= len(burn_ins(world, device)) <= 3
        assert all(job.path is ScrubPath.SLOW for job in burn_ins(world, device))


async def test_the_last_free_devices_get_no_burn_in(tested):
    world = await tested(gpus=2, keep=2)
    await asyncio.sleep(3 * 3600.0)
    assert burn_ins(world) == []


async def test_a_burn_in_is_not_repeated_at_once(tested):
    world = await tested(gpus=2)
    await asyncio.sleep(3500.0)
    assert burn_ins(world) == []


async def test_an_acquire_gets_a_device_from_its_burn_in(tested):
    world = await tested(gpus=2)
    while not burn_ins(world):
        await world.life.ledger.newer_row(world.life.ledger.seq, 60.0)
    [job] = burn_ins(world)
    device = next(it for it in world.uuids if world.state(it) is State.SCRUBBING)
    advert = next(it for it in world.life.reporter.adverts().devices if it.uuid == device)
    assert advert.healthy
    began = world.loop.time()
    assert await world.acquire("pod", device)
    assert world.loop.time() - began < world.truth.policy(device).budgets.allocate
    assert [it.job for it in rows(world, ev.ScrubInterrupted, device)] == [job.id]
    assert rows(world, ev.ScrubPassed, device)[-1].receipt.path is ScrubPath.FAST


async def test_a_burn_in_disturbs_no_sibling(tested):
    world = await tested(gpus=3)
    _alone, one, other = world.uuids
    await world.tenancy(one)
    await asyncio.sleep(3 * 3600.0)
    assert burn_ins(world, other) == []


async def test_a_failed_burn_in_quarantines_the_device(tested):
    world = await tested(gpus=2)
    while not burn_ins(world):
        await world.life.ledger.newer_row(world.life.ledger.seq, 60.0)
    device = next(it for it in world.uuids if world.state(it) is State.SCRUBBING)
    world.node.gpus[device].lost = True
    await world.reach(device, State.QUARANTINED)
    assert ScrubPath.RESET in {it.path for it in rows(world, ev.Escalated, device)}


@pytest.mark.parametrize("codes", [(), (95,), (63, 154)])
async def test_a_burst_of_errors_costs_one_probation(build, codes):
    world = build(gpus=1, worker=WithoutErrorLog)
    await world.start()
    await world.clean()
    [device] = world.uuids
    world.node.report(device, (48,))
    await world.reach(device, State.QUARANTINED)
    for code in codes:
        await asyncio.sleep(1.0)
        world.node.report(device, (code,))
    await world.reach(device, State.CLEAN)
    assert len(rows(world, ev.ProbationStarted, device)) == 1


async def test_errors_before_a_reinstatement_do_not_count_against_it(build):
    world = build(gpus=1, worker=WithoutErrorLog)
    await world.start()
    await world.clean()
    [device] = world.uuids
    await out(world, device)
    world.node.report(device, (74,))  # what moving its cables does
    running = await world.operations.reinstate(device, "seated anew", "ann")
    await running.finished.wait()
    assert running.receipt is not None


class LongTest(PretendWorker):
    """Tests for a minute."""

    async def perform(self, step, order, progress):
        if step is Step.SELFTEST:
            await self.spend(60)
        return await super().perform(step, order, progress)


class NoReset(PretendWorker):
    """A bystander keeps the device open, so that no reset is possible."""

    async def perform(self, step, order, progress):
        if step is Step.RESET and self.node.loop.time() > 1000:
            return Report(Outcome.FAILED, "cannot reset: it is open in dcgm-exporter", Blame.SERVICE)
        return await super().perform(step, order, progress)


async def begun(world):
    """The device whose test has just begun."""
    while not burn_ins(world):
        await world.life.ledger.newer_row(world.life.ledger.seq, 60.0)
    return next(it for it in world.uuids if world.state(it) is State.SCRUBBING)


def offered(world, device):
    return next(it for it in world.life.reporter.adverts().devices if it.uuid == device).healthy


async def test_a_device_sick_during_burn_in_is_not_offered(tested):
    world = await tested(worker=LongTest, interval=1.0)
    device = await begun(world)
    await asyncio.sleep(5)
    assert offered(world, device)
    world.node.report(device, (79,))
    await asyncio.sleep(1.5)
    assert not offered(world, device)
    assert world.state(device) is State.QUARANTINED


async def test_a_failed_attempt_at_burn_in_waits_for_the_next(tested):
    world = await tested(worker=NoReset)
    device = await begun(world)
    await asyncio.sleep(3000)
    assert len(burn_ins(world, device)) == 1
    assert world.state(device) is State.CLEAN


async def test_a_fault_proven_by_burn_in_outlives_its_cancellation(tested):
    """A request between the last step and its verdict is refused."""
    world = await tested()
    device = await begun(world)
    look = world.life.observer.health.vitals

    async def slow(uuid: str) -> Vitals | None:
        await asyncio.sleep(1.5)
        seen: Vitals | None = await look(uuid)
        return seen

    world.life.observer.health.vitals = slow
    world.node.gpus[device].computes_wrongly = True
    while not any(it.result.step is Step.SELFTEST for it in rows(world, ev.StepFinished, device)[-1:]):
        await world.life.ledger.newer_row(world.life.ledger.seq, 60.0)
    with pytest.raises(Refused):
        await world.acquire("pod", device)
    await world.reach(device, State.QUARANTINED)
    assert world.record(device).quarantine.ailment.kind is AilmentKind.COMPUTE_FAULT


async def test_a_device_not_observed_at_the_end_is_not_clean(world):
    device = world.uuids[0]
    running = await world.operations.scrub(device, ScrubPath.FAST)
    look = world.life.observer.health.vitals

    async def silent(_uuid: str) -> None:
        return None

    world.life.observer.health.vitals = silent
    await running.finished.wait()
    world.life.observer.health.vitals = look
    assert (running.receipt, running.why) == (None, "its health could not be read at the end")
    await world.reach(device, State.CLEAN)


async def test_errors_before_discovery_need_a_reset_only(build):
    world = build(gpus=1, policy="fast")
    [device] = world.uuids
    world.node.report(device, (79, 61))
    await world.start()
    await world.clean()
    assert world.record(device).receipt.path is ScrubPath.RESET
    assert rows(world, ev.Quarantined, device) == []
    assert [it.grave for it in rows(world, ev.ErrorsNoted, device)] == [True]


async def test_a_forbidden_reset_waits_for_a_person(build, tmp_path):
    world = build(gpus=2, policy="fast")
    device, other = world.uuids
    policy = tmp_path / "tuned.yaml"
    policy.write_text("name: tuned\ndefaults: {reset: {when: never}}\n")
    world.change_policy(str(policy))
    world.node.report(device, (79, 61))
    await world.start()
    await world.clean(other)
    with pytest.raises(Refused, match=r"cannot scrub .*: the policy forbids resets \(reset.when: never\); choose"):
        await world.operations.scrub(other, ScrubPath.RESET)
    await world.reach(device, State.QUARANTINED)
    await asyncio.sleep(7200)
    assert rows(world, ev.ProbationStarted, device) == []
    with pytest.raises(Refused, match=r"cannot scrub .*: it needs a reset, and the policy forbids"):
        await world.operations.scrub(device, None)
    with pytest.raises(
        Refused, match=r"cannot reinstate .*: it needs a reset, and the policy forbids .*: reboot the node"
    ):
        await world.operations.reinstate(device, "again", "ann")
    explained = await world.life.reporter.explain(device)
    assert explained.device.quarantine.next_probe_seconds is None
    assert "reboot the node" in explained.advice[0]
    await (await world.operations.reinstate_without_proof(device, "reset by hand", "ann")).finished.wait()
    assert world.state(device) is State.CLEAN
    assert [it.step for it in rows(world, ev.StepStarted, device) if it.step is Step.RESET] == []


class Copied(memory_store.MemoryStore):
    """A ledger that may be an older copy, once ``put_back``; so many writes fail."""

    put_back = False
    failures = 0

    def load(self) -> store.Loaded:
        return replace(super().load(), may_be_old=self.put_back)

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        if self.failures:
            self.failures -= 1
            raise LedgerUnavailable("cannot write to the ledger: the disk is full")
        return super().append(drafts)


@pytest.mark.parametrize("failures", [0, 1], ids=["", "and the disk is full at first"])
async def test_a_possibly_older_ledger_has_all_devices_scrubbed(build, failures):
    kept = Copied()
    world = build(policy="fast", reopen=lambda: kept)
    await world.start()
    await world.clean()
    [granted, _] = world.uuids
    await world.acquire("pod", granted, announced=True)
    await world.die()
    kept.put_back, kept.failures = True, failures
    await world.start()
    await world.clean()
    assert [len(rows(world, ev.ScrubPassed, device)) for device in world.uuids] == [2, 2]
    assert [len(rows(world, ev.Distrusted, device)) for device in world.uuids] == [1, 1]


@pytest.mark.parametrize("first", ["dropped", "next"])
@pytest.mark.parametrize("used", [False, True], ids=["idle before", "used before"])
async def test_a_doubled_grant_missing_in_the_ledger_shows_no_bytes(build, first, used):
    """The kubelet has dropped a pod and admitted another one; the ledger is a copy from before both."""
    kept = Copied()
    world = build(gpus=1, policy="fast", reopen=lambda: kept)
    await world.start()
    await world.clean()
    [device] = world.uuids
    if used:
        await let_on(world, "earlier", device)
        await asyncio.sleep(2)
    await world.die()
    if used:
        world.node.end_container("earlier")
    kept.put_back = True
    await world.start()
    await world.clean()
    written_down(world, next=[device])
    for pod in (first, "next" if first == "dropped" else "dropped"):
        await world.handover.start([device], None)
        world.truth.started(pod, device)
        world.run(pod, device)
        await asyncio.sleep(0.05)
        world.node.end_container(pod)


async def test_a_proof_survives_a_restart_where_policy_says_so(build):
    world = build(policy="fast")
    await world.start()
    await world.clean()
    await world.die()
    await world.start()
    await asyncio.sleep(10)
    assert [len(rows(world, ev.ScrubPassed, device)) for device in world.uuids] == [1, 1]
