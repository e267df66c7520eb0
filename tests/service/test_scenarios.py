"""The scenarios that scrub memory in use (W) and those that skip a needed scrub (S), numbered as in the research.

The others are tested elsewhere: MIG, CUDA and the checkpoint in their rooms, reuse of a pid in ``steps.evict``.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from scrubber.core import events as ev
from scrubber.core.model import ScrubPath, State, Step, Trigger
from scrubber.ground.errors import AutoclaveError, LedgerUnavailable, NotReady, Reason, Refused
from scrubber.observe.observation_cache import OBSERVED_WITHIN
from tests.service.node import Kind


def jobs(world, device):
    return [it.event.job for it in world.truth.entries if it.device == device and isinstance(it.event, ev.ScrubStarted)]


def rows(world, kind, device=None):
    return [it.event for it in world.truth.entries if isinstance(it.event, kind) and device in (None, it.device)]


async def exposed(world, device):
    """A tenant at work."""
    tenant = await world.tenancy(device)
    await world.reach(device, State.IN_USE)
    return tenant


# -- memory in use


async def test_w1_a_device_in_use_is_refused_to_a_second_pod(world):
    device = world.uuids[0]
    tenant, before, began = await exposed(world, device), len(jobs(world, device)), world.loop.time()
    with pytest.raises(NotReady) as refused:
        await world.acquire("second", device)
    assert refused.value.reason is Reason.IN_USE
    assert world.loop.time() - began == pytest.approx(3.5, abs=0.1)
    assert len(jobs(world, device)) == before
    assert world.node.gpus[device].users()[0].name == tenant


async def test_w2_a_force_deleted_pod_keeps_its_device_until_its_end(world):
    device = world.uuids[0]
    tenant = await exposed(world, device)
    with pytest.raises(NotReady):
        await world.acquire("second", device)
    asking = world.spawn(world.acquire("third", device))
    await asyncio.sleep(2.2)  # the kubelet kills 2 s after a force delete, and the container runtime takes its time
    world.node.end_container(tenant)
    assert len(await asking) == 1


async def test_w2_leftovers_are_ended_before_the_next_owner(world):
    device = world.uuids[0]
    tenant = await exposed(world, device)
    world.node.end_container(tenant, leaving=True)
    await world.acquire("second", device)
    assert world.node.gpus[device].users() == []
    assert world.record(device).receipt.processes_terminated == 1


async def test_w11_a_retry_joins_the_running_job(world):
    device = world.uuids[0]
    world.node.end_container(await exposed(world, device))
    first = world.spawn(world.begin("pod", device))
    await asyncio.sleep(0.5)
    first.cancel()
    job = world.life.jobs.of(device)
    await asyncio.sleep(0.2)
    await world.begin("pod", device)
    assert job.finished.is_set()
    assert jobs(world, device)[-1].id == job.id
    await asyncio.sleep(30)
    assert jobs(world, device)[-1].id == job.id


async def test_a_person_who_asks_for_more_than_the_running_job_does_gets_it(world):
    """The job that runs is cancelled; a pod that waits for it waits for the new one."""
    device = world.uuids[0]
    world.node.end_container(await exposed(world, device))
    pod = world.spawn(world.acquire("pod", device))
    await world.reach(device, State.SCRUBBING)
    less = world.life.jobs.of(device)
    assert await world.operations.scrub(device, ScrubPath.FAST) is less
    more = await world.operations.scrub(device, ScrubPath.SLOW)
    assert (less.path, less.finished.is_set(), more.path) == (ScrubPath.FAST, True, ScrubPath.SLOW)
    await pod
    assert rows(world, ev.ScrubPassed, device)[-1].receipt.path is ScrubPath.SLOW


async def test_w14_a_lost_ledger_leaves_devices_in_use_alone(world):
    used, idle = world.uuids
    tenant = await exposed(world, used)
    await world.die()
    world.forget()
    await world.start()
    await world.reach(idle, State.CLEAN)
    assert world.state(used) is State.IN_USE
    assert world.record(used).owner.container == tenant
    assert jobs(world, used) == []


async def test_w15_a_foreign_container_is_never_scrubbed_away(world):
    device = world.uuids[0]
    shell = world.intrude(device)
    await world.reach(device, State.DIRTY)
    await asyncio.sleep(600)
    assert shell.alive
    assert jobs(world, device)[-1].trigger is Trigger.FIRST_LOOK
    with pytest.raises(AutoclaveError):
        await world.acquire("pod", device)
    with pytest.raises(Refused, match="end these processes first"):
        await world.operations.scrub(device, ScrubPath.RESET)


async def test_w16_without_whole_node_nothing_happens(build):
    world = build()
    for gpu in world.node.gpus.values():
        gpu.blind = True
    await world.start()
    await asyncio.sleep(60)
    assert {world.state(device) for device in world.uuids} == {State.UNKNOWN}
    with pytest.raises(NotReady) as refused:
        await world.acquire("pod", world.uuids[0])
    assert refused.value.reason is Reason.NOT_PROVEN_FREE
    assert rows(world, ev.StepStarted) == []


async def test_w17_a_release_of_a_device_in_use_is_refused(world):
    device = world.uuids[0]
    await exposed(world, device)
    with pytest.raises(Refused) as refused:
        await world.handover.release([device])
    assert refused.value.reason is Reason.IN_USE
    assert world.state(device) is State.IN_USE


async def test_w18_a_container_restart_scrubs_nothing_under_its_sibling(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    await world.begin("pod", device)
    before = len(jobs(world, device))
    await world.begin("pod", device)
    assert len(world.node.gpus[device].users()) == 2
    assert len(jobs(world, device)) == before


async def test_w21_a_container_that_starts_during_a_scrub_aborts_it(world):
    device = world.uuids[0]
    world.node.end_container(await exposed(world, device))
    await world.reach(device, State.SCRUBBING)
    await asyncio.sleep(0.3)
    late = world.node.enter(device, Kind.TENANT, "late", container="late")
    await asyncio.sleep(0.3)
    assert world.state(device) is not State.SCRUBBING
    assert late.alive
    assert not any(it.kind is Kind.WORKER for it in world.node.gpus[device].processes.values())


# -- scrubs that must not be skipped


@pytest.mark.parametrize("pause", [0.0, 300.0])
async def test_s1_s2_s5_a_pod_with_the_same_name_is_a_new_owner(world, pause):
    for _ in range(2):
        await world.acquire("pod", *world.uuids)
        for device in world.uuids:
            world.run("pod", device)
        await asyncio.sleep(1.5)
        world.node.end_container("pod")
        await asyncio.sleep(pause)
    await world.acquire("pod", *world.uuids)
    assert all(len(jobs(world, device)) >= 3 for device in world.uuids)


async def test_s3_one_device_of_two_is_scrubbed_for_its_next_owner(world):
    world.node.end_container(await world.tenancy(*world.uuids))
    await world.acquire("second", world.uuids[1])
    assert len(jobs(world, world.uuids[1])) == 2


async def test_s4_containers_of_one_pod_share_one_proof(world):
    device = world.uuids[0]
    init = await world.acquire("pod", device, announced=True)
    app = await world.acquire("pod", device, announced=True)
    assert init[0].receipt == app[0].receipt
    await world.begin("pod", device)
    await world.begin("pod", device)
    await asyncio.sleep(2)
    world.node.end_container("pod")
    after = await world.acquire("next", device, announced=True)
    assert after[0].receipt != app[0].receipt


async def test_s6_a_start_after_a_reboot_needs_a_new_grant(world):
    device = world.uuids[0]
    await exposed(world, device)
    await world.die()
    world.node.reboot()
    await world.start(watching=False)
    await world.begin("pod", device)
    assert jobs(world, device)[-1].trigger is Trigger.FIRST_LOOK
    assert rows(world, ev.ScrubPassed, device)[-1].receipt.incarnation.boot_id == "boot-2"


async def test_s6_a_start_without_an_acquire_makes_a_grant(world):
    device = world.uuids[0]
    await world.begin("pod", device)
    assert len(rows(world, ev.Granted, device)) == 1
    assert world.record(device).owner.container == "pod"


async def test_s7_an_unannounced_container_is_scrubbed_after(world):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    world.restart_kubelet()
    process = world.run("pod", device)
    world.node.leave(process)
    world.node.end_container("pod")
    await world.acquire("next", device, announced=True)
    assert len(jobs(world, device)) == 2


@pytest.mark.parametrize("started", [False, True])
async def test_s8_killed_around_a_start_the_device_counts_as_used(world, started):
    device = world.uuids[0]
    await world.acquire("pod", device, announced=True)
    if started:
        await world.begin("pod", device)
    await asyncio.sleep(1)
    await world.die()
    await world.start()
    await asyncio.sleep(2)
    world.node.end_container("pod")
    await world.acquire("next", device, announced=True)
    assert len(jobs(world, device)) == 2


async def test_s10_foreign_use_ends_a_proof(world):
    device = world.uuids[0]
    unexpected_holder = world.intrude(device, container=True)
    await world.reach(device, State.DIRTY)
    assert rows(world, ev.Soiled, device)[-1].holders[0].pid == unexpected_holder.pid
    world.node.end_container(unexpected_holder.container)
    await world.reach(device, State.CLEAN)


async def test_s10_a_holder_seen_during_a_full_disk_is_recorded_later(world):
    device = world.uuids[0]
    world.life.disk.full = True
    unexpected_holder = world.intrude(device)
    await asyncio.sleep(2)
    world.node.leave(unexpected_holder)
    world.life.disk.full = False
    with pytest.raises(LedgerUnavailable, match="try again"):
        await world.acquire("pod", device)
    await world.acquire("pod", device)
    assert rows(world, ev.Soiled, device)[-1].holders[0].pid == unexpected_holder.pid
    assert len(jobs(world, device)) == 2


async def test_s11_a_device_with_leaked_memory_is_not_clean(world):
    device = world.uuids[0]
    world.node.gpus[device].leaked = 4096
    await asyncio.sleep(2)
    assert "4096 bytes" in rows(world, ev.Soiled, device)[-1].why
    record = await world.reach(device, State.CLEAN)
    assert record.receipt.path is ScrubPath.RESET


async def test_s14_a_scrub_that_failed_never_ends_clean(world):
    device = world.uuids[0]
    world.node.gpus[device].bad_memory = True
    running = await world.operations.scrub(device, None)
    await running.finished.wait()
    assert running.receipt is None
    assert world.state(device) is State.QUARANTINED
    assert world.record(device).receipt is None
    assert world.record(device).quarantine.ailment.kind.value == "memory-fault"


async def test_s14_a_wrong_computation_quarantines_the_device(world):
    device = world.uuids[0]
    world.node.gpus[device].errs = True
    running = await world.operations.scrub(device, ScrubPath.RESET)
    await running.finished.wait()
    record = world.record(device)
    assert (running.receipt, record.state) == (None, State.QUARANTINED)
    assert record.quarantine.ailment.kind.value == "compute-fault"
    assert rows(world, ev.StepFinished, device)[-1].result.step is Step.SELFTEST


async def test_s15_a_slow_path_must_reach_every_unit(world):
    device = world.uuids[0]
    world.node.gpus[device].dark = True
    running = await world.operations.scrub(device, ScrubPath.RESET)
    await running.finished.wait()
    assert (running.receipt, world.state(device)) == (None, State.QUARANTINED)
    assert "scratch failed: not everywhere" in running.why


async def test_s14_each_receipt_names_units_and_only_a_slow_one_tests(world):
    device = world.uuids[0]
    slow = await world.operations.scrub(device, ScrubPath.RESET)
    await slow.finished.wait()
    assert (slow.receipt.units, slow.receipt.units_reached, slow.receipt.tests) == (132, 132, ("address", "arithmetic"))
    fast = await world.operations.scrub(device, ScrubPath.FAST)
    await fast.finished.wait()
    assert (fast.receipt.units, fast.receipt.units_reached, fast.receipt.tests) == (132, 132, ())


async def test_s15_a_scrub_must_reach_all_of_the_memory(world):
    device = world.uuids[0]
    world.node.gpus[device].skimpy = True
    running = await world.operations.scrub(device, None)
    await running.finished.wait()
    assert running.receipt is None
    assert "50.00%" in running.why


async def test_s16_the_history_follows_the_uuid(world):
    one, two = (world.node.gpus[device] for device in world.uuids)
    world.node.end_container(await exposed(world, one.info.uuid))
    one.info, two.info = replace(one.info, index=1), replace(two.info, index=0)
    await world.clean()
    await asyncio.sleep(OBSERVED_WITHIN + 1)
    assert world.record(one.info.uuid).device.index == 1
    assert world.record(one.info.uuid).last_receipt is not None
    new = replace(one.info, uuid="GPU-new")
    world.node.gpus["GPU-new"] = replace(one, info=new, processes={})
    async with asyncio.timeout(OBSERVED_WITHIN + 1):
        while "GPU-new" not in world.life.ledger.records:
            await world.life.ledger.newer_row(world.life.ledger.seq, 1.0)
    await world.reach("GPU-new", State.SCRUBBING)
    assert world.record("GPU-new").last_receipt is None
    await world.reach("GPU-new", State.CLEAN)


@pytest.mark.parametrize("jump", [-86400.0 * 400, 86400.0 * 400])
async def test_s17_a_wall_clock_jump_ages_nothing(world, jump):
    one, two = world.uuids
    world.node.gpus[two].lost = True
    await world.reach(two, State.QUARANTINED)
    before = len(jobs(world, one))
    world.node.jump = jump
    await asyncio.sleep(10)
    assert len(jobs(world, one)) == before
    assert world.state(two) is State.QUARANTINED
    world.node.heal()
    await asyncio.sleep(60)
    await world.reach(two, State.CLEAN)


# -- how long a proof is valid


async def test_a_restart_ends_a_proof_unless_the_policy_keeps_it(build):
    for policy, path in (("default", 2), ("fast", 1)):
        world = build(policy=policy)
        await world.start()
        await world.clean()
        await world.die()
        await asyncio.sleep(60)
        await world.start()
        await world.acquire("pod", world.uuids[0])
        assert len(jobs(world, world.uuids[0])) == path


async def test_an_old_proof_is_renewed_before_the_next_request(build):
    world = build(interval=600.0)
    await world.start()
    device = world.uuids[0]
    await asyncio.sleep(86_400 + 1200)
    assert jobs(world, device)[-1].trigger is Trigger.PROOF_EXPIRED
    assert world.state(device) is State.CLEAN


async def test_a_stricter_policy_ends_older_proofs(build):
    world = build(policy="fast")
    await world.start()
    await world.clean()
    world.change_policy("default")
    receipt = (await world.acquire("pod", world.uuids[0]))[0].receipt
    assert receipt != rows(world, ev.ScrubPassed, world.uuids[0])[0].receipt.id


async def test_observe_refuses_only_quarantined_devices(build):
    world = build(policy="observe")
    await world.start()
    device = world.uuids[0]
    grant = (await world.acquire("pod", device))[0]
    assert (grant.receipt, grant.proof) == ("", None)
    assert rows(world, ev.GrantedUnproven, device)
    assert rows(world, ev.StepStarted) == []
    await world.operations.quarantine(world.uuids[1], "smells", "ops")
    with pytest.raises(Refused):
        await world.acquire("pod", world.uuids[1])


async def test_a_driver_reload_ends_every_proof(world):
    world.node.drivers += 1
    await asyncio.sleep(1)
    await world.clean()
    assert "driver" in rows(world, ev.Distrusted)[0].why
    assert all(Step.SELFTEST in world.node.gpus[device].deeds for device in world.uuids)


async def test_observe_starts_a_pod_beside_a_foreign_process(build):
    world = build(policy="observe")
    await world.start()
    device = world.uuids[0]
    world.intrude(device)
    await world.begin("pod", device)
    assert len(rows(world, ev.GrantedUnproven, device)) == 1
    assert world.state(device) is State.IN_USE
