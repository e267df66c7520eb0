"""How many pods fail where a program of the node is killed: Autoclave's, and plugins that prove nothing.

As root, after ``make node``: python -m tests.cluster.isolated .venv/bin/python -m benchmarks.cluster_kills --pods 200

In each arm, short pods come by chance, and a program is killed by chance, whatever the others do at that moment: a pod
may come in an absence, and a kill may meet a start. The moments are the same in each arm. Each pod wants one GPU and
goes through the scheduler. What was killed is started again at once: a plugin with a standby, as the next standby.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from statistics import fmean

from benchmarks.cluster import run
from demo.standins.do_nothing_plugin import RESOURCE
from tests.cluster.autoclave import GPUS, Autoclave, stand_by
from tests.cluster.cluster import GPU, Cluster, container
from tests.cluster.in_front import InFront, replace
from tests.cluster.programs import Node, Program

PODS_EVERY, KILLS_EVERY = 1.5, 5.0  # seconds, on average


@dataclass(frozen=True)
class Schedule:
    """When pods come and when programs are killed, in seconds from the start of each arm."""

    pods: tuple[float, ...]
    kills: tuple[float, ...]


def schedule(seed: int, pods: int) -> Schedule:
    """So many pods, and the kills until the last of them comes: two Poisson processes."""
    chance = random.Random(seed)  # noqa: S311 - the same moments in each arm
    arrivals = _moments(chance, PODS_EVERY)
    come = tuple(next(arrivals) for _ in range(pods))
    kills = itertools.takewhile(lambda moment: moment < come[-1], _moments(chance, KILLS_EVERY))
    return Schedule(come, tuple(kills))


def _moments(chance: random.Random, every: float) -> Iterator[float]:
    moment = 0.0
    while True:
        moment += chance.expovariate(1 / every)
        yield moment


@dataclass
class Killed:
    """A program, and its standby if it has one."""

    present: Program
    standby: Program | None = None

    def start(self) -> None:
        """Start what was killed: it is the standby now."""
        self.present.start()
        if self.standby:
            self.present, self.standby = self.standby, self.present


@dataclass
class Arm:
    """What is killed, and what became of the pods."""

    name: str
    pods: int = 0
    failed: int = 0
    kills: int = 0
    longest: float = 0.0  # seconds from the request for a pod to its end
    loads: list[float] = field(default_factory=list)  # of the machine, whenever a pod came
    why: dict[str, int] = field(default_factory=dict)  # the kubelet's reasons, and how often


class Trial:
    """One node with all arms."""

    def __init__(self, cluster: Cluster, moments: Schedule, only: str) -> None:
        """``only``: an expression that the names of all other arms do not hold."""
        self.cluster, self.arms = cluster, list[Arm]()
        self._moments, self._only = moments, only

    async def kill(self, name: str, resource: str, killed: Sequence[Killed], *flags: str) -> None:
        """Kill these programs together, again and again, while pods come."""
        if not re.search(self._only, name):
            return
        await self.cluster.offered(GPUS, resource)
        arm, began = Arm(name), time.monotonic()
        self.arms.append(arm)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._kills(arm, began, killed))
            for moment in self._moments.pods:
                tasks.create_task(self._pod(arm, began + moment, resource, flags))
        print(table([arm]).splitlines()[-1], file=sys.stderr)

    async def _kills(self, arm: Arm, began: float, killed: Sequence[Killed]) -> None:
        for moment in self._moments.kills:
            await _until(began + moment)
            arm.kills += 1
            for it in killed:
                it.present.end(SIGKILL)
            for it in killed:
                it.start()

    async def _pod(self, arm: Arm, moment: float, resource: str, flags: tuple[str, ...]) -> None:
        await _until(moment)
        arm.pods += 1
        name = f"pod-{len(self.arms)}-{arm.pods}"
        arm.loads.append(os.getloadavg()[0])
        await self.cluster.create(name, container("-for", "50ms", *flags, resource=resource))
        pod = await self.cluster.ended(name)
        await self.cluster.delete(name)
        arm.longest = max(arm.longest, time.monotonic() - moment)
        status = pod.to_dict()["status"]
        if status["phase"] != "Succeeded":
            arm.failed += 1
            why = f"{status.get('reason')}: {status.get('message') or status.get('containerStatuses')}"
            arm.why[why] = arm.why.get(why, 0) + 1


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))


async def measure(node: Node, logs: Path, pods: int, seed: int, only: str) -> list[Arm]:
    """All arms, one after the other."""
    autoclave = Autoclave(logs)
    autoclave.plugin.command.append("--standby")
    plugin, service = Killed(autoclave.plugin), Killed(autoclave.service)
    autoclave.rule()
    moments = schedule(seed, pods)
    seconds, kills = moments.pods[-1], len(moments.kills)
    print(f"seed {seed}: in each arm {pods} pods and {kills} kills in {seconds:.0f} s", file=sys.stderr)
    async with Cluster.connect() as client:
        trial = Trial(Cluster(client, logs), moments, only)
        await autoclave.up()  # makes the GPUs
        autoclave.uninstall()  # its fence would keep the pods off
        floor = autoclave.floor()
        floor.start()
        same = ("-secret", "same")  # the next pod finds it, and takes it for its own
        await trial.kill("a plugin that does nothing", RESOURCE, [Killed(floor)], *same)
        floor.end()
        await autoclave.up()
        await trial.kill("Autoclave's plugin, which has no standby", GPU, [plugin])
        plugin.standby = second = await stand_by(autoclave.plugin)
        await trial.kill("Autoclave's plugin, which has a standby", GPU, [plugin])
        await trial.kill("Autoclave's service", GPU, [service])
        await trial.kill("Autoclave's plugin and service together", GPU, [plugin, service])
        second.end()
        environment = await asyncio.to_thread(replace, autoclave)
        autoclave.uninstall()
        await trial.cluster.offered(0)
        it = InFront(trial.cluster, Path(node.kubelet.command[0]).parent / "nvidia-device-plugin", environment, logs)
        it.vendor = it.nvidia(KUBELET_SOCKET="")
        it.vendor.start()
        bare = "-without"  # a pod gets device nodes, and looks for no simulated memory
        await trial.kill("NVIDIA's plugin alone", GPU, [Killed(it.vendor)], bare)
        it.vendor.end()
        await it.offered(0)
        autoclave.service.start()
        it.vendor = it.nvidia()
        await it.start()
        ours, vendor = Killed(it.ours, second := await stand_by(it.ours)), Killed(it.vendor)
        await trial.kill("NVIDIA's plugin, behind Autoclave", GPU, [vendor], bare)
        await trial.kill("Autoclave's plugin in front of NVIDIA's, which has a standby", GPU, [ours], bare)
        await trial.kill("Autoclave's service, in front of NVIDIA's plugin", GPU, [service], bare)
        await trial.kill("Autoclave's plugin and service together, in front of NVIDIA's", GPU, [ours, service], bare)
        second.end()
        it.end()
    node.demand_running()
    autoclave.service.end()
    return trial.arms


def table(arms: Sequence[Arm]) -> str:
    """A Markdown table."""
    head = ("killed", "pods", "failed", "kills", "load, mean", "longest, from request to end", "why")
    rows: list[tuple[object, ...]] = [head, ("---",) * len(head)]
    for it in arms:
        why = "; ".join(f"{count} {text}" for text, count in it.why.items())
        load = f"{fmean(it.loads):.1f}"
        rows.append(
            (it.name, it.pods, f"{it.failed} ({it.failed / it.pods:.0%})", it.kills, load, f"{it.longest:.1f} s", why)
        )
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def _flags() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(add_help=False)
    flags.add_argument("--seed", type=int, default=1, help="of the moments (default: %(default)s)")
    flags.add_argument("--only", default="", help="arms whose name holds this expression")
    return flags


if __name__ == "__main__":
    run("benchmarks.cluster_kills", __doc__, measure, table, _flags())
