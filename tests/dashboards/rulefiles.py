"""The rule files, their unit tests and the runbooks as data, and the labels that a query returns and uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from dashboards import query
from plugin.metrics import plugin_metrics
from scrubber.metrics import service_metrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "dashboards"
RUNBOOKS = ROOT / "docs" / "runbooks"

SCRAPED = frozenset(
    {"cluster", "node", "job"}
)  # the labels that scraping adds and a rule may use; pod and instance change
FOREIGN = {
    "up": frozenset(),
    "DCGM_FI_DEV_GPU_UTIL": frozenset({"UUID"}),
    "process_cpu_seconds_total": frozenset({"instance"}),
    "process_resident_memory_bytes": frozenset({"instance"}),
    "process_start_time_seconds": frozenset({"instance"}),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "gpu", *query.ALERT_DETAILS}),
    "ALERTS_FOR_STATE": frozenset({"alertname", "severity", "gpu", *query.ALERT_DETAILS}),
}
TABLE = {row.name: row for row in (*service_metrics.TABLE, *plugin_metrics.TABLE, *plugin_metrics.DRA_TABLE)}
SERIES = {series: row for row in TABLE.values() for series in row.series}


def read(path: Path) -> Any:  # noqa: ANN401 - each file has a shape of its own
    return yaml.load(path.read_text(), yaml.CSafeLoader)


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in read(FOLDER / name)["groups"] for rule in group["rules"]]


SOURCES = (FOLDER / "rules.yaml", FOLDER / "alerts.yaml")
UNIT_TESTS = {path: read(path) for path in sorted((Path(__file__).parent / "rules").glob("*.yaml"))}
ALERTS = rules("alerts.yaml")
RECORDED = {rule["record"]: promql.parse(rule["expr"]) for rule in rules("rules.yaml")}


def given(expr: promql.Expr) -> frozenset[str]:
    """The labels that the series of an expression can have."""
    match expr:
        case promql.AggregateExpr():
            if expr.modifier is None:  # topk keeps the labels, a sum drops them
                return given(expr.expr) if str(expr.op) in {"topk", "bottomk"} else frozenset()
            return frozenset(expr.modifier.labels)
        case promql.BinaryExpr():
            left, right = given(expr.lhs), given(expr.rhs)  # a number has no labels
            return left | right if str(expr.op) == "or" else left or right
        case promql.ParenExpr() | promql.UnaryExpr():
            return given(expr.expr)
        case promql.MatrixSelector():
            return given(expr.vector_selector)
        case promql.VectorSelector() if expr.name in RECORDED:
            return given(RECORDED[expr.name])
        case promql.VectorSelector():
            own = FOREIGN[expr.name] if expr.name in FOREIGN else frozenset(SERIES[str(expr.name)].all_labels)
            return own | SCRAPED
        case promql.Call() if expr.func.name in {"label_replace", "label_join"}:
            assert isinstance(expr.args[1], promql.StringLiteral)
            return given(expr.args[0]) | {expr.args[1].val}
        case promql.Call() if expr.func.name == "absent":
            return frozenset(name for name, _, _ in matchers(expr.args[0]))
        case promql.Call() if expr.func.name == "histogram_quantile":
            return given(expr.args[1]) - {"le"}
        case promql.Call() if expr.args:
            return given(expr.args[0])
    return frozenset()


def parts(expr: promql.Expr) -> list[promql.Expr]:
    """All parts of an expression, itself included."""
    found: list[promql.Expr] = []

    def descend(part: promql.Expr) -> bool:
        found.append(part)
        return True

    promql.walk(expr, pre_visit=descend)
    return found


def selectors(expr: promql.Expr) -> Iterator[promql.VectorSelector]:
    for part in parts(expr):
        if isinstance(part, promql.MatrixSelector):
            yield part.vector_selector
        elif isinstance(part, promql.VectorSelector):
            yield part


def matchers(expr: promql.Expr) -> list[tuple[str, str, str]]:
    """Label, operator and value of every matcher in an expression."""
    return [(it.name, str(it.op), it.value) for one in selectors(expr) for it in one.matchers.matchers]


def unknown(expr: promql.Expr) -> list[str]:
    """The metrics and labels in matchers, groupings and joins that do not exist."""
    problems = [str(it.name) for it in selectors(expr) if it.name not in {*SERIES, *RECORDED, *FOREIGN}]
    if problems:
        return problems
    for part in parts(expr):
        if isinstance(part, promql.VectorSelector):
            problems += [f"{part.name}{{{it.name}}}" for it in part.matchers.matchers if it.name not in given(part)]
        elif isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            problems += [f"by {label}" for label in part.modifier.labels if label not in given(part.expr)]
        elif isinstance(part, promql.BinaryExpr) and part.modifier is not None and part.modifier.matching is not None:
            both = given(part.lhs) & given(part.rhs)
            problems += [f"on {label}" for label in part.modifier.matching.labels if label not in both]
    return problems
