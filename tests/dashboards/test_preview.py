"""The preview knows all that the pages use, and runs their queries. A person checks the pictures; see its README."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

from dashboards import shipped
from dashboards.preview import queries, rendering

HERE = Path(rendering.__file__).parent
PAGE = (HERE / "page.tsx").read_text()
PAGES = shipped.pages()
SOURCE = queries.Source("http://127.0.0.1:1", 0, 900, 15)


def test_the_preview_draws_every_kind_of_panel():
    known = set(re.findall(r"^  '([\w-]+)': \w+,$", PAGE.split("const KINDS")[1].split("};")[0], re.MULTILINE))
    used = {panel["type"] for page in PAGES.values() for panel in shipped.panels(page)}
    assert known == used


def test_the_preview_knows_every_matcher_and_transformation():
    panels = [panel for page in PAGES.values() for panel in shipped.panels(page)]
    assert {it["id"] for panel in panels for it in panel.get("transformations", [])} <= {"merge", "organize"}
    matchers = {it["matcher"]["id"] for panel in panels for it in panel["fieldConfig"]["overrides"]}
    assert matchers <= {"byName", "byRegexp"}


def test_browser_and_page_use_the_same_sizes():
    measures = dict(re.findall(r"(WIDTH|EDGE|GAP|CELL|TOP) = (\d+)", PAGE))
    assert (int(measures["WIDTH"]), int(measures["TOP"])) == (rendering.WIDTH, rendering.TOP)
    assert int(measures["CELL"]) + int(measures["GAP"]) == rendering.CELL


def test_npm_packages_are_pinned_without_a_registry():
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    lock = json.loads((HERE / "package-lock.json").read_text())["packages"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    assert {name: lock[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    unsafe = [name for name, it in lock.items() if name and ("integrity" not in it or "resolved" in it)]
    assert unsafe == []


@pytest.mark.parametrize("uid", PAGES)
def test_opened_sections_push_down_the_panels_below(uid):
    panels = queries.unfolded(PAGES[uid])
    assert {it["id"] for it in shipped.panels(PAGES[uid])} <= {it["id"] for it in panels}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells, panel["title"]
        taken |= cells
    assert queries.height(panels) == max(y for _, y in taken) + 1


def test_a_folded_section_opens_in_place():
    def panel(number: int, top: int, *inner: dict[str, Any]) -> dict[str, Any]:
        return {"id": number, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}, "panels": list(inner)}

    page = {"panels": [panel(1, 0, panel(2, 1), panel(3, 2)), panel(4, 1, panel(5, 2)), panel(6, 2)]}
    places = {it["id"]: it["gridPos"]["y"] for it in queries.unfolded(page)}
    assert places == {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 5}


@pytest.mark.parametrize(("columns", "step"), [(24, 15), (1, 15)])
def test_the_step_is_that_of_grafana(columns, step):
    assert SOURCE.step(columns) == step
    assert queries.Source(SOURCE.url, 0, 86400, 15).step(columns) == {24: 60, 1: 1800}[columns]


def test_all_variables_are_filled_in():
    asked = queries.filled('rate(x{node=~"$node", gpu=~"$gpu"}[$__rate_interval]) + $__range', SOURCE, 15, {"gpu": "3"})
    assert asked == 'rate(x{node=~".*", gpu=~"3"}[60s]) + 900s'


def test_a_duration_is_read_as_prometheus_writes_it():
    assert [queries.seconds(text) for text in ("1s", "1m30s", "500ms", "2h")] == [1, 90, 0.5, 7200]
    with pytest.raises(ValueError, match="a duration is like"):
        queries.seconds("an hour")


def test_an_annotation_begins_and_ends_with_its_samples():
    values = [(0.0, "1"), (60.0, "1"), (120.0, "0"), (180.0, "1"), (600.0, "1")]
    assert list(queries.stretches(values, 60)) == [(0, 60), (180, 180), (600, 600)]


def test_a_missing_prometheus_is_named():
    with pytest.raises(ClickException, match=r"no Prometheus answers at http://127\.0\.0\.1:1: "):
        queries.scrape_interval(SOURCE.url)
