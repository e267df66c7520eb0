"""The runtime of the soak: looks at everything that can be seen before a container starts, and at what it ends."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

from demo.containers import mark
from demo.standins.pods import Container, ContainerKind, Pod
from demo.standins.runtime import Devices
from plugin.kubelet_api import deviceplugin_pb2
from scrubber.devices.simulated import containers, layout, tenants
from tests.flows.node import Watched
from tests.soak.tenancy import Tenancies

Key = tuple[str, str]  # pod UID, container
MARKS = 3  # that a container writes into each of its devices


class Witness(Watched):
    """Collects what must not be; the test reads ``faults`` when it is over."""

    def __init__(self, simulated: Path) -> None:
        super().__init__(simulated)
        self.ledger = simulated  # named by the fixture as soon as there is a stage
        self.faults: list[str] = self.leaks
        self.begun: Counter[ContainerKind] = Counter()
        self.zombies: dict[int, str] = {}  # pid to the UID of the pod that left it behind
        self.careless: set[Key] = set()  # containers that leave a process behind at their next end
        self._tenancies = Tenancies()
        self._held: dict[Key, tuple[str, ...]] = {}  # containers that run, to their devices
        self._leaving: dict[Key, asyncio.Task[None]] = {}

    async def start(
        self, pod: Pod, container: Container, devices: Devices, response: deviceplugin_pb2.ContainerAllocateResponse
    ) -> None:
        held = tuple(uuid for ids in devices.values() for uuid in ids)
        for uuid in held:
            wrong = [*self._others(pod, uuid), *self._tenancies.objections(self.ledger, uuid, pod.uid)]
            self.faults += [f"{container.name} of {pod.name} ({pod.uid}) starts on {uuid}, but {it}" for it in wrong]
        self.begun[container.kind] += 1
        await super().start(pod, container, devices, response)
        if container.kind is not ContainerKind.INIT:
            self._held[pod.uid, container.name] = held

    async def stop(self, pod: Pod, container: Container) -> None:
        key = (pod.uid, container.name)
        for uuid in self._held.get(key, ()):
            self._demand_untouched(pod, container, uuid)
        if key in self.careless and key in self._held:
            self.careless.discard(key)
            self._leaving[key] = asyncio.create_task(self._leave_behind(pod, self._held[key][0]))
        if key in self._leaving:  # asked again after the kubelet died: never before the process is there
            await asyncio.shield(self._leaving[key])
        self._held.pop(key, None)
        self._leaving.pop(key, None)
        await super().stop(pod, container)

    def _others(self, pod: Pod, uuid: str) -> list[str]:
        """Everybody on the device who is not of this pod."""
        found = holders(layout.find(self._simulated, uuid).memory)
        ours = {pid for pid, uid in self.zombies.items() if uid == pod.uid}
        return [f"{pid} of {who} is on it" for pid, who in found.items() if who != pod.uid and pid not in ours]

    def _demand_untouched(self, pod: Pod, container: Container, uuid: str) -> None:
        """Nothing was taken from a container that has it in use."""
        memory = layout.find(self._simulated, uuid).memory.read_bytes()
        if memory.count(mark(pod.uid).encode()) < MARKS:
            self.faults.append(f"the memory of {uuid} was overwritten under {container.name} of {pod.name}")
        ended = [it.pid for it in self._running.get((pod.uid, container.name), ()) if it.returncode is not None]
        if ended:
            self.faults.append(f"{container.name} of {pod.name} was killed on {uuid} (pid {ended})")

    async def _leave_behind(self, pod: Pod, uuid: str) -> None:
        pid = await asyncio.to_thread(tenants.zombie, self._simulated, uuid, mark(pod.uid).encode())
        self.zombies[pid] = pod.uid


def holders(memory: Path) -> dict[int, str | None]:
    """Who has a file open, by /proc: pid to the container it belongs to."""
    wanted = memory.stat()
    return {
        int(entry.name): containers.of(int(entry.name))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _has_open(entry, (wanted.st_dev, wanted.st_ino))
    }


def _has_open(process: Path, wanted: tuple[int, int]) -> bool:
    try:
        with os.scandir(process / "fd") as entries:
            return any(_is(entry, wanted) for entry in entries)
    except OSError:  # it is gone
        return False


def _is(entry: os.DirEntry[str], wanted: tuple[int, int]) -> bool:
    try:
        found = entry.stat()
    except OSError:  # closed meanwhile, or no file
        return False
    return (found.st_dev, found.st_ino) == wanted
