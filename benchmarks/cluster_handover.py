"""How long the next pod waits for the GPU of a pod that is deleted, on a real node: with Autoclave, and without.

As root, after ``make node``: python -m tests.cluster.isolated .venv/bin/python -m benchmarks.cluster_handover

All GPUs are in use, and one pod waits in the scheduler. Then another one is deleted, as ``kubectl delete`` does it, and
its program ends at once. The plugin that does nothing has GPUs of its own. The kinds take turns, a few pods each.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lightkube.resources.core_v1 import Pod

from benchmarks.cluster import do_nothing, run
from benchmarks.figures import Figure, quantile
from demo.standins import do_nothing_plugin
from scrub_api.views import DeviceStatus
from tests.cluster import programs
from tests.cluster.autoclave import GPUS, Autoclave
from tests.cluster.cluster import GPU, Cluster, container, waits_for_the_scheduler

FLOOR = "do-nothing plugin"
KINDS = {  # what each kind asks for, and the mode of the fence
    FLOOR: (do_nothing_plugin.RESOURCE, ""),
    "Allocate waits": (GPU, "watch"),
    "PreStartContainer waits": (GPU, "hold"),
}
TURN = 5  # pods
BACKS_OFF = 1.5  # seconds in which the scheduler does not look again at a pod that it could not place


async def measure(node: programs.Node, logs: Path, pods: int, memory: str) -> list[Figure]:
    """So many pods of each kind, in turns. ``memory``: of each of Autoclave's GPUs."""
    autoclave, floor = Autoclave(logs, memory), do_nothing(logs)
    waits: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with Cluster.connect() as client:
        journals = logs / "pods"
        journals.mkdir()
        cluster = Cluster(client, journals)
        autoclave.rule()
        await autoclave.up()
        floor.start()
        for resource in (GPU, do_nothing_plugin.RESOURCE):
            await cluster.offered(GPUS, resource)
            for number in range(GPUS):
                await _hold(cluster, _name(resource, number), resource)
        count = dict.fromkeys((GPU, do_nothing_plugin.RESOURCE), GPUS)
        for _ in range(math.ceil(pods / TURN)):
            for kind, (resource, mode) in KINDS.items():
                if mode:
                    autoclave.rule(fence={"mode": mode})
                    await autoclave.devices(partial(_is_ruled, mode))
                for _ in range(TURN):
                    number = count[resource]
                    waits[kind].append(await _next(cluster, resource, number))
                    count[resource] += 1
        faults = cluster.faults()
    node.demand_running()
    floor.end()
    autoclave.clear_away()
    if faults:
        raise RuntimeError(f"a pod found the bytes of another: {faults}")
    return list(_figures(waits))


def _is_ruled(mode: str, device: DeviceStatus) -> bool:
    return device.fence == mode


async def _hold(cluster: Cluster, name: str, resource: str) -> None:
    await cluster.create(name, _container(resource))
    await cluster.said(name, "HOLDING")


def _container(resource: str) -> dict[str, Any]:
    """Pods of the plugin that does nothing have one secret: each one finds the bytes of the pod before."""
    return container(*(() if resource == GPU else ("-secret", "floor")), resource=resource)


async def _next(cluster: Cluster, resource: str, number: int) -> float:
    """The seconds from the deletion of the oldest pod to the first line of the next one's program."""
    oldest, name = _name(resource, number - GPUS), _name(resource, number)
    await cluster.create(name, _container(resource))
    await cluster.until(Pod, name, waits_for_the_scheduler)
    await asyncio.sleep(BACKS_OFF)
    deleted = time.time()
    await cluster.delete(oldest)
    start = await cluster.said(name, "START")
    await cluster.said(name, "HOLDING")
    return start.time - deleted


def _name(resource: str, number: int) -> str:
    return f"{'autoclave' if resource == GPU else 'floor'}-{number}"


def _figures(waits: dict[str, list[float]]) -> Iterator[Figure]:
    floor = quantile(waits[FLOOR], 0.5) * 1000
    for kind, seconds in waits.items():
        name, count = f"a pod deleted to the first line of the next one, {kind}", len(seconds)
        yield Figure(f"{name}: p50", quantile(seconds, 0.5) * 1000, "ms", count)
        yield Figure(f"{name}: p90", quantile(seconds, 0.9) * 1000, "ms", count)
        if kind != FLOOR:
            more = quantile(seconds, 0.5) * 1000 - floor
            yield Figure(f"{name}: more than the {FLOOR}, p50", more, "ms", count, "<= 30 ms")


if __name__ == "__main__":
    flags = argparse.ArgumentParser(add_help=False)
    flags.add_argument("--memory", default="64MiB", help="of a simulated GPU; with little, its passes take no time")
    run("benchmarks.cluster_handover", __doc__, measure, flags=flags)
