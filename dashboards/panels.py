"""One function for each kind of panel: its title, a description, what it asks, and how that is shown.

``empty`` is what stands there when the answer holds nothing. It must be true then: see ``Scope.or_none``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common, heatmap, prometheus, stat, statetimeline, table, timeseries, units
from grafana_foundation_sdk.models import dashboard as grafana

from dashboards.look import BAD, GREY, NEUTRAL, NONE, Levels, steps

SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
UNHEARD = "No scrub service is scraped"
NO_PLUGIN = "No device plugin is scraped"
UNRECORDED = "No scrub service is scraped, or the recording rules are not loaded"

# Of the columns of tables, in pixels: the others share what is left, so that none is out of sight.
WIDTHS = {"Cluster": 80, "GPU": 60, "Severity": 85, "Alert": 225, "Version": 80, "Devices": 90, "By": 90,
          "Reason": 130}  # fmt: skip
LEAST_WIDTH = 60

# Between two bars: with a scrape each 30 s each counts 2 minutes, of which one scrape is the last of the bar before. So
# each event is in one bar. It is the panel's: as a query's, Grafana would take it for the time between two scrapes.
BETWEEN_BARS = "90s"

Words = Sequence[grafana.ValueMapping]


@dataclass(frozen=True, slots=True)
class Ask:
    """One query, and what its answers are called."""

    expression: str
    called: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its head, its query, and how the answers are shown."""

    head: str
    expression: str
    unit: str = units.Short
    levels: Levels = NEUTRAL
    words: Words = ()
    filled: bool = False  # in its colour, and not only written in it


def figure(  # noqa: PLR0913 - what is shown is told by name
    title: str, about: str, expression: str, unit: str = units.Short, *,
    levels: Levels = NEUTRAL, words: Words = (), empty: str = UNHEARD, called: str = "",
) -> grafana.Panel:  # fmt: skip
    """One number, large, or one for each of a few. As it is now: a curve would go on showing what it was last."""
    shape = stat.Options(
        graph_mode=common.BigValueGraphMode.NONE,
        color_mode=common.BigValueColorMode.VALUE,
        reduce_options=common.ReduceDataOptions(values=False, calcs=["lastNotNull"], fields=""),
        text_mode=common.BigValueTextMode.AUTO,
    )
    field = _field(unit, levels, words, empty, _coloured(grafana.FieldColorModeId.THRESHOLDS))
    panel = _panel("stat", title, about, field, shape)
    panel.targets = _targets([Ask(expression, called)], instant=True)
    return panel


def lines(  # noqa: PLR0913 - what is shown is told by name
    title: str, about: str, unit: str, *asks: Ask, colours: Mapping[str, str] | None = None, stacked: bool = False,
    bars: bool = False, receipts: bool = False, beside: bool = False, up_to: float | None = None,
    levels: Levels = NEUTRAL, empty: str = UNHEARD,
) -> grafana.Panel:  # fmt: skip
    """Figures over time. Stacked ones are parts of a whole; bars are counts of rare events; receipts lead to proofs.

    ``colours`` are told by name, or by a pattern between slashes.
    ``beside`` is where the legend of many stands, the largest first; ``up_to`` is how far the axis goes at least: where
    all is zero, Grafana would draw one to 100.
    """
    custom = common.GraphFieldConfig(
        draw_style=common.GraphDrawStyle.BARS if bars else common.GraphDrawStyle.LINE,
        line_width=1,
        fill_opacity=70 if stacked or bars else 0,
        show_points=common.VisibilityMode.NEVER if stacked or bars else common.VisibilityMode.AUTO,
        stacking=common.StackingConfig(
            mode=common.StackingMode.NORMAL if stacked or bars else common.StackingMode.NONE, group="A"
        ),
        thresholds_style=common.GraphThresholdsStyleConfig(
            mode=common.GraphThresholdsStyleMode.DASHED if levels else common.GraphThresholdsStyleMode.OFF
        ),
        span_nulls=False,
        axis_soft_min=0,
        axis_soft_max=1 if bars else up_to,
    )
    palette = grafana.FieldColorModeId.PALETTE_CLASSIC if beside else grafana.FieldColorModeId.PALETTE_CLASSIC_BY_NAME
    shape = timeseries.Options(legend=_legend("lastNotNull", "max", beside=beside), tooltip=_tooltip())
    field = _field(unit, levels, (), empty, _coloured(palette), custom)
    field.decimals = 0 if bars else None
    calm = {NONE: GREY} if any(f'"{NONE}"' in ask.expression for ask in asks) else {}
    overrides = [
        _override(name, _matcher(name), color=_coloured(grafana.FieldColorModeId.FIXED, colour))
        for name, colour in {**calm, **(colours or {})}.items()
    ]
    panel = _panel("timeseries", title, about, field, shape, overrides)
    panel.targets = _targets(asks, receipts=receipts)
    panel.interval = BETWEEN_BARS if bars else None
    return panel


def timeline(title: str, about: str, words: Words, *asks: Ask, empty: str = UNHEARD) -> grafana.Panel:
    """What held when, one lane for each answer. The colours are those of the words."""
    shape = statetimeline.Options(
        show_value=common.VisibilityMode.AUTO, legend=_legend(), tooltip=_tooltip(), row_height=0.85, per_page=30
    )
    custom = statetimeline.FieldConfig(line_width=0, fill_opacity=85, span_nulls=False)
    field = _field(units.NoUnit, NEUTRAL, words, empty, _coloured(grafana.FieldColorModeId.THRESHOLDS), custom)
    panel = _panel("state-timeline", title, about, field, shape)
    panel.targets = _targets(asks)
    return panel


def heat(title: str, about: str, expression: str, *, empty: str = UNHEARD) -> grafana.Panel:
    """How long things took, over time: the darker, the more often. The expression gives buckets by ``le``."""
    shape = heatmap.Options(
        calculate=False,
        color=heatmap.HeatmapColorOptions(
            mode=heatmap.HeatmapColorMode.SCHEME, scheme="Viridis", fill=BAD, exponent=0.5, steps=64, reverse=False
        ),
        y_axis=heatmap.YAxisConfig(unit=units.Seconds, axis_placement=common.AxisPlacement.LEFT),
        cell_values=heatmap.CellValues(unit=units.Short),
        filter_values=heatmap.FilterValueRange(le=1e-9),
        legend=heatmap.HeatmapLegend(show=True),
        tooltip=heatmap.HeatmapTooltip(mode=common.TooltipDisplayMode.SINGLE, y_histogram=True, show_color_scale=True),
    )
    field = _field(units.Seconds, NEUTRAL, (), empty, None)
    panel = _panel("heatmap", title, about, field, shape)
    panel.targets = _targets([Ask(expression, "{{le}}")], shape=prometheus.PromQueryFormat.HEATMAP)
    return panel


def rows(
    title: str, about: str, heads: Mapping[str, str], *columns: Column,
    links: Mapping[str, str] | None = None, empty: str = UNHEARD, sorted_by: str | tuple[str, ...] = "",
    rising: bool = False,
) -> grafana.Panel:  # fmt: skip
    """A table: labels under their heads, then the columns. Rows of all the queries with equal labels become one."""
    values = ["Value"] if len(columns) == 1 else [f"Value #{letter}" for letter in ascii_uppercase[: len(columns)]]
    renamed = {**heads, **dict(zip(values, (column.head for column in columns), strict=True))}
    order = {name: place for place, name in enumerate(renamed)}
    sorts = (sorted_by,) if isinstance(sorted_by, str) else sorted_by
    sort = [common.TableSortByFieldState(display_name=head, desc=not rising) for head in sorts if head]
    shape = table.Options(show_header=True, cell_height=common.TableCellHeight.SM, sort_by=sort or None)
    field = _field(
        units.NoUnit, NEUTRAL, (), empty, _coloured(grafana.FieldColorModeId.THRESHOLDS),
        common.TableFieldOptions(min_width=LEAST_WIDTH),
    )  # fmt: skip
    overrides = [_override("/.*/", "byRegexp", noValue="-")]  # or an empty cell would say what an empty table does
    overrides += [_override(head, **{"custom.width": WIDTHS[head]}) for head in heads.values() if head in WIDTHS]
    overrides += [_shown(column) for column in columns]
    overrides += [_override(head, links=[{"title": "Look at it", "url": to}])
                  for head, to in (links or {}).items()]  # fmt: skip
    panel = _panel("table", title, about, field, shape, overrides)
    asks = [Ask(column.expression) for column in columns]
    panel.targets = _targets(asks, instant=True, shape=prometheus.PromQueryFormat.TABLE)
    arrange = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": renamed}
    panel.transformations = [
        grafana.DataTransformerConfig(id_val="merge", options={}),
        grafana.DataTransformerConfig(id_val="organize", options=arrange),
    ]
    return panel


def _panel(
    kind: str, title: str, about: str, field: grafana.FieldConfig, shape: object,
    overrides: list[grafana.DashboardFieldConfigSourceOverrides] | None = None,
) -> grafana.Panel:  # fmt: skip
    config = grafana.FieldConfigSource(defaults=field, overrides=overrides)
    return grafana.Panel(
        type_val=kind, title=title, description=about, datasource=SOURCE, options=shape, field_config=config
    )


def _field(
    unit: str, levels: Levels, words: Words, empty: str, colour: grafana.FieldColor | None, custom: object = None
) -> grafana.FieldConfig:
    return grafana.FieldConfig(
        unit=unit, thresholds=_thresholds(levels), mappings=list(words), no_value=empty, color=colour, custom=custom
    )


def _targets(
    asks: Sequence[Ask],
    *,
    instant: bool = False,
    receipts: bool = False,
    shape: prometheus.PromQueryFormat = prometheus.PromQueryFormat.TIME_SERIES,
) -> list[Dataquery]:
    return [
        prometheus.Dataquery(
            ref_id=letter,
            expr=ask.expression,
            legend_format=ask.called or "__auto",
            datasource=SOURCE,
            editor_mode=prometheus.QueryEditorMode.CODE,
            instant=instant,
            range_val=not instant,
            exemplar=receipts,
            format_val=shape,
        )
        for letter, ask in zip(ascii_uppercase, asks, strict=False)
    ]


def _shown(column: Column) -> grafana.DashboardFieldConfigSourceOverrides:
    width = max(110 if column.filled else 80, 8 * len(column.head) + 40)
    said: dict[str, object] = {"unit": column.unit, "custom.width": width}
    if column.words:
        said["mappings"] = list(column.words)
    if column.levels:
        said["thresholds"] = _thresholds(column.levels)
    if column.filled:
        said["custom.cellOptions"] = common.TableColoredBackgroundCellOptions(
            mode=common.TableCellBackgroundDisplayMode.BASIC
        )
    elif column.words or column.levels:
        said["custom.cellOptions"] = common.TableColorTextCellOptions()
    return _override(column.head, **said)


def _override(head: str, by: str = "byName", /, **said: object) -> grafana.DashboardFieldConfigSourceOverrides:
    properties = [grafana.DynamicConfigValue(id_val=name, value=value) for name, value in said.items()]
    return grafana.DashboardFieldConfigSourceOverrides(
        matcher=grafana.MatcherConfig(id_val=by, options=head), properties=properties
    )


def _matcher(name: str) -> str:
    return "byRegexp" if name.startswith("/") else "byName"


def _thresholds(levels: Levels) -> grafana.ThresholdsConfig:
    return grafana.ThresholdsConfig(mode=grafana.ThresholdsMode.ABSOLUTE, steps=steps(levels))


def _coloured(mode: grafana.FieldColorModeId, colour: str | None = None) -> grafana.FieldColor:
    return grafana.FieldColor(mode=mode, fixed_color=colour)


def _legend(*figures: str, beside: bool = False) -> common.VizLegendOptions:
    mode = common.LegendDisplayMode.TABLE if figures else common.LegendDisplayMode.LIST
    legend = common.VizLegendOptions(
        display_mode=mode, placement=common.LegendPlacement.BOTTOM, show_legend=bool(figures), calcs=list(figures)
    )
    if beside:
        legend.placement, legend.sort_by, legend.sort_desc = common.LegendPlacement.RIGHT, "Max", True
    return legend


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions(mode=common.TooltipDisplayMode.MULTI, sort=common.SortOrder.DESCENDING)
