"""The parts of the trial, in their order: first what a short trial must have seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured

LAST = "zeros"  # runs at the end of every call, also after a failure
GRACE = 10.0  # seconds for a part that is late to save what it has, or a third of its time
MOST = 2  # times its own time that a part gets if others leave it more
WITHIN = 540.0  # seconds for all parts of one call; they fit into a call of ten minutes

Measure = Callable[[Where], Iterable[Measured]]  # yields each figure when it is known


@dataclass(frozen=True)
class Kind:
    """The function of a part, loaded in the process of the part alone.

    ``seconds``: its share of the time for all, together ``WITHIN``. ``held``: the trial holds the node of the GPU open.
    """

    module: str
    seconds: float
    function: str = "measure"
    held: bool = True

    @property
    def measure(self) -> Measure:
        """The function."""
        return cast("Measure", getattr(import_module(f"benchmarks.trial.{self.module}"), self.function))


PARTS = {
    "imports": Kind("imports", 15),
    "launches": Kind("launches", 15),
    "nvml": Kind("beliefs", 15),
    "opens": Kind("opens", 20, held=False),
    "fence": Kind("fence", 35),
    "clear": Kind("proof", 15),
    "service": Kind("service", 50, held=False),  # it opens the node itself, and keeps it open
    "pods": Kind("pods", 40, held=False),  # the same
    "faults": Kind("faults", 15),
    "scratch": Kind("chip", 20),
    "passes": Kind("passes", 15),
    "dram": Kind("dram", 15),
    "timeline": Kind("start", 20),
    "ahead": Kind("ahead", 20),
    "one worker": Kind("job", 20),
    "tests": Kind("checks", 30),
    "allocations": Kind("allocations", 15),
    "exits": Kind("exits", 15),
    "ramp": Kind("ramp", 35),
    "flips": Kind("flips", 20),
    "traps": Kind("traps", 10),
    "self-test": Kind("chip", 25, "tested"),
    "sizes": Kind("passes", 10, "sizes"),
    "variants": Kind("variants", 20),
    "sanitizer": Kind("sanitizer", 20),
    LAST: Kind("proof", 10, "leave_zeros"),
}


def time_for(name: str, others: Iterable[str], left: float) -> float | None:
    """The seconds that a part gets of the time that is left, before the others that are to come.

    Each gets a share, and all shares together are what is left. If that is not half of what they need, the last ones
    get none; None if this part gets none either.
    """
    own, whole = PARTS[name].seconds, PARTS[LAST].seconds
    whole += own if name != LAST else 0
    if whole / 2 > left:
        return None
    for other in others:
        more = PARTS[other].seconds if other != LAST else 0
        if (whole + more) / 2 > left:
            break
        whole += more
    return min(MOST * own, left * own / whole)
