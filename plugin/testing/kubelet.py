"""The kubelet stand-in: behaves to a device plugin as kubelet 1.36 does, its faults included.

    kubelet = Kubelet(directory)
    await kubelet.start()
    await kubelet.registered("example.com/gpu")  # once your plugin runs
    pod = Pod.of("train", {"example.com/gpu": 1})
    await kubelet.run(pod)                        # GetPreferredAllocation, Allocate, PreStartContainer
    await kubelet.delete(pod)

docs/kubelet-stand-in.md says what is copied, from which line of the kubelet, and what is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from plugin.kubelet_api import podresources_pb2
from plugin.testing.allocation import AllocationFailed, KubeletPanic
from plugin.testing.journal import Call, Journal, RegistrationCall, StandInFault, Start
from plugin.testing.life import Life
from plugin.testing.logs import Logs
from plugin.testing.pods import Container, ContainerKind, ContainerState, ContainerStatus, Phase, Pod, PodStatus
from plugin.testing.quirks import Quirks, Timing
from plugin.testing.runtime import Nothing, Runtime
from plugin.testing.starting import Starting

R = TypeVar("R")


class NotRunning(Exception):
    """The kubelet is not running, or died while it did this."""


class PodEnded(Exception):
    """The pod has succeeded or failed: its containers do not start any more."""


class Kubelet:
    """One node's kubelet. Pods, containers and records outlive its death; the rest is as lost as the real one's."""

    def __init__(
        self,
        directory: Path,
        runtime: Runtime | None = None,
        quirks: Quirks = Quirks(),  # noqa: B008 - frozen
        registry: Path | None = None,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        logs: Path | None = None,
    ) -> None:
        """``directory`` holds kubelet.sock; ``registry`` is the plugins_registry directory, if there is one.

        ``logs`` is where pods have their logs, if they have any.
        """
        self.directory = directory
        self.pods: dict[str, Pod] = {}  # by UID: those that the kubelet knows, oldest first
        self.panics: list[KubeletPanic] = []
        self._runtime = runtime if runtime is not None else Nothing()
        self._quirks, self._timing, self._registry = quirks, timing, registry
        self._logs = Logs(logs)
        self._journal = Journal()
        self._life: Life | None = None
        self._workers: dict[str, asyncio.Lock] = {}  # one container at a time in each pod
        self._orphans: dict[str, Pod] = {}  # force-deleted, their containers still running

    # -- the process

    async def __aenter__(self) -> Self:
        """``start``; the end of the block is ``kill``, also when a test fails in it."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Begin to run; after ``stop`` or ``kill`` this is the restart. Pods are re-admitted by ``readmit``."""
        if self._life is not None:
            raise NotRunning("cannot start the kubelet: it runs already")
        running = self._running(ContainerState.RUNNING)
        if not self._quirks.ended_init_is_asked:
            running |= self._running(ContainerState.TERMINATED)
        life = Life(self.directory, self._journal, self._active, running, quirks=self._quirks, timing=self._timing)
        await life.begin(self._registry)
        self._life = life
        for pod in list(self.pods.values()):
            if not _is_active(pod):  # the last life may have ended before this was done
                await self._stop_containers(pod)
        self._journal.changed()

    async def stop(self) -> None:
        """As SIGTERM: the streams end, the sockets and the checkpoint stay, containers run on."""
        await self.kill()
        self._journal.check()

    async def kill(self) -> None:
        """As SIGKILL: everything that was under way is cut; containers run on."""
        life, self._life = self._life, None
        if life is not None:
            await life.end()
            self._journal.changed()

    async def reboot(self) -> None:
        """The node goes down: the kubelet is killed and so is every container. ``start`` brings it up again."""
        await self.kill()
        for pod in [*self.pods.values(), *self._orphans.values()]:
            await self._stop_containers(pod)
        self._orphans.clear()

    async def readmit(self) -> list[Pod]:
        """Admit the pods from before the start again; those that fail are returned, and killed.

        A real kubelet does this about a second after its start. Here the test says when; whatever starts or admits a
        pod before that does it first.
        """
        return await self._deed(self._readmit())

    # -- what it knows

    @property
    def calls(self) -> list[Call]:
        """Every call to a plugin, from its first moment on."""
        return self._journal.calls

    @property
    def starts(self) -> list[Start]:
        """Every container start."""
        return self._journal.starts

    @property
    def registrations(self) -> list[RegistrationCall]:
        """Every attempt to register."""
        return self._journal.registrations

    @property
    def warnings(self) -> list[str]:
        """What a real kubelet only logs."""
        return self._journal.warnings

    @property
    def capacity(self) -> dict[str, int]:
        """The node's capacity, at once: the 10 s tick of the node's status is not copied."""
        return self._life.inventory.capacity() if self._life is not None else {}

    @property
    def allocatable(self) -> dict[str, int]:
        """The node's allocatable devices, at once."""
        return self._life.inventory.allocatable() if self._life is not None else {}

    def devices(self, resource: str) -> dict[str, str]:
        """Device id to health, as the kubelet believes."""
        return self._life.inventory.health(resource) if self._life is not None else {}

    def held(self, pod: Pod) -> dict[str, dict[str, tuple[str, ...]]]:
        """Container to resource to devices, as the kubelet remembers."""
        holdings = self._alive().holdings
        found = {container.name: holdings.of_container(pod.uid, container.name) for container in pod.containers}
        return {name: {one: holding.ids for one, holding in of.items()} for name, of in found.items() if of}

    async def until(self, predicate: Callable[[], object], within: float | None = 10.0) -> None:
        """Return as soon as it holds; TimeoutError when it does not in time. Looked at after every change."""
        await self._journal.until(predicate, within)

    async def registered(self, resource: str, within: float = 10.0) -> None:
        """Return as soon as the resource has a live plugin whose first list has come."""

        def is_registered() -> bool:
            endpoint = self._life.clients.endpoints.get(resource) if self._life is not None else None
            return endpoint is not None and not endpoint.stopped and endpoint.listed

        await self.until(is_registered, within)

    def list_pod_resources(self) -> podresources_pb2.ListPodResourcesResponse:
        """``List`` of PodResources, with its side effect: devices of pods that are gone become free (R8)."""
        life = self._alive()
        life.allocation.clean()
        response = podresources_pb2.ListPodResourcesResponse()
        for pod in filter(_is_active, self.pods.values()):
            told = response.pod_resources.add(name=pod.name, namespace=pod.namespace)
            for container in pod.of_kind(ContainerKind.SIDECAR, ContainerKind.APP):
                shown = told.containers.add(name=container.name)
                for resource, holding in life.holdings.of_container(pod.uid, container.name).items():
                    for one in holding.ids:
                        shown.devices.add(resource_name=resource, device_ids=[one])
        return response

    # -- pods

    async def admit(self, pod: Pod) -> PodStatus:
        """Devices for each container in turn, one pod at a time on the whole node; a failure is the pod's end."""
        return await self._deed(self._admit(pod))

    async def run(self, pod: Pod) -> PodStatus:
        """Admit, then one ``sync``."""
        if (await self.admit(pod)).phase is not Phase.FAILED:
            await self.sync(pod)
        return pod.status

    async def sync(self, pod: Pod) -> bool:
        """One round of the pod's worker: start what does not run yet. False when something still waits."""
        for container in pod.of_kind(ContainerKind.INIT, ContainerKind.SIDECAR):
            if not await self._brought_up(pod, container):
                return False
        return all([await self._brought_up(pod, container) for container in pod.of_kind(ContainerKind.APP)])

    async def keep_trying(self, pod: Pod, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """``sync`` until everything runs, as the kubelet does: soon once, then every 10 to 14 s, for ever."""
        soon, later = self._timing.start_retry
        seconds = soon
        while not await self.sync(pod):
            await pause(seconds)
            seconds = later

    async def start_container(self, pod: Pod, name: str) -> ContainerStatus:
        """PreStartContainer, then the runtime. After a failure the container waits and the pod keeps its devices."""
        return await self._deed(self._start(pod, pod.container(name)))

    async def restart_container(self, pod: Pod, name: str) -> ContainerStatus:
        """The container has ended and is started again: no Allocate."""
        await self.exit_container(pod, name)
        return await self.start_container(pod, name)

    async def exit_container(self, pod: Pod, name: str) -> None:
        """The container has ended by itself. Its devices stay with the pod."""
        container = pod.container(name)
        await self._runtime.stop(pod, container)
        self._set(pod, container, ContainerState.TERMINATED)

    async def finish(self, pod: Pod) -> None:
        """All containers have ended by themselves: the pod has succeeded, its devices are free."""
        async with self._worker(pod):
            await self._stop_containers(pod)
            pod.status = PodStatus(Phase.SUCCEEDED)
        self._journal.changed()

    async def delete(self, pod: Pod) -> None:
        """Stop its containers, then forget it. Waits for an Allocate of another pod, and for a start of this one."""
        async with self._alive().sync_loop:
            pass
        async with self._worker(pod):
            await self._stop_containers(pod)
            self.pods.pop(pod.uid, None)
        self._logs.remove(pod)
        self._journal.changed()

    async def force_delete(self, pod: Pod) -> None:
        """Forget it at once while its containers run on (R4), until ``end_orphan``."""
        async with self._alive().sync_loop:
            self._orphans[pod.uid] = self.pods.pop(pod.uid)
        self._journal.changed()

    async def end_orphan(self, pod: Pod) -> None:
        """The grace period of a force-deleted pod is over: its containers stop."""
        await self._stop_containers(pod)
        self._orphans.pop(pod.uid, None)
        self._logs.remove(pod)
        self._journal.changed()

    # -- the same few moves

    def _alive(self) -> Life:
        self._journal.check()
        if self._life is None:
            raise NotRunning("the kubelet is not running")
        return self._life

    async def _deed(self, work: Coroutine[Any, Any, R]) -> R:
        """Something this life of the kubelet does, and leaves undone when it dies."""
        try:
            life = self._alive()
        except (NotRunning, StandInFault):
            work.close()  # never awaited, it would warn
            raise
        task = asyncio.create_task(work)
        life.deeds.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task in life.deeds and self._life is life:
                raise
            raise NotRunning("the kubelet died in the middle of it") from None
        except KubeletPanic as panic:
            self.panics.append(panic)
            await self.kill()
            raise
        finally:
            life.deeds.discard(task)

    async def _readmit(self) -> list[Pod]:
        life = self._alive()
        if life.has_readmitted():  # asked before the lock: a pod's worker does not wait for another pod's Allocate
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
            starting = Starting(life, self._journal, self._runtime, self._quirks)
            status = await starting.start(pod, container, active=active)
            if container.kind is ContainerKind.APP and status.state is ContainerState.RUNNING:
                pod.status = PodStatus(Phase.RUNNING)
        self._journal.changed()
        return status

    async def _brought_up(self, pod: Pod, container: Container) -> bool:
        """Whether the next container may start; an init container must have ended, the others must run."""
        wanted = ContainerState.TERMINATED if container.kind is ContainerKind.INIT else ContainerState.RUNNING
        state = pod.statuses[container.name].state
        if state is wanted or (state is ContainerState.RUNNING and container.kind is ContainerKind.INIT):
            return state is wanted
        return (await self.start_container(pod, container.name)).state is wanted

    def _worker(self, pod: Pod) -> asyncio.Lock:
        return self._workers.setdefault(pod.uid, asyncio.Lock())

    async def _stop_containers(self, pod: Pod) -> None:
        """The last one started is the first one stopped; the sandbox goes last."""
        for container in reversed(pod.containers):
            if pod.statuses[container.name].state is ContainerState.RUNNING:
                await self._runtime.stop(pod, container)
                self._set(pod, container, ContainerState.TERMINATED)
        await self._runtime.close_sandbox(pod)

    def _set(self, pod: Pod, container: Container, state: ContainerState) -> None:
        pod.statuses[container.name] = replace(pod.statuses[container.name], state=state, reason="", message="")
        self._journal.changed()

    def _active(self) -> set[str]:
        """The UIDs of the pods that may still use their devices, by the kubelet's belief."""
        active = {pod.uid for pod in self.pods.values() if _is_active(pod)}
        return active if self._quirks.force_delete_frees else active | set(self._orphans)

    def _running(self, state: ContainerState) -> set[tuple[str, str]]:
        """The (pod UID, container) in this state."""
        return {
            (pod.uid, name)
            for pod in self.pods.values()
            for name, status in pod.statuses.items()
            if status.state is state
        }


def _is_active(pod: Pod) -> bool:
    return pod.phase in (Phase.PENDING, Phase.RUNNING)
