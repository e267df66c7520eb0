"""The real DRA driver and scrub service, and the kubelet's handling of claims, as tasks of one loop in virtual time.

Each of the three can be killed: its tasks end, and the others see what they would see of a dead process.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast

from prometheus_client import CollectorRegistry

from demo.standins.api_server import ApiServer
from demo.standins.claims import Claims
from demo.standins.cluster import GROUP, Cluster
from demo.standins.do_nothing_driver import device_slice
from demo.standins.endpoint import PluginError
from demo.standins.http_api import Request, ServerAway
from demo.standins.journal import Journal
from demo.standins.quirks import Quirks, Timing
from plugin.cluster.base import Failure, FailureKind
from plugin.cluster.credentials import ReportChoice
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
from scrubber.core import events as ev
from scrubber.ground.device_messages import GrantedDevice
from scrubber.ground.errors import NotReady, Reason, Unreachable
from tests.service.node import Kind
from tests.service.virtual import VirtualLoop, is_kill
from tests.service.world import World

NODE = "node-1"
LAG = 0.2  # seconds until the list shows a change
SIDE: ContextVar[str] = ContextVar("SIDE", default="service")


class ClaimWorld(World):
    """A node whose service does not take the tasks of driver and kubelet with it when it dies."""

    def __init__(self, loop: VirtualLoop, directory, **more) -> None:
        super().__init__(loop, **more)
        self.sides: dict[str, dict[asyncio.Task[Any], None]] = {"driver": {}, "kubelet": {}}  # in order
        loop.set_task_factory(self._task)
        self.directory = directory
        self.server = MemoryServer(directory, NODE)
        self.server.create("resourceslices", device_slice(DRIVER, *map(str.lower, self.uuids), node=NODE))
        self.cluster = Cluster(self.server, NODE)
        self.wrong: list[str] = []  # broken promises
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
        self.claims = Claims(self.directory, self.cluster, Journal(), Quirks(), Timing())
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

    # -- sides

    def on(self, side, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task on one side; it ends with it."""
        context = copy_context()
        context.run(SIDE.set, side)
        return self.loop.create_task(work, context=context)

    def end_side(self, side):
        for task in list(self.sides[side]):
            task.cancel()

    def _task(self, loop, work, **more) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        side = more["context"].get(SIDE, "service") if "context" in more else SIDE.get()
        if side in self.sides:
            self.sides[side][task] = None
            task.add_done_callback(self.sides[side].pop)
        return task

    def _tasks(self) -> set[asyncio.Task[Any]]:
        return super()._tasks().difference(*self.sides.values())

    # -- the promise

    def scrubs(self, uuid) -> int:
        """How many scrubs of a device have passed."""
        return sum(entry.device == uuid and isinstance(entry.event, ev.ScrubPassed) for entry in self.truth.entries)

    def handed(self, claim, uuid):
        """A Prepare has succeeded."""
        holder = self.held.setdefault(uuid, claim)
        if holder != claim:
            self.wrong.append(f"{self.loop.time():.2f}: {claim} has {uuid}, but {holder} was not asked to give it back")
        last, scrubs = self.last.get(uuid, ("", -1))
        if last not in ("", claim) and self.scrubs(uuid) <= scrubs:
            self.wrong.append(f"{self.loop.time():.2f}: {claim} has {uuid}, not scrubbed since {last} had it")
        for process in self.node.gpus[uuid].processes.values():
            if process.kind is Kind.TENANT and process.name != claim:
                self.wrong.append(f"{self.loop.time():.2f}: {claim} has {uuid} beside a process of {process.name}")
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


class DirectClient:
    """Calls the service in this process. A service that was killed meanwhile answers nothing."""

    def __init__(self, world: ClaimWorld) -> None:
        self.world = world

    async def acquire(self, devices, *, exclusive, owner, op, timeout):  # noqa: ASYNC109 - as the client
        return await self._ask(lambda: self._granted(devices, exclusive, owner, op, timeout), timeout)

    async def _granted(self, devices, exclusive, owner, op, within) -> list[GrantedDevice]:
        life = self.world.life
        grants = await life.service.handover.acquire(
            devices, announced=False, exclusive=exclusive, owner=owner, op=op, within=within
        )
        return [*grants.values()]

    async def release(self, *, owner, op):
        released = await self._ask(lambda: self.world.handover.release(owner=owner, op=op), client.SHORT)
        return frozenset(released)

    async def watch(self):
        while self.world.up:
            life = self.world.life
            yield life.reporter.adverts()
            await life.ledger.newer_row(life.ledger.seq, 2.0)
            await asyncio.sleep(LAG)
            if not self.world.up or self.world.life is not life:
                break
        raise Unreachable("the service is away")

    async def _ask(self, call: Callable[[], Coroutine[Any, Any, Any]], within: float) -> Any:  # noqa: ANN401 - any answer
        if not self.world.up:
            raise Unreachable("the service is away")
        task = Context().run(self.world.spawn, call())
        try:
            await asyncio.wait({task}, timeout=within)
        finally:
            late = not task.done()
            task.cancel()
        if late:
            raise NotReady(Reason.TIMED_OUT, "the scrub service did not answer in time")
        if task.cancelled() or is_kill(task.exception()):
            raise Unreachable("the service was killed")
        return task.result()
