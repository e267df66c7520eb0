"""What the service costs while nobody asks: processor time and memory."""

from __future__ import annotations

from benchmarks import processes, rig
from benchmarks.figures import Figure

GPUS = 8


async def measure(*, quick: bool) -> list[Figure]:
    """A minute of nothing."""
    async with rig.service(GPUS) as stage:
        share = await processes.share(stage.service.pid, 5.0 if quick else 60.0)
        rss = processes.rss(stage.service.pid)
        heavy = processes.mapped(stage.service.pid, ("numpy", "cupy", "cuda", "nvidia"))
    return [
        Figure(f"idle, {GPUS} devices: processor", share * 100, "% of a core", 1, "< 1 %"),
        Figure(f"idle, {GPUS} devices: resident memory", rss / 2**20, "MiB", 1, "<= 80 MiB"),
        Figure("libraries of numpy, cupy, cuda or nvidia in the service", heavy, "mapped", 1, "0"),
    ]
