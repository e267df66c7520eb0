"""How long a pod waits for its start on a real node: with Autoclave, with a plugin that does nothing, without a GPU.

As root, after ``make node``: python -m tests.cluster.isolated .venv/bin/python -m benchmarks.cluster [--busy N]

Each pod asks for one clean GPU, and its node is named, so that the scheduler takes no part. The kinds take turns in the
same run. The plugin that does nothing has GPUs of its own. Then: what the programs cost while no pod starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import ssl
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import processes
from benchmarks.figures import Figure, quantile, table
from demo.standins import do_nothing_plugin
from scrubber.devices.simulated.layout import DEFAULT_MEMORY_BYTES
from tests.cluster import programs
from tests.cluster.autoclave import DEVICE_PLUGINS, GPUS, Autoclave, specify
from tests.cluster.cluster import GPU, Cluster, container
from tests.cluster.isolated import STATE

RESOURCES = {"Autoclave": GPU, "do-nothing plugin": do_nothing_plugin.RESOURCE, "no GPU": ""}
IDLE = 60.0  # seconds
KUBELET = "https://127.0.0.1:10250/metrics"
ALLOCATE = re.compile(r'kubelet_device_plugin_alloc_duration_seconds_(sum|count){resource_name="([^"]+)"} (\S+)')


async def measure(node: programs.Node, logs: Path, pods: int) -> list[Figure]:
    """So many pods of each kind, in turn."""
    autoclave, other = Autoclave(logs), do_nothing(logs)
    waits: dict[str, list[float]] = {kind: [] for kind in RESOURCES}
    async with Cluster.connect() as client:
        cluster = Cluster(client, logs)
        autoclave.rule()
        await autoclave.up()
        other.start()
        for resource in (GPU, do_nothing_plugin.RESOURCE):
            await cluster.offered(GPUS, resource)
        before = allocations()
        for number in range(pods):
            for kind, resource in RESOURCES.items():
                await autoclave.clean()
                waits[kind].append(await _wait(cluster, f"{kind.split()[0].lower()}-{number}", resource))
        after = allocations()
        costs = await _costs(autoclave, other)
    node.demand_running()
    other.end()
    autoclave.clear_away()
    return [*starts(waits), *_means(before, after), *_hooks(autoclave), *costs]


async def _wait(cluster: Cluster, name: str, resource: str) -> float:
    flags = container("-for", "50ms", gpus=1 if resource else 0, resource=resource)
    return await wait(cluster, name, cluster.spec(flags))


async def wait(cluster: Cluster, name: str, spec: dict[str, Any]) -> float:
    """From the request for a pod to the first line of its program."""
    began = time.time()
    await cluster.create(name, *spec.pop("containers"), **spec, nodeName=programs.NODE)
    await cluster.ended(name)
    await cluster.delete(name)
    await cluster.gone(name)
    [start] = [line for line in cluster.lines(name) if line.word == "START"]
    return start.time - began


async def _costs(autoclave: Autoclave, other: programs.Program) -> list[Figure]:
    """Of each program, at the same time."""
    running = {"service": autoclave.service, "plugin": autoclave.plugin, "do-nothing plugin": other}
    pids = {name: program.process.pid for name, program in running.items() if program.process}
    pids["zygote"] = [line["pid"] for line in lines(autoclave.service.log) if line["event"] == "zygote ready"][-1]
    shares = await asyncio.gather(*(processes.share(pid, IDLE) for pid in pids.values()))
    used = [
        Figure(f"idle, {name}: processor", it * 100, "% of a core", 1) for name, it in zip(pids, shares, strict=True)
    ]
    sizes = {name: processes.rss(pid) / 2**20 for name, pid in pids.items()}
    return [*used, *(Figure(f"idle, {name}: resident memory", size, "MiB", 1) for name, size in sizes.items())]


def _hooks(autoclave: Autoclave) -> Iterator[Figure]:
    """As plugin and service count them: what is left of the kubelet's time is the way to the plugin."""
    plugin, service = lines(autoclave.plugin.log), lines(autoclave.service.log)
    parts = {
        "plugin": [line["seconds"] for line in plugin if line.get("hook") == "Allocate"],
        "service": [line["seconds"] for line in service if line.get("request") == "acquire"],
    }
    for name, seconds in parts.items():
        yield Figure(f"Allocate, as the {name} counts it, mean", fmean(seconds) * 1000, "ms", len(seconds))
    starts = [line["seconds"] for line in plugin if line.get("hook") == "PreStartContainer"]
    yield Figure("PreStartContainer, as the plugin counts it, p50", quantile(starts, 0.5) * 1000, "ms", len(starts))


def lines(log: Path) -> list[dict[str, Any]]:
    """What a program of Autoclave logged."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def do_nothing(logs: Path) -> programs.Program:
    """The plugin, and its GPUs: sparse files."""
    names = [f"GPU-{number:032d}" for number in range(GPUS)]
    folder = STATE / "floor"
    folder.mkdir()
    for name in names:
        with (folder / name).open("wb") as memory:
            memory.truncate(DEFAULT_MEMORY_BYTES)
    specify("floor", {name: (index, folder / name) for index, name in enumerate(names)})
    command = (
        sys.executable,
        "-m",
        "demo.standins.do_nothing_plugin",
        "--directory",
        DEVICE_PLUGINS,
        "--devices",
        str(GPUS),
    )
    return programs.Program("floor", list(command), logs)


def allocations() -> dict[str, tuple[float, float]]:
    """The seconds in Allocate, and the calls, of each resource, as the kubelet counts them."""
    context = ssl._create_unverified_context()  # noqa: S323, SLF001 - the kubelet's own certificate, on our loopback
    with urllib.request.urlopen(KUBELET, context=context) as answer:
        found = {(kind, resource): float(value) for kind, resource, value in ALLOCATE.findall(answer.read().decode())}
    return {resource: (found["sum", resource], found["count", resource]) for kind, resource in found if kind == "sum"}


def starts(waits: dict[str, list[float]]) -> Iterator[Figure]:
    """The start of pods of each kind."""
    for kind, samples in waits.items():
        for share, name in ((0.5, "p50"), (0.9, "p90")):
            value = quantile(samples, share) * 1000
            yield Figure(f"pod created to its first line, {kind}, {name}", value, "ms", len(samples))


def _means(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> Iterator[Figure]:
    for kind, resource in RESOURCES.items():
        if resource:
            seconds, calls = (new - old for new, old in zip(after[resource], before.get(resource, (0, 0)), strict=True))
            yield Figure(f"kubelet's Allocate, {kind}, mean", seconds / calls * 1000, "ms", int(calls))


def main() -> None:
    """Measure, and print a table."""
    run("benchmarks.cluster", __doc__, measure)


def run(
    name: str,
    text: str | None,
    measure: Callable[..., Coroutine[Any, Any, list[Any]]],
    show: Callable[[list[Any]], str] = table,
    flags: argparse.ArgumentParser | None = None,
) -> None:
    """A command that measures on a node of its own, with so many pods. ``show``: what was measured, as a table.

    ``flags``: more of them, which ``measure`` gets by name.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=text, parents=[flags] if flags else [])
    parser.add_argument("--programs", type=Path, default=Path("build/node"))
    parser.add_argument("--pods", type=int, default=30)
    parser.add_argument("--busy", type=int, default=0, help="loops beside")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    more = vars(flags.parse_known_args()[0]) if flags else {}
    if reason := programs.missing(options.programs):
        sys.exit(f"cannot measure: {reason}")
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        node = programs.Node(options.programs.resolve(), logs)
        try:
            node.up()
            before = os.getloadavg()[0]
            with programs.busy(options.busy):
                figures = asyncio.run(measure(node, logs, options.pods, **more))
        finally:
            node.down()
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    print(show(figures))
    print(f"load of the machine: {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
