"""One function for each kind of panel: its title, a description, its queries, and its look.

``empty`` is the text for an empty result. It must be true in that case: see ``QueryScope.or_zero``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common, prometheus, statetimeline, timeseries, units
from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import heatmap as heatmaps
from grafana_foundation_sdk.models import stat as stats
from grafana_foundation_sdk.models import table as tables

from dashboards.style import BAD, GREY, NEUTRAL, NONE, Levels, steps

SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
NO_SERVICE = "No scrub service is scraped"
NO_PLUGIN = "No device plugin is scraped"
NO_RECORDING = "No scrub service is scraped, or the recording rules are not loaded"
# Of a panel that compares two scrapes, and shows no zero: it is empty in the first minute, too.
NO_EVENT = "No event in this time, or fewer than two scrapes"
NO_EVENT_RECORDED = "No event in this time, fewer than two scrapes, or no recording rules"

# Widths of table columns in pixels. The other columns share the rest.
WIDTHS = {"Cluster": 80, "GPU": 60, "Severity": 85, "Alert": 225, "Details": 190, "Version": 80, "Devices": 90,
          "Digest": 155, "By": 90, "Reason": 130}  # fmt: skip
LEAST_WIDTH = 60

# The distance of two bars. With a scrape every 30 s, each bar counts 2 minutes and overlaps the bar before by one
# scrape, so that each event is in exactly one bar. It is set on the panel: on a query, Grafana would take it for the
# scrape interval.
BETWEEN_BARS = "90s"

ValueWords = Sequence[grafana.ValueMapping]


@dataclass(frozen=True, slots=True)
class Query:
    """One query, and the legend of its results."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A table column: its head, its query, and the format of its values."""

    head: str
    expression: str
    unit: str = units.Short
    levels: Levels = NEUTRAL
    words: ValueWords = ()
    filled: bool = False  # colour the background, not the text


def stat(  # noqa: PLR0913 - what is shown is told by name
    title: str, description: str, expression: str, unit: str = units.Short, *,
    levels: Levels = NEUTRAL, words: ValueWords = (), empty: str = NO_SERVICE, legend: str = "",
) -> grafana.Panel:  # fmt: skip
    """One large number, or one for each of a few series.

    It shows the present value only: with a sparkline, Grafana would show an old value.
    """
    shape = stats.Options(
        graph_mode=common.BigValueGraphMode.NONE,
        color_mode=common.BigValueColorMode.VALUE,
        reduce_options=common.ReduceDataOptions(values=False, calcs=["lastNotNull"], fields=""),
        text_mode=common.BigValueTextMode.AUTO,
    )
    field = _field(unit, levels, words, empty, _coloured(grafana.FieldColorModeId.THRESHOLDS))
    panel = _panel("stat", title, description, field, shape)
    panel.targets = _targets([Query(expression, legend)], instant=True)
    return panel


def graph(  # noqa: PLR0913 - what is shown is told by name
    title: str, description: str, unit: str, *queries: Query, colours: Mapping[str, str] | None = None,
    stacked: bool = False, bars: bool = False, receipts: bool = False, beside: bool = False, up_to: float | None = None,
    levels: Levels = NEUTRAL, empty: str = NO_SERVICE,
) -> grafana.Panel:  # fmt: skip
    """Metrics over time.

    ``stacked`` draws parts of a whole, ``bars`` draws counts of rare events, ``receipts`` draws exemplars. The keys of
    ``colours`` are series names, or patterns between slashes. ``beside`` puts the legend to the right, largest first.
    ``up_to`` is the least height of the axis: without it, Grafana draws an axis to 100 if all values are 0.
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
    grey_zero = {NONE: GREY} if any(f'"{NONE}"' in ask.expression for ask in queries) else {}
    overrides = [
        _override(name, _matcher(name), color=_coloured(grafana.FieldColorModeId.FIXED, colour))
        for name, colour in {**grey_zero, **(colours or {})}.items()
    ]
    panel = _panel("timeseries", title, description, field, shape, overrides)
    panel.targets = _targets(queries, receipts=receipts)
    panel.interval = BETWEEN_BARS if bars else None
    return panel


def timeline(
    title: str, description: str, words: ValueWords, *queries: Query, empty: str = NO_SERVICE
) -> grafana.Panel:
    """A state timeline: one lane for each series, in the colours of the value words."""
    shape = statetimeline.Options(
        show_value=common.VisibilityMode.AUTO, legend=_legend(), tooltip=_tooltip(), row_height=0.85, per_page=30
    )
    custom = statetimeline.FieldConfig(line_width=0, fill_opacity=85, span_nulls=False)
    field = _field(units.NoUnit, NEUTRAL, words, empty, _coloured(grafana.FieldColorModeId.THRESHOLDS), custom)
    panel = _panel("state-timeline", title, description, field, shape)
    panel.targets = _targets(queries)
    return panel


def heatmap(title: str, description: str, expression: str, *, empty: str = NO_SERVICE) -> grafana.Panel:
    """Durations over time: a darker cell has more events. The query returns buckets by ``le``."""
    shape = heatmaps.Options(
        calculate=False,
        color=heatmaps.HeatmapColorOptions(
            mode=heatmaps.HeatmapColorMode.SCHEME, scheme="Viridis", fill=BAD, exponent=0.5, steps=64, reverse=False
        ),
        y_axis=heatmaps.YAxisConfig(unit=units.Seconds, axis_placement=common.AxisPlacement.LEFT),
        cell_values=heatmaps.CellValues(unit=units.Short),
        filter_values=heatmaps.FilterValueRange(le=1e-9),
        legend=heatmaps.HeatmapLegend(show=True),
        tooltip=heatmaps.HeatmapTooltip(mode=common.TooltipDisplayMode.SINGLE, y_histogram=True, show_color_scale=True),
    )
    field = _field(units.Seconds, NEUTRAL, (), empty, None)
    panel = _panel("heatmap", title, description, field, shape)
    panel.targets = _targets([Query(expression, "{{le}}")], shape=prometheus.PromQueryFormat.HEATMAP)
    return panel


def table(  # noqa: PLR0913 - what is shown is told by name
    title: str, description: str, heads: Mapping[str, str], *columns: Column,
    links: Mapping[str, str] | None = None, empty: str = NO_SERVICE, sorted_by: str | tuple[str, ...] = "",
    rising: bool = False, label_words: Mapping[str, Mapping[str, str]] | None = None,
    widths: Mapping[str, int] = WIDTHS, paged: bool = False,
) -> grafana.Panel:  # fmt: skip
    """A table: the labels, then the columns. Rows with equal labels become one row.

    ``label_words``: for the head of a label, the text that is shown instead of each of its values.
    ``paged``: say how many rows there are. Other tables scroll, and do not show that rows are out of sight.
    """
    values = ["Value"] if len(columns) == 1 else [f"Value #{letter}" for letter in ascii_uppercase[: len(columns)]]
    renamed = {**heads, **dict(zip(values, (column.head for column in columns), strict=True))}
    order = {name: place for place, name in enumerate(renamed)}
    sorts = (sorted_by,) if isinstance(sorted_by, str) else sorted_by
    sort = [common.TableSortByFieldState(display_name=head, desc=not rising) for head in sorts if head]
    options = _PagedTable if paged else tables.Options
    shape = options(show_header=True, cell_height=common.TableCellHeight.SM, sort_by=sort or None)
    field = _field(
        units.NoUnit, NEUTRAL, (), empty, _coloured(grafana.FieldColorModeId.THRESHOLDS),
        common.TableFieldOptions(min_width=LEAST_WIDTH, cell_options=common.TableAutoCellOptions(wrap_text=True)),
    )  # fmt: skip
    overrides = [_override("/.*/", "byRegexp", noValue="-")]  # otherwise an empty cell shows the text of an empty table
    overrides += [_override(head, **{"custom.width": widths[head]}) for head in heads.values() if head in widths]
    overrides += [_shown(column) for column in columns]
    overrides += [_override(head, mappings=_texts(texts)) for head, texts in (label_words or {}).items()]
    overrides += [_override(head, links=[{"title": "Open the page", "url": to}])
                  for head, to in (links or {}).items()]  # fmt: skip
    panel = _panel("table", title, description, field, shape, overrides)
    queries = [Query(column.expression) for column in columns]
    panel.targets = _targets(queries, instant=True, shape=prometheus.PromQueryFormat.TABLE)
    arrange = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": renamed}
    panel.transformations = [
        grafana.DataTransformerConfig(id_val="merge", options={}),
        grafana.DataTransformerConfig(id_val="organize", options=arrange),
    ]
    return panel


class _PagedTable(tables.Options):
    """A table with pages. Grafana 12.0 reads this in the footer, newer ones in a field that the library lacks."""

    def to_json(self) -> dict[str, object]:
        footer = common.TableFooterOptions(show=False, enable_pagination=True)
        return {**super().to_json(), "footer": footer, "enablePagination": True}


def _panel(
    kind: str, title: str, description: str, field: grafana.FieldConfig, shape: object,
    overrides: list[grafana.DashboardFieldConfigSourceOverrides] | None = None,
) -> grafana.Panel:  # fmt: skip
    config = grafana.FieldConfigSource(defaults=field, overrides=overrides)
    return grafana.Panel(
        type_val=kind, title=title, description=description, datasource=SOURCE, options=shape, field_config=config
    )


def _field(
    unit: str,
    levels: Levels,
    words: ValueWords,
    empty: str,
    colour: grafana.FieldColor | None,
    custom: object = None,
) -> grafana.FieldConfig:
    return grafana.FieldConfig(
        unit=unit,
        thresholds=_thresholds(levels),
        mappings=list(words),
        no_value=empty,
        color=colour,
        custom=custom,
    )


def _targets(
    queries: Sequence[Query],
    *,
    instant: bool = False,
    receipts: bool = False,
    shape: prometheus.PromQueryFormat = prometheus.PromQueryFormat.TIME_SERIES,
) -> list[Dataquery]:
    return [
        prometheus.Dataquery(
            ref_id=letter,
            expr=ask.expression,
            legend_format=ask.legend or "__auto",
            datasource=SOURCE,
            editor_mode=prometheus.QueryEditorMode.CODE,
            instant=instant,
            range_val=not instant,
            exemplar=receipts,
            format_val=shape,
        )
        for letter, ask in zip(ascii_uppercase, queries, strict=False)
    ]


def _shown(column: Column) -> grafana.DashboardFieldConfigSourceOverrides:
    maps = [words.options for words in column.words if isinstance(words, grafana.ValueMap)]
    texts = [result.text or "" for options in maps for result in options.values()]
    width = max(110 if column.filled else 80, 8 * len(column.head) + 40, *(8 * len(text) + 16 for text in texts))
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


def _texts(texts: Mapping[str, str]) -> list[grafana.ValueMapping]:
    results = {
        value: grafana.ValueMappingResult(text=text, index=place) for place, (value, text) in enumerate(texts.items())
    }
    return [grafana.ValueMap(options=results)]


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


def _legend(*calcs: str, beside: bool = False) -> common.VizLegendOptions:
    mode = common.LegendDisplayMode.TABLE if calcs else common.LegendDisplayMode.LIST
    legend = common.VizLegendOptions(
        display_mode=mode, placement=common.LegendPlacement.BOTTOM, show_legend=bool(calcs), calcs=list(calcs)
    )
    if beside:
        legend.placement, legend.sort_by, legend.sort_desc = common.LegendPlacement.RIGHT, "Max", True
    return legend


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions(mode=common.TooltipDisplayMode.MULTI, sort=common.SortOrder.DESCENDING)
