"""Clear and verify of a simulated GPU's memory beside a plain overwrite of the same file with zeros."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Figure, quantile
from scrubber.devices.simulated import creation, layout
from scrubber.devices.simulated.gpu import SimulatedGpu

SIZE = 64 * 2**20
CHUNK = 2**20


async def measure(*, quick: bool) -> list[Figure]:
    """Alternating, so that a change of the machine's mood meets both."""
    rounds = 3 if quick else 15
    with tempfile.TemporaryDirectory() as root:
        creation.create(Path(root), 1, SIZE)
        [place] = layout.places(Path(root))
        gpu = SimulatedGpu(place.directory)
        work: dict[str, Callable[[], object]] = {
            "memset": lambda: _memset(place.memory),
            "zero": lambda: _scrub(gpu, ("zero",)),
            "random+zero": lambda: _scrub(gpu, ("random", "zero")),
        }
        times: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(rounds):
            for name, run in work.items():
                _fill(place.memory)
                began = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - began)
    base = quantile(times["memset"], 0.5)
    figures = [Figure("plain overwrite with zeros, 64 MiB file", SIZE / base / 2**20, "MiB/s", rounds)]
    for name in ("zero", "random+zero"):
        middle = quantile(times[name], 0.5)
        figures.append(Figure(f"clear+verify, passes {name}, 64 MiB", SIZE / middle / 2**20, "MiB/s", rounds))
        figures.append(Figure(f"clear+verify, passes {name}: times a plain overwrite", middle / base, "x", rounds))
    return figures


def _fill(memory: Path) -> None:
    """What a tenant leaves: nothing that is zero already."""
    with memory.open("r+b") as file:
        for _ in range(SIZE // CHUNK):
            file.write(os.urandom(CHUNK))


def _memset(memory: Path) -> None:
    zeros = bytes(CHUNK)
    with memory.open("r+b", buffering=0) as file:
        for _ in range(SIZE // CHUNK):
            file.write(zeros)


def _scrub(gpu: SimulatedGpu, patterns: tuple[str, ...]) -> None:
    gpu.clear(secrets.token_bytes(16), patterns, lambda _done, _total: None)
    gpu.verify(lambda _done, _total: None)
