"""The page of the service is the one of its record, and a figure that misses its aim says so where it stands."""

import json
import re
from pathlib import Path

import pytest
import yaml

from benchmarks import service_page
from benchmarks.__main__ import MEASUREMENTS
from benchmarks.figures import Figure

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/measurements"
ROW = re.compile(r"^\| ([^|]+?) \| (-?[\d.]+) ([^|]+?) \| ([^|]*?) ?(?:\| \d+ )?\|$", re.MULTILINE)


def test_the_page_of_the_service_is_what_its_record_says():
    """Red? make docs."""
    assert (PAGES / "service.md").read_text() == service_page.page()


@pytest.mark.parametrize(
    ("value", "unit", "aim", "missed"),
    [
        (2, "ms", "<= 2 ms", False),
        (2.1, "ms", "<= 2 ms", True),
        (1.6, "ms", "p50 <= 1.5 ms, flat", True),
        (0.2, "% of a core", "< 0.2 %", True),
        (0.19, "% of a core", "< 0.2 %", False),
        (1.64, "kB", "<= 3 KB", False),
        (1, "pods", "0", True),
        (4, "passes", "4", False),
        (483, "ms", "<= 1.1 times the do-nothing plugin", False),  # stands beside that one
        (5, "ms", "", False),
    ],
)
def test_a_value_that_misses_its_aim_says_so(value, unit, aim, missed):
    assert Figure("it", value, unit, 1, aim).shown[2] == aim + " (missed)" * missed


@pytest.mark.parametrize("page", ["service.md", "cluster.md"])
def test_each_aim_that_is_missed_carries_the_word(page):
    rows = ROW.findall((PAGES / page).read_text().replace(",", ""))
    measured = [
        (aim, Figure(name, float(value), unit, 1, aim.removesuffix(" (missed)"))) for name, value, unit, aim in rows
    ]
    assert any(it.missed for _, it in measured)
    assert [it for aim, it in measured if aim != it.shown[2]] == []


def test_a_measurement_replaces_only_its_own_values(tmp_path, monkeypatch):
    monkeypatch.setattr(service_page, "RECORD", tmp_path / "service.json")
    kept = {"taken": "2026-01-01", "commit": "ab", "machine": {}, "figures": []}
    service_page.RECORD.write_text(json.dumps({"dra": kept, "idle": kept}))
    service_page.keep("idle", {"cpu": "one"}, [Figure("idle", 2.0, "MiB", 1, "<= 1 MiB")])
    record = json.loads(service_page.RECORD.read_text())
    assert record["dra"] == kept
    assert (record["idle"]["machine"], record["idle"]["figures"][0]["value"]) == ({"cpu": "one"}, 2.0)
    assert "## The idle service\n\n" in service_page.page()
    assert "on another machine: cpu one." in service_page.page()


def test_the_nightly_workflow_runs_every_measurement_of_the_record():
    """README and the page of the service show figures of the record. ``make bench`` runs all measurements."""
    *_, last = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]["bench"]["steps"]
    assert re.search(r"make bench PYTHON=python ARGS=--quick$", last["run"].strip())
    assert json.loads(service_page.RECORD.read_text()).keys() | service_page.TITLES.keys() <= MEASUREMENTS.keys()
