"""The kubelet stand-in: it treats a device plugin as kubelet 1.36 does, including the faults of that kubelet.

    kubelet = Kubelet(directory)
    await kubelet.start()
    await kubelet.registered("example.com/gpu")  # once your plugin runs
    pod = Pod.of("train", {"example.com/gpu": 1})
    await kubelet.run(pod)                        # GetPreferredAllocation, Allocate, PreStartContainer
    await kubelet.delete(pod)

README.md lists what is copied, from which source of the kubelet, and what is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from demo.standins.allocation import AllocationFailed, KubeletPanic
from demo.standins.claims import ClaimError
from demo.standins.cluster import Cluster
from demo.standins.journal import Journal, StandInFault
from demo.standins.life import Life
from demo.standins.pods import Container, ContainerKind, ContainerState, ContainerStatus, Phase, Pod, PodStatus
from demo.standins.runtime import Runtime
from demo.standins.starting import NOT_PREPARED, Starting
from demo.standins.timing import Timing
from plugin.kubelet_api import podresources_pb2

R = TypeVar("R")


class NotRunning(Exception):
    """The kubelet is not running, or ended during this action."""


class PodEnded(Exception):
    """The pod has succeeded or failed: none of its containers starts any more."""


class Kubelet:
    """The kubelet of one node. Pods, containers and records survive its end; a real kubelet loses the rest, too."""

    def __init__(
        self,
        directory: Path,
        runtime: Runtime | None = None,
        registry: Path | None = None,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        logs: Path | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """``directory`` is for kubelet.sock, ``registry`` is the plugins_registry directory, ``logs`` for pod logs.

        ``cluster`` has the claims of pods; without it no DRA driver can register.
        """
        self.directory = directory
        self.pods: dict[str, Pod] = {}  # by UID: the pods that the kubelet knows, oldest first
        self.panics: list[KubeletPanic] = []
        self._runtime = runtime if runtime is not None else Runtime()
        self._timing, self._registry = timing, registry
        self._logs = _Logs(logs)
        self._cluster = cluster
        self._journal = Journal()
        self.calls = self._journal.calls  # every call to a plugin, also those that have not ended
        self.starts = self._journal.starts  # every start of a container
        self.registrations = self._journal.registrations  # every attempt to register
        self.warnings = self._journal.warnings  # messages that a real kubelet only logs
        self._life: Life | None = None
        self._workers: dict[str, asyncio.Lock] = {}  # each pod starts one container at a time
        self._sandboxes: set[str] = set()  # UIDs of pods with a sandbox, which outlives the kubelet
        self._orphans: dict[str, Pod] = {}  # force-deleted pods whose containers still run

    # -- the process

    async def __aenter__(self) -> Self:
        """``start``; the end of the block calls ``kill``, also after a failure of the test."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start, or restart after ``stop`` or ``kill``. ``readmit`` then admits the earlier pods again."""
        if self._life is not None:
            raise NotRunning("cannot start the kubelet: it is already running")
        running = self._running()
        life = Life(
            *(self.directory, self._journal, self._active, running, self._cluster),
            timing=self._timing,
        )
        await life.begin(self._registry)
        self._life = life
        for pod in list(self.pods.values()):
            if not _is_active(pod):  # the last kubelet process may have ended before it stopped them
                await self._stop_containers(pod)
        self._journal.changed()

    async def stop(self) -> None:
        """Stop as after SIGTERM: streams end; sockets, the checkpoint and containers stay."""
        await self.kill()
        self._journal.check()

    async def kill(self) -> None:
        """Stop as after SIGKILL: every call is cancelled; containers stay."""
        life, self._life = self._life, None
        if life is not None:
            await life.end()
            self._journal.changed()

    async def reboot(self) -> None:
        """Reboot the node: the kubelet and every container are killed. ``start`` starts the kubelet again."""
        await self.kill()
        for pod in [*self.pods.values(), *self._orphans.values()]:
            await self._stop_containers(pod)
        self._orphans.clear()

    async def readmit(self) -> list[Pod]:
        """Admit the pods from before the start again; pods that fail are killed and returned.

        A real kubelet does this about a second after its start. Here the test decides when, at the latest when it
        starts or admits a pod.
        """
        return await self._act(self._readmit())

    # -- its state

    @property
    def capacity(self) -> dict[str, int]:
        """The node's capacity, without the delay of up to 10 s in a real node's status."""
        return self._life.inventory.capacity() if self._life is not None else {}

    @property
    def allocatable(self) -> dict[str, int]:
        """The node's allocatable devices, without that delay."""
        return self._life.inventory.allocatable() if self._life is not None else {}

    def devices(self, resource: str) -> dict[str, str]:
        """Device id to health, as the kubelet sees it."""
        return self._life.inventory.health(resource) if self._life is not None else {}

    def held(self, pod: Pod) -> dict[str, dict[str, tuple[str, ...]]]:
        """Container to resource to devices, as the kubelet has recorded."""
        holdings = self._alive().holdings
        held = {container.name: holdings.of_container(pod.uid, container.name) for container in pod.containers}
        return {name: {one: holding.ids for one, holding in of.items()} for name, of in held.items() if of}

    async def until(self, predicate: Callable[[], object], within: float | None = 10.0) -> None:
        """Return as soon as the predicate is true, or raise TimeoutError. It is checked after every change."""
        await self._journal.until(predicate, within)

    async def registered(self, resource: str, within: float = 10.0) -> None:
        """Return as soon as the resource has a connected plugin that has sent its first list."""

        def is_registered() -> bool:
            endpoint = self._life.clients.endpoints.get(resource) if self._life is not None else None
            return endpoint is not None and not endpoint.stopped and endpoint.listed

        await self.until(is_registered, within)

    async def driver_registered(self, driver: str, within: float = 10.0) -> None:
        """Return as soon as an instance of this DRA driver is registered and connected."""
        await self.until(lambda: self.has_driver(driver), within)

    def has_driver(self, driver: str) -> bool:
        """Whether an instance of this DRA driver is registered and connected."""
        claims = self._life.claims if self._life is not None else None
        return claims is not None and claims.plugins.usable(driver)

    def claims(self) -> dict[str, str]:
        """The UIDs of the claims that the kubelet knows, by ``NAMESPACE/NAME``: those that it must give back."""
        claims = self._alive().claims
        return claims.uids() if claims is not None else {}

    def list_pod_resources(self) -> podresources_pb2.ListPodResourcesResponse:
        """``List`` of PodResources, with its side effect: it frees the devices of deleted pods (R8)."""
        life = self._alive()
        life.allocation.clean()
        response = podresources_pb2.ListPodResourcesResponse()
        for pod in filter(_is_active, self.pods.values()):
            entry = response.pod_resources.add(name=pod.name, namespace=pod.namespace)
            for container in pod.of_kind(ContainerKind.SIDECAR, ContainerKind.APP):
                shown = entry.containers.add(name=container.name)
                for resource, holding in life.holdings.of_container(pod.uid, container.name).items():
                    for one in holding.ids:
                        shown.devices.add(resource_name=resource, device_ids=[one])
        return response

    # -- pods

    async def admit(self, pod: Pod) -> PodStatus:
        """Allocate for each container in turn, one pod at a time on the whole node; an error fails the pod."""
        return await self._act(self._admit(pod))

    async def run(self, pod: Pod) -> PodStatus:
        """Admit the pod, then ``sync`` once."""
        if (await self.admit(pod)).phase is not Phase.FAILED:
            await self.sync(pod)
        return pod.status

    async def sync(self, pod: Pod) -> bool:
        """Start the containers that do not run yet, as the pod's worker does. False if a container still waits."""
        for container in pod.of_kind(ContainerKind.INIT, ContainerKind.SIDECAR):
            if not await self._has_started(pod, container):
                return False
        return all([await self._has_started(pod, container) for container in pod.of_kind(ContainerKind.APP)])

    async def keep_trying(self, pod: Pod, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """``sync`` until all containers run, as the kubelet does: first after a short pause, then every 10 to 14 s."""
        soon, later = self._timing.start_retry
        seconds = soon
        while not await self.sync(pod):
            await pause(seconds)
            seconds = later

    async def start_container(self, pod: Pod, name: str) -> ContainerStatus:
        """Call PreStartContainer, then the runtime. After an error the container waits; the pod keeps its devices."""
        return await self._act(self._start(pod, pod.container(name)))

    async def restart_container(self, pod: Pod, name: str) -> ContainerStatus:
        """End the container and start it again, without Allocate."""
        await self.exit_container(pod, name)
        return await self.start_container(pod, name)

    async def exit_container(self, pod: Pod, name: str) -> None:
        """End the container by itself. The pod keeps its devices."""
        container = pod.container(name)
        await self._runtime.stop(pod, container)
        self._set(pod, container, ContainerState.TERMINATED)

    async def finish(self, pod: Pod) -> bool:
        """End all containers by themselves: the pod succeeds and its devices are free.

        False: a claim could not be given back. ``pod.message`` says why; call again, as the kubelet does every 10 to
        15 s. The same holds for ``delete`` and ``end_orphan``.
        """
        async with self._worker(pod):
            if not await self._end_pod(pod):
                return False
            pod.status = PodStatus(Phase.SUCCEEDED)
        self._free_claims(pod)
        self._journal.changed()
        return True

    async def delete(self, pod: Pod) -> bool:
        """Stop the containers, then forget the pod. Waits for any Allocate, and for a start of this pod."""
        async with self._alive().sync_loop:
            pass
        async with self._worker(pod):
            if not await self._end_pod(pod):
                return False
            self.pods.pop(pod.uid, None)
        self._free_claims(pod)
        self._logs.remove(pod)
        self._journal.changed()
        return True

    async def force_delete(self, pod: Pod) -> None:
        """Forget the pod at once while its containers still run (R4), until ``end_orphan``. Its claims are free."""
        async with self._alive().sync_loop:
            self._orphans[pod.uid] = self.pods.pop(pod.uid)
        self._free_claims(pod)
        self._journal.changed()

    @contextmanager
    def hearing_nothing(self, resource: str) -> Iterator[None]:
        """Take no list of the plugin meanwhile, as a busy kubelet does: pods still get what was listed before."""
        hears = self._alive().clients.endpoints[resource].hears
        hears.clear()
        try:
            yield
        finally:
            hears.set()

    async def end_orphan(self, pod: Pod) -> bool:
        """End the grace period of a force-deleted pod: its containers stop."""
        if not await self._end_pod(pod):
            return False
        self._orphans.pop(pod.uid, None)
        self._logs.remove(pod)
        self._journal.changed()
        return True

    async def reconcile(self) -> list[str]:
        """Give back the claims of pods that are gone, as the kubelet does every 60 s. Returns the errors."""
        return await self._act(self._reconcile())

    # -- internal

    def _alive(self) -> Life:
        self._journal.check()
        if self._life is None:
            raise NotRunning("the kubelet is not running")
        return self._life

    async def _act(self, work: Coroutine[Any, Any, R]) -> R:
        """Run an action of this kubelet process; it is cancelled when the process ends."""
        try:
            life = self._alive()
        except (NotRunning, StandInFault):
            work.close()  # otherwise Python warns that it was never awaited
            raise
        task = asyncio.create_task(work)
        life.actions.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task in life.actions and self._life is life:
                raise
            raise NotRunning("the kubelet ended during this action") from None
        except KubeletPanic as panic:
            self.panics.append(panic)
            await self.kill()
            raise
        finally:
            life.actions.discard(task)

    async def _readmit(self) -> list[Pod]:
        life = self._alive()
        if life.has_readmitted():  # before the lock: a pod's worker does not wait for the Allocate of another pod
            return []
        async with life.sync_loop:
            if life.has_readmitted():
                return []
            before = [pod for pod in self.pods.values() if _is_active(pod)]
            failed = [pod for pod in before if not await self._try_admit(life, pod)]
            life.allocation.ready = True
        for pod in failed:
            await self._stop_containers(pod)
        return failed

    async def _admit(self, pod: Pod) -> PodStatus:
        await self._readmit()
        life = self._alive()
        self.pods[pod.uid] = pod
        async with life.sync_loop:
            await self._try_admit(life, pod)
        return pod.status

    async def _try_admit(self, life: Life, pod: Pod) -> bool:
        try:
            await life.allocation.pod(pod)
        except AllocationFailed as error:
            message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
            pod.status = PodStatus(Phase.FAILED, "UnexpectedAdmissionError", message)
            return False
        finally:
            self._journal.changed()
        return True

    async def _start(self, pod: Pod, container: Container) -> ContainerStatus:
        await self._readmit()
        life = self._alive()
        if not _is_active(pod):
            raise PodEnded(f"cannot start {container.name}: pod {pod.name} is {pod.phase.value}: {pod.message}")
        async with self._worker(pod):
            active = pod.uid in self._active()
            self._logs.make(pod)
            starting = Starting(life, self._journal, self._runtime)
            status = await starting.start(pod, container, active=active, sandbox=pod.uid in self._sandboxes)
            if status.reason != NOT_PREPARED:
                self._sandboxes.add(pod.uid)
            if container.kind is ContainerKind.APP and status.state is ContainerState.RUNNING:
                pod.status = PodStatus(Phase.RUNNING)
        self._journal.changed()
        return status

    async def _has_started(self, pod: Pod, container: Container) -> bool:
        """Start the container if needed. True if the next one may start: init containers have ended, others run."""
        wanted = ContainerState.TERMINATED if container.kind is ContainerKind.INIT else ContainerState.RUNNING
        state = pod.statuses[container.name].state
        if state is wanted or (state is ContainerState.RUNNING and container.kind is ContainerKind.INIT):
            return state is wanted
        return (await self.start_container(pod, container.name)).state is wanted

    def _worker(self, pod: Pod) -> asyncio.Lock:
        return self._workers.setdefault(pod.uid, asyncio.Lock())

    async def _end_pod(self, pod: Pod) -> bool:
        """Stop the containers, then give back the claims. After an error the pod has not ended."""
        await self._stop_containers(pod)
        if pod.claims:
            try:
                await self._act(self._unprepare(pod))
            except ClaimError as error:
                pod.status = replace(pod.status, message=f"unprepare dynamic resources: {error}")
                self._journal.changed()
                return False
        return True

    async def _unprepare(self, pod: Pod) -> None:
        claims = self._alive().claims
        if claims is not None:
            await claims.unprepare(pod)

    async def _reconcile(self) -> list[str]:
        claims = self._alive().claims
        return await claims.reconcile({*self._active(), *self._orphans}) if claims is not None else []

    def _free_claims(self, pod: Pod) -> None:
        """The claim controller's work, which does not ask the kubelet."""
        if self._cluster is not None:
            self._cluster.pod_ended(pod)

    async def _stop_containers(self, pod: Pod) -> None:
        """Stop the containers in reverse order, then the sandbox."""
        for container in reversed(pod.containers):
            if pod.statuses[container.name].state is ContainerState.RUNNING:
                await self._runtime.stop(pod, container)
                self._set(pod, container, ContainerState.TERMINATED)
        await self._runtime.close_sandbox(pod)
        self._sandboxes.discard(pod.uid)

    def _set(self, pod: Pod, container: Container, state: ContainerState) -> None:
        pod.statuses[container.name] = replace(pod.statuses[container.name], state=state, reason="", message="")
        self._journal.changed()

    def _active(self) -> set[str]:
        """The UIDs of the pods that, for the kubelet, may still use their devices."""
        return {pod.uid for pod in self.pods.values() if _is_active(pod)}

    def _running(self) -> set[tuple[str, str]]:
        """The (pod UID, container) pairs that run."""
        return {
            (pod.uid, name)
            for pod in self.pods.values()
            for name, status in pod.statuses.items()
            if status.state is ContainerState.RUNNING
        }


def _is_active(pod: Pod) -> bool:
    return pod.phase in (Phase.PENDING, Phase.RUNNING)


class _Logs:
    """The log directories of pods, whose names contain the names of the pods. Without a directory, does nothing.

    Copies their names and lifetime from ``PK/kuberuntime/helpers.go`` (BuildPodLogsDirectory: made with the sandbox)
    and ``PK/kuberuntime/kuberuntime_gc.go`` (removed once the pod is deleted). They stay empty.
    """

    def __init__(self, directory: Path | None) -> None:
        """``directory`` is the parent of all log directories."""
        self._directory = directory

    def make(self, pod: Pod) -> None:
        """Make the directory of a pod, unless it exists."""
        if self._directory is not None:
            self._of(self._directory, pod).mkdir(parents=True, exist_ok=True)

    def remove(self, pod: Pod) -> None:
        """Remove the directory of a deleted pod, if it exists."""
        if self._directory is not None:
            with suppress(FileNotFoundError):
                self._of(self._directory, pod).rmdir()

    @staticmethod
    def _of(directory: Path, pod: Pod) -> Path:
        return directory / f"{pod.namespace}_{pod.name}_{pod.uid}"
