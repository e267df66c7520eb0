"""One measured figure, and how figures are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """What was measured, how often, and what was aimed at."""

    name: str
    value: float
    unit: str
    samples: int
    aim: str = ""


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample that this share of all does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(figures: Sequence[Figure], *, samples: bool = True) -> str:
    """A Markdown table."""
    columns = 4 if samples else 3
    rows = [(f.name, f"{f.value:.3g} {f.unit}", f.aim, str(f.samples)) for f in figures]
    head, *lines = (f"| {' | '.join(row[:columns])} |" for row in (("what", "measured", "aim", "samples"), *rows))
    return "\n".join([head, f"|{'---|' * columns}", *lines])
