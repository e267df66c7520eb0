"""Rules use existing metrics and labels, and promtool shows that they work."""

import re

import promql_parser as promql
import pytest
from prometheus_client.utils import floatToGoString

from ground.logged_calls import CallOutcome
from plugin.dra.metrics import Call
from plugin.metrics import collector, plugin_metrics
from plugin.registration.registration_state import Cause
from policies import load, xids
from policies.xidtable import RequiredAction
from scrubber.core.model import AilmentKind, Availability, State
from scrubber.metrics import counters, gauges
from tests.dashboards import promtool, rulefiles
from tests.dashboards.rulefiles import ALERTS, RECORDED, SERIES, TABLE

EXPRESSIONS = {**RECORDED, **{rule["alert"]: promql.parse(rule["expr"]) for rule in ALERTS}}

AILMENTS = {ailment.value for ailment in AilmentKind}
WORDS = {  # the values that a condition may name, by label
    "reason": AILMENTS,
    "sign": AILMENTS,
    "state": {state.value for state in State},
    "availability": {group.value for group in Availability},
    "proof": {counters.RECEIPT, counters.NONE},
    "by": {counters.EVIDENCE, counters.PERSON},
    "call": {call.value for call in Call},
    "hook": {hook.value for hook in collector.Hook},
    "outcome": {word.value for word in (*CallOutcome, *Cause)},
    "xid": {str(code) for code in xids.ROWS},
    "job": {"autoclave-scrubber", "autoclave-plugin", "autoclave-dra"},
    "policy": {"observe"},
    "answer": {gauges.REFUSED, gauges.COUNTED},
    "had_by": {counters.NO_TENANT, counters.TENANT},
    "lacks": {""},
}


def test_rules_use_existing_metrics_and_labels():
    """A counter is joined with its process by instance; only a counter of one process has this label."""
    problems = {name: set(rulefiles.unknown(expr)) - {"on instance"} for name, expr in EXPRESSIONS.items()}
    assert {name: value_words for name, value_words in problems.items() if value_words} == {}


@pytest.mark.parametrize(
    "query",
    [
        "autoclave_gone",
        'autoclave_quarantined{cause="x"}',
        "sum by (pod) (autoclave_quarantined)",
        "max by (uuid) (autoclave_quarantined) and on (gpu) autoclave_quarantined",
    ],
)
def test_an_unknown_metric_or_label_is_found(query):
    assert rulefiles.unknown(promql.parse(query)) != []


def test_conditions_use_existing_label_values():
    conditions = {it for expr in EXPRESSIONS.values() for it in rulefiles.matchers(expr) if it[0] != "le"}
    assert [
        (label, word)
        for label, op, value in conditions
        for word in (spread(value) if "Re" in op else [value])
        if word.removesuffix(".*") not in WORDS[label]
    ] == []


def spread(pattern):
    """The words of a|b and of x-(a|b)."""
    found = re.fullmatch(r"(.*)\((.*)\)", pattern)
    return [found[1] + word for word in found[2].split("|")] if found else pattern.split("|")


def test_conditions_use_existing_buckets():
    edges = {floatToGoString(edge) for row in TABLE.values() for edge in row.buckets} | {"+Inf"}
    asked = {value for expr in EXPRESSIONS.values() for label, _, value in rulefiles.matchers(expr) if label == "le"}
    assert asked
    assert asked <= edges
    assert "5.0" in {floatToGoString(edge) for edge in plugin_metrics.HOOK_TIME.buckets}


def test_the_observe_policy_has_the_name_that_alerts_expect():
    assert re.fullmatch("observe.*", load.load("observe").name)


def test_a_fatal_xid_requires_a_reset_or_more():
    expression = next(rule["expr"] for rule in ALERTS if rule["alert"] == "AutoclaveGpuFatalXid")
    (codes,) = set(re.findall(r'xid=~"([0-9|]+)"', expression))
    mild = (RequiredAction.NONE, RequiredAction.IGNORE, RequiredAction.RESTART_APP)
    assert [code for code in codes.split("|") if xids.required_action(int(code)) in mild] == []


def test_rates_are_of_counters():
    problems = []
    for name, expr in EXPRESSIONS.items():
        for part in rulefiles.parts(expr):
            if isinstance(part, promql.Call) and part.func.name in {"rate", "increase"}:
                series = next(rulefiles.selectors(part)).name
                problems += [name] if not str(series).endswith(("_total", "_count", "_bucket")) else []
    assert problems == []


def test_recorded_series_are_named_by_level():
    level = r"(cluster|node|instance|uuid):[a-z_]+:[a-z0-9_]+"
    assert [name for name in RECORDED if not re.fullmatch(level, name)] == []
    assert not RECORDED.keys() & SERIES.keys()


@promtool.needed
def test_promtool_accepts_the_rules():
    promtool.run("check", "rules", *rulefiles.SOURCES)


@promtool.needed
def test_promtool_unit_tests_pass(tmp_path):
    tests = {
        f"{path.stem}, {test['name']}": {**file, "tests": [test]}
        for path, file in rulefiles.UNIT_TESTS.items()
        for test in file["tests"]
    }
    assert len(tests) == sum(len(file["tests"]) for file in rulefiles.UNIT_TESTS.values())
    promtool.run_unit_tests(tmp_path, tests)
