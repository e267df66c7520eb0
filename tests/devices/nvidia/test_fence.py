"""NVIDIA GPUs behind the fence: the kernel here counts who opens the nodes of a stand-in's GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scrubber.core import events as ev
from scrubber.core import proof
from scrubber.core.model import DeviceNumber, Facts, Incarnation, NodeKind
from scrubber.core.observation import Purpose
from scrubber.core.record import Record
from scrubber.core.use_counter import Counted, UseCounter
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.fence.guard import Guard
from scrubber.fence.ignored import Sources, Terms
from scrubber.fence.kernel.fence import Fence
from scrubber.node import clock
from scrubber.node.cgroup_tree import Tree
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observed_since import ObservedSince
from scrubber.observe.observer import Observer
from scrubber.service.fence_upkeep import FenceUpkeep
from tests.control_groups import foreign, group, identity, made_group, run
from tests.core import lives
from tests.devices.nvidia import bench

__all__ = ["foreign", "group"]  # fixtures
gpu = bench.gpu

USES = """
node = sys.argv[1]
if not os.path.exists(node):
    os.mknod(node, 0o20666, os.makedev(195, int(sys.argv[2])))
try:
    os.open(node, os.O_RDWR)
except OSError as error:
    print(error.errno)  # no driver is here: ENXIO
"""


def is_bystander(_holder: object) -> bool:
    return False


class Run:
    """One run of the service: what it knows of the GPUs, and a proven one."""

    def __init__(self, backend: Nvidia, group: Path, own: Path, folder: Path) -> None:
        processes = Processes(Path("/proc"), lambda _pid: None, whole_node=False)
        sources = Sources(
            processes.process,
            lambda _pod: frozenset(),
            lambda _uuid: is_bystander,
            lambda _uuid: Terms(),
            lambda: None,
            Tree(group).place,
            Tree(group).runs,
        )
        self.guard = Guard(Fence(group), identity(own), sources)
        self.guard.start()
        driver = DriverCalls(backend, "boot", guard=self.guard)
        since = ObservedSince(clock.now().uptime)
        self.observer = Observer(driver, processes, folder, since, lives.no_reset)
        self.fence = FenceUpkeep(self.guard, since)
        self._incarnation = Incarnation("boot", backend.driver())

    async def proven(self, uuid: str) -> Record:
        """A GPU that was proven clean just now."""
        device = next(it for it in await self.observer.driver.inventory() if it.uuid == uuid)
        scrubbing = replace(lives.SCRUBBING, device=device, incarnation=self._incarnation)
        await self.observer.look(scrubbing, Purpose.CHANGE)  # a scrub begins with one, too
        facts = await self.observer.look(scrubbing, Purpose.CHANGE)
        assert isinstance(facts.use_reading, Counted)
        assert facts.use_reading.by is UseCounter.FENCE
        receipt = replace(lives.proof(lives.CLEAN), device=uuid, finished=facts.at, witness=UseCounter.FENCE.value)
        scrubs = replace(lives.CLEAN.scrubs, receipt=receipt)
        record = replace(lives.CLEAN, device=device, incarnation=self._incarnation, scrubs=scrubs)
        self.fence.recorded(record)
        return record

    async def resumed(self, record: Record) -> Facts:
        """What is known of a GPU at the start of the service."""
        await self.observer.driver.inventory()
        self.fence.recorded(record)
        self.fence.resume([record])
        return await self.observer.look(record, Purpose.CHANGE)

    def stop(self) -> None:
        self.guard.close()


@pytest.fixture
def start(rig, group: Path, tmp_path: Path) -> Iterator[Callable[[], Run]]:
    """Starts the service, once more after each stop."""
    own, runs = made_group(group / "service"), list[Run]()

    def begin() -> Run:
        runs.append(Run(rig.backend(), group, own, tmp_path))
        return runs[-1]

    yield begin
    for each in runs:
        each.stop()


async def test_each_short_use_of_a_clean_gpu_ends_its_proof(start, gpu, foreign: Path, tmp_path: Path) -> None:
    service = start()
    for _ in range(3):
        record = await service.proven(gpu.uuid)
        unused = await service.observer.look(record, Purpose.CHANGE)
        assert proof.ended(record, unused) is None
        run(foreign, USES, str(tmp_path / "node"), str(record.device.minor))
        ended = proof.ended(record, await service.observer.look(record, Purpose.ROUND))
        assert isinstance(ended, ev.Soiled)


async def test_a_proof_outlives_the_service_until_it_is_used(start, gpu, foreign: Path, tmp_path) -> None:
    service = start()
    record = await service.proven(gpu.uuid)
    service.stop()
    facts = await start().resumed(record)
    assert facts.observed_since == record.scrubs.receipt.finished.uptime
    assert facts.used_at == -math.inf
    assert proof.ended(record, facts) is None
    run(foreign, USES, str(tmp_path / "node"), str(record.device.minor))
    asked = await start().resumed(record)
    assert isinstance(proof.ended(record, asked), ev.Soiled)


async def test_a_use_after_the_proof_is_known_after_a_restart(start, gpu, foreign, tmp_path) -> None:
    service = start()
    record = await service.proven(gpu.uuid)
    run(foreign, USES, str(tmp_path / "node"), str(record.device.minor))
    await service.observer.look(record, Purpose.CHANGE)
    service.fence.recorded(record)
    asked = await start().resumed(record)
    assert isinstance(proof.ended(record, asked), ev.Soiled)


async def test_another_proof_does_not_outlive_the_service(start, gpu) -> None:
    service = start()
    record = await service.proven(gpu.uuid)
    other = replace(record, scrubs=replace(record.scrubs, receipt=replace(record.scrubs.receipt, id="older")))
    began = clock.now().uptime
    facts = await start().resumed(other)
    assert facts.observed_since >= began


def test_a_gpu_has_the_numbers_of_its_nodes(rig, gpu) -> None:
    backend = rig.seen()
    minor = next(it.minor for it in backend.inventory() if it.uuid == gpu.uuid)
    node = DeviceNumber(NodeKind.CHARACTER, 195, minor)
    assert backend.numbers(gpu.uuid) == {node}
    graphics = rig.host.sys_pci / gpu.pci.lower() / "drm/renderD128"
    graphics.mkdir(parents=True)
    (graphics / "dev").write_text("226:128\n")
    assert backend.numbers(gpu.uuid) == {node, DeviceNumber(NodeKind.CHARACTER, 226, 128)}
