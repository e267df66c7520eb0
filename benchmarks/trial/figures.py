"""The figures of a GPU: the samples, and how a table shows them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

REMARK = "remark"  # the unit of a remark, which has no figure


@dataclass(frozen=True)
class Measured:
    """The samples of one figure. Without samples, it was not measured."""

    what: str
    samples: tuple[float, ...]
    unit: str
    note: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a table: what, median, lowest, highest, unit, samples, note."""
        if self.unit == REMARK:
            return (self.what, self.note, "", "", "", "", "")
        if not self.samples:
            return (self.what, "not measured", "", "", "", "0", self.note)
        told = (statistics.median(self.samples), min(self.samples), max(self.samples))
        return (self.what, *map(_plain, told), self.unit, str(len(self.samples)), self.note)


class NotDone(Exception):
    """A part cannot be measured here, which is no failure. The message says why."""


class Unproven(Exception):
    """A part was measured and does not pass. The message says why; the figures are kept."""

    def __init__(self, why: str, figures: tuple[Measured, ...]) -> None:
        super().__init__(why)
        self.figures = figures


def one(what: str, value: float | None, unit: str, note: str = "") -> Measured:
    """A figure with one sample; None: it was not measured."""
    return Measured(what, () if value is None else (value,), unit, note)


def remark(what: str, text: str) -> Measured:
    """A remark in words."""
    return Measured(what, (), REMARK, text)


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.4g}"
