"""The ways to give GPUs to pods: the device plugin, alone or in front of a vendor's, and the DRA driver for claims.

The story is the same for all of them. What differs is here.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from demo.programs import ServiceProgram
from demo.standins.api_server import ApiServer
from demo.standins.cluster import Cluster
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod
from demo.standins.runtime import Runtime
from ground import public_names
from ground.errors import Reason, Refused

RESOURCE, DRIVER, NODE = "nvidia.com/gpu", public_names.DRIVER, "demo"
WITHIN = 120.0  # seconds for what usually takes one: the node may be busy
FOR_NOW, FOR_GOOD = "UNAVAILABLE", "FAILED_PRECONDITION"  # how a plugin refuses; any other code is a fault
PAUSE = 0.2  # seconds between two attempts; the kubelet's pauses are longer


class Installation(ABC):
    """One way to give GPUs to pods, for one kubelet stand-in."""

    name: str  # of the program that answers the kubelet
    short: str
    call: str  # with which a pod gets its GPUs
    quarantined: str  # how the cluster treats a quarantined GPU
    still_quarantined: str

    def __init__(self, root: Path, containers: Runtime, flags: tuple[str, ...]) -> None:
        """``flags``: more flags for the program. Nothing runs yet."""
        self.root, self.flags = root, flags
        self.kubelet = self._kubelet(containers)
        self.program = self._program(("--run-dir", str(root / "run"), "--log-format", "json"))

    @abstractmethod
    def _kubelet(self, containers: Runtime) -> Kubelet: ...

    @abstractmethod
    def _program(self, flags: tuple[str, ...]) -> ServiceProgram: ...

    async def begin(self, uuids: Sequence[str]) -> None:  # noqa: B027 - not every way needs it
        """Start what the kubelet and the program need, on a node with these GPUs."""

    async def end(self) -> None:  # noqa: B027 - not every way needs it
        """End what ``begin`` has started."""

    @abstractmethod
    async def registered(self, within: float) -> None:
        """Return when the kubelet knows the program, and GPUs are offered."""

    @abstractmethod
    async def gone(self) -> None:
        """Return when the kubelet has noticed that the program has ended."""

    @abstractmethod
    def offers(self) -> dict[str, bool]:
        """All GPUs by UUID, and whether a pod may get them."""

    def offered(self) -> int:
        """How many GPUs a pod may get."""
        return sum(self.offers().values())

    @abstractmethod
    async def until_offered(self, uuid: str, *, offered: bool = True) -> None:
        """Return when pods may get this GPU, or may not."""

    @abstractmethod
    def pod(self, name: str, gpus: int) -> Pod:
        """A new pod that asks for this number of GPUs."""

    async def run(self, pod: Pod) -> Pod:
        """Run a pod, or one in its place, until its containers run. Returns the pod that runs.

        On a busy node a request may be refused for now. The kubelet tries a container again; a controller replaces a
        pod that has failed.
        """
        async with asyncio.timeout(WITHIN):
            admitted = await self._admitted(pod)
        return await self.started(admitted)

    async def started(self, pod: Pod) -> Pod:
        """The pod, once its containers run."""
        async with asyncio.timeout(WITHIN):
            await self.kubelet.keep_trying(pod, lambda _seconds: asyncio.sleep(PAUSE))
        return pod

    @abstractmethod
    async def _admitted(self, pod: Pod) -> Pod:
        """The pod, or one in its place, once the kubelet has admitted it. Refused if that can only be no."""

    @abstractmethod
    def early(self, pod: Pod, uuid: str) -> AsyncIterator[tuple[bool, str, str]]:
        """Let a pod ask for a GPU that a container of a force-deleted pod still uses. Yields what holds then."""

    @abstractmethod
    async def later(self, pod: Pod) -> Pod:
        """Run that pod, or one in its place, after the GPU is clean. Returns the pod that runs."""

    @abstractmethod
    async def refused(self, pod: Pod) -> str:
        """Let a pod ask while no GPU is offered. Returns why it gets none, and nothing if it gets one."""

    async def restarts(self, sick: str) -> AsyncIterator[tuple[bool, str]]:  # noqa: ARG002 - not every way needs it
        """Kill and restart what else runs, with a sick GPU. Yields what holds then."""
        nothing: tuple[tuple[bool, str], ...] = ()
        for each in nothing:
            yield each

    @abstractmethod
    def gpus_of(self, pod: Pod) -> tuple[str, ...]:
        """The UUIDs of the GPUs of a running pod."""


class ByPlugin(Installation):
    """By the device plugin: pods ask for a resource."""

    name, short, call = "the device plugin", "the plugin", "Allocate"
    quarantined = "GPU 1 stays in the kubelet's capacity and is not allocatable"
    still_quarantined = "GPU 1 is still Unhealthy after the restart of the plugin"

    def _kubelet(self, containers: Runtime) -> Kubelet:
        return Kubelet(self.root / "kubelet", containers, logs=self.root / "pods")

    def _program(self, flags: tuple[str, ...]) -> ServiceProgram:
        places = ("--kubelet-dir", str(self.root / "kubelet"))
        return ServiceProgram(("plugin", *flags, *places, *self.flags), self.root / "plugin.log")

    async def registered(self, within: float) -> None:
        """Wait for the list of the plugin."""
        await self.kubelet.registered(RESOURCE, within)

    async def gone(self) -> None:
        """Wait until no GPU is allocatable."""
        await self.kubelet.until(lambda: self.kubelet.allocatable[RESOURCE] == 0, WITHIN)

    def offers(self) -> dict[str, bool]:
        """Healthy GPUs are offered."""
        return {uuid: health == "Healthy" for uuid, health in self.kubelet.devices(RESOURCE).items()}

    async def until_offered(self, uuid: str, *, offered: bool = True) -> None:
        """Wait for a list of the plugin."""
        await self.kubelet.until(lambda: self.offers()[uuid] is offered, WITHIN)

    def pod(self, name: str, gpus: int) -> Pod:
        """A pod that asks for the resource."""
        return Pod.of(name, {RESOURCE: gpus})

    async def _admitted(self, pod: Pod) -> Pod:
        """A new pod for each one that was refused for now, or that the kubelet rejected for want of healthy GPUs.

        It comes when the same GPUs are offered again, so that it gets the one that its predecessor would have got.
        """
        wanted = [uuid for uuid, offered in self.offers().items() if offered]
        while (await self.kubelet.admit(pod)).phase is Phase.FAILED:
            if self.kubelet.calls[-1].outcome not in ("OK", FOR_NOW):
                raise Refused(Reason.NOT_READY, f"pod {pod.name} does not run: {pod.message}")
            await asyncio.sleep(PAUSE)
            for uuid in wanted:
                await self.until_offered(uuid)
            pod = Pod.of(pod.name, pod.containers[0].resources)
        return pod

    async def early(self, pod: Pod, uuid: str) -> AsyncIterator[tuple[bool, str, str]]:
        """The plugin refuses, and the kubelet fails the pod."""
        unhealthy = asyncio.create_task(self.until_offered(uuid, offered=False))  # perhaps only for a moment
        status = await self.kubelet.admit(pod)
        call = self.kubelet.calls[-1]
        refused = status.phase is Phase.FAILED and call.method == self.call and call.outcome in (FOR_NOW, FOR_GOOD)
        yield refused, "the kubelet gives GPU 0 to pod B, and the plugin refuses", call.message
        await unhealthy
        yield True, "GPU 0 is now Unhealthy, so the kubelet tries no other pod on it", uuid

    async def later(self, pod: Pod) -> Pod:
        """A new pod in place of the failed one."""
        return await self.run(Pod.of(pod.name, pod.containers[0].resources))

    async def refused(self, pod: Pod) -> str:
        """The text of the failed pod."""
        status = await self.kubelet.admit(pod)
        await self.gone()
        return status.message if status.phase is Phase.FAILED else ""

    def gpus_of(self, pod: Pod) -> tuple[str, ...]:
        """From the records of the kubelet."""
        return self.kubelet.held(pod)["main"][RESOURCE]


class ByVendor(ByPlugin):
    """By the device plugin of a vendor, which registers with ours."""

    name = "the plugin in front of the vendor's"

    def _program(self, flags: tuple[str, ...]) -> ServiceProgram:
        self._directory = self.root / "kubelet" / "vendor"
        places = ("--kubelet-dir", str(self.root / "kubelet"), "--registers-in", str(self._directory))
        self.vendor = ServiceProgram(places, self.root / "vendor.log", module="demo.standins.vendor_plugin")
        return super()._program((*flags, "--vendor-dir", str(self._directory), "--cdi-dir", str(self.root / "cdi")))

    async def begin(self, uuids: Sequence[str]) -> None:
        """Start the vendor's plugin. It waits for ours."""
        self._directory.mkdir()
        self.vendor.arguments += ("--devices", ",".join(uuids))
        await self.vendor.start()

    async def end(self) -> None:
        """End the vendor's plugin."""
        await self.vendor.end(signal.SIGKILL)

    async def restarts(self, sick: str) -> AsyncIterator[tuple[bool, str]]:
        """The vendor's plugin forgets what it knew, and calls every GPU Healthy."""
        await self.vendor.end(signal.SIGKILL)
        await self.gone()
        yield True, "without the vendor's plugin no GPU is offered"
        await self.vendor.start()
        await self.kubelet.until(lambda: self.offered() >= len(self.offers()) - 1, WITHIN)
        yield True, "the vendor's plugin restarts, and all other GPUs are offered again"
        yield not self.offers()[sick], "the vendor's plugin calls GPU 1 Healthy; GPU 1 is still Unhealthy"


class ByClaims(Installation):
    """By the DRA driver: pods ask with ResourceClaims, and an API server has the claims and the slice."""

    name, short, call = "the DRA driver", "the driver", "NodePrepareResources"
    quarantined = "GPU 1 stays in the ResourceSlice with a taint, so no claim gets it"
    still_quarantined = "GPU 1 still has its taint after the restart of the driver"
    _waiting: asyncio.Task[bool] | None = None

    def _kubelet(self, containers: Runtime) -> Kubelet:
        for name in ("registry", "plugins"):
            (self.root / name).mkdir()
        self.server = ApiServer(self.root, NODE)
        self.cluster = Cluster(self.server, NODE)
        return Kubelet(
            *(self.root / "kubelet", containers),
            registry=self.root / "registry",
            logs=self.root / "pods",
            cluster=self.cluster,
        )

    def _program(self, flags: tuple[str, ...]) -> ServiceProgram:
        places = ("--plugins-dir", str(self.root / "plugins"), "--registry-dir", str(self.root / "registry"))
        # Without an address of a cluster: in a pod of a real cluster the driver would ask that one.
        environment = {"KUBECONFIG": str(self.server.kubeconfig), "NODE_NAME": NODE, "KUBERNETES_SERVICE_HOST": ""}
        return ServiceProgram(("dra", *flags, *places, *self.flags), self.root / "dra.log", environment)

    async def begin(self, uuids: Sequence[str]) -> None:  # noqa: ARG002 - the driver lists them
        """Open the API server."""
        await self.server.open()

    async def end(self) -> None:
        """Close the API server, and end what still waits for it."""
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait({self._waiting})
        await self.server.leave()

    async def registered(self, within: float) -> None:
        """Wait for the connection to the driver, and for its slice."""
        await self.kubelet.driver_registered(DRIVER, within)
        await self.server.until(lambda: self.offered() > 0, within)

    async def gone(self) -> None:
        """Wait for the end of the connection."""
        await self.kubelet.until(lambda: not self.kubelet.has_driver(DRIVER))

    def offers(self) -> dict[str, bool]:
        """GPUs without a taint are offered."""
        listed = self.cluster.listed(DRIVER)
        return {device["attributes"]["uuid"]["string"]: offered for device, offered in listed}

    async def until_offered(self, uuid: str, *, offered: bool = True) -> None:
        """Wait for a change of the slice."""
        await self.server.until(lambda: self.offers().get(uuid, False) is offered, WITHIN)

    def pod(self, name: str, gpus: int) -> Pod:
        """A pod with a claim of the same name."""
        self.cluster.claim(name, driver=DRIVER, count=gpus)
        return Pod.of(name, None, name)

    async def _admitted(self, pod: Pod) -> Pod:
        """The same pod, once the scheduler has found GPUs for its claim."""
        await self.server.until(lambda: not self.cluster.place(pod), WITHIN)
        await self.kubelet.admit(pod)
        return pod

    async def early(self, pod: Pod, uuid: str) -> AsyncIterator[tuple[bool, str, str]]:
        """The driver does not answer yet."""
        await self._admitted(pod)
        self._waiting = asyncio.create_task(self.kubelet.sync(pod))
        await self.kubelet.until(lambda: self.kubelet.calls[-1].method == self.call, WITHIN)
        placed = self.cluster.devices(pod.name) == [uuid.lower()]
        yield placed, "the scheduler gives GPU 0 to pod B", uuid
        started = [start for start in self.kubelet.starts if start.pod == pod.uid]
        yield not started, "the driver lets pod B wait", ""

    async def later(self, pod: Pod) -> Pod:
        """The pod that waits."""
        if self._waiting is not None:
            await self._waiting
        return await self.started(pod)

    async def refused(self, pod: Pod) -> str:
        """The text of the scheduler."""
        await self.server.until(lambda: self.offered() == 0, WITHIN)
        return self.cluster.place(pod)

    def gpus_of(self, pod: Pod) -> tuple[str, ...]:
        """From the CDI devices of the container."""
        starts = [start for start in self.kubelet.starts if start.pod == pod.uid]
        return tuple(one.partition("=")[2] for ids in starts[-1].devices.values() for one in ids)
