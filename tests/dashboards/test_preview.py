"""The preview knows all that the pages use. A person checks the pictures."""

import json
import re

from dashboards import shipped
from dashboards.preview import __main__ as preview

PAGE = (preview.HERE / "page.tsx").read_text()
PANELS = [panel for page in shipped.pages().values() for panel in shipped.panels(page)]


def test_the_preview_draws_every_kind_of_panel():
    known = re.findall(r"^  '([\w-]+)': ", PAGE.split("const KINDS")[1].split("};")[0], re.MULTILINE)
    assert set(known) == {panel["type"] for panel in PANELS}


def test_the_preview_knows_every_matcher_and_transformation():
    assert {it["id"] for panel in PANELS for it in panel.get("transformations", [])} <= {"merge", "organize"}
    matchers = {it["matcher"]["id"] for panel in PANELS for it in panel["fieldConfig"]["overrides"]}
    assert matchers <= {"byName", "byRegexp"}


def test_browser_and_page_use_the_same_sizes():
    measures = dict(re.findall(r"(WIDTH|EDGE|GAP|CELL|TOP) = (\d+)", PAGE))
    assert (int(measures["WIDTH"]), int(measures["TOP"])) == (preview.WIDTH, preview.TOP)
    assert int(measures["CELL"]) + int(measures["GAP"]) == preview.CELL


def test_npm_packages_are_pinned():
    versions = json.loads((preview.HERE / "package.json").read_text())["dependencies"].values()
    assert [version for version in versions if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []


def test_labels_of_lanes_are_as_wide_as_measured():
    """Text of the page has letters further apart than a measured text, and a long label lost its first letters."""
    assert re.findall(r"<svg [^>]*>", PAGE) == ["<svg width={width} height={height} letterSpacing={0}>"]
