"""What callers and operators get, and what does not change after a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from ground.errors import InvalidRequest, NotReady, Reason, Refused
from scrubber.core import events as ev
from scrubber.core.acquire import ForClaim, ForJob, ForPod
from scrubber.core.fencing import Pods
from scrubber.core.model import AilmentKind, Facts, ScrubPath, State
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from tests.service.asking import looking, reported, rows, scrubs
from tests.service.node import Kind


async def test_a_clean_device_is_granted_at_once_in_one_row(world):
    device, before, began = world.uuids[0], len(world.truth.entries), world.loop.time()
    granted = (await world.acquire("pod", device))[0]
    assert world.loop.time() == began
    assert [type(it.event) for it in world.truth.entries[before:]] == [ev.Granted]
    receipt = rows(world, ev.ScrubPassed, device)[-1].receipt
    assert granted.receipt == receipt.id


@pytest.mark.parametrize(
    "ask", ["acquire", "start", "release", "distrust", "scrub", "quarantine", "reinstate", "reconcile"]
)
async def test_an_unknown_device_is_refused_by_name(world, ask):
    handover, operations = world.tenant_requests, world.operator_requests
    work = {
        "acquire": lambda: handover.acquire([world.uuids[0], "GPU-no"], ForPod()),
        "start": lambda: handover.start(["GPU-no"], "pod"),
        "release": lambda: handover.release(["GPU-no"]),
        "distrust": lambda: handover.distrust("GPU-no", "smells"),
        "scrub": lambda: operations.scrub("GPU-no", None),
        "quarantine": lambda: operations.quarantine("GPU-no", "smells", "ops"),
        "reinstate": lambda: operations.reinstate("GPU-no", "", "ops"),
        "reconcile": lambda: world.upkeep.reconcile("GPU-no"),
    }[ask]
    with pytest.raises(InvalidRequest) as refused:
        await work()
    assert refused.value.reason is Reason.UNKNOWN_DEVICE
    assert world.state(world.uuids[0]) is State.CLEAN


async def test_of_two_exclusive_acquires_one_gets_and_keeps_the_device(world):
    """The second was let go on after the first one's scrub, and would have given back what was granted a moment ago."""
    device = world.uuids[0]
    for _ in range(50):
        before = len(world.truth.entries)
        both = (world.tenant_requests.acquire([device], ForJob()) for _ in range(2))
        reported = await asyncio.gather(*both, return_exceptions=True)
        assert [it.reason for it in reported if isinstance(it, Refused)] == [Reason.IN_USE]
        assert [list(it) for it in reported if isinstance(it, dict)] == [[device]]
        made = [type(it.event) for it in world.truth.entries[before:] if it.device == device]
        assert (made.count(ev.Granted), made.count(ev.Released)) == (1, 0)
        await world.tenant_requests.release([device])  # and the next two find it dirty


async def test_exclusive_acquire_grants_all_or_none_and_withholds_nothing(world):
    free, taken = world.uuids
    await world.acquire("job", taken)
    before = len(world.truth.entries)
    with pytest.raises(Refused, match=f"{taken}: it is granted") as refused:
        await world.tenant_requests.acquire([free, taken], ForJob())
    assert refused.value.reason is Reason.IN_USE
    assert len(world.truth.entries) == before
    assert [reported(world, device).healthy for device in world.uuids] == [True, True]


async def test_an_owner_gets_its_grants_again(world):
    first = await world.tenant_requests.acquire(world.uuids, ForJob("job 7"))
    before = len(world.truth.entries)
    assert await world.tenant_requests.acquire(world.uuids, ForJob("job 7")) == first
    one = world.uuids[1]
    again = await world.tenant_requests.acquire([one], ForJob("job 7"))
    assert again == {one: first[one]}
    assert len(world.truth.entries) == before


def pods(names: str) -> Pods:
    """With a letter as a UID."""
    return Pods(frozenset(names))


async def test_a_claim_lets_in_the_pods_named_last(world):
    device, before = world.uuids[0], len(world.truth.entries)
    a, b, both = map(pods, ("a", "b", "ab"))
    first = await world.tenant_requests.acquire([device], ForClaim("claim", a))
    assert await world.tenant_requests.acquire([device], ForClaim("claim", a)) == first
    assert await world.tenant_requests.acquire([device], ForClaim("claim", both)) == first
    assert await world.tenant_requests.let_in("claim", b) == [device]
    await world.tenant_requests.let_in("claim", b)
    assert await world.tenant_requests.let_in("another claim", a) == []
    await world.die()
    await world.start()
    assert world.life.ledger.records[device].tenancy.claim_pods == ("b",)
    await world.tenant_requests.release(owner="claim")
    assert await world.tenant_requests.let_in("claim", b) == []
    kinds = (ev.Granted, ev.LetIn, ev.Released)
    first, *let_in, last = [it.event for it in world.truth.entries[before:] if isinstance(it.event, kinds)]
    assert (type(first), type(last)) == (ev.Granted, ev.Released)
    assert let_in == [ev.LetIn(("a",)), ev.LetIn(("a", "b")), ev.LetIn(("b",))]


async def test_pods_are_let_in_for_an_owner_only(world):
    with pytest.raises(InvalidRequest, match="no owner was named"):
        await world.tenant_requests.let_in("", pods("a"))
    assert world.state(world.uuids[0]) is State.CLEAN


async def test_a_request_that_waits_obeys_a_new_policy(world):
    device = world.uuids[0]
    await world.tenancy(device)
    asked = world.spawn(world.tenant_requests.acquire([device], ForPod(announced=True)))
    await asyncio.sleep(0.1)
    assert not asked.done(), "its last owner is alive"
    world.change_policy("observe")
    assert list(await asked) == [device]


async def test_a_scrub_runs_under_the_policy_that_asked_for_it(world, monkeypatch):
    """Or a fast scrub would count as the thorough one that a stricter policy asks for."""
    one, other = sorted(world.uuids[:2])
    tenant = await world.tenancy(one, other)
    for process in [it for it in world.node.everybody() if it.container == tenant]:
        world.node.leave(process)
    decided = asyncio.Event()

    async def in_turn(look: Callable[[], Awaitable[Facts]], record: Record) -> Facts:
        facts = await look()
        if record.device.uuid == other:
            await decided.wait()
            world.change_policy("strict")
        elif record.state is State.DIRTY:
            decided.set()
        return facts

    observer = world.context.observer
    monkeypatch.setattr(observer, "look", looking(observer, Purpose.RESERVE, Purpose.GRANT, does=in_turn))
    with pytest.raises(NotReady):
        await world.tenant_requests.acquire([one, other], ForPod(announced=True))
    receipts = [it.receipt for it in rows(world, ev.ScrubPassed, one)]
    assert [(it.policy, it.path) for it in receipts[1:]] == [("default/defaults", ScrubPath.FAST)]


async def test_an_owner_of_one_device_is_refused_both(world):
    one, two = world.uuids
    await world.tenant_requests.acquire([one], ForJob("job 7"))
    before = len(world.truth.entries)
    with pytest.raises(Refused, match=f"cannot hand out {two}: this owner already has {one}; run `autoclave release "):
        await world.tenant_requests.acquire([one, two], ForJob("job 7"))
    assert len(world.truth.entries) == before
    assert list(await world.tenant_requests.acquire([two], ForJob("job 7"))) == [two]


async def test_a_release_of_no_device_and_no_owner_is_refused(world):
    """A claim without a UID must not give back the devices that were acquired without an owner."""
    await world.tenant_requests.acquire(world.uuids, ForJob())
    with pytest.raises(InvalidRequest, match="no device and no owner was named"):
        await world.tenant_requests.release()
    assert [world.state(device) for device in world.uuids] == [State.GRANTED] * 2


async def test_a_release_waits_for_the_running_acquire_of_its_owner(world):
    """Otherwise a job that has ended would get its devices a moment later, and keep them."""
    device = world.uuids[0]
    await world.tenant_requests.acquire([device], ForJob())
    await world.tenant_requests.release([device])  # now it is scrubbed
    asked = world.tenant_requests.acquire([device], ForJob("job 7"))
    granted, released = await asyncio.gather(asked, world.tenant_requests.release(owner="job 7"))
    assert (list(granted), released) == ([device], (device,))
    assert world.record(device).tenancy.grant is None


async def test_after_a_stop_nothing_is_granted_or_reconciled(world):
    before = len(world.truth.entries)
    await world.service.stop()
    with pytest.raises(NotReady) as refused:
        await world.tenant_requests.acquire([world.uuids[0]], ForPod())
    assert refused.value.reason is Reason.SHUTTING_DOWN
    with pytest.raises(NotReady):
        await world.tenant_requests.acquire([world.uuids[0]], ForPod(announced=True))
    assert reported(world, world.uuids[0]).healthy  # the list stays, so that a pod can wait for the next service
    world.intrude(world.uuids[0])
    await world.upkeep.reconcile(world.uuids[0])
    assert len(world.truth.entries) == before


async def test_no_request_scrubs_a_device_in_use(world):
    device = world.uuids[0]
    await world.tenancy(device)
    said = r"it is granted, open in .*; let its owner end first"
    with pytest.raises(Refused, match=said) as refused:
        await world.operator_requests.scrub(device, ScrubPath.FAST)
    assert refused.value.reason is Reason.IN_USE
    await world.tenant_requests.acquire([world.uuids[1]], ForJob("job 4711"))
    with pytest.raises(Refused, match="it is granted; let its owner job 4711 end first"):
        await world.operator_requests.scrub(world.uuids[1], None)


async def test_an_operator_learns_which_holder_prevents_a_scrub(world):
    device = world.uuids[0]
    unexpected_holder = world.intrude(device)
    with pytest.raises(Refused, match=f"pid {unexpected_holder.pid}"):
        await world.operator_requests.scrub(device, None)


async def test_a_refusal_names_no_process_or_pod(world):
    device = world.uuids[0]
    tenant = await world.tenancy(device)
    pid = world.node.gpus[device].users()[0].pid
    for ask in (
        lambda: world.acquire("next", device),
        lambda: world.begin("next", device),
        lambda: world.tenant_requests.release([device]),
    ):
        with pytest.raises((NotReady, Refused)) as refused:
            await ask()
        for secret in (tenant, str(pid), "--secret"):
            assert secret not in refused.value.message.replace(device, "")


async def test_only_reinstate_scrubs_a_quarantined_device(world):
    device = world.uuids[0]
    await world.operator_requests.quarantine(device, "smells", "ops")
    with pytest.raises(Refused, match="it is quarantined"):
        await world.operator_requests.scrub(device, None)
    running = await world.operator_requests.reinstate(device, "mended", "ann")
    assert await world.operator_requests.reinstate(device, "mended", "bob") is running
    await running.finished.wait()
    assert running.receipt.path is ScrubPath.SLOW
    assert rows(world, ev.ProbationStarted, device)[-1].by == "ann: mended"
    assert world.state(device) is State.CLEAN


@pytest.mark.parametrize("how", ["reinstate", "reinstate_without_proof"])
async def test_a_device_that_is_not_quarantined_cannot_be_reinstated(world, how):
    with pytest.raises(Refused) as refused:
        await getattr(world.operator_requests, how)(world.uuids[0], "", "ops")
    assert refused.value.reason is Reason.NOT_QUARANTINED


@pytest.mark.parametrize("how", ["reinstate", "reinstate_without_proof"])
async def test_a_quarantine_of_a_device_in_use_can_be_withdrawn(world, how):
    device = world.uuids[0]
    await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    for reason in ("smells", "hums"):
        await world.operator_requests.quarantine(device, reason, "ann")
    assert world.record(device).health.ailment.detail == "hums (asked by ann)"
    assert await getattr(world.operator_requests, how)(device, "wrong node", "bob") is None
    assert rows(world, ev.QuarantineWithdrawn, device) == [ev.QuarantineWithdrawn("bob: wrong node")]
    assert (world.state(device), world.record(device).scrubs.due_path) == (State.IN_USE, None)
    assert world.life.reporter.device(device).healthy
    with pytest.raises(Refused, match="it is not quarantined"):
        await getattr(world.operator_requests, how)(device, "", "bob")


@pytest.mark.parametrize("asked", [False, True])
async def test_an_ailment_of_the_hardware_cannot_be_withdrawn(world, asked):
    """An operator's quarantine of a sick device keeps its ailment."""
    device = world.uuids[0]
    await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    world.node.report(device, (79,))
    await world.upkeep.reconcile(device)
    if asked:
        await world.operator_requests.quarantine(device, "smells", "ann")
    due = world.record(device).scrubs.due_path
    with pytest.raises(Refused, match=r"yet: it is sick \(xid\), which cannot be withdrawn") as refused:
        await world.operator_requests.reinstate(device, "", "bob")
    assert refused.value.reason is Reason.NOT_QUARANTINED
    assert (world.record(device).health.ailment.kind, world.record(device).scrubs.due_path) == (AilmentKind.XID, due)


async def test_a_repeated_quarantine_replaces_its_reason(world):
    device = world.uuids[0]
    for reason in ("smells", "hums"):
        await world.operator_requests.quarantine(device, reason, "ann")
    assert world.record(device).health.quarantine.ailment.detail == "hums"


async def test_a_changed_device_is_proven_again(world):
    """A proof is about so many bytes in such a layout; another index is no other device."""
    device = world.uuids[0]
    record = world.context.ledger.records[device]
    await world.upkeep.register(replace(record.device, index=7), record.incarnation)
    assert world.state(device) is State.CLEAN
    await world.upkeep.register(replace(record.device, memory_bytes=2 * record.device.memory_bytes), record.incarnation)
    assert world.state(device) is State.UNKNOWN
    assert world.context.ledger.records[device].scrubs.receipt is None


async def test_a_new_reset_domain_keeps_the_owner_of_a_device(world):
    """Other devices of its board got another layout. The owner keeps the device, also while it is idle."""
    used, free = world.uuids
    tenant = await world.tenancy(used)
    await world.reach(used, State.IN_USE)
    for process in [it for it in world.node.everybody() if it.container == tenant]:
        world.node.leave(process)
    proven = scrubs(world, used)
    for gpu in (world.node.gpus[used], world.node.gpus[free]):
        gpu.info = replace(gpu.info, reset_domain="switch")
    await asyncio.sleep(60)
    assert (world.state(used), world.record(used).tenancy.owner.container) == (State.IN_USE, tenant)
    assert world.record(used).device.reset_domain == "switch"
    assert scrubs(world, used) == proven
    assert world.state(free) is State.CLEAN  # proven anew, without a reset of the domain


async def test_a_request_gets_no_lesser_path_than_is_due(build):
    world = build(policy="strict")
    device = world.uuids[0]
    before_us = world.node.enter(device, Kind.FOREIGN_PROCESS, "tenant-before-us")
    await world.start()
    await asyncio.sleep(10)
    world.node.leave(before_us)
    running = await world.operator_requests.scrub(device, ScrubPath.FAST)
    await running.finished.wait()
    assert (running.receipt.path, world.node.gpus[device].chip) == (ScrubPath.RESET, None)


async def test_unknown_names_leave_no_locks_behind(world):
    for number in range(10):
        with pytest.raises(InvalidRequest):
            await world.tenant_requests.release([f"GPU-made-up-{number}"])
    assert not [name for name in world.context.jobs.locks._locks if "made-up" in name]


@pytest.mark.parametrize("within", [1.5, 4.6, 60.0])
@pytest.mark.parametrize("slow", ["stalls", "hangs", "blind"])
async def test_an_answer_comes_before_its_caller_gives_up(world, within, slow):
    device = world.uuids[0]
    world.node.end_container(await world.tenancy(device))
    setattr(world.node.gpus[device], slow, True)
    began = world.loop.time()
    with pytest.raises((NotReady, Refused)):
        await world.tenant_requests.acquire([device], ForPod(announced=True), within=within)
    assert world.loop.time() - began < min(within, 5.0)


@pytest.mark.parametrize(("within", "done"), [(10.0, True), (7.0, False)])
async def test_only_its_caller_limits_a_release(world, monkeypatch, within, done):
    """The budget of Allocate does not: on a busy node, Slurm would drain the node."""
    device, observer = world.uuids[0], world.context.observer
    world.node.end_container(await world.tenancy(device))

    async def slow(look: Callable[[], Awaitable[Facts]], _record: Record) -> Facts:
        await asyncio.sleep(8.0)
        return await look()

    monkeypatch.setattr(observer, "look", looking(observer, Purpose.CHANGE, does=slow))
    with nullcontext() if done else pytest.raises(NotReady, match="cannot say in time"):
        await world.tenant_requests.release([device], within=within)


def hang_from(world, monkeypatch, moment: float) -> None:
    """Looks that begin after this moment do not end."""

    async def slower(look: Callable[[], Awaitable[Facts]], _record: Record) -> Facts:
        await asyncio.sleep(10**6 if world.loop.time() > moment else 0)
        return await look()

    monkeypatch.setattr(world.context.observer, "look", looking(world.context.observer, *Purpose, does=slower))


async def test_a_late_answer_says_what_the_request_waited_for(world, monkeypatch):
    device = world.uuids[0]
    await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    hang_from(world, monkeypatch, world.loop.time() + 0.5)
    with pytest.raises(NotReady, match="it is still in use"):
        await world.tenant_requests.start([device], "another pod", within=4)


async def test_a_late_scrub_is_named_without_another_observation(world, monkeypatch):
    device, hangs_from = world.uuids[0], world.loop.time() + 3.0
    world.node.gpus[device].stalls = True
    await world.operator_requests.scrub(device, ScrubPath.FAST)
    hang_from(world, monkeypatch, hangs_from)
    with pytest.raises(NotReady, match="it is being scrubbed"):
        await world.tenant_requests.start([device], "another pod", within=4)
    assert world.loop.time() < hangs_from + 0.5
