"""What the create gate asks the service: whose device it is, and how the container runtime calls the container."""

from __future__ import annotations

import asyncio

import pytest

from ground.errors import NotReady, Reason, Refused
from scrubber.core import events as ev
from scrubber.core.model import State
from scrubber.create_gate.installation import gates
from scrubber.node.pods import Tenants
from scrubber.service import report
from tests.service.asking import let_on, reported, rows, scrubs, written_down

CLAIM = "5d3c3a52-claim"
INIT, MAIN = "team/train-0/init", "team/train-0/main"


async def created(world, pod, device):
    """The container of a pod is created on the device, and runs."""
    await world.tenant_requests.start([device], pod, creating=f"team/{pod}/main")
    world.truth.started(pod, device)
    return world.run(pod, device)


async def test_an_owner_is_called_as_its_last_container(world):
    """An init container and its successor may have the same device."""
    device = world.uuids[0]
    await let_on(world, "pod", device)
    names = []
    for name in (INIT, INIT, MAIN):
        await world.tenant_requests.start([device], "pod", creating=name)
        names.append(world.record(device).tenancy.owner.name)
    assert names == [INIT, INIT, MAIN]
    assert [it.owner.name for it in rows(world, ev.PutInUse, device) if it.owner.name] == [INIT, MAIN]


async def test_a_name_that_cannot_be_written_refuses_no_container(world):
    device = world.uuids[0]
    await let_on(world, "pod", device)
    world.life.disk.full = True
    await world.tenant_requests.start([device], "pod", creating=MAIN)
    world.life.disk.full = False
    await world.reach(device, State.IN_USE)
    await asyncio.sleep(60)
    assert world.record(device).tenancy.owner.name == MAIN


async def test_the_first_creation_binds_the_grant_to_its_pod(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    await world.tenant_requests.start([device], "pod", creating=MAIN)
    assert (world.record(device).tenancy.owner.container, world.record(device).tenancy.owner.name) == ("pod", MAIN)
    with pytest.raises(NotReady) as refused:
        await world.tenant_requests.start([device], "other", creating="team/other/main", within=2)
    assert refused.value.reason is Reason.IN_USE
    assert world.record(device).tenancy.owner.container == "pod"


@pytest.mark.parametrize("late", [0.0, 60.0], ids=["at once", "a minute later"])
async def test_pods_with_one_device_are_created_one_after_the_other(world, late):
    """The kubelet gave the device twice, and its checkpoint names the second pod when the first one starts."""
    device = world.uuids[0]
    for pod in ("first", "second"):
        await world.acquire(pod, device, announced=True)
    written_down(world, second=[device])
    await world.tenant_requests.start([device], None)
    await asyncio.sleep(late)
    creations = {pod: asyncio.create_task(created(world, pod, device)) for pod in ("first", "second")}
    await asyncio.wait(creations.values(), return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(5)
    [alone] = [pod for pod, it in creations.items() if it.done()]
    world.node.end_container(alone)
    await asyncio.gather(*creations.values())
    assert scrubs(world, device) >= 2


async def test_a_start_taken_for_an_ended_pods_covers_no_creation(world):
    device = world.uuids[0]
    await world.acquire("next", device, announced=True)
    written_down(world, older=[device])
    await world.tenant_requests.start([device], None)
    assert world.record(device).tenancy.owner.container == "older"
    await created(world, "next", device)
    assert (scrubs(world, device), world.record(device).tenancy.owner.container) == (2, "next")


async def test_per_container_each_creation_has_one_scrub_before_it(begin, tmp_path):
    (tmp_path / "policy.yaml").write_text("name: each\ndefaults: {model: per-container}\n")
    world = await begin(policy=str(tmp_path / "policy.yaml"))
    device, other = world.uuids
    await let_on(world, "pod", other)  # the pod lives on between its containers
    await world.acquire("pod", device, announced=True)
    written_down(world, pod=[device, other])

    async def named() -> Tenants:
        return Tenants((), {"pod": "ns/train"})

    world.context.tenants = named  # its name is recorded between the question of the kubelet and that of the runtime
    for number, name in enumerate((INIT, MAIN, MAIN)):
        if number < 2:  # the third time, the kubelet has just been restarted and does not ask
            await world.tenant_requests.start([device], None)
            await world.life.monitor.round()
        await world.tenant_requests.start([device], "pod", creating=name)
        assert scrubs(world, device) == 1 + number
        container = world.run("pod", device)
        await asyncio.sleep(2)
        world.node.leave(container)
        await asyncio.sleep(2)


@pytest.mark.parametrize("job", ["a job of Slurm", "job-"])
async def test_a_claim_has_gates_of_its_own_until_it_ends(world, job):
    """One name that no container runtime can read would block every container of the node."""
    device, other = world.uuids
    await world.tenant_requests.acquire([other], announced=False, exclusive=True, owner=job)
    before = {device, other}
    assert gates(world.life.ledger.records) == before
    await world.tenant_requests.acquire([device], announced=False, exclusive=True, owner=CLAIM)
    assert gates(world.life.ledger.records) == before | {f"{device}.{CLAIM}"}
    await first_in_claim(world, device)
    world.node.end_container("pod")
    await world.tenant_requests.release(owner=CLAIM)
    assert gates(world.life.ledger.records) == before


@pytest.mark.parametrize("xid", [48, None], ids=["by itself", "by a person"])
async def test_no_container_is_created_on_a_claims_bad_gpu(world, xid):
    device = world.uuids[0]
    await world.tenant_requests.acquire([device], announced=False, exclusive=True, owner=CLAIM)
    if xid is None:
        await world.operator_requests.quarantine(device, "a drill", "the test")
    else:
        world.node.report(device, (xid,))
        await asyncio.sleep(60)
    with pytest.raises(Refused) as sick:
        await first_in_claim(world, device)
    world.node.end_container("pod")
    await world.tenant_requests.release(owner=CLAIM)
    await world.reach(device, State.QUARANTINED)
    with pytest.raises(Refused) as quarantined:
        await world.tenant_requests.start([device], "pod", creating=MAIN, claim=CLAIM, within=5)
    assert [it.value.reason for it in (sick, quarantined)] == [Reason.SICK, Reason.QUARANTINED]


async def first_in_claim(world, device, pod="pod"):
    """The first container of the claim is created on the device, and runs."""
    world.node.alive.add(pod)  # its sandbox
    await world.tenant_requests.start([device], pod, creating=f"team/{pod}/main", claim=CLAIM)
    if pod == "pod":
        world.truth.started(pod, device)
    return world.run(pod, device)


USES = [(0.0, False), (3.0, False), (3.0, True)]


@pytest.mark.parametrize(("seconds", "in_pod"), USES, ids=["too short to be seen", "seen", "by another pod"])
async def test_a_use_before_the_first_container_is_scrubbed(world, seconds, in_pod):
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await asyncio.sleep(1)
    await world.tenant_requests.acquire([device], announced=False, exclusive=True, owner=CLAIM)
    bystander = world.intrude(device, container=in_pod)
    await asyncio.sleep(seconds)
    world.node.leave(bystander)
    world.node.alive.discard(bystander.container or "")
    await first_in_claim(world, device)
    assert scrubs(world, device) == passed + 1
    record = world.record(device)
    assert (record.tenancy.grant.owner, record.tenancy.grant.until_release, record.tenancy.owner.container) == (
        CLAIM,
        True,
        "pod",
    )


async def test_a_claim_waits_for_a_bystander_to_leave(world):
    device = world.uuids[0]
    await world.tenant_requests.acquire([device], announced=False, exclusive=True, owner=CLAIM)
    bystander = world.intrude(device)
    creation = asyncio.create_task(first_in_claim(world, device))
    await asyncio.sleep(5)
    assert (creation.done(), bystander.alive) == (False, True)
    world.node.leave(bystander)
    await creation


async def test_later_containers_of_a_claim_need_no_scrub(world):
    device, passed = world.uuids[0], scrubs(world, world.uuids[0])
    await world.tenant_requests.acquire([device], announced=False, exclusive=True, owner=CLAIM)
    first = await first_in_claim(world, device)
    await first_in_claim(world, device, "second")
    world.node.leave(first)
    await first_in_claim(world, device, "third")
    assert (scrubs(world, device), world.record(device).tenancy.owner.container) == (passed, "pod")


@pytest.mark.parametrize("restarted", [False, True], ids=["", "over a restart of the service"])
async def test_a_claim_keeps_its_device_while_it_is_scrubbed_again(world, restarted):
    device, before = world.uuids[0], gates(world.life.ledger.records)
    await asyncio.sleep(1)
    await world.tenant_requests.acquire([device], announced=False, exclusive=True, owner=CLAIM)
    world.node.leave(world.intrude(device))
    world.node.gpus[device].stalls = True
    with pytest.raises(NotReady):
        await world.tenant_requests.start([device], "pod", creating=MAIN, claim=CLAIM, within=5)
    if restarted:
        await world.die()
        await world.start()
    assert gates(world.life.ledger.records) == before | {f"{device}.{CLAIM}"}
    assert reported(world, device).owner == CLAIM
    with pytest.raises(Refused) as another:
        await world.tenant_requests.acquire([device], announced=False, exclusive=True, owner="another")
    assert "kept for a claim" in another.value.message
    world.node.gpus[device].stalls = False
    await first_in_claim(world, device)
    assert world.record(device).tenancy.grant.owner == CLAIM


@pytest.mark.parametrize("state", [State.SCRUBBING, State.CLEAN, State.QUARANTINED])
async def test_a_claim_gives_back_a_device_kept_for_it(world, state):
    device, before = world.uuids[0], gates(world.life.ledger.records)
    await world.tenant_requests.acquire([device], announced=False, exclusive=True, owner=CLAIM)
    vacated = world.record(device).tenancy.number
    await asyncio.sleep(1)
    world.node.leave(world.intrude(device))
    world.node.gpus[device].stalls = True
    with pytest.raises(NotReady):
        await world.tenant_requests.start([device], "pod", creating=MAIN, claim=CLAIM, within=5)
    if state is State.CLEAN:
        world.node.gpus[device].stalls = False
        await world.clean(device)
    elif state is State.QUARANTINED:
        await world.operator_requests.quarantine(device, "a drill", "the test")
    assert world.state(device) is state
    assert await world.tenant_requests.release(owner=CLAIM) == (device,)
    assert world.state(device) is state
    assert (gates(world.life.ledger.records), world.record(device).tenancy.number) == (before, vacated + 1)
    with pytest.raises(Refused):
        await world.tenant_requests.start([device], "pod", creating=MAIN, claim=CLAIM, within=5)


@pytest.mark.parametrize("restarted", [False, True], ids=["", "over a restart of the service"])
async def test_a_container_past_the_gate_ends_deferral_for_now(world, restarted):
    """The runtime runs no hook any more, and the kubelet, which was restarted, does not ask either."""
    device, other = world.uuids
    world.gated = True
    for name, gpu in (("first", device), ("beside", other)):
        await let_on(world, name, gpu)
    await asyncio.sleep(2)
    world.node.gpus[device].stalls = True
    world.node.end_container("first")
    world.node.end_container("beside")
    await world.clean(other)
    assert await world.acquire("next", device, announced=True) == []
    written_down(world, next=[device])
    world.gated = False
    world.run("next", device)
    await asyncio.sleep(2)
    [past] = rows(world, ev.PastGate)
    assert (past.pod, bool(past.unproven)) == ("next", True)
    assert reported(world, device).past_gate == world.record(device).bypasses.unproven > 0
    if restarted:
        await world.die()
        await world.start()
    in_force = world.context.create_gate_in_force
    assert not in_force(device, world.context.now())
    assert not in_force(other, world.context.now()), "what one container shows is true of the runtime"
    world.gated = True
    await let_on(world, "asks", other)
    await asyncio.sleep(2)
    now = world.context.now()
    assert (in_force(other, now), in_force(device, now)) == (True, False)
    assert len(rows(world, ev.PastGate)) == 1
    await asyncio.sleep(report.REPORTED_FOR)
    assert reported(world, device).past_gate == 0, "a plugin that starts later tells nobody again"
