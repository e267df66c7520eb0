"""What looking at NVIDIA GPUs costs: eight of them, cut into seven slices each, on a node with many processes.

The driver is a library of our own under the real pynvml (``tests/fakes/nvml``), so a real driver's time is not in the
figures. The processes are real. Whoever may not be looked into is passed over: a sandbox hides some, and then every
look would end with "unknown".
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.figures import Figure, quantile
from benchmarks.processes import await_line, crowd
from scrubber.core import events as ev
from scrubber.core.model import Moment, Owner, Record, State
from scrubber.core.states import apply
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.host import Host
from scrubber.node import proc
from scrubber.node.cgroups import Containers
from scrubber.node.processes import Processes
from scrubber.observe.driver_calls import DriverCalls
from scrubber.observe.observation_cache import ObservedSince
from scrubber.observe.observer import Observer
from scrubber.service.monitor import STAGGER, Monitor
from tests.fakes.nvml.build import build
from tests.fakes.nvml.host import Root
from tests.fakes.nvml.machine import Machine, Slice

PROC = Path("/proc")
GPUS, SLICES, PROCESSES = 8, 7, 2000
HOLD = "import sys, time; held = [open(name) for name in sys.argv[1:]]; print(flush=True); time.sleep(3600)"
BEGAN = Moment(0.0, 0.0)


async def measure(*, quick: bool) -> list[Figure]:
    """A full look; then rounds as the monitor makes them, over idle slices and over slices in use."""
    size = 100 if quick else PROCESSES
    with tempfile.TemporaryDirectory(prefix="autoclave-") as directory, crowd(size):
        machine, root = _machine(Path(directory))
        whole = await _figures(Node(root, machine), f"{GPUS} GPUs, {size} processes", quick=quick)
        for number in range(GPUS):
            machine.gpu(number).cut([Slice("1g.18gb")] * SLICES)
        return whole + await _figures(
            Node(root, machine), f"{GPUS} GPUs x {SLICES} slices, {size} processes", quick=quick
        )


async def _figures(node: Node, about: str, *, quick: bool) -> list[Figure]:
    looks = [await node.look() for _ in range(3 if quick else 11)]
    seconds = 3.0 if quick else 30.0
    idle = await node.rounds({}, seconds)
    with node.tenants() as owners:
        used = await node.rounds(owners, seconds)
    looked = f"nvidia, {about}: full look (inventory, holders, health)"
    return [
        Figure(looked, quantile(looks, 0.5), "s", len(looks), "<= 0.5 s"),
        Figure(f"nvidia, {about}: monitor, all idle", idle * 100, "% of a core", 1, "<= 0.5 %"),
        Figure(f"nvidia, {about}: monitor, all in use", used * 100, "% of a core", 1, "<= 0.5 %"),
    ]


def _machine(directory: Path) -> tuple[Machine, Root]:
    """One that pynvml in this process finds."""
    machine = Machine.h200(directory / "machine", GPUS)
    os.environ |= machine.environment
    # Its name is the one that pynvml asks for, and who is loaded under a name is not looked for again.
    ctypes.CDLL(str(build(directory / "lib")), mode=ctypes.RTLD_GLOBAL)
    return machine, Root.of(machine, directory / "root")


@dataclass
class Node(Containers):
    """The service's eyes on a machine."""

    root: Root
    machine: Machine
    pods: dict[int, str] = field(default_factory=dict)  # by the pid of their one process

    def __post_init__(self) -> None:
        """Nothing was seen yet."""
        host = Host(self.root.path, pid_namespace=proc.own_namespace(PROC))
        settings = self.root.path / "settings"
        self.backend = Nvidia(host, self, settings)
        processes = Processes(PROC, self.pods.get, whole_node=False)
        self.sight = Observer(DriverCalls(self.backend, "boot"), processes, self.root.path, ObservedSince(0.0))

    def of(self, pid: int) -> str | None:
        """The pod of a process."""
        return self.pods.get(pid)

    def living(self) -> dict[str, int]:
        """Each pod with its process."""
        return {pod: pid for pid, pod in self.pods.items()}

    def member(self, pod: str) -> int | None:
        """Only ``living`` tells."""
        del pod
        return None

    async def look(self) -> float:
        """Everything about every device; the seconds that it took."""
        began = time.perf_counter()
        records = await self.records({})
        await asyncio.gather(*(self.sight.full(record) for record in records))
        await asyncio.gather(*(self.sight.health.vitals(record.device.uuid) for record in records))
        return time.perf_counter() - began

    async def records(self, owners: dict[str, str]) -> list[Record]:
        """What the ledger would hold of them."""
        incarnation = await self.sight.driver.incarnation()
        found = []
        for info in await self.sight.driver.inventory():
            record = apply(None, ev.LedgerEntry(0, info.uuid, BEGAN, "op", ev.Discovered(info, incarnation)))
            if info.uuid in owners:
                exposed = ev.PutInUse(Owner(owners[info.uuid], BEGAN, seen=True))
                record = apply(record, ev.LedgerEntry(0, info.uuid, BEGAN, "op", exposed))
            else:
                record = replace(record, state=State.CLEAN)
            found.append(record)
        return found

    async def rounds(self, owners: dict[str, str], seconds: float) -> float:
        """The share of a core that rounds over all devices take, once each was looked at."""
        await asyncio.gather(*(self.sight.full(record) for record in await self.records(owners)))
        ends, before = time.monotonic() + seconds, time.process_time()
        began = time.monotonic()
        monitor = await self._monitor(owners)
        while time.monotonic() < ends:
            await monitor.round(STAGGER)
            await asyncio.sleep(self.backend.pace)
        return (time.process_time() - before) / (time.monotonic() - began)

    async def _monitor(self, owners: dict[str, str]) -> Monitor:
        """One whose service finds nothing to be done: it is about looking."""
        records = {record.device.uuid: record for record in await self.records(owners)}

        async def reconcile(device: str) -> Record:
            await self.sight.health.vitals(device)
            await self.sight.quick(records[device])
            return records[device]

        async def nothing(*_about: object) -> None: ...

        upkeep = SimpleNamespace(
            needs_nothing=lambda _record, _facts: True, reconcile=reconcile, try_ledger=nothing, register=nothing
        )
        context = SimpleNamespace(ledger=SimpleNamespace(records=records), now=lambda: BEGAN)
        service: Any = SimpleNamespace(context=context, upkeep=upkeep, restores=SimpleNamespace(start=nothing))
        return Monitor(service, self.sight, self.backend.pace)

    @contextmanager
    def tenants(self) -> Iterator[dict[str, str]]:
        """A pod with one process on every slice; the pods by device."""
        uuids = [info.uuid for info in self.backend.inventory()]
        processes = [_started([sys.executable, "-c", HOLD, *self.backend.files(uuid)]) for uuid in uuids]
        self.pods.update({process.pid: f"pod-{process.pid}" for process in processes})
        try:
            yield {uuid: f"pod-{process.pid}" for uuid, process in zip(uuids, processes, strict=True)}
        finally:
            for process in processes:
                process.kill()
                process.wait()
            self.pods.clear()


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    await_line(process)
    return process
