"""Runs promtool, once for many unit tests of rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards import rulefiles

needed = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")

GROUPS = [group for path in rulefiles.SOURCES for group in rulefiles.read(path)["groups"]]
EXPRESSIONS = {rule.get("alert") or rule["record"]: rule["expr"] for group in GROUPS for rule in group["rules"]}


def run(*args: str | Path) -> None:
    command: list[str | Path] = ["promtool", *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        parts = re.split("(?=^Unit Testing:)", done.stdout, flags=re.MULTILINE)
        pytest.fail("".join(part for part in parts if "SUCCESS" not in part), pytrace=False)


def unit_test(interval: str, series: dict[str, Any], questions: list[dict[str, Any]]) -> dict[str, Any]:
    """A unit test that evaluates these questions over these series."""
    listed = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": interval, "input_series": listed, "promql_expr_test": questions}
    return {"evaluation_interval": "1m", "tests": [test]}


def run_unit_tests(folder: Path, tests: dict[str, dict[str, Any]]) -> None:
    """Run each test with the rules that it needs, because promtool evaluates all rules for each minute of a test."""
    files = []
    for number, (name, test) in enumerate(tests.items()):
        names = _used_by(test)
        groups = [
            {**group, "rules": [rule for rule in group["rules"] if names & {rule.get("alert"), rule.get("record")}]}
            for group in GROUPS
        ]
        rules = folder / f"{number}.rules"
        rules.write_text(json.dumps({"groups": groups}))
        files.append(folder / f"{number} {name.replace('/', ' ')}")  # promtool prints the name of a file that failed
        files[-1].write_text(json.dumps({**test, "rule_files": [rules.name]}))
    run("test", "rules", *files)


def _used_by(test: dict[str, Any]) -> set[str]:
    """The rules that a test names, and the rules that those name. All, if a query of alerts names none exactly."""
    queries = [query["expr"] for part in test["tests"] for query in part.get("promql_expr_test", ())]
    if any("ALERTS" in query and (".*" in query or "alertname=" not in query) for query in queries):
        return set(EXPRESSIONS)
    names: set[str] = set()
    texts = [json.dumps(test)]
    while texts:
        text = texts.pop()
        found = {name for name in EXPRESSIONS if name in text} - names
        names |= found
        texts += [EXPRESSIONS[name] for name in found]
    return names
