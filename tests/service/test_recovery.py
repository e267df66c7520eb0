"""How devices return and jobs end: what was found until then counts, and a started reset completes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from ground.errors import LedgerUnavailable, NotReady, Refused
from policies.policy_model import Policy
from scrubber.core import events as ev
from scrubber.core.acquire import ForClaim, ForPod
from scrubber.core.events import LedgerEntry
from scrubber.core.fencing import Pods
from scrubber.core.model import Ailment, AilmentKind, Facts, HealthRead, ScrubPath, Sign, State, Step, Trigger, Xid
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.devices.base import Progress
from scrubber.ledger import compaction
from scrubber.ledger.database import Loaded
from scrubber.steps.orders import Order, Report
from scrubber.workers.worker import BrokenError
from tests.ledger import memory_store
from tests.service.asking import at_step, let_on, looking, rows, written_down
from tests.service.pretend_worker import AMinuteOfTests, PretendWorker


async def out(world, device):
    await world.operator_requests.quarantine(device, "suspect", "ops")
    await world.reach(device, State.QUARANTINED)


async def test_reinstate_without_proof_still_scrubs_the_device(world):
    device = world.uuids[0]
    await out(world, device)
    running = await world.operator_requests.reinstate_without_proof(device, "it was the cable", "ann")
    await running.finished.wait()
    assert world.state(device) is State.CLEAN
    assert rows(world, ev.Reinstated, device) == [ev.Reinstated("ann: it was the cable")]
    assert world.record(device).scrubs.receipt.path is ScrubPath.FAST


async def test_reinstate_without_proof_proves_nothing(world):
    device = world.uuids[0]
    await out(world, device)
    world.intrude(device)
    with pytest.raises(Refused, match="it is used by"):
        await world.operator_requests.reinstate_without_proof(device, "it was the cable", "ann")
    assert world.state(device) is State.QUARANTINED


async def test_reinstate_without_proof_cancels_a_probation(world):
    device = world.uuids[0]
    await out(world, device)
    trial = await world.operator_requests.reinstate(device, "", "ops")
    await asyncio.sleep(0.05)
    running = await world.operator_requests.reinstate_without_proof(device, "no time", "ann")
    await running.finished.wait()
    assert trial.finished.is_set()
    assert trial.receipt is None
    assert world.state(device) is State.CLEAN
    assert "it was cancelled" in world.trace.story(device)


async def test_a_pattern_of_a_cut_off_clear_is_no_residue(world):
    """The service is killed in the middle of a clear, and nobody has had the device since."""
    device = world.uuids[0]
    await world.reach(device, State.CLEAN)
    process = world.intrude(device)
    await world.reach(device, State.DIRTY)
    world.node.leave(process)
    await at_step(world, device, Step.CLEAR)
    await world.die()
    world.node.gpus[device].blocks[0] = process  # some memory holds what the clear has written, or what was there
    await world.start()
    receipt = (await world.reach(device, State.CLEAN)).scrubs.receipt
    assert (receipt.residue_bytes, receipt.residue_at, receipt.searched_bytes) == (0, (), 0)
    assert "not zero before, which may be the pattern of an earlier clear" in world.trace.story(device)


class WithoutErrorLog(PretendWorker):
    """A worker as the real ones are: it reads counters, and has no error log."""

    async def perform(self, step, order, progress):
        report = await super().perform(step, order, progress)
        if isinstance(report.findings, HealthRead):
            report = replace(report, findings=HealthRead(replace(report.findings.vitals, xids=())))
        return report


async def test_an_error_during_a_job_is_judged_after_the_job(begin):
    world = await begin(gpus=1, worker=WithoutErrorLog, policy="fast")
    [device] = world.uuids
    running = await world.operator_requests.scrub(device, ScrubPath.RESET)
    world.node.gpus[device].xids.append(Xid(900, 79))
    await running.finished.wait()
    assert running.receipt is None
    assert world.record(device).health.quarantine.ailment == Ailment(AilmentKind.XID, running.why, xid=79)
    assert world.record(device).health.quarantine.baseline.last_xid == 900
    await world.reach(device, State.CLEAN)


async def test_errors_before_a_reinstatement_do_not_count_against_it(begin):
    world = await begin(gpus=1, worker=WithoutErrorLog)
    [device] = world.uuids
    await out(world, device)
    world.node.report(device, (74,))  # what moving its cables does
    running = await world.operator_requests.reinstate(device, "seated anew", "ann")
    await running.finished.wait()
    assert running.receipt is not None


async def test_errors_before_discovery_need_a_reset_only(build):
    world = build(gpus=1, policy="fast")
    [device] = world.uuids
    world.node.report(device, (79, 61))
    await world.start()
    await world.clean()
    assert world.record(device).scrubs.receipt.path is ScrubPath.RESET
    assert rows(world, ev.Quarantined, device) == []


async def test_a_forbidden_reset_waits_for_a_person(begin):
    world = await begin(policy="defaults: {reset: {when: never}}")
    device, other = world.uuids
    world.node.report(device, (79,))
    with pytest.raises(Refused, match=r"^the policy forbids resets \(reset.when: never\); choose"):
        await world.operator_requests.scrub(other, ScrubPath.RESET)
    await world.reach(device, State.QUARANTINED)
    await asyncio.sleep(7200)
    assert rows(world, ev.ProbationStarted, device) == []
    with pytest.raises(Refused, match=r"^it needs a reset, and the policy forbids"):
        await world.operator_requests.scrub(device, None)
    with pytest.raises(Refused, match=r"^it needs a reset, and the policy forbids .*; reboot the node"):
        await world.operator_requests.reinstate(device, "again", "ann")
    explained = await world.life.reporter.explain(device)
    assert explained.device.quarantine.next_probe_seconds is None
    assert "reboot the node" in explained.advice[0]
    await (await world.operator_requests.reinstate_without_proof(device, "reset by hand", "ann")).finished.wait()
    assert world.state(device) is State.CLEAN
    assert [it for it in rows(world, ev.StepsRecorded, device) if it.begins is Step.RESET] == []


class Copied(memory_store.MemoryStore):
    """A ledger that may be an older copy, once ``put_back``; so many writes fail."""

    put_back = False
    failures = 0

    def load(self, fold: compaction.Fold) -> Loaded:
        return replace(super().load(fold), may_be_old=self.put_back)

    def append(self, drafts: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        if self.failures:
            self.failures -= 1
            raise LedgerUnavailable("cannot write to the ledger: the disk is full")
        return super().append(drafts)


@pytest.mark.parametrize("failures", [0, 1], ids=["", "and the disk is full at first"])
async def test_a_possibly_older_ledger_has_all_devices_scrubbed(begin, failures):
    kept = Copied()
    world = await begin(policy="fast", kept=kept)
    [granted, _] = world.uuids
    await world.acquire("pod", granted, announced=True)
    await world.die()
    kept.put_back, kept.failures = True, failures
    await world.start()
    await world.clean()
    assert [len(rows(world, ev.ScrubPassed, device)) for device in world.uuids] == [2, 2]
    assert [len(rows(world, ev.Distrusted, device)) for device in world.uuids] == [1, 1]


@pytest.mark.parametrize(("first", "used"), [("dropped", False), ("next", True)], ids=["idle before", "used before"])
async def test_a_doubled_grant_missing_in_the_ledger_shows_no_bytes(begin, first, used):
    """The kubelet has dropped a pod and admitted another one; the ledger is a copy from before both."""
    kept = Copied()
    world = await begin(gpus=1, policy="fast", kept=kept)
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
        await world.tenant_requests.start([device], None)
        world.truth.started(pod, device)
        world.run(pod, device)
        await asyncio.sleep(0.05)
        world.node.end_container(pod)


# -- how jobs end


async def left_alone(begin, worker):
    """A clean device that was idle for a long time."""
    world = await begin(gpus=1, worker=worker)
    await asyncio.sleep(1000)
    return world, world.uuids[0]


class HangsInTheEnd(PretendWorker):
    """A worker whose driver hangs after the last step."""

    async def perform(self, step, order, progress):
        report = await super().perform(step, order, progress)
        self.gpu.hangs = step is Step.HEALTH and self.node.loop.time() > 1000
        return report


async def test_a_driver_that_hangs_at_the_end_proves_nothing(begin):
    world, device = await left_alone(begin, HangsInTheEnd)
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert running.receipt is None
    monitor_asked_first = running.why.startswith("the driver does not answer for this device")
    assert monitor_asked_first or running.why == "its health could not be read at the end"
    world.node.heal()


async def test_one_late_last_answer_makes_no_device_sick(begin):
    late = 0

    class OneLateAnswer(PretendWorker):
        """The driver is slow once, just when the job asks for the last time."""

        async def perform(self, step: Step, order: Order, progress: Progress) -> Report:
            nonlocal late
            report = await super().perform(step, order, progress)
            if step is Step.HEALTH and late == 0 and self.node.loop.time() > 1000:
                late += 1
                self.gpu.hangs = True
                self.node.loop.call_later(3.0, setattr, self.gpu, "hangs", False)
            return report

    world, device = await left_alone(begin, OneLateAnswer)
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert late == 1
    assert running.receipt is not None


async def test_a_proven_fault_outlives_a_missing_worker(world, monkeypatch):
    device = world.uuids[0]
    spawn = world.context.jobs._context.spawn

    async def none_for_the_slow_path(uuid: str, policy: Policy) -> PretendWorker:
        if world.record(uuid).scrubs.job.path is ScrubPath.RESET:
            raise BrokenError("cannot start a worker")
        worker: PretendWorker = await spawn(uuid, policy)
        return worker

    jobs = world.context.jobs
    monkeypatch.setattr(jobs, "_context", replace(jobs._context, spawn=none_for_the_slow_path))
    world.node.gpus[device].bad_memory = True
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    world.node.heal()
    quarantine = world.record(device).health.quarantine
    assert (quarantine.ailment.kind, quarantine.next_probe) == (AilmentKind.MEMORY_FAULT, None)


async def test_a_reset_waiting_for_a_self_test_delays_no_pod(begin):
    world = await begin(gpus=4, worker=AMinuteOfTests, policy="fast")
    tested, reset, tenants, _ = world.uuids
    first = await world.operator_requests.scrub(tested, ScrubPath.RESET)
    await at_step(world, tested, Step.SELFTEST)
    second = await world.operator_requests.scrub(reset, ScrubPath.RESET)
    await asyncio.sleep(5)
    assert second.step is None
    assert not first.finished.is_set()
    began = world.loop.time()
    running = await world.operator_requests.scrub(tenants, ScrubPath.FAST)
    await running.finished.wait()
    assert running.receipt is not None
    assert world.loop.time() - began < 3
    await asyncio.gather(first.finished.wait(), second.finished.wait())
    assert second.receipt is not None


@pytest.mark.parametrize("ask", ["acquire", "start"])
async def test_a_scrub_that_ends_meanwhile_causes_no_refusal(world, monkeypatch, ask):
    device = world.uuids[0]
    await world.operator_requests.scrub(device, ScrubPath.FAST)
    await at_step(world, device, Step.EVICT)

    async def slow(look: Callable[[], Awaitable[Facts]], record: Record) -> Facts:
        facts = await look()
        if record.state is State.SCRUBBING:
            await world.reach(device, State.CLEAN)
        return facts

    purpose = Purpose.ROUND if ask == "acquire" else Purpose.START
    monkeypatch.setattr(world.life.observer, "look", looking(world.life.observer, purpose, does=slow))
    await (
        world.tenant_requests.acquire([device], ForPod(announced=True))
        if ask == "acquire"
        else world.tenant_requests.start([device], "p")
    )
    assert world.state(device) is (State.GRANTED if ask == "acquire" else State.IN_USE)


async def test_an_operator_cannot_cancel_a_reset(world):
    device = world.uuids[0]
    world.node.report(device, (79,))
    await world.reach(device, State.QUARANTINED)
    running = await world.operator_requests.reinstate(device, "", "ops")
    await at_step(world, device, Step.RESET)
    with pytest.raises(NotReady, match="it is being reset; try again"):
        await world.operator_requests.reinstate_without_proof(device, "no time", "ann")
    await running.finished.wait()
    assert running.receipt is not None


async def test_a_reinstatement_replaces_a_running_probation(begin):
    world = await begin(policy="defaults: {quarantine: {signs: [heat]}}", worker=AMinuteOfTests)
    device = world.uuids[0]
    gpu = world.node.gpus[device]
    gpu.signs = (Sign(AilmentKind.HEAT, "hot"),)
    await world.reach(device, State.QUARANTINED)
    gpu.signs = ()
    await at_step(world, device, Step.CLEAR)
    running = await world.operator_requests.reinstate(device, "looked after", "ann")
    assert await world.operator_requests.reinstate(device, "me too", "bob") is running
    await running.finished.wait()
    assert running.receipt.path is ScrubPath.SLOW
    assert [it.by for it in rows(world, ev.ProbationStarted, device)][-1] == "ann: looked after"
    assert world.record(device).health.returns == ()


@pytest.mark.parametrize("waited", [0.0, 30.0])
async def test_after_a_reboot_a_claim_waits_for_no_self_test(begin, waited):
    """The kubelet asks again for the claims of all its pods, while the devices take their first look."""
    world = await begin(worker=AMinuteOfTests)
    device, other = world.uuids
    claim = ForClaim("claim-1", Pods(frozenset()))
    await world.tenant_requests.acquire([device], claim)
    await world.die()
    world.node.reboot()
    await world.start()
    await asyncio.sleep(waited)
    await world.tenant_requests.acquire([device], claim, within=10.0)
    assert world.record(device).scrubs.receipt.path is ScrubPath.FAST
    await world.reach(other, State.CLEAN)
    assert world.record(other).scrubs.receipt.path is ScrubPath.SLOW  # its first look went on: no request waited for it
    assert [it.job.trigger for it in rows(world, ev.ScrubStarted, other)] == [Trigger.FIRST_LOOK] * 2


async def test_a_sign_lasts_over_one_late_answer(world):
    device = world.uuids[0]
    world.node.gpus[device].signs = (Sign(AilmentKind.HEAT, "hot"),)
    await asyncio.sleep(5)
    world.node.gpus[device].hangs = True
    await asyncio.sleep(3)
    assert world.context.seen.vitals[device].signs == (Sign(AilmentKind.HEAT, "hot"),)
    world.node.heal()


async def test_a_proven_fault_outlives_a_kill_before_its_verdict(world, monkeypatch):
    """What has failed a step may end the service as well, while it still asks the device."""
    device, asks, ask = world.uuids[0], asyncio.Event(), world.life.observer.health.vitals

    async def never(uuid: str, *parent: str) -> object:
        if uuid == device and running.step is None:
            asks.set()
            await asyncio.Event().wait()
        return await ask(uuid, *parent)

    world.node.gpus[device].bad_memory = True
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await at_step(world, device, Step.CLEAR)
    monkeypatch.setattr(world.life.observer.health, "vitals", never)
    await asks.wait()
    await world.die()
    world.node.heal()
    await world.start()
    quarantine = (await world.reach(device, State.QUARANTINED)).health.quarantine
    assert (quarantine.ailment.kind, quarantine.next_probe) == (AilmentKind.MEMORY_FAULT, None)
