"""The page about metrics agrees with the tables."""

from pathlib import Path

import pytest

from dashboards import reference
from plugin.metrics import plugin_metrics as of_the_plugin
from scrubber.metrics import service_metrics as of_the_service

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_committed_page_is_the_one_that_is_made_now():
    made = reference.text().rstrip("\n") + "\n"
    assert PAGE.read_text() == made, "write it anew: python -m dashboards.reference > docs/metrics.md"


ROWS = dict.fromkeys([*of_the_service.TABLE, *of_the_plugin.TABLE, *of_the_plugin.DRA_TABLE])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_metric_has_one_complete_line(row):
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{row.name}` |")]
    assert line.count("|") == 5
    assert row.unit in row.name
    assert all(f"`{word}`" in line for word in row.labels)
    assert row.help in line
