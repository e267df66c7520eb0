"""Many pods, one after the other: the programs do not grow, and changes of health arrive at the kubelet."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from demo.installation import RESOURCE
from demo.stage import Stage
from demo.standins.pods import Phase, Pod
from scrubber.devices.simulated import drills
from tests.flows.node import Node
from tests.soak.guests import Guests

pytestmark = pytest.mark.night

BRISK = "{paths: {first_look: fast}, clear: {passes: zero}, evict: {grace: 200ms}, budgets: {allocate: 1s}}"
GPUS, WARM_UP, FEW, MANY = 4, 30, 80, 1000
AT_ONCE = 2  # pods beside the newest: one GPU may always be out
STARTS = 5  # one pod in so many really starts a container
CHANGES = 40  # pods from one round of changes of health to the next
FELL_OFF = 79  # the XID of a GPU that fell off the bus
QUIET_WITHIN = 30.0
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


@pytest.fixture
async def node(tmp_path) -> AsyncIterator[Node]:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"name: soak\ndefaults: {BRISK}\n")
    node = Node(Stage(GPUS, "1MiB", str(policy), runs=Guests))
    await node.up()
    yield node
    await node.stage.clear_away(keep=False)


@pytest.mark.timeout(900)
async def test_many_pods_leave_nothing_and_no_health_change_is_lost(node, request):
    await churn(node, range(WARM_UP))
    await change_health(node, 0)  # also before the first measurement
    await quiet(node)
    before = sizes(node)
    for first in range(0, MANY if request.config.getoption("--soak") else FEW, CHANGES):
        await churn(node, range(first, first + CHANGES))
        await change_health(node, first // CHANGES)
    await quiet(node)
    print(before, sizes(node), sep="\n")  # noqa: T201 - shown with -s, and when the test fails
    await demand_no_growth(node, before)
    streams = [call for call in node.kubelet.calls if call.method == "ListAndWatch" and not call.outcome]
    assert len(streams) == 1
    assert (node.stage.containers.words.reports(), node.stage.containers.faults) == ([], [])


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


async def change_health(node: Node, number: int) -> None:
    """One GPU goes out by hand, another one by its driver, and both come back; each change arrives."""
    by_hand, by_driver = (node.stage.uuids * 2)[number % GPUS :][:2]
    async with node.stage.admin() as admin:
        await admin.quarantine(by_hand, "a drill", "the soak")
    drills.xid(node.stage.simulated, by_driver, FELL_OFF)
    for uuid in (by_hand, by_driver):
        await node.health(uuid, "Unhealthy")
        await node.reach(uuid, lambda device: device.state == "quarantined")
        async with node.stage.admin() as admin:
            ends = [it.result async for it in admin.reinstate([uuid], "", "the soak") if it.result is not None]
        assert [it.clean for it in ends] == [True], ends
        await node.health(uuid, "Healthy")


async def quiet(node: Node) -> None:
    """No scrub is under way or owed."""
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
