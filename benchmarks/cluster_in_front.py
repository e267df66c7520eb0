"""How long a pod waits for its start with NVIDIA's device plugin: alone, behind Autoclave, and with Autoclave's own.

As root, after ``make node``: python -m tests.cluster.isolated .venv/bin/python -m benchmarks.cluster_in_front

Each pod asks for all GPUs of the node, and they are clean. The plugins take turns, a few pods each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import processes
from benchmarks.cluster import allocations, run, starts, wait
from benchmarks.figures import Figure, quantile
from tests.cluster import programs
from tests.cluster.autoclave import GPUS, Autoclave
from tests.cluster.cluster import GPU, Cluster, container
from tests.cluster.in_front import InFront, replace
from tests.cluster.nvidia import mounted

ALONE, BEHIND, OWN = "NVIDIA's plugin alone", "NVIDIA's plugin behind Autoclave", "Autoclave's own plugin"
TURN = 5  # pods


async def measure(node: programs.Node, logs: Path, pods: int) -> list[Figure]:
    """So many pods with each plugin."""
    autoclave = Autoclave(logs)
    waits: dict[str, list[float]] = {kind: [] for kind in (ALONE, BEHIND, OWN)}
    spent: dict[str, tuple[float, ...]] = dict.fromkeys(waits, (0.0, 0.0))
    sizes: dict[str, float] = {}
    async with Cluster.connect() as client:
        cluster = Cluster(client, logs)
        autoclave.rule()
        await autoclave.up()
        autoclave.down()
        environment = await asyncio.to_thread(replace, autoclave)
        it = InFront(cluster, Path(node.kubelet.command[0]).parent / "nvidia-device-plugin", environment, logs)
        for turn in range(pods // TURN):
            for kind, samples in waits.items():
                async with _plugin(kind, it, autoclave):
                    before = allocations().get(GPU, (0.0, 0.0))
                    for number in range(TURN):
                        if kind != ALONE:
                            await autoclave.clean()
                        name = f"{kind.split()[-1].lower()}-{turn}-{number}"
                        spec = mounted(cluster.spec(), container("-for", "50ms", gpus=GPUS))
                        samples.append(await wait(cluster, name, spec))
                    more = (new - old for new, old in zip(allocations()[GPU], before, strict=True))
                    spent[kind] = tuple(a + b for a, b in zip(spent[kind], more, strict=True))
                    if kind == BEHIND:
                        programs = {"Autoclave's plugin in front": it.ours, "NVIDIA's plugin": it.vendor}
                        sizes = {name: processes.rss(each.process.pid) / 2**20 for name, each in programs.items()}
    return [*starts(waits), *_ratios(waits), *_means(spent), *(_size(name, size) for name, size in sizes.items())]


@asynccontextmanager
async def _plugin(kind: str, it: InFront, autoclave: Autoclave) -> AsyncIterator[None]:
    """One plugin offers all GPUs."""
    if kind == ALONE:
        autoclave.uninstall()  # its fence would keep the pods off
        it.vendor = it.nvidia(KUBELET_SOCKET="")
        it.vendor.start()
    else:
        if autoclave.service.process is None:
            autoclave.service.start()
        if kind == BEHIND:
            it.vendor = it.nvidia()
            await it.start()
        else:
            await autoclave.up()
    await it.offered()
    try:
        yield
    finally:
        it.end()
        if autoclave.plugin.process is not None:
            autoclave.plugin.end()
        await it.offered(0)


def _ratios(waits: dict[str, list[float]]) -> Iterator[Figure]:
    ratio = quantile(waits[BEHIND], 0.5) / quantile(waits[ALONE], 0.5)
    yield Figure(f"the same, {BEHIND} to alone, p50", ratio, "times", len(waits[BEHIND]), "<= 1.1 times")


def _means(spent: dict[str, tuple[float, ...]]) -> Iterator[Figure]:
    for kind, (seconds, calls) in spent.items():
        yield Figure(f"kubelet's Allocate, {kind}, mean", seconds / calls * 1000, "ms", int(calls))


def _size(name: str, size: float) -> Figure:
    return Figure(f"{name}: resident memory", size, "MiB", 1, "<= 55 MiB" if "front" in name else "")


if __name__ == "__main__":
    run("benchmarks.cluster_in_front", __doc__, measure)
