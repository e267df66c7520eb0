"""The parts of the trial, in their order: first what a short trial must have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured

LAST = "zeros"  # runs at the end of every call, also after a failure
GRACE = 10.0  # seconds for a part that is late to save what it has

Measure = Callable[[Where], Iterable[Measured]]  # yields each figure when it is known


@dataclass(frozen=True)
class Kind:
    """The function of a part, loaded in the process of the part alone; and its time limit in seconds."""

    module: str
    seconds: float
    function: str = "measure"

    @property
    def measure(self) -> Measure:
        """The function."""
        return cast("Measure", getattr(import_module(f"benchmarks.trial.{self.module}"), self.function))


PARTS = {
    "imports": Kind("imports", 20),
    "launches": Kind("launches", 20),
    "nvml": Kind("beliefs", 20),
    "clear": Kind("proof", 30),
    "service": Kind("service", 70),
    "residue": Kind("proof", 30, "residue"),
    "accounts": Kind("beliefs", 20, "accounts"),
    "faults": Kind("faults", 50),
    "scratch": Kind("chip", 30),
    "passes": Kind("passes", 20),
    "dram": Kind("dram", 50),
    "timeline": Kind("start", 50),
    "one worker": Kind("job", 60),
    "tests": Kind("checks", 120),
    "self-test": Kind("chip", 40, "tested"),
    "sizes": Kind("passes", 30, "sizes"),
    "variants": Kind("variants", 60),
    "sanitizer": Kind("sanitizer", 120),
    LAST: Kind("proof", 20, "leave_zeros"),
}


def time_for(name: str, left: float) -> float | None:
    """The seconds that a part gets of the time that is left; None if less than half of it could be done."""
    left -= GRACE + PARTS[LAST].seconds
    return min(PARTS[name].seconds, left) if left >= PARTS[name].seconds / 2 else None
