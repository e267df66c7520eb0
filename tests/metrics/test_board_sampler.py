"""What GPUs measure is shown as it was read last, and not at all when that failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from scrubber.devices.base import Readings
from scrubber.devices.simulated import drills, layout
from scrubber.devices.simulated.simulated_backend import Simulated
from scrubber.metrics.gauges import BoardSampler
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from tests.core import lives
from tests.patience import WITHIN

PATIENCE = 0.1
MADE = (41.0, 90.0, 75.0)


class Node:
    """Two simulated GPUs and a thermometer that looks again at once."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "gpus"
        layout.create(self.root, 2, 4096)
        self.backend = Simulated(self.root)
        self.uuids = tuple(info.uuid for info in self.backend.inventory())
        processes = Processes(Path("/proc"), self.backend.container_of, whole_node=False)
        self.observer = Observer(
            DriverCalls(self.backend, "boot", patience=PATIENCE),
            processes,
            folder,
            ObservedSince(0.0),
            resetting=lives.no_reset,
        )
        self.board_sampler = BoardSampler(self.observer, every=0.001)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.board_sampler.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def shows(self, expected: Callable[[dict[str, Readings]], bool]) -> None:
        """Wait until the sampler has the expected readings."""
        async with asyncio.timeout(WITHIN):
            while not expected(dict(self.board_sampler.latest)):  # noqa: ASYNC110 -- it sends no event
                await asyncio.sleep(0.001)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    it = Node(tmp_path)
    yield it
    it.backend.close()


async def test_readings_are_shown_only_while_they_are_current(node: Node) -> None:
    one, other = node.uuids
    well = {one: Readings(0, *MADE), other: Readings(1, *MADE)}
    assert node.board_sampler.latest == {}
    async with node.running():
        await node.shows(lambda latest: latest == well)
        drills.heat(node.root, one, 97)
        await node.shows(lambda latest: latest == well | {one: Readings(0, 97.0, *MADE[1:])})
        drills.lose(node.root, one)
        await node.shows(lambda latest: latest.keys() == {other})
    assert node.board_sampler.latest == {}


async def test_a_hanging_gpu_hides_readings_until_it_answers(node: Node) -> None:
    async with node.running():
        await node.shows(bool)
        drills.hang(node.root, node.uuids[0])
        await node.shows(lambda latest: latest == {})
        assert await node.observer.health.readings() == {}  # at once: the earlier call has not returned
        drills.heal(node.root, node.uuids[0])
        await node.shows(lambda latest: latest.keys() == {*node.uuids})
