"""The real plugin in front of a vendor's, the real scrub service, and a kubelet that hands out devices.

All of them are tasks of one loop in virtual time. The vendor's plugin is a stand-in behind a channel without a socket.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry

from plugin.device_plugin import FAULT, DevicePlugin
from plugin.gate import Gate
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.listing import Listing
from plugin.metrics.collector import PluginCounters
from plugin.registration import endpoint
from plugin.stopping import InFlight
from plugin.vendor.directory import KEPT, VendorDirectory
from plugin.vendor.offer import VendorOffer
from plugin.vendor.responses import VendorResponses
from scrubber.api import client
from scrubber.core.model import State
from tests.plugin.sides import DirectClient, SidedWorld
from tests.service.asking import written_down

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
TRIES_AGAIN = 5.0  # seconds until the kubelet starts a container again
SHOWN_AFTER = 1.0  # seconds until the kubelet's list has what the service knows


class Refusal(Exception):
    """The plugin's answer to a call is an error."""


class Call:
    """The context of a call."""

    def time_remaining(self):
        return None

    async def abort(self, code, details):
        raise Refusal(f"{code.name}: {details}")


class Vendor:
    """A vendor's plugin. It answers for one resource, and after a restart calls every device Healthy."""

    def __init__(self, world: "VendorWorld", resource: str) -> None:
        self.world, self.resource = world, resource
        self.devices = dict.fromkeys(world.uuids, HEALTHY)
        self.alive = True
        self.fault = ""  # of the next Allocate
        self.changed = asyncio.Event()

    def show(self):
        self.changed.set()
        self.changed = asyncio.Event()

    def list(self):
        return wire.ListAndWatchResponse(
            devices=[wire.Device(ID=name, health=health) for name, health in self.devices.items()]
        )

    async def GetDevicePluginOptions(self, _request):  # noqa: N802 - the proto names it
        return wire.DevicePluginOptions()

    async def Allocate(self, request):  # noqa: N802 - the proto names it
        ids = list(request.container_requests[0].devices_ids)
        self.world.judge_asked(ids)
        fault, self.fault = self.fault, ""
        if fault == "hangs":
            await asyncio.Event().wait()
        if fault == "fails":
            raise _error(grpc.StatusCode.INTERNAL)
        if fault == "lies":
            ids = [name for name in self.world.uuids if name not in ids] or ids[:-1]
        envs = {"NVIDIA_VISIBLE_DEVICES": ",".join(ids)}
        return wire.AllocateResponse(container_responses=[wire.ContainerAllocateResponse(envs=envs)])


class Channel:
    """A connection of the plugin to the vendor's."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor

    def unary_unary(self, method, **_):
        async def call(request, timeout) -> Any:  # noqa: ANN401, ASYNC109 - as the stub
            if not self.vendor.alive:
                raise _error(grpc.StatusCode.UNAVAILABLE)
            try:
                async with asyncio.timeout(timeout):
                    return await getattr(self.vendor, method.rpartition("/")[2])(request)
            except TimeoutError:
                raise _error(grpc.StatusCode.DEADLINE_EXCEEDED) from None

        return call

    def unary_stream(self, _method, **_):
        return lambda _request: Stream(self.vendor)

    async def close(self):
        """Nothing is open."""


class Stream:
    """A ListAndWatch of the vendor."""

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor

    async def __aiter__(self) -> AsyncIterator[wire.ListAndWatchResponse]:
        while self.vendor.alive:
            changed = self.vendor.changed
            self.vendor.world.delivered(self.vendor)
            yield self.vendor.list()
            await changed.wait()
        raise _error(grpc.StatusCode.UNAVAILABLE)

    def cancel(self):
        """The generator ends with its reader."""


def _error(code) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=code.name)


class VendorWorld(SidedWorld):
    """A node with the vendor's plugin behind ours."""

    def __init__(self, loop, directory, monkeypatch, **more) -> None:
        super().__init__(loop, ("gate", "kubelet"), **more)
        self.directory = directory
        self.path = directory / "nvidia-gpu.sock"
        self.listener: socket.socket | None = None
        self.vendor = Vendor(self, "nvidia.com/gpu")
        self.vendor.alive = False
        self.vendors: VendorDirectory | None = None  # of the gate that runs
        self.plugins: dict[str, DevicePlugin] = {}
        self.shown: dict[str, dict[str, str]] = {}  # what the kubelet knows
        self.holding: dict[str, tuple[str, list[str]]] = {}  # by pod: its resource and devices, in the checkpoint
        self.said: dict[str, dict[str, str]] = {}  # what the vendor's plugin has said last to the gate that runs
        self.listed: dict[str, set[str]] = {}  # by resource: every device that it has named to this gate
        self.gone_since = 0.0  # seconds; the time at which the vendor's plugin ended
        self.doubted: dict[str, int] = {}  # devices it called unhealthy, and how many scrubs they had
        self.ran: dict[str, tuple[str, int]] = {}  # the last pod on each device, and how many scrubs the device had
        self.quarantined: dict[str, float] = {}  # by a person, since when
        self.refusal = ""  # the last one
        self.lock = asyncio.Lock()  # the kubelet admits one pod at a time
        monkeypatch.setattr(endpoint, "dial", lambda _path: Channel(self.vendor))

    # -- the vendor

    def start_vendor(self, resource="nvidia.com/gpu"):
        """Kill the vendor's plugin, and start another one."""
        self.end_vendor()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(1000)
        self.vendor = Vendor(self, resource)
        self.register()

    def end_vendor(self):
        self.vendor.alive = False
        self.vendor.show()
        self.gone_since = self.loop.time()
        if self.listener is not None:
            self.listener.close()
            self.listener = None
            self.path.unlink()

    def register(self):
        """The vendor's plugin finds a new socket of the gate."""
        if self.vendors is not None and self.vendor.alive:
            request = wire.RegisterRequest(
                version="v1beta1", endpoint=self.path.name, resource_name=self.vendor.resource
            )
            self.on("gate", self._register(self.vendors, request))

    async def _register(self, vendors, request) -> None:
        with suppress(Refusal):
            await vendors.Register(request, cast(Any, Call()))

    def leave(self):
        self.end_vendor()
        self.end_gate()
        super().leave()

    # -- the gate

    def start_gate(self):
        """Kill the gate, and start another one."""
        self.end_gate()
        scrubber = cast(client.ScrubberClient, DirectClient(self))
        offer = VendorOffer()
        listing = Listing(scrubber, offer)
        self.vendors = VendorDirectory(self.directory / "vendor", self.directory, "nvidia.com", offer, listing)
        self.on("gate", listing.follow())
        self.on("gate", self.vendors.end_proofs(scrubber))
        self.on("gate", self._serve(listing, Gate(scrubber, listing, InFlight()), self.vendors))
        self.register()

    def end_gate(self):
        self.vendors = None
        self.end_side("gate")
        self.plugins.clear()
        self.said.clear()
        self.listed.clear()
        self.doubted.clear()
        self.lost()

    async def _serve(self, listing, gate, vendors) -> None:
        known: frozenset[str] = frozenset()
        while True:
            for resource in sorted(await listing.new_resources(known)):
                counters = PluginCounters(CollectorRegistry())
                installation = VendorResponses(resource, vendors, listing, gate, [])
                self.plugins[resource] = DevicePlugin(resource, listing, gate, counters, installation)
                self.follow(resource)
            known = listing.resources()

    # -- the kubelet

    def lost(self):
        """The kubelet has no stream any more."""
        self.shown = {resource: dict.fromkeys(shown, UNHEALTHY) for resource, shown in self.shown.items()}

    def follow(self, resource):
        self.on("gate", self._follow(resource, self.plugins[resource]))

    async def _follow(self, resource, plugin) -> None:
        async for message in plugin.ListAndWatch(wire.Empty(), Call()):
            self.shown[resource] = {device.ID: device.health for device in message.devices}
            self.judge_list(resource)

    def start_kubelet(self):
        """Kill the kubelet, and start another one. It knows its pods from the checkpoint."""
        self.end_side("kubelet")
        self.lock = asyncio.Lock()
        self.restart_kubelet()
        self.shown.clear()
        for resource in self.plugins:
            self.follow(resource)

    def write_down(self):
        """The checkpoint, which the service reads."""
        written_down(self, **{pod: ids for pod, (_, ids) in self.holding.items()})

    async def admit(self, pod, number):
        """Hand out devices to a new pod, as the kubelet does: an error is final. Returns whether it has them."""
        async with self.lock:
            resource = self.vendor.resource
            taken = {name for _, ids in self.holding.values() for name in ids}
            free = [it for it, health in self.shown.get(resource, {}).items() if health == HEALTHY and it not in taken]
            if len(free) < number or resource not in self.plugins:
                self.refusal = f"{pod}: {len(free)} of {number} devices are free"
                return False
            request = wire.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=number)
            asked = wire.PreferredAllocationRequest(container_requests=[request])
            preferred = await self.call(resource, "GetPreferredAllocation", asked)
            if preferred is None:
                return False
            ids = list(preferred.container_responses[0].deviceIDs) or free[:number]
            wanted = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
            answer = await self.call(resource, "Allocate", wanted)
            if answer is None:
                return False
            self.holding[pod] = resource, ids
            self.write_down()
            named = answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"].split(",")
            if sorted(named) != sorted(ids):
                self.accuse(f"{pod} was given {named} in place of {ids}")
            return True

    async def run_pod(self, pod, number):
        """The work of one pod's worker."""
        if pod not in self.holding and not await self.admit(pod, number):
            return
        while pod in self.holding:
            resource, ids = self.holding[pod]
            if await self.call(resource, "PreStartContainer", wire.PreStartContainerRequest(devices_ids=ids)):
                break
            await asyncio.sleep(TRIES_AGAIN)
        if pod in self.holding:
            for name in ids:
                self.judge_started(pod, name)
                self.run(pod, name)

    async def call(self, resource, method, request) -> Any:  # noqa: ANN401 - any answer
        """A call to the gate. None: an error, which also a killed gate is."""
        plugin = self.plugins.get(resource)
        if plugin is None:
            return None
        task = self.on("gate", self._answer(getattr(plugin, method)(request, Call())))
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    async def _answer(self, call) -> Any:  # noqa: ANN401 - any answer
        try:
            return await call
        except Refusal as error:
            self.refusal = str(error)
            if FAULT in self.refusal:
                self.accuse(self.refusal)
            return None

    # -- the promises

    def delivered(self, vendor):
        """The vendor has told the gate its list."""
        before = self.said.get(vendor.resource, {})
        self.said[vendor.resource] = dict(vendor.devices)
        self.listed.setdefault(vendor.resource, set()).update(vendor.devices)
        for name, health in vendor.devices.items():
            if health == UNHEALTHY and before.get(name) != UNHEALTHY:
                self.doubted[name] = self.scrubs(name)

    def judge_asked(self, ids):
        """The vendor is asked after the gate."""
        for name in ids:
            if self.said[self.vendor.resource].get(name) != HEALTHY:
                self.accuse(f"the vendor was asked for {name}, which it does not call healthy")
            if self.truth.records[name].state is not State.GRANTED:
                self.accuse(f"the vendor was asked for {name}, which is {self.truth.records[name].state.value}")

    def judge_started(self, pod, name):
        """A container starts on a device that was scrubbed since the last pod, and since the vendor's last doubt."""
        self.truth.started(pod, name)
        scrubs, (last, before) = self.scrubs(name), self.ran.get(name, ("", -1))
        if last != pod and scrubs <= before:
            self.accuse(f"{pod} runs on {name}, not scrubbed since {last} had it")
        if last != pod and self.doubted.get(name, -1) >= scrubs:
            self.accuse(f"{pod} runs on {name}, not scrubbed since the vendor called it unhealthy")
        for other, (_, ids) in self.holding.items():
            if other != pod and name in ids:
                self.accuse(f"{pod} runs on {name} beside {other}")
        self.ran[name] = pod, scrubs

    def judge_list(self, resource):
        """What the kubelet is shown."""
        shown, said = self.shown[resource], self.said.get(resource, {})
        for pod, (held, ids) in self.holding.items():
            if held == resource and self.listed.get(resource, set()) & set(ids) - shown.keys():
                self.accuse(f"{resource} has lost a device of {pod}")
        for name, health in shown.items():
            if health == HEALTHY and said.get(name) != HEALTHY:
                self.accuse(f"{name} of {resource} is Healthy, but not for the vendor")

    def judge(self):
        """At any time: no device is offered that a person has quarantined, or whose vendor's plugin is away."""
        offered = [resource for resource, shown in self.shown.items() if HEALTHY in shown.values()]
        if offered and not self.vendor.alive and self.loop.time() - self.gone_since > KEPT + SHOWN_AFTER:
            self.accuse(f"{offered} are offered without the vendor's plugin")
        for name, since in self.quarantined.items():
            offered = [resource for resource, shown in self.shown.items() if shown.get(name) == HEALTHY]
            if offered and self.loop.time() - since > SHOWN_AFTER:
                self.accuse(f"{name} is quarantined and Healthy")
        for name, record in self.truth.records.items():
            if record.grant is not None and record.grant.owner:
                self.accuse(f"{name} was granted to {record.grant.owner}, and only pods run here")
