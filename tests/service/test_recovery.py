"""How devices return: by proof, by an operator, and after the ledger became an older copy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core.events import LedgerEntry
from scrubber.core.model import Ailment, AilmentKind, ScrubPath, State, Step, Xid
from scrubber.ground.errors import LedgerUnavailable, Refused
from scrubber.ledger import store
from tests.ledger import memory_store
from tests.service.asking import let_on, rows, written_down
from tests.service.pretend_worker import PretendWorker


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


class WithoutErrorLog(PretendWorker):
    """A worker as the real ones are: it reads counters, and has no error log."""

    async def perform(self, step, order, progress):
        report = await super().perform(step, order, progress)
        vitals = report.findings.vitals
        read = replace(vitals, xids=()) if vitals else None
        return replace(report, findings=replace(report.findings, vitals=read))


async def test_an_error_during_a_job_is_judged_after_the_job(begin):
    world = await begin(gpus=1, worker=WithoutErrorLog, policy="fast")
    [device] = world.uuids
    running = await world.operations.scrub(device, ScrubPath.RESET)
    world.node.gpus[device].xids.append(Xid(900, 79))
    await running.finished.wait()
    assert running.receipt is None
    assert world.record(device).quarantine.ailment == Ailment(AilmentKind.XID, running.why, xid=79)
    assert world.record(device).quarantine.baseline.last_xid == 900
    await world.reach(device, State.CLEAN)


async def test_errors_before_a_reinstatement_do_not_count_against_it(begin):
    world = await begin(gpus=1, worker=WithoutErrorLog)
    [device] = world.uuids
    await out(world, device)
    world.node.report(device, (74,))  # what moving its cables does
    running = await world.operations.reinstate(device, "seated anew", "ann")
    await running.finished.wait()
    assert running.receipt is not None


async def test_a_forbidden_reset_waits_for_a_person(begin):
    world = await begin(policy="defaults: {reset: {when: never}}")
    device, other = world.uuids
    world.node.report(device, (79,))
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
        await world.handover.start([device], None)
        world.truth.started(pod, device)
        world.run(pod, device)
        await asyncio.sleep(0.05)
        world.node.end_container(pod)
