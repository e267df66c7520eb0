"""What a pod waits for on a busy node: Allocate and PreStartContainer for a CLEAN device, beside many other processes.

The baseline in the same run is a device plugin that does nothing, in the same language, driven by the same stand-in of
the kubelet. Each pod has its own control group, as on a node of Kubernetes; making these takes root.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from benchmarks import chain, processes, rig
from benchmarks.figures import Figure, quantile
from demo.containers import ContainerRunner
from demo.installation import RESOURCE
from demo.stage import Stage
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod
from demo.standins.runtime import Runtime
from scrubber.node.group_places import GROUPS

FILES = 5
QUIET = "0 more processes"
# The last is a node whose other GPUs train: one process for each GPU, and sixteen that read data for it. The aims are
# those behind a fence. Without one, each start searches all processes.
CROWDS: dict[str, tuple[Callable[[], AbstractContextManager[object]], str]] = {
    QUIET: (nullcontext, "<= 9 ms"),
    "2000 more processes": (lambda: processes.crowd(2000, FILES), "<= 15 ms"),
    "136 working processes of 3000 mappings": (lambda: processes.programs(136, 17, 20, 3000, 136), "<= 15 ms"),
}
SANDBOX = 0.15  # seconds between the hooks: a real runtime takes longer for the sandbox of a pod
GPUS, PODS = 4, 40
HOOKS = ("Allocate", "PreStartContainer")


class Waiting(Runtime):
    """Starts nothing, and takes as long as a sandbox."""

    async def open_sandbox(self, pod: Pod) -> None:  # noqa: ARG002 - the port's
        """Wait."""
        await asyncio.sleep(SANDBOX)


class Grouped(ContainerRunner):
    """Puts the sandbox of each pod into the pod's own control group."""

    async def open_sandbox(self, pod: Pod) -> None:
        """A process of the pod, as a pause container is."""
        await super().open_sandbox(pod)
        for group in self._groups(pod):
            group.mkdir(parents=True, exist_ok=True)
            (group / "cgroup.procs").write_text(str(self.pids(pod, "")[0]))
        await asyncio.sleep(SANDBOX)

    async def close_sandbox(self, pod: Pod) -> None:
        """The group goes with it."""
        await super().close_sandbox(pod)
        for group in self._groups(pod):
            group.rmdir()

    def _groups(self, pod: Pod) -> Iterator[Path]:
        """In the unified hierarchy, where the stage has not put it already, or in one of the first version."""
        unified = (GROUPS / "cgroup.procs").exists()
        if not unified or self.groups is None:
            yield (GROUPS if unified else GROUPS / "pids") / f"kubepods/pod{pod.uid}"


async def measure(*, quick: bool) -> list[Figure]:
    """The plugin that does nothing and ours, on a node without and with other processes."""
    pods = 4 if quick else PODS
    figures: list[Figure] = []
    for about, (crowd, aim) in CROWDS.items():
        with crowd():
            async with chain.do_nothing(GPUS, Waiting()) as driven:
                floor = await _hooks(driven.kubelet, driven.resource, pods, driven.again)
            figures += _figures(f"do-nothing Python plugin, {about}", floor)
            for node, fenced in ((about, True), (f"{about}, no fence", False)):
                async with _ours(fenced=fenced) as stage:
                    ours = await _hooks(stage.kubelet, RESOURCE, pods, lambda: chain.given_back(stage))
                more, name = _both(ours) - _both(floor), f"{node}: both hooks, p50, more than the do-nothing plugin"
                figures += _figures(f"autoclave, {node}", ours)
                figures.append(Figure(name, more, "ms", pods, aim if fenced else ""))
    return figures


@asynccontextmanager
async def _ours(*, fenced: bool) -> AsyncIterator[Stage]:
    async with rig.service(GPUS, runs=Grouped, fenced=fenced) as stage:
        await stage.start_node()
        yield stage


async def _hooks(
    kubelet: Kubelet, resource: str, pods: int, again: Callable[[], Awaitable[None]]
) -> dict[str, list[float]]:
    """Run pods one after the other, each on a clean device; the milliseconds of both hooks, without the first pod."""
    for number in range(pods + 1):
        pod = Pod.of(f"pod-{number}", {resource: 1})
        if (await kubelet.run(pod)).phase is not Phase.RUNNING:
            raise RuntimeError(f"a pod does not run: {pod.message}")
        await kubelet.delete(pod)
        await again()
    return {hook: [it.seconds * 1000 for it in kubelet.calls if it.method == hook][1:] for hook in HOOKS}


def _figures(about: str, hooks: dict[str, list[float]]) -> list[Figure]:
    each = [Figure(f"{about}: {it}, p50", quantile(times, 0.5), "ms", len(times)) for it, times in hooks.items()]
    return [*each, Figure(f"{about}: both hooks, p50", _both(hooks), "ms", len(hooks[HOOKS[0]]))]


def _both(hooks: dict[str, list[float]]) -> float:
    """The median of the sum of both hooks."""
    return quantile([sum(times) for times in zip(*hooks.values(), strict=True)], 0.5)
