"""What the create gate adds to the creation of a container by the real runc, and 100 creations at once.

The baseline in the same run is the same container without the hook; the two take turns.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.figures import Figure, quantile
from scrubber.devices.simulated.containers import MARK
from tests.create_gate.containers import Containers
from tests.create_gate.programs import SOURCE, compiled
from tests.live import Service

TURNS, AT_ONCE = 300, 100
RUNS = "it runs\n"


async def measure(*, quick: bool) -> list[Figure]:
    """Containers of one pod on a clean GPU."""
    return await asyncio.to_thread(_measure, 5 if quick else TURNS, 5 if quick else AT_ONCE)


def _measure(turns: int, at_once: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="ac-") as path:
        root = Path(path)
        containers = Containers(root, compiled(root / "runs", SOURCE.parents[2] / "tests/create_gate/runs.c"))
        gate = compiled(root / "autoclave-gate", SOURCE)
        sandbox = subprocess.Popen(["sleep", "inf"], env={**os.environ, MARK: "a"})  # of the pod: its owner lives
        service = Service(root, 1, "--create-gate", gate, "--gate-cdi-dir", containers.cdi)
        try:
            service.hear("create gate covers")
            hooks = containers.hooks(service.settled(0, "clean").device)
            _run(containers, "first", hooks)  # as PreStartContainer: it admits the pod
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(turns):
                for gated, samples in seconds.items():
                    samples.append(_run(containers, f"c{turn}-{gated}", hooks if gated else []))
            with ThreadPoolExecutor(at_once) as pool:
                together = list(pool.map(lambda number: _run(containers, f"all{number}", hooks), range(at_once)))
                alone = list(pool.map(lambda number: _run(containers, f"none{number}", []), range(at_once)))
        finally:
            service.kill()
            sandbox.kill()
            sandbox.wait()
    return [
        *_figures("runc without the hook", seconds[False], turns),
        *_figures("runc with the hook", seconds[True], turns),
        _added(seconds, 0.5, "<= 5 ms"),
        _added(seconds, 0.99, "<= 20 ms"),
        Figure(f"{at_once} at once without the hook, the slowest", max(alone) * 1000, "ms", at_once, ""),
        Figure(f"{at_once} at once with the hook, the slowest", max(together) * 1000, "ms", at_once, ""),
    ]


def _run(containers: Containers, name: str, hooks: list[dict[str, object]]) -> float:
    began = time.perf_counter()
    said = containers.run(name, hooks)
    if said != RUNS:
        raise RuntimeError(f"a container was not created: {said}")
    return time.perf_counter() - began


def _figures(what: str, seconds: list[float], turns: int) -> list[Figure]:
    return [Figure(f"{what}, p{at}", quantile(seconds, at / 100) * 1000, "ms", turns, "") for at in (50, 99)]


def _added(seconds: dict[bool, list[float]], at: float, aim: str) -> Figure:
    more = quantile(seconds[True], at) - quantile(seconds[False], at)
    return Figure(f"the hook adds, p{at * 100:.0f}", more * 1000, "ms", len(seconds[True]), aim)
