"""Figures as Prometheus takes them, and probes as the kubelet sends them."""

import asyncio

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from plugin.metrics import table
from scrubber.ground.metric_table import Row
from tests.fetching import fetch, metrics

TABLE = (*table.TABLE, *table.DRA_TABLE)
LABELS = {name: set(row.all_labels) for row in TABLE for name in row.series}
BARE = {name: set(row.labels) for row in TABLE for name in row.series}  # a count and a sum have no "le"


class Scraped:
    """What there was at one moment."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [it for family in self.families.values() for it in family.samples]
        self.series = {(it.name, tuple(sorted(it.labels.items()))) for it in self.samples}

    def of(self, row: Row, suffix: str = "", **labels: str) -> float | None:
        """The value of one series; None if there is none."""
        found = [it.value for it in self.samples if it.name == row.name + suffix and it.labels == labels]
        assert len(found) <= 1
        return found[0] if found else None

    def receipts(self, row: Row) -> set[str]:
        """Where the metrics lead to."""
        name = f"{row.name}_bucket"
        return {it.exemplar.labels["receipt"] for it in self.samples if it.name == name and it.exemplar is not None}

    def unknown(self) -> list[str]:
        """What is in no table, or has other labels than it should."""
        ours = [it for it in self.samples if not it.name.startswith("process_")]
        return [str(it) for it in ours if set(it.labels) not in (LABELS.get(it.name), BARE.get(it.name))]


async def get(address: str, path: str, accept: str = "") -> tuple[int, str]:
    """Status and body."""
    return await asyncio.to_thread(fetch, address, path, accept)


async def scrape(address: str) -> Scraped:
    """All metrics."""
    return Scraped(await asyncio.to_thread(metrics, address))
