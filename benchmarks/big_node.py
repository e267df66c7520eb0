"""What a scrub costs on a node with many processes, or with large ones, beside the same scrub on an empty node.

The GPU is simulated. The service searches all processes, as for an NVIDIA GPU.
"""

from __future__ import annotations

import time

from benchmarks import processes, rig
from benchmarks.figures import Figure, quantile
from demo.stage import Stage

MEMORY = "512MiB"  # a scrub takes about as long as that of a GPU in a data centre
SCRUBS = 8
NODES = {  # processes; threads, more files and more mappings of each; how many of them work
    "2000 processes of 8 threads": (2000, 8, 10, 0, 200),
    "136 processes of 17 threads and 3000 mappings": (136, 17, 20, 3000, 136),
}


async def measure(*, quick: bool) -> list[Figure]:
    """Scrubs on the fast path, on the node as it is and then with each kind of processes."""
    figures: list[Figure] = []
    scrubs = 3 if quick else SCRUBS
    async with rig.service(1, MEMORY, "default") as stage:
        for name, (size, *kind) in NODES.items():
            empty = await _scrubs(stage, scrubs)
            with processes.programs(size // 10 if quick else size, *kind):
                full = await _scrubs(stage, scrubs)
            figures += _compared(name, empty, full, scrubs)
    return figures


async def _scrubs(stage: Stage, number: int) -> tuple[float, float]:
    """The median of the seconds that a scrub takes, and the mean of its processor time."""
    took, before = [], processes.of_session(stage.service.pid)
    async with stage.admin() as admin:
        for _ in range(number):
            began = time.monotonic()
            results = [it.result async for it in admin.scrub(stage.uuids, path="fast") if it.result]
            took.append(time.monotonic() - began)
            if not results or results[-1].state != "clean":
                raise RuntimeError(f"a scrub failed: {results}")
    return quantile(took, 0.5), (processes.of_session(stage.service.pid) - before) / number


def _compared(name: str, empty: tuple[float, float], full: tuple[float, float], scrubs: int) -> list[Figure]:
    about = f"a scrub on the fast path, {name}"
    return [
        Figure(f"{about}: p50", full[0] * 1000, "ms", scrubs),
        Figure(f"{about}: p50, times that of the empty node", full[0] / empty[0], "times", scrubs, "<= 1.5"),
        Figure(f"{about}: processor, more than on the empty node", full[1] - empty[1], "s", scrubs, "<= 1 s"),
    ]
