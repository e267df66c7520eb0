"""The whole chain: kubelet stand-in, device plugin, scrub service, with the durable ledger. What does a pod wait for?

The baseline in the same run is a device plugin that does nothing, in the same language, driven by the same stand-in.
With ``AUTOCLAVE_BENCH_PEER`` set to a command, any other plugin is driven as well: ``{dir}`` in it is the kubelet's
directory, ``AUTOCLAVE_BENCH_PEER_RESOURCE`` the resource it registers.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import processes, rig
from benchmarks.figures import Figure, quantile
from demo.installation import RESOURCE
from demo.stage import Stage
from demo.standins import do_nothing_plugin
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod
from demo.standins.runtime import Runtime

SIZES = (8, 112)
IDLE = 60.0  # seconds
WITHIN = 15.0  # seconds for a plugin to register


@dataclass(frozen=True)
class Driven:
    """A plugin that is registered with a kubelet."""

    name: str
    kubelet: Kubelet
    resource: str
    devices: int
    pid: int
    registered: float  # seconds from its start
    again: Callable[[], Awaitable[None]]  # makes all devices free and clean
    verdicts: Callable[[], Awaitable[list[Figure]]]  # measured last: it leaves sick devices behind


async def measure(*, quick: bool) -> list[Figure]:
    """Ours, the floor, and a peer where one is given; 8 and 112 devices."""
    figures: list[Figure] = []
    for size in SIZES[:1] if quick else SIZES:
        for drive in (do_nothing, _ours, *([_peer] if "AUTOCLAVE_BENCH_PEER" in os.environ else [])):
            async with drive(size) as driven:
                figures += await _pods(driven, 2 if quick else max(4, 240 // size))
                figures += await _idle(driven, 5.0 if quick else IDLE)
                if size == SIZES[0]:
                    figures += await _process(driven)
                figures += await driven.verdicts()
    return figures


async def _pods(driven: Driven, rounds: int) -> list[Figure]:
    """Every round admits one pod a device, one after the other, as the kubelet does; then all are given back."""
    ours = driven.resource == RESOURCE
    for _ in range(rounds):
        pods = [Pod.of(f"pod-{number}", {driven.resource: 1}) for number in range(driven.devices)]
        for pod in pods:
            if (await driven.kubelet.admit(pod)).phase is Phase.FAILED:
                raise RuntimeError(f"a pod was not admitted: {pod.message}")
        for pod in pods:
            await driven.kubelet.delete(pod)
        await driven.again()
    what = "Allocate on a CLEAN device" if ours else "Allocate"
    about = f"{driven.name}, {driven.devices} devices"
    preferred = _seconds(driven.kubelet, "GetPreferredAllocation")
    allocated = _seconds(driven.kubelet, "Allocate")
    return [
        Figure(f"{about}: {what}, p50", quantile(allocated, 0.5), "ms", len(allocated), "<= 2 ms" if ours else ""),
        Figure(f"{about}: {what}, p99", quantile(allocated, 0.99), "ms", len(allocated), "<= 6 ms" if ours else ""),
        Figure(f"{about}: GetPreferredAllocation, p50", quantile(preferred, 0.5), "ms", len(preferred)),
    ]


async def _idle(driven: Driven, seconds: float) -> list[Figure]:
    """What it costs while nobody asks."""
    share = await processes.share(driven.pid, seconds)
    aim = "< 0.2 %" if driven.resource == RESOURCE else ""
    return [Figure(f"{driven.name}, {driven.devices} devices: processor, idle", share * 100, "% of a core", 1, aim)]


async def _process(driven: Driven) -> list[Figure]:
    """What it costs to have it, and how soon it is there."""
    ours, about = driven.resource == RESOURCE, f"{driven.name}, {driven.devices} devices"
    returns = []
    for _ in range(11):
        await driven.kubelet.kill()
        began = time.perf_counter()
        await driven.kubelet.start()
        try:
            await driven.kubelet.registered(driven.resource, 3.0)
        except TimeoutError:
            break  # the floor does not come back
        returns.append((time.perf_counter() - began) * 1000)
    figures = [
        Figure(f"{about}: start to registered", driven.registered * 1000, "ms", 1, "<= 400 ms" if ours else ""),
        Figure(f"{about}: resident memory", processes.rss(driven.pid) / 2**20, "MiB", 1, "<= 50 MiB" if ours else ""),
    ]
    if returns:
        name = f"{about}: kubelet started again to registered, median"
        figures.append(Figure(name, quantile(returns, 0.5), "ms", len(returns), "<= 100 ms" if ours else ""))
    return figures


def _seconds(kubelet: Kubelet, method: str) -> list[float]:
    """Without the first, which connects."""
    return [call.seconds * 1000 for call in kubelet.calls if call.method == method and call.outcome == "OK"][1:]


def _unhealthy(stage: Stage, uuid: str) -> bool:
    return stage.kubelet.devices(RESOURCE)[uuid] == "Unhealthy"


async def _verdicts(stage: Stage, rounds: int) -> list[Figure]:
    """From the moment a GPU is quarantined until the kubelet has the list that says so."""
    times = []
    async with stage.admin() as admin:
        for uuid in stage.uuids[:rounds]:
            began = time.perf_counter()
            await admin.quarantine(uuid, "measured", "make bench")
            await stage.kubelet.until(partial(_unhealthy, stage, uuid))
            times.append((time.perf_counter() - began) * 1000)
    name = f"autoclave, {len(stage.uuids)} devices: verdict to the kubelet's list, the longest"
    return [Figure(name, max(times), "ms", len(times), "<= 100 ms")]


@asynccontextmanager
async def _ours(size: int) -> AsyncIterator[Driven]:
    async with rig.service(size) as stage:
        began = time.perf_counter()
        await stage.start_node()
        seconds = time.perf_counter() - began

        async def again() -> None:
            await given_back(stage)

        async def verdicts() -> list[Figure]:
            return await _verdicts(stage, 8)

        yield Driven("autoclave", stage.kubelet, RESOURCE, size, stage.plugin.pid, seconds, again, verdicts)


async def given_back(stage: Stage) -> None:
    """Grants that nobody started on are given back, and scrubbed; the kubelet must see them healthy again."""
    async with stage.scrubber() as service:
        await service.release(stage.uuids)
    await rig.all_clean(stage)
    await stage.kubelet.until(lambda: stage.kubelet.allocatable.get(RESOURCE) == len(stage.uuids))


@asynccontextmanager
async def do_nothing(size: int, runtime: Runtime | None = None) -> AsyncIterator[Driven]:
    """The device plugin that does nothing."""
    with tempfile.TemporaryDirectory(prefix="autoclave-") as directory:
        command = [
            sys.executable,
            "-m",
            "demo.standins.do_nothing_plugin",
            "--directory",
            directory,
            "--devices",
            str(size),
        ]
        async with _driven(
            "do-nothing Python plugin", Path(directory), command, do_nothing_plugin.RESOURCE, size, runtime
        ) as driven:
            yield driven


@asynccontextmanager
async def _peer(size: int) -> AsyncIterator[Driven]:
    with tempfile.TemporaryDirectory(prefix="autoclave-") as directory:
        command = shlex.split(os.environ["AUTOCLAVE_BENCH_PEER"].replace("{dir}", directory))
        resource = os.environ.get("AUTOCLAVE_BENCH_PEER_RESOURCE", RESOURCE)
        async with _driven(f"peer {Path(command[0]).name}", Path(directory), command, resource, size) as driven:
            yield driven


@asynccontextmanager
async def _driven(
    name: str, directory: Path, command: Sequence[str], resource: str, size: int, runtime: Runtime | None = None
) -> AsyncIterator[Driven]:
    kubelet = Kubelet(directory, runtime=runtime)
    await kubelet.start()
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await kubelet.registered(resource, WITHIN)
        seconds = time.perf_counter() - began
        devices = min(size, kubelet.allocatable[resource])

        async def again() -> None:
            """Nothing was kept."""

        async def verdicts() -> list[Figure]:
            return []  # nobody judges

        yield Driven(name, kubelet, resource, devices, process.pid, seconds, again, verdicts)
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
        await kubelet.kill()
