"""What a metric is, and the instruments that are made of a table of them.

The names and labels of a table are a contract with strangers' dashboards. So nothing is counted or shown that is not in
one: an instrument is asked for by the row that describes it, and a row knows which labels it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import Metric

disable_created_metrics()  # type: ignore[no-untyped-call]  # each counter and histogram would have a twin


class Kind(Enum):
    """What may be done with the figures."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. ``labels`` of an info are all that it says."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def stem(self) -> str:
        """The name without what its kind adds."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which its figures are found."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Its labels as they are found on its figures."""
        return (*self.labels, "le") if self.kind is Kind.HISTOGRAM else self.labels


Sample = tuple[Row, tuple[str, ...], float]


def families(samples: Iterable[Sample]) -> list[Metric]:
    """What is true just now, each value under the labels of its row, in the order in which the rows first came."""
    made: dict[str, Metric] = {}
    for row, labels, value in samples:
        if row.name not in made:
            made[row.name] = Metric(row.stem, row.help, row.kind.value, row.unit)
        made[row.name].add_sample(row.name, dict(zip(row.labels, labels, strict=True)), value)
    return list(made.values())


class Instruments:
    """Counters and histograms of a table, each made once. What is in another table, or looked up, is not theirs."""

    def __init__(self, table: Iterable[Row], registry: CollectorRegistry) -> None:
        """Those without labels begin at nothing; the others show up when they are first used, or ``known``."""
        self._rows = tuple(table)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for row in self._rows:
            if row.kind is Kind.COUNTER:
                self._counters[row.name] = Counter(row.stem, row.help, row.labels, registry=registry, unit=row.unit)
            elif row.kind is Kind.HISTOGRAM:
                self._histograms[row.name] = Histogram(
                    row.name, row.help, row.labels, registry=registry, unit=row.unit, buckets=row.buckets
                )

    def known(self, row: Row, *labels: str) -> None:
        """Show it as 0 until it happens: whoever asks how much it grew hears of the first time as well."""
        self._counters[row.name].labels(*labels)

    def count(self, row: Row, *labels: str, by: float = 1.0) -> None:
        """It has happened, or so much of it."""
        counter = self._counters[row.name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def forget(self, uuid: str) -> None:
        """Show nothing more of a device; what comes of it later counts from nothing."""
        for row in self._rows:
            if "uuid" in row.labels and row.kind is Kind.COUNTER:
                self._counters[row.name].remove_by_labels({"uuid": uuid})

    def time(self, row: Row, *labels: str, value: float, receipt: str = "") -> None:
        """It took so much; ``receipt`` leads from the figure to the proof."""
        histogram = self._histograms[row.name]
        exemplar = {"receipt": receipt} if receipt else None
        (histogram.labels(*labels) if labels else histogram).observe(value, exemplar)
