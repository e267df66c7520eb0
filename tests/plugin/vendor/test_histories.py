"""Random histories of pods on a vendor's devices: no pod gets a device that the gate or the vendor does not offer."""

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.plugin.sides import SidedHistories, history_test
from tests.plugin.vendor.vendor_world import HEALTHY, UNHEALTHY, VendorWorld
from tests.service.node import Kind

GPUS = 3
PAUSE = st.sampled_from((0.0, 0.1, 0.5, 2.0, 7.0))
GPU = st.integers(0, GPUS - 1)
HEALTH = st.sampled_from((UNHEALTHY, None))
WHICH = st.integers(0, 5)
ANSWERED_AFTER = 10.0  # seconds until the gate listens to the next service
ROUNDS = 60  # of five seconds, until a pod has all devices
RESOURCES = st.sampled_from(("nvidia.com/gpu", "nvidia.com/mig-all"))


class Histories(SidedHistories):
    """Pods come and go; the vendor changes its list, lies and restarts; gate, kubelet and service are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.monkeypatch = pytest.MonkeyPatch()
        self.work: dict[str, asyncio.Task[None]] = {}  # the worker of each pod that has not ended
        self.orphans: list[str] = []  # pods that were deleted by force, whose containers run

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed):
        self.world = VendorWorld(self.loop, self.directory, self.monkeypatch, gpus=GPUS, seed=seed, interval=2.0)
        self.loop.run_until_complete(self.world.start())
        self.world.write_down()
        self.world.start_gate()
        self.world.start_vendor()
        self.loop.advance(10.0)

    # -- pods

    @rule(gpus=st.integers(1, GPUS), pause=PAUSE)
    def a_pod_comes(self, gpus, pause):
        pod = self.world.name()
        self.work[pod] = self.world.on("kubelet", self.world.run_pod(pod, gpus))
        self.loop.advance(pause)

    @rule(gpus=st.integers(1, GPUS), runs=PAUSE, leaving=st.booleans(), pause=PAUSE, successor=st.integers(1, GPUS))
    def a_pod_follows_another(self, gpus, runs, leaving, pause, successor):
        self.a_pod_comes(gpus, runs)
        self.a_pod_ends(len(self.work) - 1, leaving=leaving, pause=pause)
        self.a_pod_comes(successor, runs)

    @precondition(lambda self: self.work)
    @rule(which=WHICH, leaving=st.booleans(), pause=PAUSE)
    def a_pod_ends(self, which, leaving, pause):
        pod = self._forget(which)
        self.world.node.end_container(pod, leaving=leaving)
        self.loop.advance(pause)

    @precondition(lambda self: self.work)
    @rule(which=WHICH, pause=PAUSE)
    def a_pod_is_deleted_by_force(self, which, pause):
        self.orphans.append(self._forget(which))
        self.loop.advance(pause)

    @precondition(lambda self: self.orphans)
    @rule(pause=PAUSE)
    def a_deleted_pod_ends(self, pause):
        self.world.node.end_container(self.orphans.pop())
        self.loop.advance(pause)

    # -- the vendor

    @rule(gpu=GPU, health=HEALTH, before=PAUSE, gpus=st.integers(1, GPUS), pause=PAUSE, back=st.booleans())
    def the_vendor_changes_its_list_and_a_pod_comes(self, gpu, health, before, gpus, pause, back):
        name = self.world.uuids[gpu]
        self._say(name, health, before)
        self.a_pod_comes(gpus, pause)
        if back:
            self._say(name, HEALTHY, pause)

    @rule(gpu=GPU, health=HEALTH, before=PAUSE, gpus=st.integers(1, GPUS), pause=PAUSE)
    def the_vendor_changes_its_list_for_a_moment(self, gpu, health, before, gpus, pause):
        name = self.world.uuids[gpu]
        self._say(name, health, before)
        self._say(name, HEALTHY, 0.0)
        self.a_pod_comes(gpus, pause)

    @rule(gpu=GPU, health=HEALTH, gpus=st.integers(1, GPUS), pause=PAUSE)
    def the_vendor_changes_its_list_while_a_pod_waits(self, gpu, health, gpus, pause):
        name = self.world.uuids[gpu]
        self.a_pod_follows_another(gpus, 0.1, leaving=False, pause=0.1, successor=gpus)
        self._say(name, health, pause)

    @rule(fault=st.sampled_from(("lies", "fails", "hangs")), gpus=st.integers(1, GPUS), pause=PAUSE)
    def a_pod_gets_a_wrong_answer(self, fault, gpus, pause):
        self.world.vendor.fault = fault
        self.a_pod_comes(gpus, pause)

    @rule(pause=PAUSE)
    def the_node_is_well_again(self, pause):
        """Pods end, quarantines end, and the vendor calls all devices Healthy."""
        while self.work:
            self.a_pod_ends(0, leaving=False, pause=0.0)
        self._reinstate()
        for name in self.world.uuids:
            self._say(name, HEALTHY, 0.0)
        self.loop.advance(pause)

    @rule(away=PAUSE, resource=RESOURCES, pause=PAUSE)
    def the_vendor_restarts(self, away, resource, pause):
        self.world.end_vendor()
        self.loop.advance(away)
        self.world.judge()
        self.world.start_vendor(resource)
        self.loop.advance(pause)

    @rule(pause=PAUSE)
    def the_vendor_registers_again(self, pause):
        self.world.register()
        self.loop.advance(pause)

    # -- other failures

    @rule(away=PAUSE, pause=PAUSE)
    def the_gate_is_killed(self, away, pause):
        self.world.end_gate()
        self.loop.advance(away)
        self.world.start_gate()
        self.loop.advance(pause)

    @rule(pause=PAUSE)
    def the_kubelet_is_killed(self, pause):
        self.world.start_kubelet()
        self.loop.advance(0.0)
        kept = [pod for pod in self.work if pod in self.world.holding]
        running = {it.container for it in self.world.node.everybody()}
        self.work = {pod: self.world.on("kubelet", self._continued(pod, running=pod in running)) for pod in kept}
        self.loop.advance(pause)

    @rule(pause=PAUSE)
    def the_service_is_killed(self, pause):
        self.loop.run_until_complete(self.world.die())
        self.loop.advance(pause)
        self.loop.run_until_complete(self.world.start())
        answered = self.loop.time() + ANSWERED_AFTER
        self.world.quarantined = dict.fromkeys(self.world.quarantined, answered)

    @rule(gpu=GPU)
    def a_person_quarantines_a_device(self, gpu):
        name = self.world.uuids[gpu]
        self.loop.run_until_complete(self.world.operations.quarantine(name, "looks odd", "ops"))
        self.world.quarantined.setdefault(name, self.loop.time())

    @precondition(lambda self: self.world.quarantined)
    @rule(pause=PAUSE)
    def a_person_reinstates_a_device(self, pause):
        self._reinstate()
        self.loop.advance(pause)

    # -- what must hold

    def at_the_end(self):
        """The kubelet sees what vendor and service say, and a pod gets all devices."""
        self._clear_up()
        self.a_pod_comes(GPUS, 5.0)
        for _ in range(ROUNDS):
            if self._runs():
                break
            self.no_promise_is_broken()
            self._reinstate()
            self.a_pod_ends(0, leaving=False, pause=5.0)
            self.a_pod_comes(GPUS, 5.0)
        assert self._runs(), self.story()

    def teardown(self):
        super().teardown()
        self.monkeypatch.undo()

    def _clear_up(self) -> None:
        """End all pods, and let the vendor say the truth."""
        while self.work:
            self.a_pod_ends(0, leaving=False, pause=0.0)
        while self.orphans:
            self.a_deleted_pod_ends(0.0)
        for process in list(self.world.node.everybody()):
            if process.kind is not Kind.WORKER:
                self.world.node.leave(process)
        self.world.start_vendor()
        self.loop.advance(65.0)
        reported = {it.uuid: it for it in self.world.life.reporter.reported().devices}
        expected = {name: HEALTHY if reported[name].healthy else UNHEALTHY for name in self.world.uuids}
        assert self.world.shown["nvidia.com/gpu"] == expected, self.story()

    def _say(self, name, health, pause) -> None:
        """The vendor's plugin lists a device with this health; None: not at all."""
        if health is None:
            self.world.vendor.devices.pop(name, None)
        else:
            self.world.vendor.devices[name] = health
        self.world.vendor.show()
        self.loop.advance(pause)

    def _runs(self) -> bool:
        used = {uuid for uuid, gpu in self.world.node.gpus.items() if any(gpu.users())}
        return used == set(self.world.uuids)

    def _reinstate(self) -> None:
        """A device in use is not quarantined before its end; a kill of the service ends a probation."""
        for name in self.world.uuids:
            if self.world.record(name).quarantine is not None:
                self.world.quarantined.pop(name, None)
                self.loop.run_until_complete(self.world.operations.reinstate(name, "it is well", "ops"))

    async def _continued(self, pod, *, running) -> None:
        if not running:
            await self.world.run_pod(pod, 0)

    def _forget(self, which: int) -> str:
        """The kubelet frees the devices of a pod."""
        pod = list(self.work)[which % len(self.work)]
        self.work.pop(pod).cancel()
        self.loop.advance(0.0)
        self.world.holding.pop(pod, None)
        self.world.write_down()
        return pod

    def story(self) -> str:
        wrong = "\n".join(self.world.wrong)
        about = f"{wrong}\nshown {self.world.shown}, holding {self.world.holding}; {self.world.refusal}"
        return "\n".join([about, *(self.world.story(device)[-2000:] for device in self.world.uuids)])


test_random_histories_behind_a_vendor_break_no_promise = history_test(Histories)
