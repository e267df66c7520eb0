"""What was measured of a GPU: samples as they were taken, and what is said of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

REMARK = "remark"  # the unit of what is no figure


@dataclass(frozen=True)
class Measured:
    """One thing, so many times. Without samples it was not measured."""

    what: str
    samples: tuple[float, ...]
    unit: str
    note: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table: what, median, lowest, highest, unit, samples, note."""
        if self.unit == REMARK:
            return (self.what, self.note, "", "", "", "", "")
        if not self.samples:
            return (self.what, "not measured", "", "", "", "0", self.note)
        told = (statistics.median(self.samples), min(self.samples), max(self.samples))
        return (self.what, *map(_plain, told), self.unit, str(len(self.samples)), self.note)


class NotDone(Exception):
    """A part that cannot be measured here, which is no failure. The message says why."""


class Unproven(Exception):
    """It was measured, and yet cannot pass: the figures tell how."""

    def __init__(self, why: str, figures: tuple[Measured, ...]) -> None:
        super().__init__(why)
        self.figures = figures


def one(what: str, value: float | None, unit: str, note: str = "") -> Measured:
    """What was measured once; or was not, and is None."""
    return Measured(what, () if value is None else (value,), unit, note)


def remark(what: str, text: str) -> Measured:
    """What is said in words."""
    return Measured(what, (), REMARK, text)


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.4g}"
