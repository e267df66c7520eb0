"""What a vendor's plugin behind ours costs: Allocate, and the way of a change of its list to the kubelet.

The baselines in the same run are our own plugin, and the vendor's plugin without ours. The vendor's plugin is the
stand-in, and the pods of both plugins take turns.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks import chain, processes, rig
from benchmarks.figures import Figure, quantile
from demo.installation import RESOURCE, ByPlugin, ByVendor
from demo.programs import ServiceProgram
from demo.stage import Stage
from demo.standins.journal import Call
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Phase, Pod
from demo.standins.vendor_plugin import VendorPlugin
from tests.plugin.scrub_server import ScrubServer, gpu

WAYS = {"our own plugin": ByPlugin, "in front of the vendor's": ByVendor}
GPUS, PODS = 4, 40
SIZES = ((1, 4), (8, 14))  # resources, and devices of each
CHANGES = 40
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


async def measure(*, quick: bool) -> list[Figure]:
    """Allocate of both plugins, and changes of small and large lists."""
    figures = await _allocates(2 if quick else PODS)
    for resources, each in SIZES:
        figures += await _changes(resources, each, 2 if quick else CHANGES)
    return figures


async def _allocates(pods: int) -> list[Figure]:
    async with AsyncExitStack() as running:
        stages = {
            name: await running.enter_async_context(rig.service(GPUS, installed_as=way)) for name, way in WAYS.items()
        }
        for stage in stages.values():
            await stage.start_node()
        for number in range(pods + 1):
            for stage in stages.values():
                await _one_pod(stage, number)
        size = processes.rss(stages["in front of the vendor's"].plugin.pid) / 2**20
        times = {name: [it.seconds * 1000 for it in _calls(stage)][1:] for name, stage in stages.items()}
    own, front = (quantile(samples, 0.5) for samples in times.values())
    return [
        *(Figure(f"Allocate, {name}, p50", quantile(it, 0.5), "ms", len(it)) for name, it in times.items()),
        Figure("Allocate, in front of the vendor's to our own", front / own, "times", pods, "<= 2 times"),
        Figure("in front of the vendor's plugin: resident memory", size, "MiB", 1, "<= 55 MiB"),
    ]


async def _one_pod(stage: Stage, number: int) -> None:
    pod = Pod.of(f"pod-{number}", {RESOURCE: 1})
    if (await stage.kubelet.run(pod)).phase is not Phase.RUNNING:
        raise RuntimeError(f"a pod does not run: {pod.message}")
    await stage.kubelet.delete(pod)
    await chain.given_back(stage)


def _calls(stage: Stage) -> Iterator[Call]:
    return (it for it in stage.kubelet.calls if it.method == "Allocate")


async def _changes(resources: int, each: int, changes: int) -> list[Figure]:
    """How long the kubelet does not know of a change, with and without the plugin in front."""
    names = [f"nvidia.com/mig-{number}" for number in range(resources)]
    devices = [[f"GPU-{number * each + index:04}" for index in range(each)] for number in range(resources)]
    about = f"{resources} resources with {each} devices each" if resources > 1 else f"{each} devices"
    figures = []
    for in_front in (False, True):
        async with _kubelet(resources * each, in_front=in_front) as (kubelet, directory):
            vendors = [
                VendorPlugin(directory, directory / "vendor" if in_front else directory, ids, name)
                for name, ids in zip(names, devices, strict=True)
            ]
            for vendor in vendors:
                await vendor.begin()
            await kubelet.until(lambda: all(HEALTHY in kubelet.devices(name).values() for name in names))
            seconds = [await _change(kubelet, vendors[turn % resources]) for turn in range(changes)]
            for vendor in vendors:
                await vendor.stop()
        who = "in front of the vendor's plugin" if in_front else "the vendor's plugin alone"
        aim = "<= 20 ms" if in_front else ""
        figures.append(
            Figure(f"change of a list, {about}, {who}, p50", quantile(seconds, 0.5) * 1000, "ms", changes, aim)
        )
    return figures


async def _change(kubelet: Kubelet, vendor: VendorPlugin) -> float:
    """The seconds until the kubelet knows that a device is unhealthy. Then it is healthy again."""
    name = next(iter(vendor.devices))
    began = time.perf_counter()
    vendor.devices[name] = UNHEALTHY
    vendor.show()
    await kubelet.until(lambda: kubelet.devices(vendor.resource)[name] == UNHEALTHY)
    seconds = time.perf_counter() - began
    vendor.devices[name] = HEALTHY
    vendor.show()
    await kubelet.until(lambda: kubelet.devices(vendor.resource)[name] == HEALTHY)
    return seconds


@asynccontextmanager
async def _kubelet(devices: int, *, in_front: bool) -> AsyncIterator[tuple[Kubelet, Path]]:
    """A kubelet and its directory; with a plugin in front, and a scrub service that says yes to everything."""
    with tempfile.TemporaryDirectory(prefix="ac-") as path:
        root = Path(path)
        directory, run = root / "kubelet", root / "run"
        for made in (run, directory / "vendor"):
            made.mkdir(parents=True, mode=0o700)
        server = ScrubServer(run)
        server.say(*(gpu(number) for number in range(devices)))
        kubelet = Kubelet(directory)
        places = ("--run-dir", str(run), "--kubelet-dir", str(directory), "--vendor-dir", str(directory / "vendor"))
        program = ServiceProgram(("plugin", *places, "--log-format", "json"), root / "plugin.log")
        await server.open()
        await kubelet.start()
        if in_front:
            await program.start()
        try:
            yield kubelet, directory
        finally:
            await program.end(signal.SIGTERM)
            await kubelet.stop()
            await server.close()
