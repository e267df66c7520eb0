"""What a process costs, by /proc."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


async def share(pid: int, seconds: float) -> float:
    """The share of a core that it uses during the next seconds."""
    before = _ticks(pid)
    await asyncio.sleep(seconds)
    return (_ticks(pid) - before) / TICKS / seconds


def rss(pid: int) -> int:
    """Resident bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def mapped(pid: int, names: tuple[str, ...]) -> int:
    """How many mappings have one of these words in their names."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum(any(name in line for name in names) for line in maps)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
