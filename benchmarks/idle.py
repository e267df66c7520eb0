"""What the service costs while nobody asks: processor time and memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from benchmarks import rig
from benchmarks.figures import Figure

GPUS = 8
TICKS = os.sysconf("SC_CLK_TCK")


async def measure(*, quick: bool) -> list[Figure]:
    """A minute of nothing."""
    seconds = 5.0 if quick else 60.0
    async with rig.service(GPUS) as stage:
        pid = stage.pid
        before = _ticks(pid)
        await asyncio.sleep(seconds)
        share = (_ticks(pid) - before) / TICKS / seconds
        rss = _rss(pid)
        heavy = _mapped(pid, ("numpy", "cupy", "cuda", "nvidia"))
    return [
        Figure(f"idle, {GPUS} devices: processor", share * 100, "% of a core", 1, "< 1 %"),
        Figure(f"idle, {GPUS} devices: resident memory", rss / 2**20, "MiB", 1, "<= 80 MiB"),
        Figure("libraries of numpy, cupy, cuda or nvidia in the service", heavy, "mapped", 1, "0"),
    ]


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _rss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def _mapped(pid: int, names: tuple[str, ...]) -> int:
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum(any(name in line for name in names) for line in maps)
