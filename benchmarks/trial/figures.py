"""The figures of a GPU: the samples, and how a table shows them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

REMARK = "remark"  # the unit of a remark, which has no figure


@dataclass(frozen=True)
class Measured:
    """The samples of one figure. Without samples, it was not measured."""

    what: str
    samples: tuple[float, ...]
    unit: str
    note: str = ""
    predicted: tuple[float, float] | None = None  # between which values, as was written before it was measured ...
    because: str = ""  # ... and why
    counted: tuple[int, int] | None = None  # of a share: so many of so many

    @property
    def surprises(self) -> bool:
        """Whether it is not as predicted."""
        if self.predicted is None or not self.samples:
            return False
        return not self.predicted[0] <= statistics.median(self.samples) <= self.predicted[1]

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a table: what, median, lowest, highest, unit, samples, predicted, note."""
        if self.unit == REMARK:
            return (self.what, self.note, "", "", "", "", "", "")
        if not self.samples:
            return (self.what, "not measured", "", "", "", "0", self._prediction, self.note)
        told = (statistics.median(self.samples), min(self.samples), max(self.samples))
        return (self.what, *map(_plain, told), self.unit, str(len(self.samples)), self._prediction, self.note)

    @property
    def _prediction(self) -> str:
        if self.predicted is None:
            return ""
        low, high = map(_plain, self.predicted)
        values = low if low == high else f"{low} to {high}"
        return f"{'NOT ' * self.surprises}{values}: {self.because}"


@dataclass(frozen=True)
class Question:
    """A figure, and what was predicted of its median before it was measured for the first time."""

    what: str
    low: float
    high: float
    unit: str
    because: str

    def about(self, what: str) -> Question:
        """The same question in one of several cases."""
        return replace(self, what=f"{what}: {self.what}")

    def answered(self, *samples: float, note: str = "", counted: tuple[int, int] | None = None) -> Measured:
        """The figure beside its prediction; without samples it was not measured."""
        return Measured(self.what, samples, self.unit, note, (self.low, self.high), self.because, counted)


@dataclass(frozen=True)
class Part:
    """The figures of a part, with the reason if the part does not pass or cannot run here."""

    name: str
    seconds: float
    figures: tuple[Measured, ...] = ()
    why: str = ""  # why it failed
    not_done: str = ""


class NotDone(Exception):
    """A part cannot be measured here. This does not count as a failure. The message says why."""


class Unproven(Exception):
    """A part was measured and does not pass. The message says why."""


def one(what: str, value: float | None, unit: str, note: str = "") -> Measured:
    """A figure with one sample; None: it was not measured."""
    return Measured(what, () if value is None else (value,), unit, note)


def remark(what: str, text: str) -> Measured:
    """A remark in words."""
    return Measured(what, (), REMARK, text)


def rounds(most: int, ends: float, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """Numbers of rounds: one, then as many up to ``most`` as will have ended in time if each takes as the longest."""
    longest = 0.0
    for number in range(most):
        began = clock()
        if number and began + longest > ends:
            return
        yield number
        longest = max(longest, clock() - began)


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.4g}"
