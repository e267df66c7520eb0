"""Random histories of pods with claims: no claim gets a device that was not scrubbed since another claim had it."""

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from demo.standins.claims import ClaimError
from demo.standins.pods import Pod
from plugin.dra.config import DRIVER
from plugin.dra.driver import FAULT
from tests.plugin.dra.claim_world import ClaimWorld
from tests.plugin.sides import SidedHistories, history_test
from tests.service.node import Kind

GPUS = 2
PAUSE = st.sampled_from((0.0, 0.1, 0.5, 2.0, 5.0))
NAMES = st.sampled_from(("a", "b", "c"))
WHICH = st.integers(0, 5)
ROUNDS = 60  # of ten seconds, until all claims have ended


class Histories(SidedHistories):
    """Pods come and go, are deleted by force and share claims; kubelet, driver, service and node are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, Pod] = {}  # those that the kubelet has not ended, by UID
        self.ending: set[str] = set()  # their containers have ended
        self.deleted: set[str] = set()  # their objects are gone from the API server
        self.running: set[str] = set()
        self.work: dict[str, asyncio.Task[None]] = {}  # the worker of each pod
        self.made = 0
        self.refusal = ""  # the last one

    @initialize(seed=st.integers(0, 2**16), clean_within=st.sampled_from((0.0, 30.0)))
    def begin(self, seed, clean_within):
        self.world = ClaimWorld(self.loop, self.directory, gpus=GPUS, seed=seed, interval=2.0)
        self.world.clean_within = clean_within
        self.loop.run_until_complete(self.world.start())
        self.world.start_driver()
        self.loop.advance(10.0)

    # -- pods

    @rule(name=NAMES, gpus=st.integers(1, GPUS), pause=PAUSE)
    def a_pod_is_placed(self, name, gpus, pause):
        server = self.world.server
        if server.find("resourceclaims", name, "default") is None:
            self.world.cluster.claim(name, driver=DRIVER, count=gpus)
        self.made += 1
        pod = Pod.of(f"pod-{self.made}", None, name)
        pod.uid = pod.name
        if self.world.cluster.place(pod) == "":
            self.pods[pod.uid] = pod
            self._sync(pod)
        self.loop.advance(pause)

    @rule(name=NAMES, gpus=st.integers(1, GPUS), leaving=st.booleans(), pause=PAUSE)
    def a_pod_runs_and_ends(self, name, gpus, leaving, pause):
        before = len(self.pods)
        self.a_pod_is_placed(name, gpus, 5.0)
        if len(self.pods) > before:
            self.a_pod_ends(before, leaving=leaving, pause=pause)

    @rule(name=NAMES, successor=NAMES, leaving=st.booleans(), runs_on=PAUSE, pause=PAUSE)
    def a_claim_is_free_before_its_pod_has_ended(self, name, successor, leaving, runs_on, pause):
        """A pod is deleted by force, with its claim, and the next pod comes before its containers end."""
        before = len(self.pods)
        self.a_pod_is_placed(name, GPUS, 5.0)
        if len(self.pods) > before:
            self.a_pod_is_deleted_by_force(before, 0.0)
            self.a_claim_is_deleted(name)
            self.a_pod_is_placed(successor, GPUS, runs_on)
            self.a_pod_ends(before, leaving=leaving, pause=pause)

    @precondition(lambda self: self.pods)
    @rule(pause=PAUSE)
    def the_kubelet_tries_again(self, pause):
        for pod in list(self.pods.values()):
            self._sync(pod)
        self.loop.advance(pause)

    @precondition(lambda self: self.pods)
    @rule(which=WHICH, leaving=st.booleans(), pause=PAUSE)
    def a_pod_ends(self, which, leaving, pause):
        self._end(self._pick(which), leaving=leaving)
        self.loop.advance(pause)

    @precondition(lambda self: self.pods)
    @rule(which=WHICH, pause=PAUSE)
    def a_pod_is_deleted_by_force(self, which, pause):
        pod = self._pick(which)
        self.deleted.add(pod.uid)
        self.world.cluster.pod_ended(pod)
        self.loop.advance(pause)

    @rule(name=NAMES)
    def a_claim_is_deleted(self, name):
        if self.world.server.find("resourceclaims", name, "default") is not None:
            self.world.server.delete("resourceclaims", name, "default")

    # -- failures

    @rule(stays=st.booleans(), pause=PAUSE)
    def the_kubelet_is_killed(self, stays, pause):
        """With ``stays`` its pods are known to the next one; otherwise deleted ones are not."""
        self.world.start_kubelet()
        if not stays:
            for uid in sorted(self.deleted & self.pods.keys()):
                self._stop_containers(self.pods.pop(uid))
        self.loop.advance(pause)

    @rule(pause=PAUSE)
    def the_kubelet_cleans_up(self, pause):
        self.world.on("kubelet", self.world.claims.reconcile(self.pods.keys()))
        self.loop.advance(pause)

    @rule(pause=PAUSE)
    def the_driver_is_killed(self, pause):
        self.world.end_driver()
        self.loop.advance(pause)
        self.world.start_driver()

    @rule(pause=PAUSE)
    def the_service_is_killed(self, pause):
        self.loop.run_until_complete(self.world.die())
        self.loop.advance(pause)
        self.loop.run_until_complete(self.world.start())

    @rule(seconds=st.sampled_from((0.5, 5.0, 50.0)))
    def the_api_server_is_away(self, seconds):
        self.world.server.away = True
        self.loop.advance(seconds)
        self.world.server.away = False

    @rule(pause=PAUSE)
    def the_node_reboots(self, pause):
        self.loop.run_until_complete(self.world.die())
        self.world.end_driver()
        self.world.node.reboot()
        self.world.start_kubelet()
        self.loop.advance(pause)
        for uid in sorted(self.deleted & self.pods.keys()):
            del self.pods[uid]
        self.running.clear()
        self.world.held.clear()
        self.loop.run_until_complete(self.world.start())
        self.world.start_driver()

    # -- what must hold

    def at_the_end(self):
        """Every claim is given back, and a new claim gets all devices."""
        self.world.server.away = False
        for pod in list(self.pods.values()):
            self._end(pod, leaving=False)
        self._until(lambda: not self.pods and not self.world.claims.uids())
        self._clear_up()
        self.world.cluster.claim("last", driver=DRIVER, count=GPUS)
        self.a_pod_is_placed("last", GPUS, 5.0)
        self._until(lambda: self.running)

    def _until(self, holds) -> None:
        rounds = 0
        while not holds() and rounds < ROUNDS:
            rounds += 1
            self.the_kubelet_tries_again(5.0)
            self.the_kubelet_cleans_up(5.0)
            self.no_promise_is_broken()
        assert holds(), self.story()

    def _clear_up(self) -> None:
        """What an operator does after two faults of the kubelet.

        It will never give some claims back. And it starts a pod whose claim is about to end: for the service the
        processes of that pod are foreign, and it ends none of them.
        """
        for process in list(self.world.node.everybody()):
            if process.kind is not Kind.WORKER:
                self.world.node.leave(process)
        for uuid in self.world.uuids:
            grant = self.world.record(uuid).grant
            if grant is not None and grant.owner in self.world.forgotten:
                self.world.spawn(self.world.handover.release([uuid], owner=grant.owner))
        self.loop.advance(5.0)

    def story(self) -> str:
        left = f"pods {list(self.pods)}, claims {self.world.claims.uids()}; {self.refusal}"
        left += f"; processes {[(it.name, it.container) for it in self.world.node.everybody()]}"
        return "\n".join([left, *(self.world.story(device)[-2000:] for device in self.world.uuids)])

    # -- the kubelet's worker of a pod

    def _pick(self, which: int) -> Pod:
        return list(self.pods.values())[which % len(self.pods)]

    def _sync(self, pod) -> None:
        """Continue with a pod, unless its worker is busy."""
        task = self.work.get(pod.uid)
        if task is None or task.done():
            work = self._give_back(pod) if pod.uid in self.ending else self._run(pod)
            self.work[pod.uid] = self.world.on("kubelet", work)

    def _end(self, pod, *, leaving) -> None:
        self.work[pod.uid].cancel()
        self.loop.advance(0.0)
        self._stop_containers(pod, leaving=leaving)
        self.ending.add(pod.uid)
        self._sync(pod)

    def _stop_containers(self, pod, *, leaving=False) -> None:
        self.running.discard(pod.uid)
        self.world.node.end_container(pod.uid, leaving=leaving)

    async def _run(self, pod) -> None:
        if pod.uid in self.running:
            return
        try:
            await self.world.claims.prepare(pod)
        except ClaimError as error:
            self._refused(pod, error)
            return
        uid = self.world.claims.uids()[f"default/{pod.claims[0]}"]
        for device in self.world.claims.cdi_devices(pod, pod.containers[0])[f"claim:{pod.claims[0]}"]:
            uuid = device.partition("=")[2]
            # The kubelet may start a pod while it ends the pod's claim. Nothing can know the pod before it is seen.
            kind = Kind.TENANT if self.world.held.get(uuid) == uid else Kind.FOREIGN_PROCESS
            self.world.node.enter(uuid, kind, uid, container=pod.uid)
        self.running.add(pod.uid)

    def _refused(self, pod, error) -> None:
        self.refusal = f"{pod.name}: {error}"
        assert FAULT not in self.refusal

    async def _give_back(self, pod) -> None:
        try:
            await self.world.claims.unprepare(pod)
        except ClaimError as error:
            self._refused(pod, error)
            return
        del self.pods[pod.uid]
        self.world.cluster.pod_ended(pod)


test_random_histories_of_claims_break_no_promise = history_test(Histories)
