"""The start of one container: PreStartContainer, then the runtime with the cached answer of Allocate.

Copies ``DM/manager.go`` (GetDeviceRunContainerOptions, callPreStartContainerIfNeeded) and the steps around it in
``PK/kuberuntime/kuberuntime_container.go``. R11 is here: unknown options mean "no PreStartContainer".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from demo.standins.allocation import AllocationFailed
from demo.standins.claims import ClaimError, Claims
from demo.standins.endpoint import PluginError
from demo.standins.holdings import DeviceHolding
from demo.standins.journal import Journal, Start
from demo.standins.life import Life
from demo.standins.pods import Container, ContainerKind, ContainerState, ContainerStatus, Pod
from demo.standins.runtime import CannotCreate, Runtime
from plugin.kubelet_api import deviceplugin_pb2

NOT_PREPARED = "FailedPrepareDynamicResources"


class Starting:
    """Starts containers for one kubelet process."""

    def __init__(self, life: Life, journal: Journal, runtime: Runtime) -> None:
        self._life, self._journal, self._runtime = life, journal, runtime

    async def start(self, pod: Pod, container: Container, *, active: bool, sandbox: bool) -> ContainerStatus:
        """Start a container; after a failure it waits, and the pod keeps its devices.

        ``sandbox``: the pod has one already, so its claims were prepared.
        """
        before = pod.statuses[container.name]
        if not sandbox:
            try:
                if pod.claims:
                    await self._claims().prepare(pod)
            except ClaimError as error:
                message = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
                waiting = replace(before, state=ContainerState.WAITING, reason=NOT_PREPARED, message=message)
                return self._set(pod, container, waiting)
        await self._runtime.open_sandbox(pod)
        try:
            prestarted = await self._prepare(pod, container, active=active)
            held = self._life.holdings.of_container(pod.uid, container.name)
            devices = {resource: holding.ids for resource, holding in held.items()}
            if container.claims:
                devices |= self._claims().cdi_devices(pod, container)
            self._set(pod, container, ContainerStatus(ContainerState.RUNNING, starts=before.starts + 1))
            await self._runtime.start(pod, container, devices, merge(held.values()))
        except (PluginError, AllocationFailed) as error:
            waiting = replace(
                before, state=ContainerState.WAITING, reason="CreateContainerConfigError", message=str(error)
            )
            return self._set(pod, container, waiting)
        except CannotCreate as error:
            waiting = replace(before, state=ContainerState.WAITING, reason="CreateContainerError", message=str(error))
            return self._set(pod, container, waiting)
        self._journal.add_start(Start(pod.uid, container.name, devices, prestarted))
        if container.kind is ContainerKind.INIT:
            ended = replace(pod.statuses[container.name], state=ContainerState.TERMINATED, reason="Completed")
            self._set(pod, container, ended)
        return pod.statuses[container.name]

    def _claims(self) -> Claims:
        if self._life.claims is None:
            raise ValueError("cannot run a pod with claims: the kubelet has no cluster")
        return self._life.claims

    async def _prepare(self, pod: Pod, container: Container, *, active: bool) -> bool:
        """Call PreStartContainer if the plugin asks for it; whether it was called."""
        called = missing = False
        for resource, count in container.resources.items():
            if count == 0 or not self._life.allocation.concerns(resource):
                continue
            called |= await self._prestart(pod, container, resource)
            missing |= active and self._life.holdings.get(pod.uid, container.name, resource) is None
        if missing:
            await self._life.allocation.container(pod, container, {})
        return called

    async def _prestart(self, pod: Pod, container: Container, resource: str) -> bool:
        endpoint = self._life.clients.endpoints.get(resource)
        if endpoint is None:
            raise PluginError(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.pre_start_required:  # R11: a stopped one has none
            return False
        held = self._life.holdings.get(pod.uid, container.name, resource)
        if held is None:
            raise PluginError(
                f"no devices found allocated in local cache for pod {pod.uid},"
                f" container {container.name}, resource {resource}"
            )
        try:
            await endpoint.prestart(held.ids)
        except PluginError as error:
            raise PluginError(f"device plugin PreStartContainer rpc failed with err: {error}") from error
        return True

    def _set(self, pod: Pod, container: Container, status: ContainerStatus) -> ContainerStatus:
        pod.statuses[container.name] = status
        self._journal.changed()
        return status


def merge(holdings: Iterable[DeviceHolding]) -> deviceplugin_pb2.ContainerAllocateResponse:
    """Merge the answers of several resources; for the same env or annotation, the first one wins."""
    merged = deviceplugin_pb2.ContainerAllocateResponse()
    for holding in holdings:
        answer = deviceplugin_pb2.ContainerAllocateResponse.FromString(holding.response)
        answer.envs.update(merged.envs)
        answer.annotations.update(merged.annotations)
        merged.MergeFrom(answer)
    return merged
