"""PromQL queries, built from rows of the metric tables, so that no page uses a metric that does not exist.

Our metrics have no label for the node or the cluster. Scraping adds ``node`` and, with several clusters, ``cluster``. A
single machine may have neither, so All is ``.*`` and not ``.+``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dashboards.style import NO_ROW, NONE, NUMBER_OF
from ground.metric_table import Kind, Row
from plugin.metrics import plugin_metrics as plugin
from scrubber.core.model import State
from scrubber.metrics.service_metrics import BUILD, DEVICE, READY, STATE

PLACE = ("cluster", "node")
DEVICE_ID = (*PLACE, "gpu", "uuid")
PROVEN = tuple(state.value for state in (State.CLEAN, State.GRANTED, State.IN_USE))

# Grafana replaces these: by at least four scrape intervals, and by the whole time range.
RECENT, RANGE = "$__rate_interval", "$__range"
SECONDS = {RECENT: "$__rate_interval_ms / 1000", RANGE: "$__range_s"}
FIRST_SCRAPE = 300  # seconds from the start of a process until Prometheus has found and scraped it
SILENT_WITHIN = "6h"  # how long a node without a target counts as silent


@dataclass(frozen=True, slots=True)
class RecordedSeries:
    """A series of a recording rule in ``dashboards/rules.yaml``. It keeps a page cheap at 1,000 nodes."""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignSeries:
    """A series that the client library of a process or Prometheus itself makes."""

    name: str
    kind: Kind
    labels: tuple[str, ...]


DEVICES = RecordedSeries("cluster:autoclave_devices:by_availability", ("cluster", "availability"))
DEVICES_OF_NODES = RecordedSeries("node:autoclave_devices:by_availability", (*PLACE, "availability"))
TIMES_TO_CLEAN = RecordedSeries("cluster:autoclave_time_to_clean_seconds_bucket:rate5m", ("cluster", "le"))
HOOK_TIMES = RecordedSeries(
    "cluster:autoclave_hook_duration_seconds_bucket:rate5m", ("cluster", "hook", "outcome", "le")
)  # fmt: skip
SCRUBS = RecordedSeries("cluster:autoclave_scrubs:rate5m", ("cluster", "path", "outcome"))
SCRUBS_OF_NODES = RecordedSeries("node:autoclave_scrubs:rate5m", PLACE)
REFUSALS = RecordedSeries("cluster:autoclave_hook_refusals:rate5m", ("cluster", "hook", "reason"))
LATE = {
    window: RecordedSeries(f"cluster:autoclave_handover_errors:ratio_rate{window}", ("cluster",))
    for window in ("1h", "6h", "3d")
}
RECORDED = (*LATE.values(), DEVICES, DEVICES_OF_NODES, TIMES_TO_CLEAN, HOOK_TIMES, SCRUBS, SCRUBS_OF_NODES, REFUSALS)

TARGET = (*PLACE, "instance")
CPU = ForeignSeries("process_cpu_seconds_total", Kind.COUNTER, TARGET)
RESIDENT = ForeignSeries("process_resident_memory_bytes", Kind.GAUGE, TARGET)
STARTED = ForeignSeries("process_start_time_seconds", Kind.GAUGE, (*TARGET, "job"))
ALERT = (*PLACE, "gpu", "alertname", "severity")
# The other labels that the summary of an alert names. Where two of them are set, they are set in this order.
ALERT_DETAILS = ("reason", "sign", "xid", "resource", "outcome", "job", "policy")
ALERTS = ForeignSeries("ALERTS", Kind.GAUGE, (*ALERT, *ALERT_DETAILS, "alertstate"))
# When the condition of an alert became true. Prometheus writes it beside ALERTS, without the state.
ALERTS_BEGAN = ForeignSeries("ALERTS_FOR_STATE", Kind.GAUGE, (*ALERT, *ALERT_DETAILS))
UP = ForeignSeries("up", Kind.GAUGE, (*TARGET, "job"))
FOREIGN = (CPU, RESIDENT, STARTED, UP, ALERTS, ALERTS_BEGAN)

SERVICE_JOB, PLUGIN_JOB, DRA_JOB = "autoclave-scrubber", "autoclave-plugin", "autoclave-dra"  # the job labels
JOBS = {BUILD.name: SERVICE_JOB, plugin.BUILD.name: PLUGIN_JOB, plugin.DRA_BUILD.name: DRA_JOB}

Series = Row | RecordedSeries | ForeignSeries


@dataclass(frozen=True, slots=True)
class QueryScope:
    """The variables of a page. Every query is narrowed by them."""

    variables: tuple[str, ...]

    def of(self, series: Series, part: str = "", /, **labels: str | tuple[str, ...]) -> str:
        """A selector with these labels. A tuple matches any of its values; ``part`` names a series of a histogram."""
        has = (*PLACE, *series.all_labels) if isinstance(series, Row) else series.labels
        if unknown := labels.keys() - set(has):
            raise ValueError(f"cannot select {series.name} by {', '.join(unknown)}: its labels are {', '.join(has)}")
        narrowed = [f'{name}=~"${name}"' for name in self.variables if name in has and name not in labels]
        asked = [
            f'{name}="{value}"' if isinstance(value, str) else f'{name}=~"{"|".join(value)}"'
            for name, value in labels.items()
        ]
        return f"{series.name}{'_' * bool(part)}{part}{{{', '.join(narrowed + asked)}}}"

    def rate(self, series: Series, *by: str, part: str = "", **labels: str) -> str:
        """The growth per second."""
        return sum_of(f"rate({self.of(series, part, **labels)}[{RECENT}])", *by)

    def increase(self, row: Row, *by: str, within: str = RANGE, **labels: str) -> str:
        """The growth of a counter, including the first value of a new counter, which PromQL misses.

        A new counter counts with its maximum, even if its process has ended since.
        """
        series = self.of(row, **labels)
        born = (
            f"max_over_time({series}[{within}]) unless last_over_time({series}[{within}] offset {within}) "
            f"and on ({', '.join(TARGET)}) {self._watched(row, within)}"
        )
        return f"round({sum_of(f'({born}) or increase({series}[{within}])', *by)})"

    def _watched(self, row: Row, within: str) -> str:
        """The processes for which a counter that did not exist before is really new.

        Prometheus scraped them before, or they started since. After a gap in scraping, and for a new Prometheus, every
        counter looks new.
        """
        tables = ((plugin.TABLE, plugin.BUILD), (plugin.DRA_TABLE, plugin.DRA_BUILD))
        build = next((build for table, build in tables if row in table), BUILD)
        before = f"last_over_time({self.of(build)}[{within}] offset {within})"
        started = self.of(STARTED, job=JOBS[build.name])
        began = f"min_over_time({started}[{within}]) > time() - {SECONDS[within]} - {FIRST_SCRAPE}"
        return largest(f"{before} or {began}", *TARGET)

    def quantile(self, part: float, row: Row, *by: str, **labels: str) -> str:
        """A quantile of a histogram. Without samples there is no result instead of NaN."""
        return f"histogram_quantile({part:g}, {self.rate(row, 'le', *by, part='bucket', **labels)}) >= 0"

    def mean(self, row: Row, *by: str, **labels: str) -> str:
        """The average over the time range."""
        increase = [sum_of(f"increase({self.of(row, part, **labels)}[{RANGE}])", *by) for part in ("sum", "count")]
        return f"{increase[0]} / ({increase[1]} > 0)"

    def states(self, *by: str) -> str:
        """The state of each device as a number; ``style`` has a word for each number."""
        arms = [f"{number} * ({self.of(STATE, state=state.value)} == 1)" for state, number in NUMBER_OF.items()]
        return largest(" or ".join(arms), *by)

    def of_proven(self, row: Row) -> str:
        """A metric of the last proof, of the devices that have a proof or were handed out on it."""
        proven = largest(self.of(STATE, state=PROVEN), *DEVICE_ID)
        return f"{largest(self.of(row), *DEVICE_ID)} and on ({', '.join(DEVICE_ID)}) {proven} == 1"

    def or_zero(self, expression: str, label: str = "", alive: Row = BUILD) -> str:
        """The expression, or a zero for a scraped service if the expression is empty."""
        zero = f"0 * max({self.of(alive)})"
        zero = f'label_replace({zero}, "{label}", "{NONE}", "", "")' if label else zero
        return f"({expression}) or on () {zero}"

    def count_in_range(self, row: Row, label: str = "", alive: Row = BUILD) -> str:
        """How often an event happened in the time range, or a zero if the service is scraped.

        A counter of a process that has ended keeps its growth.
        """
        return self.or_zero(f"{self.increase(row, *filter(None, [label]))} > 0", label, alive)

    def recent_by(self, row: Row, label: str) -> str:
        """How often an event happened lately, by one label, or a zero if the service is scraped."""
        return self.or_zero(f"{self.increase(row, label, within=RECENT)} > 0", label)

    def recent_by_labels(self, row: Row, *by: str, alive: Row = BUILD) -> str:
        """How often an event happened lately, by several labels joined to ``at``. Like ``recent_by`` with a zero."""
        return self.or_zero(with_labels(f"{self.increase(row, *by, within=RECENT)} > 0", *by), "at", alive)

    def or_not_scraped(self, expression: str, label: str, value: float, alive: Row = BUILD) -> str:
        """The expression, or one row that says that nothing is scraped: an empty table means nothing to show."""
        row = "nothing is scraped" if alive is BUILD else "no plugin is scraped"
        return f'({expression}) or label_replace({value:g} * absent({self.of(alive)}), "{label}", "{row}", "", "")'

    def silent(self, alive: Row = BUILD) -> str:
        """The nodes that were scraped lately and are not now, and the nodes that Prometheus cannot reach."""
        then = largest(f"last_over_time({self.of(alive)}[{SILENT_WITHIN}])", *PLACE)
        looked_for = largest(self.of(UP, job=JOBS[alive.name]), *PLACE)
        return f"{then} unless {largest(self.of(alive), *PLACE)} or {looked_for} == 0"

    def silent_nodes(self) -> str:
        """The silent nodes, with 1 if the service is silent, 2 if the plugin or DRA driver is, and 3 if both are."""
        parts = ((1, "service", BUILD), (2, "plugin", plugin.BUILD), (2, "plugin", plugin.DRA_BUILD))
        arms = (
            f'label_replace(0 * ({self.silent(alive)}) + {n}, "part", "{part}", "", "")' for n, part, alive in parts
        )
        return sum_of(" or ".join(arms), *PLACE)

    def not_ready(self) -> str:
        """The nodes whose service, plugin or DRA driver reports that it is not ready."""
        rows = (READY, plugin.READY, plugin.DRA_READY)
        return " or ".join(f"{largest(self.of(row), *PLACE)} == 0" for row in rows)

    def or_missing(self, expression: str) -> str:
        """The expression, or -1 for a device without a value. Without any value, Grafana would drop the column."""
        return f"{largest(expression, *DEVICE_ID)} or {largest(self.of(DEVICE), *DEVICE_ID)} * 0 + ({NO_ROW})"

    def of_processes(self, expression: str, alive: Row) -> str:
        """The part of an expression that comes from processes of the service, or of the plugin."""
        return f"{expression} * on ({', '.join(TARGET)}) group_left () {largest(self.of(alive), *TARGET)}"


def sum_of(expression: str, *by: str) -> str:
    """The sum, by labels."""
    return f"sum{_by(by)}({expression})"


def largest(expression: str, *by: str) -> str:
    """The maximum, by labels."""
    return f"max{_by(by)}({expression})"


def smallest(expression: str, *by: str) -> str:
    """The minimum, by labels."""
    return f"min{_by(by)}({expression})"


def with_device(expression: str, *more: str) -> str:
    """Add a label ``at`` with node, GPU and the values of more labels. Lanes are sorted by this label."""
    said = f'label_join({expression}, "at", " GPU ", "node", "gpu")'
    for label in more:
        said = f'label_join({said}, "at", ": ", "at", "{label}")'
    return said


def with_labels(expression: str, *labels: str, to: str = "at") -> str:
    """Add a label that joins the values of these labels, so that one word can replace all of them."""
    names = ", ".join(f'"{label}"' for label in labels)
    return f'label_join({expression}, "{to}", " ", {names})'


def age(expression: str) -> str:
    """Seconds since a timestamp."""
    return f"time() - {expression}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""
