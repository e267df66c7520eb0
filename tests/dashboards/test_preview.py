"""The preview knows all that the pages use. A person checks the pictures; see its README."""

import json
import re
from pathlib import Path

import pytest

from dashboards import shipped
from dashboards.preview import queries, rendering

HERE = Path(rendering.__file__).parent
PAGE = (HERE / "page.tsx").read_text()
PAGES = shipped.pages()


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
