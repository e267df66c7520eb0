"""Rows that describe metrics, and the Prometheus instruments that are made from a table of rows.

Users build dashboards on names and labels, so these are a contract. Code therefore counts by row, never by name: a
metric that is in no table cannot exist, and the row knows its labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import Metric

disable_created_metrics()  # type: ignore[no-untyped-call]  # otherwise each counter and histogram has a second series


class Kind(Enum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. An info metric has all its data in ``labels``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def stem(self) -> str:
        """The name without the suffix of its kind."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its time series."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The labels of its time series."""
        return (*self.labels, "le") if self.kind is Kind.HISTOGRAM else self.labels


def rows(names: Mapping[str, object]) -> tuple[Row, ...]:
    """The rows that a module has defined so far, in their order."""
    return tuple(value for value in names.values() if isinstance(value, Row))


Sample = tuple[Row, tuple[str, ...], float]


def families(samples: Iterable[Sample]) -> list[Metric]:
    """The metrics of these samples, in the order in which their rows first occur."""
    made: dict[str, Metric] = {}
    for row, labels, value in samples:
        if row.name not in made:
            made[row.name] = Metric(row.stem, row.help, row.kind.value, row.unit)
        made[row.name].add_sample(row.name, dict(zip(row.labels, labels, strict=True)), value)
    return list(made.values())


class Instruments:
    """The counters and histograms of one table. Gauges come from collectors instead."""

    def __init__(self, table: Iterable[Row], registry: CollectorRegistry) -> None:
        """Register the table. A metric without labels starts at 0, others at their first use."""
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

    def export_zero(self, row: Row, *labels: str) -> None:
        """Export the series as 0 before its first event, so that Prometheus sees the first increase."""
        self._counters[row.name].labels(*labels)

    def count(self, row: Row, *labels: str, by: float = 1.0) -> None:
        """Increase a counter."""
        counter = self._counters[row.name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def forget(self, uuid: str) -> None:
        """Remove the counters of a device. A later event starts them at 0 again."""
        for row in self._rows:
            if "uuid" in row.labels and row.kind is Kind.COUNTER:
                self._counters[row.name].remove_by_labels({"uuid": uuid})

    def observe(self, row: Row, *labels: str, value: float, receipt: str = "") -> None:
        """Add a value to a histogram; ``receipt`` is the exemplar that leads to the proof."""
        histogram = self._histograms[row.name]
        exemplar = {"receipt": receipt} if receipt else None
        (histogram.labels(*labels) if labels else histogram).observe(value, exemplar)
