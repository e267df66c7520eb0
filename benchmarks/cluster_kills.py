"""How many pods fail where a program of the node is killed: Autoclave's, and plugins that prove nothing.

As root, after ``make node``: python -m tests.cluster.isolated .venv/bin/python -m benchmarks.cluster_kills --pods 60

In each arm two rows of short pods go through the scheduler. Each pod wants one GPU, and the next one comes as soon as
one has ended. Programs are killed at random moments and started again at once: a plugin with a standby, as the next
standby. The next kill comes when all programs are in order again and a pod has started.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL

from benchmarks.cluster import run
from demo.standins.do_nothing_plugin import RESOURCE
from tests.cluster import files
from tests.cluster.autoclave import GPUS, WAITS, Autoclave, stand_by
from tests.cluster.cluster import GPU, Cluster, container
from tests.cluster.in_front import InFront, replace
from tests.cluster.programs import Node, Program

KILLS = 20  # at least, in each arm
ROWS = 2
PAUSE = 0.5, 3.0  # seconds before a kill


@dataclass
class Killed:
    """A program, and its standby if it has one."""

    present: Program
    in_order: tuple[Path, str]  # a log, and what it says once more when the program is back
    standby: Program | None = None

    def lines(self) -> list[tuple[Path, str]]:
        """What logs say once more when all is in order after the next kill."""
        return [self.in_order, *([(self.present.log, WAITS)] if self.standby else [])]

    def start(self) -> None:
        """Start what was killed: it is the standby now."""
        self.present.start()
        if self.standby:
            self.present, self.standby = self.standby, self.present


def _once_more(log: Path, text: str) -> Coroutine[None, None, bool]:
    before = log.read_text().count(text)
    return files.until(log, lambda: log.read_text().count(text) > before)


@dataclass
class Arm:
    """What is killed, and what became of the pods."""

    name: str
    pods: int = 0
    failed: int = 0
    kills: int = 0
    kills_that_failed_a_pod: int = 0
    longest: float = 0.0  # seconds from the request for a pod to its end
    why: dict[str, int] = field(default_factory=dict)  # the kubelet's reasons, and how often


class Trial:
    """One node with all arms."""

    def __init__(self, cluster: Cluster, least: int) -> None:
        """``least``: pods that start in each arm."""
        self.cluster, self._least, self.arms = cluster, least, list[Arm]()
        self._started = asyncio.Event()
        self._last_failed = 0  # the last kill that failed a pod

    async def kill(self, name: str, resource: str, killed: list[Killed], *flags: str) -> None:
        """Kill these programs together, again and again, while pods come."""
        await self.cluster.offered(GPUS, resource)
        arm, self._last_failed = Arm(name), 0
        self.arms.append(arm)
        kills = asyncio.create_task(self._kills(arm, resource, killed))
        await asyncio.gather(kills, *(self._row(arm, row, resource, flags, kills) for row in range(ROWS)))
        print(table([arm]).splitlines()[-1], file=sys.stderr)

    async def _kills(self, arm: Arm, resource: str, killed: list[Killed]) -> None:
        chance = random.Random(arm.name)  # noqa: S311 - the same moments in each run
        while arm.kills < KILLS or arm.pods - arm.failed < self._least:
            self._started.clear()
            await self._started.wait()
            await asyncio.sleep(chance.uniform(*PAUSE))
            in_order = [_once_more(*line) for it in killed for line in it.lines()]
            arm.kills += 1
            for it in killed:
                it.present.end(SIGKILL)
            for it in killed:
                it.start()
            for line in in_order:
                await line
            await self.cluster.offered(GPUS, resource)

    async def _row(self, arm: Arm, row: int, resource: str, flags: tuple[str, ...], kills: asyncio.Task[None]) -> None:
        while not kills.done():
            name, began = f"pod-{len(self.arms)}-{row}-{arm.pods}", time.monotonic()
            await self.cluster.create(name, container("-for", "50ms", *flags, resource=resource))
            pod = await self.cluster.ended(name)
            await self.cluster.delete(name)
            arm.pods += 1
            arm.longest = max(arm.longest, time.monotonic() - began)
            status = pod.to_dict()["status"]
            if status["phase"] == "Succeeded":
                self._started.set()
                continue
            arm.failed += 1
            arm.kills_that_failed_a_pod += self._last_failed != arm.kills
            self._last_failed = arm.kills
            why = f"{status.get('reason')}: {status.get('message') or status.get('containerStatuses')}"
            arm.why[why] = arm.why.get(why, 0) + 1


async def measure(node: Node, logs: Path, pods: int) -> list[Arm]:
    """All arms, one after the other."""
    registered = node.kubelet.log, "Got registration request from device plugin"
    autoclave = Autoclave(logs)
    autoclave.plugin.command.append("--standby")
    plugin = Killed(autoclave.plugin, registered)
    service = Killed(autoclave.service, (autoclave.service.log, '"event": "serving"'))
    autoclave.rule()
    async with Cluster.connect() as client:
        trial = Trial(Cluster(client, logs), pods)
        await autoclave.up()  # makes the GPUs
        autoclave.down()
        floor = autoclave.floor()
        floor.start()
        same = ("-secret", "same")  # the next pod finds it, and takes it for its own
        await trial.kill("a plugin that does nothing", RESOURCE, [Killed(floor, registered)], *same)
        floor.end()
        await autoclave.up()
        await trial.kill("Autoclave's plugin, which has no standby", GPU, [plugin])
        plugin.standby = second = await stand_by(autoclave.plugin)
        await trial.kill("Autoclave's plugin, which has a standby", GPU, [plugin])
        await trial.kill("Autoclave's service", GPU, [service])
        await trial.kill("Autoclave's plugin and service together", GPU, [plugin, service])
        second.end()
        environment = await asyncio.to_thread(replace, autoclave)
        autoclave.service.end()
        await trial.cluster.offered(0)
        it = InFront(trial.cluster, Path(node.kubelet.command[0]).parent / "nvidia-device-plugin", environment, logs)
        it.vendor = it.nvidia(KUBELET_SOCKET="")
        it.vendor.start()
        bare = "-without"  # a pod gets device nodes, and looks for no simulated memory
        await trial.kill("NVIDIA's plugin alone", GPU, [Killed(it.vendor, registered)], bare)
        it.vendor.end()
        await it.offered(0)
        autoclave.service.start()
        it.vendor = it.nvidia()
        await it.start()
        gate = Killed(it.gate, registered, second := await stand_by(it.gate))
        vendor = Killed(it.vendor, (it.gate.log, "the vendor's plugin has registered"))
        await trial.kill("NVIDIA's plugin, behind Autoclave", GPU, [vendor], bare)
        await trial.kill("Autoclave's plugin in front of NVIDIA's, which has a standby", GPU, [gate], bare)
        await trial.kill("Autoclave's service, in front of NVIDIA's plugin", GPU, [service], bare)
        await trial.kill("Autoclave's plugin and service together, in front of NVIDIA's", GPU, [gate, service], bare)
        second.end()
        it.end()
    node.demand_running()
    autoclave.service.end()
    return trial.arms


def table(arms: Sequence[Arm]) -> str:
    """A Markdown table."""
    head = ("killed", "pods", "failed", "kills", "kills that failed a pod", "longest, from request to end", "why")
    rows: list[tuple[object, ...]] = [head, ("---",) * len(head)]
    for it in arms:
        why = "; ".join(f"{count} {text}" for text, count in it.why.items())
        rows.append((it.name, it.pods, it.failed, it.kills, it.kills_that_failed_a_pod, f"{it.longest:.1f} s", why))
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


if __name__ == "__main__":
    run("benchmarks.cluster_kills", __doc__, measure, table)
