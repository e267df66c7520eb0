"""One measured figure, and how figures are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_AIM = re.compile(r"(?:p50 )?(?P<sign><=?|) ?(?P<limit>[\d.]+) ?(?P<unit>[^\s,]*)")


@dataclass(frozen=True)
class Figure:
    """What was measured, how often, and what was aimed at."""

    name: str
    value: float
    unit: str
    samples: int
    aim: str = ""

    @property
    def missed(self) -> bool:
        """Whether it misses its aim. An aim in another unit, as one beside another figure, is not judged here."""
        aim = _AIM.match(self.aim)
        if aim is None or not self.unit.casefold().startswith(aim["unit"].casefold()):
            return False
        limit = float(aim["limit"])
        return {"<=": self.value > limit, "<": self.value >= limit, "": self.value != limit}[aim["sign"]]

    @property
    def shown(self) -> tuple[str, str, str]:
        """The cells of a table: what, measured, aim; an aim that is missed says so."""
        return self.name, f"{self.value:.3g} {self.unit}", f"{self.aim} (missed)" if self.missed else self.aim


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample that this share of all does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(figures: Sequence[Figure], *, samples: bool = True) -> str:
    """A Markdown table."""
    columns = 4 if samples else 3
    rows = [(*f.shown, str(f.samples)) for f in figures]
    head, *lines = (f"| {' | '.join(row[:columns])} |" for row in (("what", "measured", "aim", "samples"), *rows))
    return "\n".join([head, f"|{'---|' * columns}", *lines])
