"""The real DRA driver and scrub service, and the kubelet's handling of claims, as tasks of one loop in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from prometheus_client import CollectorRegistry

from demo.standins.api_server import ApiServer
from demo.standins.claims import Claims
from demo.standins.cluster import GROUP, Cluster
from demo.standins.do_nothing_driver import device_slice
from demo.standins.endpoint import PluginError
from demo.standins.http_api import Request, ServerAway
from demo.standins.journal import Journal
from demo.standins.timing import Timing
from plugin.cluster.choice import ReportChoice
from plugin.cluster.retry_loop import Failure, FailureKind
from plugin.devices import MigStrategy, own_devices
from plugin.dra import driver as dra
from plugin.dra.claim_gate import ClaimGate
from plugin.dra.config import DRIVER, DraConfig
from plugin.dra.driver import Driver, OwnDevices
from plugin.dra.metrics import DraCounters
from plugin.kubelet_api import dra_pb2 as wire
from plugin.listing import Listing
from plugin.stopping import InFlight
from scrubber.api import client
from tests.plugin.sides import DirectClient, SidedWorld
from tests.service.node import Kind
from tests.service.virtual import VirtualLoop

NODE = "node-1"


class ClaimWorld(SidedWorld):
    """A node whose service does not take the tasks of driver and kubelet with it when it dies."""

    def __init__(self, loop: VirtualLoop, directory, **more) -> None:
        super().__init__(loop, ("driver", "kubelet"), **more)
        self.directory = directory
        self.server = MemoryServer(directory, NODE)
        self.server.create("resourceslices", device_slice(DRIVER, *map(str.lower, self.uuids), node=NODE))
        self.cluster = Cluster(self.server, NODE)
        self.held: dict[str, str] = {}  # device: the claim that is prepared, before its first Unprepare
        self.forgotten: set[str] = set()  # claims whose Prepare succeeded when the kubelet knew them no longer
        self.last: dict[str, tuple[str, int]] = {}  # device: the claim that had it last, and how many scrubs it had
        self.driver: Driver | None = None
        self.clean_within = 30.0
        self.start_kubelet()

    # -- the kubelet

    def start_kubelet(self):
        """Kill the kubelet, and start another one."""
        self.end_side("kubelet")
        self.claims = Claims(self.directory, self.cluster, Journal(), Timing())
        self.claims.plugins = cast(Any, Calls(self))

    # -- the driver

    def start_driver(self):
        """Kill the driver, and start another one."""
        self.end_driver()
        chosen = DraConfig(cluster=ReportChoice(node=NODE), clean_within=self.clean_within)
        scrubber = cast(client.ScrubberClient, DirectClient(self))
        listing = Listing(scrubber, own_devices("nvidia.com", MigStrategy.MIXED))
        self.on("driver", listing.follow())
        self.driver = Driver(
            *(chosen, listing, ClaimGate(scrubber, listing), cast(Any, self.server), InFlight(), OwnDevices(chosen)),
            DraCounters(CollectorRegistry()),
        )

    def end_driver(self):
        self.driver = None
        self.end_side("driver")

    def leave(self):
        self.driver = None
        super().leave()
        self.loop.run_until_complete(self.server.leave())

    # -- the promise

    def handed(self, claim, uuid):
        """A Prepare has succeeded."""
        holder = self.held.setdefault(uuid, claim)
        if holder != claim:
            self.accuse(f"{claim} has {uuid}, but {holder} was not asked to give it back")
        last, scrubs = self.last.get(uuid, ("", -1))
        if last not in ("", claim) and self.scrubs(uuid) <= scrubs:
            self.accuse(f"{claim} has {uuid}, not scrubbed since {last} had it")
        for process in self.node.gpus[uuid].processes.values():
            if process.kind is Kind.TENANT and process.name != claim:
                self.accuse(f"{claim} has {uuid} beside a process of {process.name}")
        self.last[uuid] = claim, self.scrubs(uuid)


class MemoryServer(ApiServer):
    """An API server without a socket."""

    away = False
    made = 0

    def new_uid(self):
        self.made += 1
        return f"uid-{self.made}"

    def ask(self, request):
        if self.away:
            raise ServerAway("connection refused")
        answer = self.obey(request)
        assert not callable(answer)
        return answer

    async def claim(self, namespace, name):
        """As the driver's client reads a claim."""
        try:
            answer = self.ask(Request("GET", f"{GROUP}/namespaces/{namespace}/resourceclaims/{name}"))
        except ServerAway as error:
            raise Failure(FailureKind.AWAY, str(error)) from None
        if answer.code != 200:
            raise Failure(FailureKind.MISSING, "it does not exist")
        return answer.body


class Calls:
    """The kubelet's calls, with their deadline. A killed driver answers none."""

    driver = DRIVER

    def __init__(self, world: ClaimWorld) -> None:
        self.world = world

    def plugin(self, _driver):
        return self

    async def prepare(self, claims):
        request = wire.NodePrepareResourcesRequest(claims=claims)
        answer = await self._call(lambda driver: driver.NodePrepareResources(request, cast(Any, Deadline())))
        for uid, result in answer.claims.items():
            if uid not in self.world.claims.uids().values():
                self.world.forgotten.add(uid)  # fault D1: the claim has ended during the call
            for device in () if result.error else result.devices:
                self.world.handed(uid, device.cdi_device_ids[0].partition("=")[2])
        return answer

    async def unprepare(self, claims):
        request = wire.NodeUnprepareResourcesRequest(claims=claims)
        ended = {claim.uid for claim in claims}
        self.world.held = {uuid: claim for uuid, claim in self.world.held.items() if claim not in ended}
        return await self._call(lambda driver: driver.NodeUnprepareResources(request, cast(Any, Deadline())))

    async def _call(self, call: Callable[[Driver], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401 - both answers
        if self.world.driver is None:
            raise PluginError("connection refused")
        task = self.world.on("driver", call(self.world.driver))
        try:
            await asyncio.wait({task}, timeout=dra.CALL_WITHIN)
        finally:
            task.cancel()
        if not task.done() or task.cancelled():
            raise PluginError("no answer")
        return task.result()


class Deadline:
    """The context of a call."""

    def time_remaining(self):
        return dra.CALL_WITHIN
