"""How often Prepare meets a device that is not clean, and how long it waits for it, on a real node with our DRA driver.

As root, after ``make node``: python -m tests.cluster.isolated .venv/bin/python -m benchmarks.cluster_claims [--busy N]

Each pod has a claim of all GPUs. The next pod waits in the scheduler while the pod before it is deleted: first all pods
as ``kubectl delete`` does it, then all with ``--grace-period=0 --force``. The log of the driver says when each Prepare
began, and the ledger when each device was clean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from lightkube.resources.core_v1 import Pod
from lightkube.resources.resource_v1 import DeviceClass

from benchmarks.cluster import lines, run
from benchmarks.figures import Figure, quantile
from ground import paths
from plugin.dra.config import DRIVER
from scrubber.ledger import database
from tests.cluster import programs
from tests.cluster.autoclave import GPUS, Autoclave
from tests.cluster.claims import Claims, device_class, dra_driver
from tests.cluster.cluster import Cluster, waits_for_the_scheduler
from tests.cluster.isolated import STATE

DELETES: dict[str, int | None] = {"deleted": None, "deleted by force": 0}  # the seconds of grace


async def measure(node: programs.Node, logs: Path, pods: int) -> list[Figure]:
    """So many pods after a pod that was deleted, and so many after a pod that was deleted by force."""
    autoclave, driver = Autoclave(logs), dra_driver(logs)
    figures: list[Figure] = []
    async with Cluster.connect() as client:
        cluster = Cluster(client, logs)
        claims = Claims(cluster)
        autoclave.rule()
        await autoclave.up()
        autoclave.plugin.end()
        await client.create(device_class(DRIVER))
        await claims.offer(GPUS)
        driver.start()
        await claims.sliced(lambda devices: len(devices) == GPUS)
        for kind, grace in DELETES.items():
            await autoclave.clean()
            before = len(lines(driver.log))
            starts = await _follow(claims, kind.replace(" ", "-"), grace, pods)
            calls = [line for line in lines(driver.log)[before:] if line.get("call") == "prepare"]
            figures += _figures(f"the pod before was {kind}", calls[1:], starts)  # no pod was before the first one
        await claims.clear()
        await client.delete(DeviceClass, DRIVER)
    node.demand_running()
    driver.end()
    autoclave.clear_away()
    return figures


async def _follow(claims: Claims, kind: str, grace: int | None, pods: int) -> list[float]:
    """The seconds from the deletion of each pod to the first line of the next one."""
    cluster = claims.cluster
    names = [f"{kind}-{number}" for number in range(pods + 1)]
    starts = []
    await claims.hold(names[0], GPUS)
    for name, following in pairwise(names):
        await claims.create(following, GPUS)
        await cluster.until(Pod, following, waits_for_the_scheduler)
        deleted = asyncio.get_running_loop().time()
        await cluster.delete(name, grace=grace)
        await claims.holds(following)
        starts.append(asyncio.get_running_loop().time() - deleted)
    await claims.end(names[-1])
    return starts


def _figures(about: str, calls: list[dict[str, Any]], starts: list[float]) -> Iterator[Figure]:
    done = [call for call in calls if call["event"] == "claim done"]
    waits = [wait for wait in map(_wait, done) if wait > 0]
    yield Figure(f"{about}: Prepares", len(calls), "", len(calls))
    yield Figure(f"{about}: Prepares that were refused", len(calls) - len(done), "", len(calls))
    yield Figure(f"{about}: Prepares that met a device that was not clean", len(waits), "", len(calls))
    if waits:
        yield Figure(f"{about}: their wait until it was clean, p50", quantile(waits, 0.5), "s", len(waits))
        yield Figure(f"{about}: their wait until it was clean, longest", max(waits), "s", len(waits))
    yield Figure(f"{about}: Prepare, p50", quantile([call["seconds"] for call in done], 0.5), "s", len(done))
    yield Figure(
        f"{about}: from its deletion until the next pod has its GPUs, p50", quantile(starts, 0.5), "s", len(starts)
    )


def _wait(call: dict[str, Any]) -> float:
    """The seconds from the start of a Prepare until the last of its devices was clean; 0 if they were clean then."""
    clean: dict[str, float] = {}
    granted: list[float] = []
    with closing(database.connect(paths.ledger(STATE / "autoclave"), "mode=ro")) as connection:
        for row in database.rows(connection):
            if row.kind == "scrub-passed":
                clean[row.device] = row.wall
            elif row.kind == "granted" and row.op == call["op"]:
                granted.append(clean[row.device])
    began = datetime.fromisoformat(call["timestamp"]).timestamp() - float(call["seconds"])
    return max(0.0, max(granted) - began)


if __name__ == "__main__":
    run("benchmarks.cluster_claims", __doc__, measure)
