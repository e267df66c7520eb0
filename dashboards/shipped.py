"""The committed pages and all their queries. It needs no package that only development installs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

# The default values of all variables: everything, over an hour.
EVERYTHING = {"cluster": ".*", "node": ".*", "gpu": ".*", "__interval": "1m", "__rate_interval": "2m",
              "__range": "3600s"}  # fmt: skip


def pages() -> dict[str, dict[str, Any]]:
    """Every page by its uid."""
    folder = resources.files("dashboards") / "grafana"
    texts = [file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".json")]
    return {page["uid"]: page for page in map(json.loads, texts)}


def panels(page: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels of a page, also those in folded sections, without the headings."""
    for panel in page["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def first_row(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The panels that a person sees first."""
    shown = list(panels(page))
    return [panel for panel in shown if panel["gridPos"]["y"] == shown[0]["gridPos"]["y"]]


def filled(expression: str, values: Mapping[str, str]) -> str:
    """A query with its variables replaced. Grafana also offers a duration as a number; so does this."""
    numbers = {
        name + unit: f"{seconds(values[name]) * by:g}"
        for name, unit, by in (("__range", "_s", 1), ("__rate_interval", "_ms", 1000))
        if name in values
    }
    for name, value in (numbers | dict(values)).items():  # longer names first
        expression = expression.replace(f"${name}", value)
    return expression


def seconds(duration: str) -> float:
    """The seconds of a duration of Prometheus, as in 1m30s."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhd])", duration))
