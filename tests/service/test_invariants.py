"""Random histories of a node: no order of events breaks a promise, and in the end every device is clean again.

``World.check`` runs after every step: invariants I1-I6 of the design, no leak, no wrong kill, no wrong scrub.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ground.errors import AutoclaveError
from scrubber.core.acquire import ForJob
from scrubber.core.model import AilmentKind, ScrubPath, Sign, State, Step
from scrubber.core.tenancies import tenancies
from scrubber.node import assignments
from tests.move_table import MOVES
from tests.service.asking import healthy, let_on, written_down
from tests.service.node import Kind
from tests.service.truth import A_SLOW_LOOK
from tests.service.virtual import VirtualLoop
from tests.service.world import World
from tests.trace import MOVE

GPUS = 3
SHORT = 0.05  # seconds: less than the time between two observations
DEVICE = st.integers(0, GPUS - 1)
DEVICES = st.sets(DEVICE, min_size=1)
CLAIMS = ("claim-a", "claim-b")
BOTH_CLAIMS = st.permutations(CLAIMS)
PRESTART = str(Path(__file__).with_name("refuse.yaml"))
POLICIES = ("default", "strict", "fast", "observe", PRESTART)
PAUSE = st.sampled_from((0.0, 0.3, 1.0, 3.0))
FLAGS = (
    "lost", "hangs", "blind", "silent_on_holders", "bad_memory", "stalls", "crashes", "traps", "reset_fails", "drift",
    "memory_unreachable", "unit_unreachable", "computes_wrongly", "remap_pending", "remap_failed", "reset_required",
)  # fmt: skip
XIDS = (13, 48, 54, 63, 79, 92, 125, 999)
SIGNS = (
    AilmentKind.SRAM, AilmentKind.LINKS, AilmentKind.FABRIC, AilmentKind.REBOOT_REQUIRED, AilmentKind.PCIE,
    AilmentKind.HEAT,
)  # fmt: skip
FAULTS = (*FLAGS, *(f"xid {code}" for code in XIDS), *(f"sign {it.value}" for it in SIGNS), "ecc", "leak")
LASTING = ("lost", "remap_failed", "reset_required")  # while one of these lasts, a device is not offered
NOTICED_WITHIN = 30.0  # seconds: several rounds, and a reset of another device
ENDS = ("ends", "ends", "leaves its process", "outlives its process")
GOES = ("kill", "kill", "kill, but a worker lingers", "stop")
OF_NODE = ("reboots", "reloads its driver", "loses its workers", "sets its clock")
FOREIGN = "foreign comes_and_goes host_process importer asks asks_early"
DEEDS = ("scrub", "scrub fast", "scrub slow", "quarantine", "reinstate", "excuse")


def up(machine) -> bool:
    return bool(machine.world.up)


def down(machine) -> bool:
    return not up(machine)


PLAYED = set[str]()  # moves


def move(names: str, when=None, **choices):
    """A rule that plays these moves of the table, and says so in the trace."""
    PLAYED.update(names.split())

    def rule_of(deed) -> Any:  # noqa: ANN401 - what Hypothesis makes of it
        @wraps(deed)
        def played(self, *given, **chosen) -> None:
            words = ", ".join([*map(str, given), *(f"{name} {value}" for name, value in chosen.items())])
            self.world.trace.say(MOVE, f"{names}: {deed.__name__.replace('_', ' ')}: {words}")
            deed(self, *given, **chosen)

        made = rule(**choices)(played)
        return made if when is None else precondition(when)(made)

    return rule_of


class Histories(RuleBasedStateMachine):
    """Callers, tenants, claims, foreign processes, operators, faults and kills, in any order. Rules let time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.open: list[tuple[asyncio.Task[Any], str, tuple[str, ...], bool]] = []  # acquires under way
        self.faulty: dict[str, float] = {}  # device -> since when it could be noticed that a fault lasts
        self.let_in: dict[str, tuple[str, bool]] = {}  # device -> its pod, and whether the grant was announced
        self.doubled: set[str] = set()  # pods whose starts no caller can tell from those of a dropped pod

    @initialize(
        seed=st.integers(0, 2**16), policy=st.sampled_from(POLICIES), settled=st.booleans(), fenced=st.booleans()
    )
    def begin(self, seed, policy, settled, fenced):
        self.world = World(self.loop, gpus=GPUS, policy=policy, seed=seed, fenced=fenced, interval=2.0)
        self.loop.run_until_complete(self.world.start())
        self.loop.advance(20.0 if settled else 0.0)

    @move("time", seconds=st.sampled_from((0.1, 0.3, 0.7, 1.5, 10.0, 65.0)))
    def time_passes(self, seconds):
        self.loop.advance(seconds)

    # -- callers

    @move("pod", when=up, devices=DEVICES, announced=st.booleans(), pause=PAUSE)
    def a_tenant_asks(self, devices, announced, pause):
        tenant, uuids = self.world.name(), self._uuids(devices)
        task = self.world.spawn(self.world.acquire(tenant, *uuids, announced=announced))
        self.open.append((task, tenant, uuids, announced))
        self.loop.advance(pause)

    @move("pod", when=up, device=DEVICE, announced=st.booleans(), stays=PAUSE)
    def a_tenant_comes_and_runs(self, device, announced, stays):
        self.a_tenant_asks({device}, announced, 6.0)
        self._collect()
        self.a_granted_tenant_runs(device, stays)

    @move("plugin_end", when=lambda self: self.open, pause=PAUSE)
    def a_caller_gives_up(self, pause):
        self.open.pop()[0].cancel()
        self.loop.advance(pause)

    @move("pod", when=lambda self: self.let_in, device=DEVICE, pause=PAUSE)
    def a_granted_tenant_runs(self, device, pause):
        uuid = self.world.uuids[device]
        tenant, announced = self.let_in.pop(uuid, ("", False))
        if tenant and self.world.tenants[uuid] == tenant:
            if announced and self.world.up:
                self.world.spawn(self.world.begin(tenant, uuid))
            elif not announced:
                self.world.run(tenant, uuid)
        self.loop.advance(pause)

    @move("pod", when=up, device=DEVICE, again=st.booleans(), pause=PAUSE)
    def somebody_says_start(self, device, again, pause):
        uuid = self.world.uuids[device]
        owner = self.world.record(uuid).tenancy.owner if uuid in self.world.life.ledger.records else None
        known = owner.container if owner is not None and again and owner.container not in self.doubled else None
        self.world.spawn(self.world.begin(known or self.world.name(), uuid))
        self.loop.advance(pause)

    @move("pod leftover", device=DEVICE, how=st.sampled_from(ENDS), pause=PAUSE)
    def a_container(self, device, how, pause):
        node = self.world.node
        for process in node.gpus[self.world.uuids[device]].users():
            if how == "outlives its process" or process.container is None:
                node.leave(process)
            else:
                node.end_container(process.container, leaving=how == "leaves its process")
        self.loop.advance(pause)

    @move("claim", when=up, devices=DEVICES, pause=PAUSE)
    def a_caller_says_release(self, devices, pause):
        self.world.truth.given_back(*self._uuids(devices))
        self._do(self.world.tenant_requests.release(self._uuids(devices)), pause)

    @move("distrust", when=up, device=DEVICE, pause=PAUSE)
    def a_caller_calls_a_device_unhealthy(self, device, pause):
        self._do(self.world.tenant_requests.distrust(self.world.uuids[device], "it calls it unhealthy"), pause)

    @move(FOREIGN, device=DEVICE, container=st.booleans(), goes=st.booleans(), pause=PAUSE)
    def a_foreign_process_comes(self, device, container, goes, pause):
        process = self.world.intrude(self.world.uuids[device], container=container)
        self.loop.advance(pause)
        if goes and process.container is not None:
            self.world.node.end_container(process.container)
        elif goes:
            self.world.node.leave(process)

    @move("asks in_search", when=up, device=DEVICE, earlier=st.integers(0, 2), stays=st.booleans(), pause=PAUSE)
    def a_foreign_process_comes_during_a_search(self, device, earlier, stays, pause):
        """After a tenant, and after some earlier searches. The driver does not list the process."""
        self.a_tenant_comes_and_runs(device, announced=False, stays=1.0)

        def comes(uuid: str) -> None:
            process = self.world.intrude(uuid)
            process.secret = True
            if not stays:
                self.world.node.leave(process)

        self.world.node.in_search[:] = [*[lambda _: None] * earlier, comes]
        self.a_container(device, "ends", pause)

    @move("asks asks_late", device=DEVICE, pause=PAUSE)
    def an_earlier_tenant_comes_and_goes(self, device, pause):
        """What it had is not its own any more. Nothing of it runs."""
        world, uuid = self.world, self.world.uuids[device]
        tenant = world.tenants.get(uuid)
        if tenant is not None and tenant not in world.node.alive and uuid not in self.let_in:
            process = world.foreign(uuid, world.name(), tenant)
            self.loop.advance(SHORT)
            world.node.leave(process)
            world.node.alive.discard(tenant)
        self.loop.advance(pause)

    @move("in_clear", when=up, device=DEVICE, pause=PAUSE)
    def a_foreign_process_comes_and_goes_during_a_clear(self, device, pause):
        """The clear has written something, and goes on. Only the driver knows of a process that writes nothing."""
        uuid = self.world.uuids[device]
        self.an_operator(device, "scrub fast", 0.0)
        for _ in range(40):
            self.loop.advance(SHORT)
            if down(self) or self.world.life.disk.dead:
                return
            job = self.world.life.jobs.of(uuid)
            if job is not None and job.step is Step.CLEAR and uuid in self.world.truth.first_write:
                self.world.node.leave(self.world.intrude(uuid, writes=False))
                break
        self.loop.advance(pause)

    # -- claims, as the DRA driver asks for them

    @move("claim", when=up, claim=st.sampled_from(CLAIMS), devices=DEVICES, pause=PAUSE)
    def a_claim_takes_devices(self, claim, devices, pause):
        """Until it gives them back, no other claim may get them."""
        self._do(self._taken(claim, self._uuids(devices)), pause)

    async def _taken(self, claim, uuids) -> None:
        await self.world.tenant_requests.acquire(uuids, ForJob(claim))
        for uuid in uuids:
            self.world.truth.taken(claim, uuid)
            self.world.tenants[uuid] = claim
            self.let_in[uuid] = (claim, False)

    @move("other_claim", when=up, device=DEVICE, claims=BOTH_CLAIMS, killed=st.booleans(), runs=PAUSE, pause=PAUSE)
    def a_claim_asks_for_the_device_of_another(self, device, claims, killed, runs, pause):
        """The pod of the first claim has run and ended. The kubelet has not given its claim back."""
        self.a_claim_takes_devices(claims[0], {device}, 6.0)
        self.a_granted_tenant_runs(device, runs)
        self.a_container(device, "ends", pause)
        if killed and self.world.up:
            self.the_service_goes("kill", 0.0)
            self.the_service_starts(pause)
        if self.world.up:
            self.a_claim_takes_devices(claims[1], {device}, 6.0)

    @move("claim", when=up, claim=st.sampled_from(CLAIMS), pause=PAUSE)
    def a_claim_gives_its_devices_back(self, claim, pause):
        """The service refuses as long as a container of the claim uses one of them."""
        self.let_in = {uuid: pod for uuid, pod in self.let_in.items() if pod[0] != claim}
        self.world.truth.given_back(claim=claim)
        self._do(self.world.tenant_requests.release(owner=claim), pause)

    # -- the kubelet's checkpoint names another pod than the one that starts

    @move("doubled", when=up, device=DEVICE, apart=PAUSE)
    def the_kubelet_doubles_a_grant(self, device, apart):
        """It has dropped the first pod, whose start is on its way and counts as one of the second."""
        self._undisturbed(self._doubled_grant(self.world.uuids[device], apart))

    async def _doubled_grant(self, uuid, apart) -> None:
        world, pods = self.world, (self.world.name(), self.world.name())
        self.doubled.update(pods)
        for pod in pods:
            await world.acquire(pod, uuid, announced=True)
            await asyncio.sleep(apart)
        written_down(world, **{pods[1]: [uuid]})
        for pod in pods:
            await world.tenant_requests.start([uuid], None)
            world.truth.started(pod, uuid)
            world.run(pod, uuid)
            if world.node.kernel is not None:  # the first one is kept off: its start was one of the second
                world.truth.users_since_proof.setdefault(uuid, set()).add(pods[1])
            await asyncio.sleep(SHORT)
            world.node.end_container(pod)

    @move("stale", when=up, device=DEVICE, rolled_back=st.booleans())
    def an_old_checkpoint_is_served(self, device, rolled_back):
        """It was not written since the grant, or it is a copy from before and names the last owner."""
        self._undisturbed(self._old_checkpoint(self.world.uuids[device], rolled_back=rolled_back))

    async def _old_checkpoint(self, uuid, *, rolled_back) -> None:
        world, last, pod = self.world, self.world.name(), self.world.name()
        await let_on(world, last, uuid)
        await asyncio.sleep(SHORT)
        world.node.end_container(last)
        await asyncio.sleep(5.0)
        await world.acquire(pod, uuid, announced=True)
        if rolled_back and world.record(uuid).tenancy.last_owner == last:
            await asyncio.sleep(5.0)
            written_down(world, **{last: [uuid]})
        granted = world.record(uuid).tenancy.grant
        with suppress(AutoclaveError):
            await world.tenant_requests.start([uuid], None)
            if granted is not None and granted == world.record(uuid).tenancy.grant:
                world.truth.accuse(f"{last}, which has ended, may start on {uuid}, which was granted to {pod}")
        written_down(world, **{pod: [uuid]})
        await world.begin(pod, uuid)

    # -- operators

    @move("order quarantine", when=up, device=DEVICE, deed=st.sampled_from(DEEDS), pause=PAUSE)
    def an_operator(self, device, deed, pause):
        operations, uuid = self.world.operator_requests, self.world.uuids[device]
        work = {
            "scrub": lambda: operations.scrub(uuid, None),
            "scrub fast": lambda: operations.scrub(uuid, ScrubPath.FAST),
            "scrub slow": lambda: operations.scrub(uuid, ScrubPath.SLOW),
            "quarantine": lambda: operations.quarantine(uuid, "smells", "ops"),
            "reinstate": lambda: operations.reinstate(uuid, "smells better", "ops"),
            "excuse": lambda: operations.reinstate_without_proof(uuid, "smells of nothing", "ops"),
        }[deed]
        if deed == "excuse":
            self.faulty.pop(uuid, None)  # a person says that it is well: the service has to notice again
        self._do(work(), pause)

    @move("policy", policy=st.sampled_from(POLICIES))
    def the_policy_changes(self, policy):
        self.world.change_policy(policy)

    # -- faults

    @move("fault stall shortage", device=DEVICE, fault=st.sampled_from(FAULTS), pause=PAUSE)
    def a_fault(self, device, fault, pause):
        gpu = self.world.node.gpus[self.world.uuids[device]]
        match fault.split():
            case ["xid", code]:
                self.world.node.report(gpu.info.uuid, [int(code)])
            case ["sign", kind]:
                gpu.signs = (Sign(AilmentKind(kind), "so it is"),)
            case ["ecc"]:
                gpu.ecc += 1
            case ["leak"]:
                gpu.leaked = 4096
            case _:
                setattr(gpu, fault, True)
        self.loop.advance(pause)

    @move("heal", device=DEVICE, pause=PAUSE)
    def things_heal(self, device, pause):
        self.world.node.gpus[self.world.uuids[device]].heal()
        self.world.node.driver_hangs = False
        self.world.node.miss_uses(False)
        if self.world.up:
            self.world.life.disk.full = False
        self.loop.advance(pause)

    @move("disk", when=up, how=st.sampled_from((1, 2, "full", "driver", "counter")), pause=PAUSE)
    def the_disk_the_driver_or_the_use_counter_fails(self, how, pause):
        match how:
            case int():
                self.world.life.disk.failures = how
            case "full":
                self.world.life.disk.full = True
            case "counter":
                self.world.node.miss_uses(True)
            case _:
                self.world.node.driver_hangs = True
        self.loop.advance(pause)

    # -- lives

    @move("power_cut", when=up, rows=st.integers(1, 20), pause=PAUSE)
    def the_service_is_killed_after_some_rows(self, rows, pause):
        self.world.life.disk.dies_after = rows
        self.loop.advance(pause)

    @move("service_end", when=up, how=st.sampled_from(GOES), away=st.sampled_from((0.0, 5.0)))
    def the_service_goes(self, how, away):
        self.world.life.disk.dies_after = None
        self.loop.run_until_complete(self.world.stop() if how == "stop" else self.world.die(lingering="lingers" in how))
        self.open.clear()
        self.loop.advance(away)

    @move("service_end", when=down, pause=PAUSE)
    def the_service_starts(self, pause):
        self.loop.run_until_complete(self.world.start())
        self.loop.advance(pause)

    @move("asks_while_away", when=up, devices=DEVICES, pause=PAUSE)
    def devices_are_used_while_the_service_is_away(self, devices, pause):
        self.the_service_goes("kill", 0.0)
        for device in devices:
            self.a_foreign_process_comes(device, container=False, goes=True, pause=0.0)
        self.the_service_starts(pause)

    @move("reboot", what=st.sampled_from(OF_NODE), pause=PAUSE)
    def the_node(self, what, pause):
        match what:
            case "reboots":
                self._reboot()
            case "reloads its driver" if not list(self.world.node.everybody()):
                self.world.node.drivers += 1
                self.world.truth.given_back(*self.world.uuids)
            case "loses its workers":
                self._end_lingering()
            case "sets its clock":
                self.world.node.jump += 3600.0 if self.world.node.jump <= 0 else -7200.0
        self.loop.advance(pause)

    @move("kubelet_restart", device=DEVICE, pause=PAUSE)
    def the_kubelet_restarts(self, device, pause):
        """Between its restart and our registration the kubelet starts containers without asking anybody (R11)."""
        uuid = self.world.uuids[device]
        tenant, _ = self.let_in.pop(uuid, ("", False))
        self.world.restart_kubelet()
        if tenant and self.world.tenants[uuid] == tenant:
            self.world.run(tenant, uuid)
        self.loop.advance(pause)

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
        self._no_faulty_device_is_offered()

    def _no_faulty_device_is_offered(self) -> None:
        world, now = self.world, self.loop.time()
        gpus = world.node.gpus.values()
        disturbed = not world.up or world.node.driver_hangs or any(gpu.hangs for gpu in gpus)
        if disturbed or world.life.disk.full or world.life.disk.failures or now - world.node.hung_at < A_SLOW_LOOK:
            self.faulty.clear()
            return
        lasting = {gpu.info.uuid for gpu in gpus if any(getattr(gpu, flag) for flag in LASTING)}
        self.faulty = {uuid: self.faulty.get(uuid, now) for uuid in lasting}
        offered = [uuid for uuid, since in self.faulty.items() if now - since > NOTICED_WITHIN and healthy(world, uuid)]
        assert not offered, "\n".join(map(world.trace.story, offered))

    def teardown(self):
        try:
            if hasattr(self, "world"):
                self._tenancies_are_those_of_the_records()
                self.loop.run_until_complete(self.world.heal())
        finally:
            if self.world.up:
                self.loop.run_until_complete(self.world.die())
            self.loop.close()
            self.world.close()

    def _tenancies_are_those_of_the_records(self) -> None:
        """What auditors read of who has a device now is what the service knows, and of before, what it has signed."""
        truth = self.world.truth
        listed = tenancies(truth.entries)
        assert [it for it in listed if not it.closed_as_listed] == []
        present = {it.device for it in listed if it.ended is None}
        handed_out = (State.GRANTED, State.IN_USE)
        assert present == {uuid for uuid, record in truth.records.items() if record.state in handed_out}

    # -- the same few moves

    def _reboot(self) -> None:
        if self.world.up:
            self.loop.run_until_complete(self.world.die())
        self.open.clear()
        self.let_in.clear()
        self.world.truth.given_back(*self.world.uuids)
        self.world.node.reboot()
        self.loop.run_until_complete(self.world.start())

    def _end_lingering(self) -> None:
        for process in self.world.node.everybody():
            if process.kind is Kind.WORKER and process.life != self.world.node.life:
                self.world.node.leave(process)

    def _collect(self) -> None:
        """Grants that have arrived. Each replaces the earlier grant of its device."""
        for item in list(self.open):
            task, tenant, uuids, announced = item
            if task.done():
                self.open.remove(item)
                if not task.cancelled() and task.exception() is None:
                    self.let_in.update(dict.fromkeys(uuids, (tenant, announced)))

    def _undisturbed(self, work: Coroutine[Any, Any, object]) -> None:
        """Some seconds in which only this happens. Afterwards the kubelet's checkpoint cannot be read."""
        while self.open:
            self.open.pop()[0].cancel()
        self.loop.advance(0.0)
        task = self.world.spawn(work)
        self.loop.advance(30.0)
        if self.world.up:
            (self.world.life.observer._kubelet_dir / assignments.NAME).unlink(missing_ok=True)
        task.cancel()
        self.loop.advance(0.0)

    def _do(self, work: Coroutine[Any, Any, object], pause: float) -> None:
        async def asked() -> None:
            with suppress(AutoclaveError):  # a refusal is an answer
                await work

        self.world.spawn(asked())
        self.loop.advance(pause)

    def _uuids(self, devices) -> tuple[str, ...]:
        return tuple(self.world.uuids[device] for device in sorted(devices))


# Not shrunk: a shorter history takes many minutes to find, and a history of a few seconds reads well.
Histories.TestCase.settings = settings(stateful_step_count=40, phases=[Phase.generate])
test_random_histories_break_no_promise = Histories.TestCase


def test_the_histories_play_each_move_or_say_why_not():
    assert {name for name, it in MOVES.items() if not it.not_in_histories} == PLAYED
