"""A page: its variables, and sections of panels that are laid out from left to right.

It uses the classic schema of dashboards, which sidecars, operators and every Grafana since version 12 read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import prometheus

from dashboards.panels import SOURCE
from dashboards.query import DEVICE_ID, QueryScope, largest
from dashboards.style import BAD
from scrubber.metrics.service_metrics import DEVICE, QUARANTINED

TAG = "autoclave"
WIDTH = 24
EVERYTHING = ".*"
AT_THE_TOP = ""  # otherwise the library hides it in a menu

ABOUT = {
    "cluster": "The cluster, if one Prometheus scrapes several.",
    "node": "The label node that scraping adds.",
    "gpu": "The index of the GPU. A slice has a number too: 0:1.",
}


@dataclass(frozen=True, slots=True)
class Section:
    """Panels of one height under a heading. A folded section runs no query until a person opens it."""

    heading: str
    height: int
    panels: tuple[tuple[int, grafana.Panel], ...]  # each with its width; a row has 24 columns
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A dashboard. Links and bookmarks use the ``uid``, so it never changes."""

    uid: str
    title: str
    description: str
    scope: QueryScope
    sections: tuple[Section, ...]
    one: tuple[str, ...] = ()  # the variables with a single value

    def build(self) -> grafana.Dashboard:
        """The dashboard as an object of the Grafana library."""
        return grafana.Dashboard(
            uid=self.uid,
            title=self.title,
            description=self.description,
            tags=[TAG],
            editable=False,
            refresh="30s",
            graph_tooltip=grafana.DashboardCursorSync.CROSSHAIR,
            time=grafana.DashboardDashboardTime(from_val="now-3h", to="now"),
            links=[_others()],
            templating=grafana.DashboardDashboardTemplating(list_val=list(self._variables())),
            annotations=grafana.AnnotationContainer(list_val=[self._quarantines()]),
            panels=self._laid_out(),
        )

    def text(self) -> str:
        """The dashboard as committed JSON: a panel is a line."""
        page = json.loads(json.dumps(self.build(), cls=JSONEncoder, sort_keys=True))
        panels = ",\n".join(json.dumps(panel, ensure_ascii=False) for panel in page.pop("panels"))
        rest = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in page.items())
        return f'{{\n{rest},\n"panels": [\n{panels}\n]\n}}\n'

    def _variables(self) -> Iterator[grafana.VariableModel]:
        yield grafana.VariableModel(
            type_val=grafana.VariableType.DATASOURCE, name="datasource", label="Data source", query="prometheus",
            description="The Prometheus that scrapes Autoclave.",
        )  # fmt: skip
        before: tuple[str, ...] = ()
        for name in self.scope.variables:
            values = f"label_values({QueryScope(before).of(DEVICE)}, {name})"
            several = name not in self.one
            yield grafana.VariableModel(
                type_val=grafana.VariableType.QUERY, name=name, label=name.upper() if name == "gpu" else name.title(),
                description=ABOUT[name], datasource=SOURCE, query={"query": values, "refId": name}, definition=values,
                multi=several, include_all=several, all_value=EVERYTHING if several else None,
                sort=grafana.VariableSort.NATURAL_ASC,
                refresh=grafana.VariableRefresh.ON_TIME_RANGE_CHANGED,
                current=grafana.VariableOption(text=["All"], value=["$__all"]) if several else None,
            )  # fmt: skip
            before = (*before, name)

    def _quarantines(self) -> grafana.AnnotationQuery:
        """The moments at which a device entered quarantine. The whole time of a quarantine would colour every panel.

        The query compares with the value one step before: over days, a step is longer than a minute.
        """
        out = largest(self.scope.of(QUARANTINED), *DEVICE_ID, "reason")
        expression = f"{out} unless {out.removesuffix(')')} offset $__interval)"
        recent_by_labels = grafana.AnnotationQuery(
            name="Quarantined", datasource=SOURCE, enable=True, icon_color=BAD, expr=expression, step="60s",
            target=prometheus.Dataquery(ref_id="Quarantined", expr=expression, range_val=True, instant=False),
            title_format="{{node}} GPU {{gpu}} is quarantined", text_format="{{reason}}", tag_keys="cluster,node,gpu",
        )  # fmt: skip
        recent_by_labels.placement = AT_THE_TOP
        return recent_by_labels

    def _laid_out(self) -> list[grafana.Panel | grafana.RowPanel]:
        made: list[grafana.Panel | grafana.RowPanel] = []
        numbers, top = count(1), 0
        for band in self.sections:
            row = grafana.RowPanel(
                id_val=next(numbers), title=band.heading, collapsed=band.folded, panels=[],
                grid_pos=grafana.GridPos(x=0, y=top, w=WIDTH, h=1),
            )  # fmt: skip
            panels, below = _placed(band, top + 1, numbers)
            made.append(row)
            if band.folded:
                row.panels, top = panels, top + 1
            else:
                made.extend(panels)
                top = below
        return made


def link(uid: str, **labels: str) -> str:
    """A link to another page with the time range and the data source of this page, and with labels from the row."""
    kept = [f"${{{name}:queryparam}}" for name in ("datasource", "cluster") if name not in labels]
    chosen = [f"var-{name}=${{__data.fields.{field}}}" for name, field in labels.items()]
    return f"/d/{uid}?" + "&".join(["${__url_time_range}", *kept, *chosen])


def _placed(band: Section, top: int, numbers: Iterator[int]) -> tuple[list[grafana.Panel], int]:
    left, placed = 0, []
    for width, panel in band.panels:
        if left + width > WIDTH:
            left, top = 0, top + band.height
        panel.id_val = next(numbers)
        panel.grid_pos = grafana.GridPos(x=left, y=top, w=width, h=band.height)
        placed.append(panel)
        left += width
    return placed, top + band.height


def _others() -> grafana.DashboardLink:
    pages = grafana.DashboardLink(
        title="Autoclave", type_val=grafana.DashboardLinkType.DASHBOARDS, icon="external link", tags=[TAG],
        tooltip="The other pages, with the same time range and variables", as_dropdown=True, include_vars=True,
        keep_time=True,
    )  # fmt: skip
    pages.placement = AT_THE_TOP
    return pages
