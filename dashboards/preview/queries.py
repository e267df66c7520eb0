"""The queries of all panels of a page, run at a Prometheus over a time range, as Grafana runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from click import ClickException

from dashboards import shipped

ANSWERS_WITHIN = 30.0
PIXELS_OF_A_COLUMN = 60
STEPS = (
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    21600,
    86400,
)  # the steps to which Grafana rounds
SCRAPES_OF_A_RATE = 4
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Source:
    """A Prometheus, and a time range."""

    url: str
    begins: float
    ends: float
    scrape: int  # seconds between two scrapes

    def step(self, columns: int) -> int:
        """Seconds between two points of a panel of this width."""
        wanted = max(self.scrape, (self.ends - self.begins) / (columns * PIXELS_OF_A_COLUMN))
        return next((step for step in STEPS if step >= wanted), STEPS[-1])

    def get(self, path: str, **words: str | float) -> dict[str, Any]:
        """The result of a request, or the error that Prometheus returned. Raises if Prometheus does not answer."""
        try:
            with urlopen(f"{self.url}/api/v1/{path}?{urlencode(words)}", timeout=ANSWERS_WITHIN) as reply:  # noqa: S310 - whoever calls names it
                answer = json.load(reply)
        except HTTPError as error:
            answer = json.load(error)
        except URLError as error:
            raise ClickException(f"cannot draw: no Prometheus answers at {self.url}: {error.reason}") from None
        return {"error": answer["error"]} if answer["status"] == "error" else {"result": answer["data"]}


def scrape_interval(url: str) -> int:
    """The longest scrape interval of all targets, in seconds."""
    targets = Source(url, 0, 0, 1).get("targets", state="active")["result"]["activeTargets"]
    return max((round(seconds(target["scrapeInterval"])) for target in targets), default=15) or 1


def choices(page: Mapping[str, Any], source: Source, chosen: Mapping[str, str]) -> dict[str, str]:
    """The chosen values, and the first value of each other variable without All, as Grafana chooses."""
    made = dict(chosen)
    for variable in page["templating"]["list"]:
        if variable["type"] != "query" or variable["includeAll"] or variable["name"] in made:
            continue
        query = variable["query"]["query"].removeprefix("label_values(").rsplit(",", 1)[0]
        where = {"match[]": shipped.filled(query, {**shipped.EVERYTHING, **made})}
        values = source.get(f"label/{variable['name']}/values", begin=source.begins, **where)["result"]
        made[variable["name"]] = values[0] if values else ""
    return made


def unfolded(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All panels and headings, with folded sections opened and the panels below moved down."""
    made: list[dict[str, Any]] = []
    down = 0
    for panel in page["panels"]:
        inner = panel.get("panels") or []
        made.extend(_moved(it, down) for it in (panel, *inner))
        if inner:
            down += max(_bottom(it) for it in inner) - _bottom(panel)
    return made


def height(panels: list[dict[str, Any]]) -> int:
    """The height of all panels, in cells of the grid."""
    return max(map(_bottom, panels))


def asked(panels: list[dict[str, Any]], source: Source, chosen: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """For each panel id: the results by query letter, the step, and the receipts."""
    return {str(panel["id"]): _panel(panel, source, chosen) for panel in panels if panel["type"] != "row"}


def marks(page: Mapping[str, Any], source: Source, chosen: Mapping[str, str]) -> list[dict[str, float]]:
    """The begin and the end of each annotation."""
    found = []
    for event in page["annotations"]["list"]:
        step = round(seconds(event["step"]))
        answer = _range(event["expr"], source, step, chosen)
        for series in answer.get("result", []):
            found += [{"from": begins, "to": ends} for begins, ends in stretches(series["values"], step)]
    return found


def _panel(panel: Mapping[str, Any], source: Source, chosen: Mapping[str, str]) -> dict[str, Any]:
    step = source.step(panel["gridPos"]["w"])
    answers, dots = {}, []
    for target in panel["targets"]:
        if target["instant"]:
            expression = filled(target["expr"], source, step, chosen)
            answers[target["refId"]] = _result(source.get("query", query=expression, time=source.ends))
        else:
            answers[target["refId"]] = _range(target["expr"], source, step, chosen)
        if target["exemplar"]:
            dots += _receipts(target["expr"], source, step, chosen)
    return {"step": step, "answers": answers, "dots": dots}


def _range(expression: str, source: Source, step: int, chosen: Mapping[str, str]) -> dict[str, Any]:
    begins, ends = (at // step * step for at in (source.begins, source.ends))
    query = filled(expression, source, step, chosen)
    return _result(source.get("query_range", query=query, start=begins, end=ends, step=step))


def _receipts(expression: str, source: Source, step: int, chosen: Mapping[str, str]) -> list[dict[str, float]]:
    query = filled(expression, source, step, chosen)
    answer = source.get("query_exemplars", query=query, start=source.begins, end=source.ends)
    series = answer.get("result", [])
    return [{"at": it["timestamp"], "value": float(it["value"])} for one in series for it in one["exemplars"]]


def filled(expression: str, source: Source, step: int, chosen: Mapping[str, str]) -> str:
    """A query with its variables replaced. A rate covers at least four scrapes, and one more than the step."""
    rate = max(step + source.scrape, SCRAPES_OF_A_RATE * source.scrape)
    times = {
        "__interval": f"{step}s",
        "__rate_interval": f"{rate}s",
        "__range": f"{round(source.ends - source.begins)}s",
    }
    return shipped.filled(expression, {**shipped.EVERYTHING, **times, **chosen})


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    return {"result": answer["result"]["result"]} if "result" in answer else answer


def stretches(values: list[tuple[float, str]], step: int) -> Iterator[tuple[float, float]]:
    """The first and the last time of each run of samples that are not zero."""
    begins = before = None
    for at, value in values:
        if float(value) == 0:
            continue
        if before is None or at - before > step:
            if begins is not None and before is not None:
                yield begins, before
            begins = at
        before = at
    if begins is not None and before is not None:
        yield begins, before


def _moved(panel: Mapping[str, Any], down: int) -> dict[str, Any]:
    place = {**panel["gridPos"], "y": panel["gridPos"]["y"] + down}
    return {**panel, "gridPos": place}


def _bottom(panel: Mapping[str, Any]) -> int:
    return int(panel["gridPos"]["y"] + panel["gridPos"]["h"])


def seconds(duration: str) -> float:
    """The seconds of a Prometheus duration, as in 1m30s."""
    if not re.fullmatch(r"(\d+(ms|[smhd]))+", duration):
        raise ValueError(f"{duration}: a duration is like 30s, 15m, 3h or 7d")
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhd])", duration))
