"""What a standby of the plugin is good for, and what it costs: a kill with and without one, and its price while idle.

The baseline in the same run is a device plugin that does nothing, in the same language, started again at once. It gets
GPUs from nobody, so no service is asked. The kubelet is the stand-in.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import chain, processes, rig
from benchmarks.figures import Figure, quantile
from demo.installation import RESOURCE, ByPlugin, ByVendor, Installation
from demo.programs import ServiceProgram
from demo.standins import do_nothing_plugin
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod

GPUS = 4
AFTER = (0.0, 0.1, 0.3)  # seconds after the kill: a pod comes
TURNS = 20
WITHIN = 60.0  # seconds for a plugin to register
FLOOR = "do-nothing Python plugin"


@dataclass
class Killed:
    """A plugin, with or without a standby, and the kubelet that it serves."""

    kubelet: Kubelet
    resource: str
    present: ServiceProgram
    standby: ServiceProgram | None
    again: Callable[[], Awaitable[None]]  # makes all devices free and clean

    async def kill(self) -> None:
        """End the present one. What has ended is started again, as the kubelet and systemd do: as the standby."""
        await self.present.end(signal.SIGKILL)
        if self.standby is None:
            await self.present.start()
        else:
            self.present, self.standby = self.standby, self.present
            await stand_by(self.standby)

    def offered(self) -> int:
        """How many devices pods may get."""
        return self.kubelet.allocatable.get(self.resource, 0)

    async def offers_all(self) -> None:
        """Return when pods may get all devices."""
        await self.kubelet.until(lambda: self.offered() == GPUS, WITHIN)


async def stand_by(program: ServiceProgram) -> None:
    """Start it beside another one. Return when it waits."""
    waiting = '"waiting for another plugin of Autoclave on this node to stop"'
    before = program.log.read_text().count(waiting) if program.log.exists() else 0
    await program.start()
    while program.log.read_text().count(waiting) == before:  # noqa: ASYNC110 - a line in a file is no event
        await asyncio.sleep(0.05)


async def measure(*, quick: bool) -> list[Figure]:
    """Kill each kind several times; then leave a standby alone."""
    turns = 2 if quick else TURNS
    figures: list[Figure] = []
    async with _floor() as killed:
        figures += await _kills(FLOOR, killed, turns)
    for name, way in (("autoclave", ByPlugin), ("autoclave in front of a vendor's plugin", ByVendor)):
        for about, standby in (("without a standby", False), ("with a standby", True)):
            async with _ours(way, standby=standby) as killed:
                figures += await _kills(f"{name}, {about}", killed, turns, aimed=standby)
                if killed.standby is not None:
                    figures += await _price(name, killed.standby.pid, 5.0 if quick else 60.0)
    return figures


async def _kills(name: str, killed: Killed, turns: int, *, aimed: bool = False) -> list[Figure]:
    """How long the kubelet has no plugin, and how many of the pods fail that come meanwhile."""
    gaps, failed = [], 0
    for turn in range(turns):
        await killed.offers_all()
        gone = asyncio.create_task(_gap(killed))
        await asyncio.sleep(0)  # it looks before the kill
        kill = asyncio.create_task(killed.kill())
        pods = [Pod.of(f"pod-{turn}-{number}", {killed.resource: 1}) for number, _ in enumerate(AFTER)]
        began = time.perf_counter()
        for pod, after in zip(pods, AFTER, strict=True):
            await asyncio.sleep(max(0.0, began + after - time.perf_counter()))
            failed += (await killed.kubelet.admit(pod)).phase is Phase.FAILED
        gaps.append(await gone)
        await kill
        await killed.offers_all()
        for pod in pods:
            await killed.kubelet.delete(pod)
        await killed.again()
    pods_seen = turns * len(AFTER)
    return [
        Figure(f"{name}: killed, no plugin for, median", quantile(gaps, 0.5), "s", turns, "<= 0.1 s" if aimed else ""),
        Figure(f"{name}: killed, no plugin for, longest", max(gaps), "s", turns),
        Figure(f"{name}: killed, pods that failed in 0.3 s", failed, "pods", pods_seen),
    ]


async def _gap(killed: Killed) -> float:
    """Seconds from the moment at which the kubelet offers nothing until it offers something."""
    await killed.kubelet.until(lambda: not killed.offered(), WITHIN)
    began = time.perf_counter()
    await killed.kubelet.until(killed.offered, WITHIN)
    return time.perf_counter() - began


async def _price(name: str, pid: int, seconds: float) -> list[Figure]:
    share = await processes.share(pid, seconds)
    return [
        Figure(f"{name}: idle on standby, processor", share * 100, "% of a core", 1, "<= 0.5 %"),
        Figure(f"{name}: idle on standby, resident memory", processes.rss(pid) / 2**20, "MiB", 1, "<= 55 MiB"),
    ]


@asynccontextmanager
async def _floor() -> AsyncIterator[Killed]:
    with TemporaryDirectory(prefix="autoclave-") as directory:
        kubelet = Kubelet(Path(directory))
        arguments = ("--directory", directory, "--devices", str(GPUS))
        log = Path(directory, "plugin.log")
        plugin = ServiceProgram(arguments, log, module="demo.standins.do_nothing_plugin")
        await kubelet.start()
        await plugin.start()
        try:
            yield Killed(kubelet, do_nothing_plugin.RESOURCE, plugin, None, _nothing)
        finally:
            await plugin.end(signal.SIGKILL)
            await kubelet.kill()


async def _nothing() -> None:
    """Its devices are always free and clean."""


@asynccontextmanager
async def _ours(way: type[Installation], *, standby: bool) -> AsyncIterator[Killed]:
    async with rig.service(GPUS, installed_as=way) as stage:
        stage.plugin.arguments += ("--standby",)
        await stage.start_node()
        second = ServiceProgram(stage.plugin.arguments, stage.root / "plugin-2.log") if standby else None
        if second is not None:
            await stand_by(second)
        try:
            yield Killed(stage.kubelet, RESOURCE, stage.plugin, second, lambda: chain.given_back(stage))
        finally:
            if second is not None:
                await second.end(signal.SIGKILL)
