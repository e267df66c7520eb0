"""Questions to Prometheus, put together from rows of the metric tables: no page can ask for what is not there.

Our figures have no label for the node or the cluster; what scrapes them adds ``node`` (the PodMonitor does), and where
many clusters meet, ``cluster``. Both may be missing on a single machine, so All is ``.*`` and not ``.+``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dashboards.look import NO_ROW, NONE, NUMBER_OF
from plugin.metrics import table as plugin
from scrubber.ground.metric_table import Kind, Row
from scrubber.metrics.table import BUILD, DEVICE, READY, STATE

PLACE = ("cluster", "node")
DEVICE_ID = (*PLACE, "gpu", "uuid")

# What Grafana makes of these: four scrapes at least, and all the time that is shown.
LATELY, SHOWN = "$__rate_interval", "$__range"
SECONDS = {LATELY: "$__rate_interval_ms / 1000", SHOWN: "$__range_s"}
FIRST_SCRAPE = 300  # seconds from the start of a process within which it is found and heard
MEMORY = "6h"  # how long a node that went silent is missed


@dataclass(frozen=True, slots=True)
class Recorded:
    """A series that ``dashboards/rules.yaml`` makes of many: what makes a page of 1,000 nodes cheap."""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A series that others make: the client library of each process, or Prometheus."""

    name: str
    kind: Kind
    labels: tuple[str, ...]


DEVICES = Recorded("cluster:autoclave_devices:by_state", ("cluster", "state"))
TIMES_TO_CLEAN = Recorded("cluster:autoclave_time_to_clean_seconds_bucket:rate5m", ("cluster", "le"))
HOOK_TIMES = Recorded(
    "cluster:autoclave_hook_duration_seconds_bucket:rate5m", ("cluster", "hook", "outcome", "le")
)  # fmt: skip
SCRUBS = Recorded("cluster:autoclave_scrubs:rate5m", ("cluster", "path", "outcome"))
SCRUBS_OF_NODES = Recorded("node:autoclave_scrubs:rate5m", PLACE)
REFUSALS = Recorded("cluster:autoclave_hook_refusals:rate5m", ("cluster", "hook", "reason"))
LATE = {
    window: Recorded(f"cluster:autoclave_handover_errors:ratio_rate{window}", ("cluster",))
    for window in ("1h", "6h", "3d")
}
RECORDED = (*LATE.values(), DEVICES, TIMES_TO_CLEAN, HOOK_TIMES, SCRUBS, SCRUBS_OF_NODES, REFUSALS)

TARGET = (*PLACE, "instance")
CPU = Foreign("process_cpu_seconds_total", Kind.COUNTER, TARGET)
RESIDENT = Foreign("process_resident_memory_bytes", Kind.GAUGE, TARGET)
STARTED = Foreign("process_start_time_seconds", Kind.GAUGE, (*TARGET, "job"))
ALERTS = Foreign("ALERTS", Kind.GAUGE, (*PLACE, "gpu", "alertname", "alertstate", "severity"))
UP = Foreign("up", Kind.GAUGE, (*TARGET, "job"))
FOREIGN = (CPU, RESIDENT, STARTED, UP, ALERTS)

SERVICE_JOB, PLUGIN_JOB = "autoclave-scrubber", "autoclave-plugin"  # what Prometheus calls what it scrapes

Series = Row | Recorded | Foreign


@dataclass(frozen=True, slots=True)
class QueryScope:
    """What a page looks at: the variables that stand at its top, and that every question is narrowed by."""

    variables: tuple[str, ...]

    def of(self, series: Series, part: str = "", /, **labels: str | tuple[str, ...]) -> str:
        """Figures of what is looked at, with these labels, one of several or a pattern; ``part``: of a histogram."""
        has = (*PLACE, *series.all_labels) if isinstance(series, Row) else series.labels
        if unknown := labels.keys() - set(has):
            raise ValueError(f"cannot ask {series.name} by {', '.join(unknown)}: it has {', '.join(has)}")
        narrowed = [f'{name}=~"${name}"' for name in self.variables if name in has and name not in labels]
        asked = [
            f'{name}="{value}"' if isinstance(value, str) else f'{name}=~"{"|".join(value)}"'
            for name, value in labels.items()
        ]
        return f"{series.name}{'_' * bool(part)}{part}{{{', '.join(narrowed + asked)}}}"

    def rate(self, series: Series, *by: str, part: str = "", **labels: str) -> str:
        """How fast it grows, per second."""
        return total(f"rate({self.of(series, part, **labels)}[{LATELY}])", *by)

    def grown(self, row: Row, *by: str, within: str = SHOWN, **labels: str) -> str:
        """How much it grew. increase() misses the first count of a counter that was born with it.

        Such a counter counts with the most that it has shown, also when its process has ended since.
        """
        figure = self.of(row, **labels)
        born = (
            f"max_over_time({figure}[{within}]) unless last_over_time({figure}[{within}] offset {within}) "
            f"and on ({', '.join(TARGET)}) {self._watched(row, within)}"
        )
        return f"round({total(f'({born}) or increase({figure}[{within}])', *by)})"

    def _watched(self, row: Row, within: str) -> str:
        """The processes of which a counter that was not there before is a new one.

        They were heard before, or began since. After a gap, or for a Prometheus that is new, all counters are new.
        """
        build, job = (plugin.BUILD, PLUGIN_JOB) if row in plugin.TABLE else (BUILD, SERVICE_JOB)
        heard = f"last_over_time({self.of(build)}[{within}] offset {within})"
        began = f"min_over_time({self.of(STARTED, job=job)}[{within}]) > time() - {SECONDS[within]} - {FIRST_SCRAPE}"
        return most(f"{heard} or {began}", *TARGET)

    def quantile(self, part: float, row: Row, *by: str, **labels: str) -> str:
        """The time within which this part of all was done; where nothing was, there is none, and not NaN."""
        return f"histogram_quantile({part:g}, {self.rate(row, 'le', *by, part='bucket', **labels)}) >= 0"

    def mean(self, row: Row, *by: str, **labels: str) -> str:
        """The average over the time that is shown."""
        grown = [total(f"increase({self.of(row, part, **labels)}[{SHOWN}])", *by) for part in ("sum", "count")]
        return f"{grown[0]} / ({grown[1]} > 0)"

    def states(self, *by: str) -> str:
        """The state of each device as the number that ``look`` has words for."""
        arms = [f"{number} * ({self.of(STATE, state=state.value)} == 1)" for state, number in NUMBER_OF.items()]
        return most(" or ".join(arms), *by)

    def or_none(self, expression: str, label: str = "", alive: Row = BUILD) -> str:
        """A zero where there is nothing to count but the service is heard: silence must not look like calm."""
        zero = f"0 * max({self.of(alive)})"
        zero = f'label_replace({zero}, "{label}", "{NONE}", "", "")' if label else zero
        return f"({expression}) or on () {zero}"

    def counted(self, row: Row, label: str = "", alive: Row = BUILD) -> str:
        """How often it happened in the time shown, as a figure: a zero only while the service is heard.

        A counter that is not heard any more grows by nothing; what it had grown by before stands.
        """
        return self.or_none(f"{self.grown(row, *filter(None, [label]))} > 0", label, alive)

    def happenings(self, row: Row, label: str) -> str:
        """How often it happened lately, by a label; otherwise a zero of nothing."""
        return self.or_none(f"{self.grown(row, label, within=LATELY)} > 0", label)

    def events(self, row: Row, *by: str, alive: Row = BUILD) -> str:
        """How often it happened lately, where it did, called ``at``; otherwise a zero of nothing."""
        return self.or_none(together(f"{self.grown(row, *by, within=LATELY)} > 0", *by), "at", alive)

    def or_silence(self, expression: str, label: str, value: float, alive: Row = BUILD) -> str:
        """A row that says so where nothing is heard of any service: an empty table then means what it says."""
        words = "nothing is scraped" if alive is BUILD else "no plugin is scraped"
        return f'({expression}) or label_replace({value:g} * absent({self.of(alive)}), "{label}", "{words}", "", "")'

    def silent(self, alive: Row = BUILD) -> str:
        """The nodes that were heard lately, and are not now, or that Prometheus looks for in vain."""
        then = most(f"last_over_time({self.of(alive)}[{MEMORY}])", *PLACE)
        looked_for = most(self.of(UP, job=PLUGIN_JOB if alive is plugin.BUILD else SERVICE_JOB), *PLACE)
        return f"{then} unless {most(self.of(alive), *PLACE)} or {looked_for} == 0"

    def silent_nodes(self) -> str:
        """Nodes of which something is silent: 1 the service, 2 the plugin, 3 both."""
        parts = ((1, "service", BUILD), (2, "plugin", plugin.BUILD))
        arms = (f'label_replace(0 * ({self.silent(alive)}) + {n}, "part", "{it}", "", "")' for n, it, alive in parts)
        return total(" or ".join(arms), *PLACE)

    def not_ready(self) -> str:
        """Nodes whose service or whose plugin says that it is not."""
        return " or ".join(f"{most(self.of(row), *PLACE)} == 0" for row in (READY, plugin.READY))

    def or_unknown(self, expression: str) -> str:
        """Of a device that has no such figure, a row that says so: a table would drop its column otherwise."""
        return f"{most(expression, *DEVICE_ID)} or {most(self.of(DEVICE), *DEVICE_ID)} * 0 + ({NO_ROW})"

    def of_service(self, expression: str, alive: Row) -> str:
        """The part of it that comes from the processes of the service, or of the plugin."""
        return f"{expression} * on ({', '.join(TARGET)}) group_left () {most(self.of(alive), *TARGET)}"


def total(expression: str, *by: str) -> str:
    """The sum, one for each of these labels."""
    return f"sum{_by(by)}({expression})"


def most(expression: str, *by: str) -> str:
    """The largest, one for each of these labels."""
    return f"max{_by(by)}({expression})"


def least(expression: str, *by: str) -> str:
    """The smallest, one for each of these labels."""
    return f"min{_by(by)}({expression})"


def named(expression: str, *more: str) -> str:
    """With a label ``at`` that says which device as people do, and what these say; lanes are sorted by it, too."""
    said = f'label_join({expression}, "at", " GPU ", "node", "gpu")'
    for label in more:
        said = f'label_join({said}, "at", ": ", "at", "{label}")'
    return said


def together(expression: str, *labels: str) -> str:
    """With a label ``at`` that says what these say: one to call it by, and to put another word for all of them."""
    names = ", ".join(f'"{label}"' for label in labels)
    return f'label_join({expression}, "at", " ", {names})'


def age(expression: str) -> str:
    """Seconds since a point in time."""
    return f"time() - {expression}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""
