"""All queries of the committed pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dashboards import shipped


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of one panel, with all variables replaced. A range query is not ``instant``."""

    page: str
    panel: str
    ref: str
    expression: str
    instant: bool


def panel_queries(chosen: Mapping[str, str] | None = None) -> Iterator[PanelQuery]:
    """All queries for these values of variables (see ``EVERYTHING``): of panels, then of annotations."""
    values = {**shipped.EVERYTHING, **(chosen or {})}
    for uid, page in sorted(shipped.pages().items()):
        for panel in shipped.panels(page):
            for target in panel["targets"]:
                expression = shipped.filled(target["expr"], values)
                yield PanelQuery(uid, panel["title"], target["refId"], expression, target["instant"])
        for event in page["annotations"]["list"]:
            yield PanelQuery(
                uid, f"annotation {event['name']}", "A", shipped.filled(event["expr"], values), instant=False
            )
