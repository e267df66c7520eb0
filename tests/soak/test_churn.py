"""Many pods, one after the other: nothing grows, and no change of health is lost on its way to the kubelet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from demo.handout import RESOURCE
from demo.stage import Stage
from demo.standins.pods import Phase, Pod
from scrubber.devices.simulated import drills
from tests.flows.node import Node
from tests.soak.guests import Guests
from tests.soak.waiting import within

pytestmark = pytest.mark.night

BRISK = "{paths: {first_look: fast}, clear: {passes: zero}, evict: {grace: 200ms}, budgets: {owner_wait: 500ms}}"
GPUS, WARM_UP, FEW, MANY = 4, 30, 80, 1000
AT_ONCE = 2  # pods beside the newest: one GPU may always be out
STARTS = 5  # one pod in so many really starts a container
CHANGES = 40  # pods from one round of changes of health to the next
FELL_OFF = 79  # the XID of a GPU that fell off the bus
QUIET_WITHIN = 30.0
SENT_WITHIN = 1.0
# Bytes by which a process may grow, whatever the number of pods. Measured over 4,000 pods: the plugin grew by 0.2 MiB;
# the service by 9 MiB, of them 0.1 MiB in the last 600 pods, when the ledger's page cache and log were full.
GROWTH = {"plugin": 2 * 2**20, "service": 12 * 2**20}


@dataclass(frozen=True)
class Size:
    """What a process has."""

    descriptors: int
    threads: int
    resident: int

    @classmethod
    def of(cls, pid: int) -> Size:
        """By /proc."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        return cls(descriptors, int(status["Threads"]), int(status["VmRSS"].split()[0]) * 1024)


@dataclass
class Sent:
    """What the service tells a client that watches, such as the plugin."""

    stage: Stage
    latest: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Follow the list for as long as the body runs."""
        task = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _follow(self) -> None:
        async with self.stage.scrubber() as scrubber, aclosing(scrubber.watch()) as lists:
            async for adverts in lists:
                self.latest = {it.uuid: "Healthy" if it.healthy else "Unhealthy" for it in adverts.devices}

    async def arrives(self, word: str, *uuids: str) -> None:
        """Very soon the service says so of these GPUs, and the kubelet believes what it says of all."""
        kubelet = self.stage.kubelet

        def arrived() -> bool:
            shown = kubelet.devices(RESOURCE)
            return shown == self.latest and {shown[uuid] for uuid in uuids} == {word}

        def what() -> str:
            return f"{uuids} to be {word}: the service says {self.latest}, the kubelet {kubelet.devices(RESOURCE)}"

        async with within(SENT_WITHIN, what):
            while not arrived():
                with suppress(TimeoutError):
                    await kubelet.until(arrived, 0.05)  # the service's list may come after the kubelet's


@pytest.fixture
async def node(tmp_path) -> AsyncIterator[Node]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"name: soak\ndefaults: {BRISK}\n")
    node = Node(Stage(GPUS, "1MiB", str(policy), runs=Guests))
    await node.up()
    yield node
    await node.stage.clear_away(keep=False)


@pytest.mark.timeout(900)
async def test_many_pods_leave_nothing_and_no_health_change_is_lost(node, soak):
    reports = Sent(node.stage)
    await churn(node, range(WARM_UP))
    async with reports.listening():  # also before the first measurement
        await change_health(node, reports, 0)
    await quiet(node)
    before = sizes(node)
    for first in range(0, MANY if soak else FEW, CHANGES):
        await churn(node, range(first, first + CHANGES))
        async with reports.listening():
            await change_health(node, reports, first // CHANGES)
    await quiet(node)
    print(before, sizes(node), sep="\n")  # noqa: T201 - shown with -s, and when the test fails
    await demand_no_growth(node, before)
    streams = [call for call in node.kubelet.calls if call.method == "ListAndWatch" and not call.outcome]
    assert len(streams) == 1
    assert (node.stage.containers.words.reports(), node.stage.containers.seen.faults) == ([], [])


async def churn(node: Node, numbers: range) -> None:
    """Each pod is admitted, some start, and each is deleted when two more have come."""
    alive: deque[Pod] = deque()
    for number in numbers:
        pod = Pod.of(f"pod-{number}", {RESOURCE: 1})
        alive.append(pod)
        status = await (node.kubelet.run(pod) if number % STARTS == 0 else node.kubelet.admit(pod))
        wanted = Phase.RUNNING if number % STARTS == 0 else Phase.PENDING
        assert status.phase is wanted, f"{pod.name}: {status.message or node.waiting(pod)}"
        if len(alive) > AT_ONCE:
            await node.kubelet.delete(alive.popleft())
    for pod in alive:
        await node.kubelet.delete(pod)


async def change_health(node: Node, reports: Sent, number: int) -> None:
    """Two GPUs out by hand and back, a third by its driver; each change arrives."""
    one, two, three, _ = (node.stage.uuids * 2)[number % GPUS :][:GPUS]
    async with node.stage.admin() as admin:
        await asyncio.gather(*(admin.quarantine(it, "a drill", "the soak") for it in (one, two)))
    await reports.arrives("Unhealthy", one, two)
    for uuid in (one, two):
        await reinstate(node, uuid)
        await reports.arrives("Healthy", uuid)
    drills.xid(node.stage.simulated, three, FELL_OFF)
    await node.reach(three, lambda device: device.state == "quarantined")
    await reports.arrives("Unhealthy", three)
    await reinstate(node, three)
    await reports.arrives("Healthy", three)


async def reinstate(node: Node, uuid: str) -> None:
    """Bring it back, as soon as nobody has it any more."""
    await node.reach(uuid, lambda device: device.state == "quarantined")
    async with node.stage.admin() as admin:
        ends = [it.result async for it in admin.reinstate([uuid], "", "the soak") if it.result is not None]
    assert [it.clean for it in ends] == [True], ends
    await node.reach(uuid, lambda device: device.healthy)


async def quiet(node: Node) -> None:
    """No scrub is under way or owed."""
    async with within(QUIET_WITHIN, lambda: "every GPU to be clean, or granted to nobody any more"):
        for uuid in node.stage.uuids:
            await node.reach(uuid, lambda device: device.state in ("clean", "granted"))


def sizes(node: Node) -> dict[str, Size]:
    """Of both programs."""
    return {"plugin": Size.of(node.stage.plugin.pid), "service": Size.of(node.stage.service.pid)}


async def demand_no_growth(node: Node, before: dict[str, Size]) -> None:
    """No more descriptors and threads, once the last connections are closed; memory within its bound."""

    def counts(found: dict[str, Size]) -> dict[str, tuple[int, int]]:
        return {name: (it.descriptors, it.threads) for name, it in found.items()}

    pauses = AsyncRetrying(
        retry=retry_if_exception_type(AssertionError),
        stop=stop_after_delay(QUIET_WITHIN),
        wait=wait_fixed(0.05),
        reraise=True,
    )
    async for attempt in pauses:
        with attempt:
            now, was = counts(sizes(node)), counts(before)  # fewer: a connection was still open when we began
            grown = [name for name in was for at in (0, 1) if now[name][at] > was[name][at]]
            assert not grown, (now, was)
    for name, size in sizes(node).items():
        assert size.resident - before[name].resident <= GROWTH[name], name
