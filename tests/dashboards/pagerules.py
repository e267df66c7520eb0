"""The rules for every page: each takes a committed page and returns the faults that it finds.

They include the rules of dashboard-linter. It requires ``job`` and ``instance`` in every query; here ``cluster``,
``node`` and ``gpu`` take their place, because people look for a GPU on a node and an instance changes with each
restart.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import promql_parser as promql

from dashboards import alert_summaries, shipped, style
from ground.metric_table import Kind
from tests.dashboards import rulefiles
from tests.dashboards.rulefiles import RECORDED, TABLE

Page = dict[str, Any]
UNITS = {"watt": "_watts", "celsius": "_celsius", "bytes": "_bytes", "binBps": "_bytes",
         "s": "_seconds|ALERTS_FOR_STATE", "percentunit": "_ratio|:ratio_| / "}  # fmt: skip
CALL = re.compile(r"(\w+)\([^()]*\[([^\]]*)\](?: offset ([^()]*))?\)")
WINDOW = re.compile(r"\[([^\]]*)\]")
EMPTY_CELL = [{"matcher": {"id": "byRegexp", "options": "/.*/"}, "properties": [{"id": "noValue", "value": "-"}]}]
COUNTING = {"rate", "increase"}
NO_EVENT = "No event in this time, "
PAGE_WIDTH, COLUMNS, UUID_WIDTH = 1600, 24, 340  # pixels; columns of the grid; pixels of 40 letters
COUNTERS = {
    series for row in TABLE.values() for series in row.series if row.kind is Kind.COUNTER or row.kind is Kind.HISTOGRAM
} | {"process_cpu_seconds_total"}


def asked(page: Page) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every target with the title of its panel, also of annotations."""
    for panel in shipped.panels(page):
        yield from ((panel["title"], target) for target in panel["targets"])
    for event in page["annotations"]["list"]:
        yield event["name"], event["target"]


def parsed(target: dict[str, Any]) -> Any:  # noqa: ANN401 - the parser's classes have no common face
    return promql.parse(shipped.filled(target["expr"], shipped.EVERYTHING))


def variables(page: Page) -> list[dict[str, Any]]:
    return [variable for variable in page["templating"]["list"] if variable["type"] == "query"]


def says_what_it_is(page: Page) -> list[str]:
    problems, seen = [], set()
    for panel in shipped.panels(page):
        defaults = panel["fieldConfig"]["defaults"]
        shown = {
            "title": panel["title"] and panel["title"] not in seen,
            "description": len(panel["description"]) > len("What it draws"),
            "unit": defaults.get("unit"),
            "targets": panel["targets"],
            "words for nothing": defaults.get("noValue"),
            "words for an empty cell": panel["type"] != "table" or panel["fieldConfig"]["overrides"][:1] == EMPTY_CELL,
        }
        problems += [f"{panel['title']} lacks {what}" for what, there in shown.items() if not there]
        seen.add(panel["title"])
    return problems


def shows_in_its_unit(page: Page) -> list[str]:
    """A unit agrees with the metric name. A table column has a unit of its own."""
    problems = []
    for panel in shipped.panels(page):
        config = panel["fieldConfig"]
        columns = [it["value"] for one in config["overrides"] for it in one["properties"] if it["id"] == "unit"]
        units = columns if panel["type"] == "table" else [config["defaults"]["unit"]] * len(panel["targets"])
        for unit, target in zip(units, panel["targets"], strict=True):
            meant = re.search(UNITS.get(unit, ""), target["expr"])
            other = unit not in UNITS and re.search("_watts|_celsius|_bytes", target["expr"])
            problems += [] if meant and not other else [f"{panel['title']}: {target['refId']} in {unit}"]
    return problems


def says_why_it_is_empty_in_the_first_minute(page: Page) -> list[str]:
    """A panel that compares two scrapes, and shows no zero, is empty although the service is scraped."""
    problems = []
    for panel in shipped.panels(page):
        asked = [target["expr"] for target in panel["targets"]]
        compares = any(re.search(r"\b(rate|increase)\(|:(ratio_)?rate\w+\{", expression) for expression in asked)
        zero = any(" or on () " in expression for expression in asked)
        sentence = panel["fieldConfig"]["defaults"]["noValue"]
        if panel["type"] != "table" and compares and not zero and not sentence.startswith(NO_EVENT):
            problems.append(f"{panel['title']} says {sentence}")
    return problems


def shows_each_cell_in_full(page: Page) -> list[str]:
    """A cell that is longer than its column wraps. A table as wide as the page shows a UUID on one line."""
    problems = []
    for panel in (panel for panel in shipped.panels(page) if panel["type"] == "table"):
        heads = set(panel["transformations"][1]["options"]["renameByName"].values())
        fixed = {it["matcher"]["options"]: part["value"] for it in panel["fieldConfig"]["overrides"]
                 for part in it["properties"] if part["id"] == "custom.width"}  # fmt: skip
        shared = PAGE_WIDTH - sum(fixed.get(head, 0) for head in heads)
        width = fixed.get("UUID", shared / max(1, len(heads - fixed.keys())))
        if "UUID" in heads and panel["gridPos"]["w"] == COLUMNS and width < UUID_WIDTH:
            problems.append(f"{panel['title']} breaks UUIDs")
        if not panel["fieldConfig"]["defaults"]["custom"].get("cellOptions", {}).get("wrapText"):
            problems.append(f"{panel['title']} cuts long words")
    return problems


def parses(page: Page) -> list[str]:
    problems = []
    for panel, target in asked(page):
        try:
            parsed(target)
        except ValueError as error:
            problems.append(f"{panel}: {error}")
    return problems


def asks_for_what_there_is(page: Page) -> list[str]:
    """A metric of a process is joined by instance, which both sides share only within one process."""
    return [
        f"{panel} {word}"
        for panel, target in asked(page)
        for word in rulefiles.unknown(parsed(target))
        if word not in {"on instance", "by instance"}
    ]


def looks_back_as_far_as_is_shown(page: Page) -> list[str]:
    """``$__rate_interval``, or the whole time range in an instant query. Silent nodes are looked up further back."""
    problems = []
    for panel, target in asked(page):
        calls = CALL.findall(target["expr"])
        for call, window, offset in calls:
            allowed = {"$__rate_interval"} | ({"$__range"} if target["instant"] else set())
            if call == "last_over_time" and not offset:
                allowed = {"6h"}
            problems += [f"{panel}: {call} over {window}"] if {window, offset or window} - allowed else []
        if len(WINDOW.findall(target["expr"])) != len(calls):
            problems.append(f"{panel}: a window outside a call")
    return problems


def counts_with_counters(page: Page) -> list[str]:
    """rate() and increase() take counters, and counters appear only inside them: a raw counter falls at a restart.

    The one other form is ``max_over_time(x) unless last_over_time(x offset)``: counters that did not exist before.
    """
    problems = []
    for panel, target in asked(page):
        expr = parsed(target)
        rated = [part for part in rulefiles.parts(expr) if isinstance(part, promql.Call) and part.func.name in COUNTING]
        problems += [
            f"{panel}: {part.func.name} of {it.name}"
            for part in rated for it in rulefiles.selectors(part) if it.name not in COUNTERS
        ]  # fmt: skip
        seen = [it.name for part in rated for it in rulefiles.selectors(part)]
        for part in rulefiles.parts(expr):
            if isinstance(part, promql.BinaryExpr) and str(part.op) == "unless" and _were_not_there(part):
                seen += [it.name for it in rulefiles.selectors(part)]
        bare = [it.name for it in rulefiles.selectors(expr) if it.name in COUNTERS]
        problems += [f"{panel}: {name} as it stands" for name in set(bare) if bare.count(name) != seen.count(name)]
    return problems


def _were_not_there(part: promql.BinaryExpr) -> bool:
    left, right = part.lhs.prettify(), part.rhs.prettify()
    before = left.removesuffix(")").replace("max_over_time", "last_over_time", 1) + " offset"
    return left.startswith("max_over_time(") and right.startswith(before)


def narrows_by_what_is_chosen(page: Page) -> list[str]:
    chosen = [variable["name"] for variable in variables(page)]
    problems = []
    for panel, target in asked(page):
        for it in rulefiles.selectors(promql.parse(_plain(target["expr"]))):
            said = {matcher.name: matcher.value for matcher in it.matchers.matchers}
            has = _labels(it)
            problems += [
                f"{panel}: {it.name} not by {name}"
                for name in chosen if name in has and said.get(name) != f"${name}"
            ]  # fmt: skip
    return problems


def offers_a_choice(page: Page) -> list[str]:
    """Variables are sorted, described and narrowed by those before, and all use the same metric.

    A variable has one value, or several values and All, which matches a missing label.
    """
    problems: list[str] = []
    before: list[str] = []
    metrics: set[str] = set()
    for it in variables(page):
        query = re.fullmatch(r"label_values\((\w+)\{(.*)\}, (\w+)\)", it["query"]["query"])
        if query is None or query[3] != it["name"]:
            problems.append(f"{it['name']} asks {it['query']['query']}")
            continue
        metrics.add(query[1])
        how = (it["multi"], it["includeAll"], it.get("allValue"))
        good = it["sort"] and it["description"] and how in {(True, True, ".*"), (False, False, None)}
        narrowed = query[2] == ", ".join(f'{name}=~"${name}"' for name in before)
        problems += [] if good and narrowed else [f"{it['name']} is not sorted, for several, or narrowed"]
        before.append(it["name"])
    problems += [f"{metrics} are several"] if len(metrics) != 1 else []
    used = " ".join(target["expr"] for _, target in asked(page))
    return problems + [f"{name} is not used" for name in before if f"${name}" not in used]


def means_its_colours(page: Page) -> list[str]:
    """No default thresholds of Grafana (red from 80 on), and only colours of ``style``."""
    house = {style.GREEN, style.YELLOW, style.ORANGE, style.VERMILLION, style.SKY, style.BLUE, style.PURPLE, style.GREY}
    problems = []
    for panel in shipped.panels(page):
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        first = [(step["value"], step["color"]) for step in steps[:1]]
        problems += [f"{panel['title']} leaves its thresholds to Grafana"] if first != [(None, style.PLAIN)] else []
        text = str(panel["fieldConfig"])
        colours = set(re.findall(r"'(?:color|fixedColor)': '([^']+)'", text)) - {style.PLAIN}
        problems += [f"{panel['title']} is {colour}" for colour in sorted(colours - house)]
        problems += [
            f"{panel['title']}: {word} is {colour}" for word, colour in _state_colours(panel["fieldConfig"])
            if style.STATE_COLOURS.get(word, colour) != colour
        ]  # fmt: skip
    return problems


def shows_an_event_in_one_bar(page: Page) -> list[str]:
    """Bars are as far apart as each looks back, less one scrape, so that no event is drawn twice."""
    return [
        f"{panel['title']} is drawn each {panel.get('interval')}"
        for panel in shipped.panels(page)
        if panel["fieldConfig"]["defaults"].get("custom", {}).get("drawStyle") == "bars"
        and (panel.get("interval") != "90s" or any(target.get("interval") for target in panel["targets"]))
    ]


def leads_somewhere(page: Page) -> list[str]:
    """Every link goes to one of our pages, with variables of that page from fields of the row, or to all alerts."""
    pages, problems = shipped.pages(), []
    for panel in shipped.panels(page):
        for url in re.findall(r"'url': '([^']+)'", str(panel["fieldConfig"])):
            uid, _, query = url.removeprefix("/d/").partition("?")
            there = {it["name"] for it in variables(pages[uid])} if uid in pages else set()
            chosen = dict(re.findall(r"var-(\w+)=\$\{__data\.fields\.(\w+)\}", query))
            given = rulefiles.given(parsed(panel["targets"][0]))
            good = (url == alert_summaries.NO_PAGE and "alertname" in given) or (
                chosen and chosen.keys() <= there and set(chosen.values()) <= given and "${__url_time_range}" in query
            )
            problems += [] if good else [f"{panel['title']} leads to {url}"]
    return problems


def calls_by_labels_that_there_are(page: Page) -> list[str]:
    return [
        f"{panel}: {label} in {target['legendFormat']}"
        for panel, target in asked(page)
        for label in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))
        if label not in rulefiles.given(parsed(target))
    ]


RULES: tuple[Callable[[Page], list[str]], ...] = (
    says_what_it_is,
    says_why_it_is_empty_in_the_first_minute,
    shows_each_cell_in_full,
    shows_in_its_unit,
    parses,
    asks_for_what_there_is,
    looks_back_as_far_as_is_shown,
    counts_with_counters,
    narrows_by_what_is_chosen,
    offers_a_choice,
    means_its_colours,
    shows_an_event_in_one_bar,
    leads_somewhere,
    calls_by_labels_that_there_are,
)


def _plain(expression: str) -> str:
    """The query with its windows filled in, and the variables of the page as they are."""
    return shipped.filled(expression, {name: it for name, it in shipped.EVERYTHING.items() if name.startswith("__")})


def _labels(selector: promql.VectorSelector) -> frozenset[str]:
    given = rulefiles.given(selector)
    return given if selector.name in RECORDED else given | {"cluster", "node"}


def _state_colours(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for override in config["overrides"]:
        for it in override["properties"]:
            if it["id"] == "color":
                yield override["matcher"]["options"], it["value"]["fixedColor"]
    for colour, word in re.findall(r"'color': '([^']+)', 'index': \d+, 'text': '(\w+)'", str(config)):
        yield word, colour
