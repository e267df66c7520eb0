"""Every page keeps the rules, the committed pages are up to date, and every metric is on a page."""

import copy
import re
from pathlib import Path

import pytest

from dashboards import build, query, shipped, style
from scrubber.core.model import State
from tests.dashboards import pagerules, rulefiles
from tests.dashboards.rulefiles import RECORDED, SERIES, TABLE

COMMITTED = Path(build.__file__).with_name("grafana")
PAGES = shipped.pages()

NOT_SHOWN = {
    "autoclave_process_passes_total": "a cause, whose effect is shown: how long the hooks take",
    "autoclave_vendor_connected": "a cause, whose effect is shown: a plugin that is not ready",
    "autoclave_vendor_unknown_variables_total": "nothing is wrong: the log names the variables",
}


def first(page, kind="timeseries"):
    return next(panel for panel in shipped.panels(page) if panel["type"] == kind)


def asking(expression, *, kind="timeseries"):
    def plant(page) -> None:
        first(page, kind)["targets"][0]["expr"] = expression

    return plant


def setting(*path, to, of=lambda page: page):
    def plant(page) -> None:
        place = of(page)
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return plant


def variable(*path, to):
    return setting(*path, to=to, of=lambda page: page["templating"]["list"][1])


def repaint(page):
    """Show a state in the colour of another state."""
    options = first(page, "state-timeline")["fieldConfig"]["defaults"]["mappings"][0]["options"]
    options["3"]["color"] = style.STATES[State.DIRTY]


def mislead(page):
    links = [it for it in first(page, "table")["fieldConfig"]["overrides"] if it["properties"][0]["id"] == "links"]
    links[0]["properties"][0]["value"][0]["url"] = (
        "/d/autoclave-gone?${__url_time_range}&var-node=${__data.fields.node}"
    )


def bars(page):
    drawn = {panel["title"]: panel for panel in shipped.panels(page)}
    return drawn["Refusals by reason"]


ALL = 'cluster=~"$cluster", node=~"$node"'
DEFAULTS = ("fieldConfig", "defaults")
PLANTED = [
    (pagerules.says_what_it_is, setting("title", to="", of=first)),
    (pagerules.says_what_it_is, setting("description", to="x", of=first)),
    (pagerules.says_what_it_is, setting(*DEFAULTS, "unit", to="", of=first)),
    (pagerules.says_what_it_is, setting(*DEFAULTS, "noValue", to="", of=first)),
    (pagerules.says_what_it_is, setting("title", to="Quarantined GPUs", of=first)),
    (pagerules.says_what_it_is, setting("fieldConfig", "overrides", to=[], of=lambda page: first(page, "table"))),
    (pagerules.shows_in_its_unit, setting(*DEFAULTS, "unit", to="watt", of=first)),
    (pagerules.shows_in_its_unit, asking(f"max(autoclave_device_power_watts{{{ALL}}})")),
    (pagerules.says_why_it_is_empty_in_the_first_minute, asking("rate(autoclave_resets_total[1m])")),
    (pagerules.shows_each_cell_in_full, setting("fieldConfig", "overrides", to=[], of=lambda it: first(it, "table"))),
    (pagerules.shows_each_cell_in_full, setting(*DEFAULTS, "custom", to={}, of=lambda page: first(page, "table"))),
    (pagerules.parses, asking("sum(")),
    (pagerules.asks_for_what_there_is, asking("autoclave_gone")),
    (pagerules.asks_for_what_there_is, asking('autoclave_ready{pod="x"}')),
    (pagerules.asks_for_what_there_is, asking("sum by (gpu) (autoclave_ready)")),
    (pagerules.looks_back_as_far_as_is_shown, asking("rate(autoclave_escalations_total[5m])")),
    (pagerules.looks_back_as_far_as_is_shown, asking("increase(autoclave_escalations_total[$__range])")),
    (pagerules.looks_back_as_far_as_is_shown, asking("max_over_time((autoclave_ready == 1)[5m:])")),
    (pagerules.counts_with_counters, asking("rate(autoclave_ready[$__rate_interval])")),
    (pagerules.counts_with_counters, asking("sum(autoclave_escalations_total)")),
    (pagerules.counts_with_counters, asking("autoclave_escalations_total unless autoclave_resets_total offset 1h")),
    (pagerules.narrows_by_what_is_chosen, asking("autoclave_ready")),
    (pagerules.narrows_by_what_is_chosen, asking('autoclave_ready{cluster=~"$cluster", node="n1"}')),
    (pagerules.narrows_by_what_is_chosen, asking(f"autoclave_device_healthy{{{ALL}}}")),
    (pagerules.offers_a_choice, variable("sort", to=0)),
    (pagerules.offers_a_choice, variable("allValue", to=".+")),
    (pagerules.offers_a_choice, variable("query", "query", to="label_values(autoclave_ready{}, cluster)")),
    (pagerules.offers_a_choice, variable("query", "query", to="label_values(cluster)")),
    (pagerules.means_its_colours, setting(*DEFAULTS, "thresholds", to={}, of=first)),
    (pagerules.means_its_colours, setting(*DEFAULTS, "thresholds", "steps", 0, "color", to="green", of=first)),
    (pagerules.means_its_colours, setting(*DEFAULTS, "color", "fixedColor", to="red", of=first)),
    (pagerules.means_its_colours, repaint),
    (pagerules.shows_an_event_in_one_bar, setting("interval", to=None, of=bars)),
    (pagerules.shows_an_event_in_one_bar, setting("targets", 0, "interval", to="90s", of=bars)),
    (pagerules.leads_somewhere, mislead),
    (pagerules.calls_by_labels_that_there_are, setting("targets", 0, "legendFormat", to="{{pod}}", of=first)),
]  # fmt: skip


@pytest.mark.parametrize("rule", pagerules.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("uid", PAGES)
def test_a_page_keeps_the_rules(uid, rule):
    assert rule(PAGES[uid]) == []


@pytest.mark.parametrize(
    ("rule", "plant"), PLANTED, ids=[f"{rule.__name__}-{place}" for place, (rule, _) in enumerate(PLANTED)]
)
def test_a_planted_fault_is_found(rule, plant):
    page = copy.deepcopy(PAGES["autoclave-node"])
    plant(page)
    assert rule(page) != []


def test_every_rule_has_a_planted_fault():
    assert {rule for rule, _ in PLANTED} == set(pagerules.RULES)


def test_the_committed_pages_equal_those_made_from_the_code(tmp_path):
    (tmp_path / "old.json").touch()
    build.write(tmp_path)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text() for file in COMMITTED.glob("*.json")}


def panel(uid, title):
    [found] = [it for it in shipped.panels(PAGES[uid]) if it["title"] == title]
    return found


@pytest.mark.parametrize("uid", ["autoclave-gpu", "autoclave-node"])
def test_a_bar_of_the_past_does_not_say_now(uid):
    words = panel(uid, "Problems over time")["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert {number: word["text"] for number, word in words.items()} == {"0": "no problem", "1": "problem"}


def test_tables_of_outages_have_room_for_their_rows():
    assert panel("autoclave-node", "Quarantined GPUs")["gridPos"]["w"] == 24  # its words do not wrap
    alerts = panel("autoclave-fleet", "Firing alerts")
    assert alerts["gridPos"]["h"] >= 12
    # It says how many rows there are: to Grafana 12 in the footer, to newer ones outside it.
    assert alerts["options"]["footer"]["enablePagination"] is alerts["options"]["enablePagination"] is True


def test_alerts_show_each_label_of_their_summary():
    alerts = panel("autoclave-fleet", "Firing alerts")
    heads = alerts["transformations"][1]["options"]["renameByName"]
    shown = {*heads, *re.findall(r'"(\w+)"', alerts["targets"][0]["expr"])}  # with the labels that it joins
    summaries = {rule["alert"]: rule["annotations"]["summary"] for rule in rulefiles.ALERTS}
    named = {alert: set(re.findall(r"\$labels\.(\w+)", summary)) for alert, summary in summaries.items()}
    assert {alert: labels - shown for alert, labels in named.items() if labels - shown} == {}


def test_every_metric_is_on_a_page_or_excused():
    sources = [pagerules.parsed(target) for page in PAGES.values() for _, target in pagerules.asked(page)]
    sources += [
        RECORDED[name] for name in {it.name for expr in sources for it in rulefiles.selectors(expr)} & RECORDED.keys()
    ]
    shown = {SERIES[it.name].name for expr in sources for it in rulefiles.selectors(expr) if it.name in SERIES}
    assert set(TABLE) - shown == set(NOT_SHOWN)


def test_recorded_series_have_the_labels_that_pages_use():
    recorded = {name: rulefiles.given(expr) for name, expr in RECORDED.items()}
    assert {one.name: frozenset(one.labels) for one in query.RECORDED}.items() <= recorded.items()


def test_a_selector_rejects_an_unknown_label():
    with pytest.raises(ValueError, match="cannot select autoclave_device_healthy by pod"):
        query.QueryScope(()).of(TABLE["autoclave_device_healthy"], pod="mine")


# What people with colour blindness see (Machado, Oliveira, Fernandes 2009), in linear light.
COLOUR_VISIONS = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)
TELLABLE = 10  # a difference of 2.3 is just visible, side by side


def through(matrix, colour):
    return [sum(part * value for part, value in zip(row, colour, strict=True)) for row in matrix]


def seen(colour, vision):
    """A colour as a person with this colour vision sees it, in CIE Lab: equal distances look equally different."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    felt = [min(max(part, 0), 1) for part in through(COLOUR_VISIONS[vision], linear)]
    x, y, z = (
        (part / white) ** (1 / 3) if part / white > 0.008856 else 7.787 * part / white + 16 / 116
        for part, white in zip(through(TO_XYZ, felt), WHITE, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one, other, vision):
    return sum((a - b) ** 2 for a, b in zip(seen(one, vision), seen(other, vision), strict=True)) ** 0.5


@pytest.mark.parametrize("vision", COLOUR_VISIONS)
def test_states_differ_for_every_colour_vision(vision):
    colours = list(style.STATES.values())
    pairs = [(a, b) for place, a in enumerate(colours) for b in colours[place + 1 :]]
    assert [(a, b, difference(a, b, vision)) for a, b in pairs if difference(a, b, vision) < TELLABLE] == []


def test_plain_red_and_green_would_not_do():
    assert difference("#808000", "#a06000", "no green") < TELLABLE < difference("#808000", "#a06000", "all")


def test_every_state_has_its_colour_and_its_number():
    assert list(style.STATES) == list(State) == list(style.NUMBER_OF)
