"""From the start of the process to its first answer, with a ledger that already knows the devices."""

from __future__ import annotations

import signal
import time

from benchmarks import rig
from benchmarks.figures import Figure, quantile

GPUS = 8


async def measure(*, quick: bool) -> list[Figure]:
    """Stop and start again, several times."""
    times = []
    async with rig.service(GPUS) as stage:
        for _ in range(3 if quick else 11):
            await stage.service.end(signal.SIGTERM)
            began = time.perf_counter()
            await stage.start()
            times.append(time.perf_counter() - began)
            await rig.all_clean(stage)
    return [Figure(f"start to first answer, {GPUS} devices: median", quantile(times, 0.5), "s", len(times), "<= 1 s")]
