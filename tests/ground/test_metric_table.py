"""What a table of metrics turns into, held against the parser of Prometheus' own client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from ground.metric_table import Instruments, Kind, Row, families
from plugin.metrics import plugin_metrics
from scrubber.metrics import service_metrics

TABLES = (*service_metrics.TABLE, *plugin_metrics.TABLE)
COUNTER = Row("autoclave_bytes_total", Kind.COUNTER, "Bytes.", ("gpu",), "bytes")
PLAIN = Row("autoclave_times_total", Kind.COUNTER, "Times.")
TIME = Row("autoclave_time_seconds", Kind.HISTOGRAM, "Time.", ("hook",), "seconds", (0.1, 1.0))
GAUGE = Row("autoclave_heat_celsius", Kind.GAUGE, "Heat.", ("gpu",), "celsius")
INFO = Row("autoclave_thing_info", Kind.INFO, "Thing.", ("gpu", "model"))


def shown(registry: CollectorRegistry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    text = generate_latest(registry).decode()
    return {
        sample.name: {
            tuple(sorted(it.labels.items())): it.value
            for other in text_string_to_metric_families(text)
            for it in other.samples
            if it.name == sample.name
        }
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_without_labels_begin_at_zero():
    registry = CollectorRegistry()
    instruments = Instruments((COUNTER, PLAIN, GAUGE), registry)
    assert shown(registry) == {"autoclave_times_total": {(): 0.0}}
    instruments.export_zero(COUNTER, "0")
    instruments.count(COUNTER, "1", by=7)
    instruments.count(PLAIN)
    assert shown(registry) == {
        "autoclave_times_total": {(): 1.0},
        "autoclave_bytes_total": {(("gpu", "0"),): 0.0, (("gpu", "1"),): 7.0},
    }


def test_times_fall_into_buckets_and_lead_to_a_receipt():
    registry = CollectorRegistry()
    Instruments((TIME,), registry).observe(TIME, "Allocate", value=0.5, receipt="r1")
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    (bucket,) = (it for it in family.samples if it.labels.get("le") == "1.0")
    assert bucket.exemplar is not None
    assert (bucket.value, bucket.exemplar.labels) == (1.0, {"receipt": "r1"})
    assert set(shown(registry)) == set(TIME.series)


def test_a_metric_has_the_name_and_labels_of_its_row():
    class Looked(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from families(
                [
                    (GAUGE, ("0",), 40.5),
                    (INFO, ("0", "H200"), 1.0),
                    (GAUGE, ("1",), 41.0),
                ]
            )

    registry = CollectorRegistry()
    registry.register(Looked())
    assert shown(registry) == {
        "autoclave_heat_celsius": {(("gpu", "0"),): 40.5, (("gpu", "1"),): 41.0},
        "autoclave_thing_info": {(("gpu", "0"), ("model", "H200")): 1.0},
    }


def test_counting_a_row_of_another_table_fails():
    with pytest.raises(KeyError):
        Instruments((COUNTER,), CollectorRegistry()).count(PLAIN)


@pytest.mark.parametrize("row", TABLES, ids=lambda row: row.name)
def test_rows_keep_the_rules_of_names(row):
    assert row.name.startswith("autoclave_")
    assert row.name.endswith("_total") == (row.kind is Kind.COUNTER)
    assert row.name.endswith("_info") == (row.kind is Kind.INFO)
    assert row.stem.endswith(f"_{row.unit}" if row.unit else row.stem)
    assert (row.unit == "seconds") == ("_seconds" in row.name)
    assert bool(row.buckets) == (row.kind is Kind.HISTOGRAM)
    assert list(row.buckets) == sorted(set(row.buckets))
    assert row.help.endswith(".")


def test_no_name_is_there_twice():
    assert len({row.name for row in TABLES}) == len(TABLES)
