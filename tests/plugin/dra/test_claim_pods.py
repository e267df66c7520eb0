"""Who may open the GPU of a claim: the pods that it is reserved for now, as the fence of this machine's kernel lets in.

The real driver and the real scrub service as processes. The test speaks for kubelet and API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from demo import groups
from demo.standins.api_server import CLAIMS, ApiServer
from demo.standins.http_api import silence
from scrubber.devices.simulated import layout, loops
from tests.control_groups import group, run
from tests.live import Service
from tests.patience import WITHIN
from tests.plugin.dra.live_driver import LiveDriver, allocated

__all__ = ["group"]  # a fixture

POLICY = "name: quick\ndefaults: {paths: {first_look: fast}, clear: {passes: zero}, fence: {mode: refuse}}\n"
FIRST, SECOND = (f"0f5b4c5e-0000-4000-8000-00000000000{number}" for number in (1, 2))
OPENS = """
try:
    os.close(os.open(sys.argv[1], os.O_RDWR))
    print('opened')
except PermissionError:
    print('refused')
"""


class Node:
    """A node with one GPU, on which two pods run."""

    def __init__(self, service: Service, api: ApiServer, group: Path) -> None:
        self.service, self.api = service, api
        self.gpu = service.settled(0, "clean").device
        self.pods = {pod: groups.of_container(group, pod) for pod in (FIRST, SECOND)}

    def reserve(self, *pods: str) -> None:
        """The claim has the GPU, and the cluster has reserved it for these pods."""
        self.api.put(CLAIMS, allocated("a", self.gpu.lower(), pods=pods))

    async def opens(self) -> tuple[str, ...]:
        """What happens when the first and the second pod open the GPU."""
        memory = str(self.service.simulated_dir / "gpu0/memory")
        return tuple([await asyncio.to_thread(run, group, OPENS, memory) for group in self.pods.values()])

    async def until(self, *wanted: str) -> None:
        async with asyncio.timeout(WITHIN):
            while await self.opens() != wanted:
                """The driver learns of the change, and tells the service."""


@pytest.fixture
async def node(group: Path, short_tmp: Path, api: ApiServer) -> AsyncIterator[Node]:
    if not loops.can_attach(2**20):
        pytest.skip("takes root, and loop devices")
    (short_tmp / "quick.yaml").write_text(POLICY)
    flags = "--cgroup-root", group, "--policy", short_tmp / "quick.yaml"
    service = await asyncio.to_thread(Service, short_tmp, 1, *flags)
    yield await asyncio.to_thread(Node, service, api, group)
    service.kill()
    for place in layout.places(service.simulated_dir):
        layout.remove_node(place)


Start = Callable[[], Awaitable[LiveDriver]]


async def test_a_claim_is_open_to_its_pods_until_its_end(node: Node, live_driver: Start) -> None:
    driver = await live_driver()
    assert await node.opens() == ("refused", "refused")
    node.reserve(FIRST)
    assert await driver.call("prepare", "a") == ""
    assert await node.opens() == ("opened", "refused")
    node.reserve(FIRST, SECOND)
    await node.until("opened", "opened")
    node.reserve(SECOND)
    await node.until("refused", "opened")
    node.reserve()
    await node.until("refused", "refused")
    assert await driver.call("unprepare", "a") == ""
    node.reserve(FIRST)
    assert await node.opens() == ("refused", "refused")


async def test_the_kubelets_second_prepare_names_the_pods_of_then(node: Node, live_driver: Start) -> None:
    """A kubelet that was restarted prepares a claim for the second pod, which starts at once. No watch is needed."""
    node.api.fault = lambda request: silence(request) if request.query.get("watch") else None
    driver = await live_driver()
    for pods, opened in (((FIRST,), ("opened", "refused")), ((FIRST, SECOND), ("opened", "opened"))):
        node.reserve(*pods)
        assert await driver.call("prepare", "a") == ""
        assert await node.opens() == opened


async def test_a_later_driver_follows_the_claims_of_an_earlier_one(node: Node, live_driver: Start) -> None:
    driver = await live_driver()
    node.reserve(FIRST)
    assert await driver.call("prepare", "a") == ""
    await driver.clear_away()
    node.reserve(SECOND)
    assert await node.opens() == ("opened", "refused")
    await live_driver()
    await node.until("refused", "opened")


async def test_without_the_api_server_the_last_pods_stay_let_in(node: Node, live_driver: Start) -> None:
    driver = await live_driver()
    node.reserve(FIRST)
    assert await driver.call("prepare", "a") == ""
    await node.api.close()
    node.reserve(FIRST, SECOND)
    await driver.hear("cannot follow the pods of a claim")
    assert await node.opens() == ("opened", "refused")
    await node.api.open()
    await node.until("opened", "opened")


async def test_a_service_that_was_killed_lets_in_the_same_pods(node: Node, live_driver: Start) -> None:
    driver = await live_driver()
    node.reserve(FIRST)
    assert await driver.call("prepare", "a") == ""
    node.service.kill()
    node.reserve(FIRST, SECOND)
    assert await node.opens() == ("opened", "refused")
    await asyncio.to_thread(node.service.start)
    await node.until("opened", "opened")
