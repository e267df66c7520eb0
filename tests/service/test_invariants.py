"""Random histories of a node: whatever happens in whatever order, no promise is broken, and in the end all heals.

``World.check`` is asked after every step: invariants I1-I6 of the design, no leak, nobody's process killed or wiped.
"""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scrubber.core.model import Path, State, Xid
from scrubber.errors import AutoclaveError
from tests.service.node import Kind
from tests.service.virtual import VirtualLoop
from tests.service.world import World

GPUS = 3
DEVICE = st.integers(0, GPUS - 1)
DEVICES = st.sets(DEVICE, min_size=1)
FAULTS = (
    "lost", "hangs", "blind", "coy", "bad_memory", "stalls", "crashes", "reset_fails", "skimpy", "remap_pending", "remap_failed",
)  # fmt: skip
POLICIES = ("default", "strict", "fast", "observe")


def up(machine) -> bool:
    return machine.world.up


def down(machine) -> bool:
    return not machine.world.up


class Histories(RuleBasedStateMachine):
    """Callers, tenants, intruders, operators, faults and kills, as they come."""

    def __init__(self):
        super().__init__()
        self.loop = VirtualLoop()
        self.open: list[tuple[asyncio.Task, str, tuple[str, ...], bool]] = []  # acquires under way
        self.let_in: dict[str, tuple[str, bool]] = {}  # device -> who was granted it, and whether it is to say Start

    @initialize(seed=st.integers(0, 2**16), policy=st.sampled_from(POLICIES))
    def begin(self, seed, policy):
        self.world = World(self.loop, gpus=GPUS, policy=policy, seed=seed)
        self.loop.run_until_complete(self.world.start())

    # -- time

    @rule(seconds=st.sampled_from((0.0, 0.1, 0.3, 0.7, 1.5, 3.0, 10.0, 65.0)))
    def time_passes(self, seconds):
        self.loop.advance(seconds)

    @rule(seconds=st.sampled_from((-3600.0, 3600.0)))
    def somebody_sets_the_wall_clock(self, seconds):
        self.world.node.jump += seconds

    # -- callers

    @precondition(up)
    @rule(devices=DEVICES, announced=st.booleans())
    def a_tenant_asks(self, devices, announced):
        tenant, uuids = self.world.name(), self._uuids(devices)
        task = self.world.spawn(self.world.acquire(tenant, *uuids, announced=announced))
        self.open.append((task, tenant, uuids, announced))
        self.loop.advance(0.0)

    @precondition(lambda self: self.open)
    @rule()
    def a_caller_gives_up(self):
        self.open.pop()[0].cancel()

    @precondition(up)
    @rule(device=DEVICE)
    def a_granted_tenant_runs(self, device):
        uuid = self.world.uuids[device]
        tenant, announced = self.let_in.pop(uuid, ("", False))
        if tenant and self.world.tenants[uuid] == tenant:
            self._run(tenant, uuid, announced=announced)

    @precondition(up)
    @rule(device=DEVICE)
    def a_stranger_says_start(self, device):
        self.world.spawn(self.world.begin(self.world.name(), self.world.uuids[device]))
        self.loop.advance(0.0)

    @precondition(up)
    @rule(device=DEVICE)
    def a_container_starts_again(self, device):
        uuid = self.world.uuids[device]
        owner = self.world.life.ledger.records[uuid].owner if uuid in self.world.life.ledger.records else None
        if owner is not None and owner.container is not None:
            self.world.spawn(self.world.begin(owner.container, uuid))
            self.loop.advance(0.0)

    @rule(device=DEVICE)
    def a_container_ends(self, device):
        for process in self.world.node.gpus[self.world.uuids[device]].users():
            if process.container is not None:
                self.world.node.end_container(process.container)

    @rule(device=DEVICE)
    def a_container_ends_and_leaves_its_process_behind(self, device):
        for process in self.world.node.gpus[self.world.uuids[device]].users():
            if process.container is not None:
                self.world.node.end_container(process.container, leaving=True)

    @rule(device=DEVICE)
    def a_process_ends_and_its_container_goes_on(self, device):
        for process in self.world.node.gpus[self.world.uuids[device]].users():
            self.world.node.leave(process)

    @precondition(up)
    @rule(devices=DEVICES)
    def a_caller_says_release(self, devices):
        self.world.spawn(self.world.service.release(self._uuids(devices)))
        self.loop.advance(0.0)

    # -- intruders

    @rule(device=DEVICE, container=st.booleans())
    def an_intruder_comes(self, device, container):
        self.world.intrude(self.world.uuids[device], container=container)

    @rule(device=DEVICE)
    def an_intruder_comes_and_goes(self, device):
        process = self.world.intrude(self.world.uuids[device])
        self.loop.advance(0.1)
        self.world.node.leave(process)

    # -- operators

    @precondition(up)
    @rule(device=DEVICE, path=st.sampled_from((None, *Path)))
    def an_operator_scrubs(self, device, path):
        self._do(self.world.service.scrub(self.world.uuids[device], path))

    @precondition(up)
    @rule(device=DEVICE)
    def an_operator_quarantines(self, device):
        self._do(self.world.service.quarantine(self.world.uuids[device], "smells", "ops"))

    @precondition(up)
    @rule(device=DEVICE)
    def an_operator_reinstates(self, device):
        self._do(self.world.service.reinstate(self.world.uuids[device], "smells better", "ops"))

    @rule(policy=st.sampled_from(POLICIES))
    def the_policy_changes(self, policy):
        self.world.rulebook.source = policy
        self.world.rulebook.reload()

    # -- faults

    @rule(device=DEVICE, fault=st.sampled_from(FAULTS))
    def a_fault(self, device, fault):
        setattr(self._gpu(device), fault, True)

    @rule(device=DEVICE, code=st.sampled_from((13, 48, 79)))
    def an_xid(self, device, code):
        xids = self._gpu(device).xids
        xids.append(Xid(len(xids) + 1, code))

    @rule(device=DEVICE)
    def an_uncorrectable_error(self, device):
        self._gpu(device).ecc += 1

    @rule(device=DEVICE)
    def memory_leaks(self, device):
        self._gpu(device).leaked = 4096

    @rule(device=DEVICE)
    def a_device_heals(self, device):
        self._gpu(device).heal()

    @rule()
    def the_driver_hangs(self):
        self.world.node.deaf = True

    @rule()
    def the_driver_answers_again(self):
        self.world.node.deaf = False

    @precondition(up)
    @rule(writes=st.integers(1, 3))
    def writes_fail(self, writes):
        self.world.life.disk.failures = writes

    @precondition(up)
    @rule()
    def the_disk_fills_up(self):
        self.world.life.disk.full = True

    @precondition(up)
    @rule()
    def the_disk_has_room_again(self):
        self.world.life.disk.full = False

    # -- lives

    @precondition(up)
    @rule(rows=st.integers(1, 6))
    def the_service_will_be_killed_after_some_rows(self, rows):
        self.world.life.disk.dies_after = rows

    @precondition(up)
    @rule(lingering=st.booleans())
    def the_service_is_killed(self, lingering):
        self.loop.run_until_complete(self.world.die(lingering=lingering))
        self.open.clear()

    @precondition(up)
    @rule()
    def the_service_is_stopped(self):
        self.loop.run_until_complete(self.world.stop())
        self.open.clear()

    @precondition(down)
    @rule()
    def the_service_starts(self):
        self.loop.run_until_complete(self.world.start())

    @precondition(down)
    @rule()
    def lingering_workers_end(self):
        self._end_lingering()

    @rule()
    def the_node_reboots(self):
        if self.world.up:
            self.loop.run_until_complete(self.world.die())
        self.open.clear()
        self.let_in.clear()
        self.world.node.reboot()
        self.loop.run_until_complete(self.world.start())

    @rule()
    def the_driver_is_loaded_anew(self):
        if not list(self.world.node.everybody()):
            self.world.node.drivers += 1

    @rule()
    def the_kubelet_restarts(self):
        self.world.restart_kubelet()

    @precondition(up)
    @rule(device=DEVICE)
    def the_kubelet_restarts_and_starts_a_container_without_a_word(self, device):
        """R11: between its restart and our registration the kubelet asks nobody."""
        uuid = self.world.uuids[device]
        tenant, _ = self.let_in.pop(uuid, ("", False))
        self.world.restart_kubelet()
        if tenant and self.world.tenants[uuid] == tenant:
            self.world.run(tenant, uuid)

    # -- what must hold

    @invariant()
    def every_promise_holds(self):
        if not hasattr(self, "world"):
            return
        self.loop.advance(0.0)  # what takes no time is over
        if self.world.up and self.world.life.disk.dead:
            self.loop.run_until_complete(self.world.die())
            self.open.clear()
        self._collect()
        self.world.check()

    def teardown(self):
        try:
            if hasattr(self, "world"):
                self.all_heals()
        finally:
            if self.world.up:
                self.loop.run_until_complete(self.world.die())
            self.loop.close()
            self.world.close()

    def all_heals(self):
        """With every cause gone, every device comes back, those that wait for a person by an operator's word."""
        world = self.world
        if not world.up:
            self.loop.run_until_complete(world.start())
        disk = world.life.disk
        disk.full, disk.failures, disk.dies_after = False, 0, None
        world.node.deaf = False
        self.loop.advance(30.0)
        for gpu in world.node.gpus.values():
            gpu.heal()
        for process in world.node.everybody():
            world.node.leave(process)
        world.node.alive.clear()
        world.rulebook.source = "strict" if world.rulebook.source == "observe" else world.rulebook.source
        world.rulebook.reload()
        self.loop.advance(5.0)
        self._release_what_was_never_used()
        self.loop.advance(65.0)
        for _ in range(3):  # errors from the time in quarantine are told by the first try
            for uuid in world.uuids:
                if world.state(uuid) is State.QUARANTINED:
                    self._do(world.service.reinstate(uuid, "healed", "ops"))
            self.loop.advance(15.0)
        world.check()
        for uuid in world.uuids:
            assert world.state(uuid) is State.CLEAN, world.story(uuid)

    # -- the same few moves

    def _release_what_was_never_used(self):
        for uuid in self.world.uuids:
            if self.world.state(uuid) in (State.GRANTED, State.EXPOSED):
                self._do(self.world.service.release([uuid]))

    def _end_lingering(self):
        for process in self.world.node.everybody():
            if process.kind is Kind.WORKER and process.life != self.world.node.life:
                self.world.node.leave(process)

    def _run(self, tenant, uuid, *, announced):
        if announced:
            self.world.spawn(self.world.begin(tenant, uuid))
            self.loop.advance(0.0)
        else:
            self.world.run(tenant, uuid)

    def _collect(self):
        """Grants that have arrived; whoever had one before has lost it."""
        for item in list(self.open):
            task, tenant, uuids, announced = item
            if task.done():
                self.open.remove(item)
                if not task.cancelled() and task.exception() is None:
                    self.let_in.update(dict.fromkeys(uuids, (tenant, announced)))

    def _do(self, work):
        async def asked():
            try:
                await work
            except AutoclaveError:
                pass  # a refusal is an answer

        self.world.spawn(asked())
        self.loop.advance(0.0)

    def _gpu(self, device):
        return self.world.node.gpus[self.world.uuids[device]]

    def _uuids(self, devices):
        return tuple(self.world.uuids[device] for device in sorted(devices))


Histories.TestCase.settings = settings(stateful_step_count=40)
test_random_histories_break_no_promise = Histories.TestCase
