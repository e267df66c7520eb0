"""What an HTTP door of ours answers."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ground import http_server
from ground.metric_table import Row
from tests.patience import WITHIN

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def fetch(address: str, path: str, accept: str = "") -> tuple[int, str]:
    """Status and body."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=WITHIN) as answer:  # noqa: S310 - http, as above
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


_shown: dict[str, float] = {}  # when each address last showed its metrics


def metrics(address: str) -> str:
    """All metrics in OpenMetrics, as they are now: those that were shown here are shown again for a moment."""
    time.sleep(
        max(0.0, _shown.get(address, 0.0) + http_server.CACHE_SECONDS - time.monotonic())
    )  # nothing else tells that it is over
    status, text = fetch(address, "/metrics", OPENMETRICS)
    _shown[address] = time.monotonic()
    assert status == 200
    return text


def lint(text: str) -> None:
    """The linter of Prometheus (Debian: prometheus) has nothing to say about these metrics, where it is installed."""
    if (promtool := shutil.which("promtool")) is not None:
        checked = subprocess.run([promtool, "check", "metrics"], input=text.encode(), capture_output=True, check=False)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


class Scraped:
    """The metrics of one moment, which stand in a table."""

    def __init__(self, text: str, rows: Iterable[Row]) -> None:
        self.rows = {name: row for row in rows for name in row.series}
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [it for family in self.families.values() for it in family.samples]
        self.series = {(it.name, tuple(sorted(it.labels.items()))) for it in self.samples}

    def one(self, name: str, **labels: str) -> float:
        """The value of the only series with these labels, and perhaps more."""
        found = [it.value for it in self.samples if it.name == name and labels.items() <= it.labels.items()]
        assert len(found) == 1
        return float(found[0])

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
        """What is in no table, or has other labels than it should: a count and a sum have no "le"."""
        ours = [it for it in self.samples if not it.name.startswith("process_")]
        return [
            str(it)
            for it in ours
            if it.name not in self.rows
            or set(it.labels) not in (set(self.rows[it.name].all_labels), set(self.rows[it.name].labels))
        ]
