"""The page of the DRA driver: claims, refusals, and the ResourceSlices that the scheduler reads."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.page import Page, Section
from dashboards.panels import NO_EVENT, Column, Query, graph, heatmap, stat, table
from dashboards.query import CPU, PLACE, RECENT, RESIDENT, QueryScope, largest, sum_of
from dashboards.style import GOOD, GREEN, ORANGE, SHOULD_BE_ZERO, distinct_colours
from ground.metric_table import Row
from plugin.metrics import plugin_metrics as plugin

SCOPE = QueryScope(PLACE)
NO_DRIVER = "No DRA driver is scraped"
CALL_COLOURS = distinct_colours("prepare", "unprepare")


def _overview() -> Section:
    return Section("Overview", 4, (
        (4, stat("Drivers", "DRA drivers that Prometheus scrapes.",
                 f"count({largest(SCOPE.of(plugin.DRA_BUILD), *PLACE)})", empty=NO_DRIVER)),
        (4, stat("Silent drivers", "Drivers that are down or unreachable, or were scraped in the last 6 hours and are "
                 "not scraped any more.",
                 SCOPE.or_zero(f"count({SCOPE.silent(plugin.DRA_BUILD)})", alive=plugin.DRA_BUILD),
                 levels=SHOULD_BE_ZERO, empty=NO_DRIVER)),
        (4, stat("Drivers not ready", "Drivers that cannot serve claims. The /readyz of the driver says why.",
                 _drivers_without(plugin.DRA_READY), levels=SHOULD_BE_ZERO, empty=NO_DRIVER)),
        (4, stat("Not registered", "Drivers that no kubelet has accepted.", _drivers_without(plugin.DRA_REGISTERED),
                 levels=SHOULD_BE_ZERO, empty=NO_DRIVER)),
        (4, stat("Slices not written", "Nodes whose ResourceSlice could not be written. The scheduler sees an old "
                 "state, or no device.",
                 _drivers_without(plugin.SLICE_WRITTEN), levels=SHOULD_BE_ZERO, empty=NO_DRIVER)),
        (4, stat("Refused claims", "Calls of the kubelet in the time range that were refused.",
                 SCOPE.count_in_range(plugin.CLAIM_REFUSALS, alive=plugin.DRA_BUILD), empty=NO_DRIVER)),
    ))  # fmt: skip


def _drivers_without(row: Row) -> str:
    """The number of nodes on which this gauge is 0."""
    return SCOPE.or_zero(f"count({largest(SCOPE.of(row), *PLACE)} == 0)", alive=plugin.DRA_BUILD)


def _claims() -> Section:
    times = heatmap(
        "Time to prepare a claim",
        "Time until a claim had its devices, including the wait for a scrub, as claims per second. The kubelet waits "
        "for 45 s.",
        SCOPE.rate(plugin.CLAIM_TIME, "le", part="bucket", call="prepare"),
        empty=NO_EVENT,
    )
    latency = graph(
        "Latency of claims",
        "The 99th percentile. The end of a claim includes its scrub.", units.Seconds,
        Query(SCOPE.quantile(0.99, plugin.CLAIM_TIME, "call"), "{{call}}"), colours=CALL_COLOURS, empty=NO_EVENT,
    )  # fmt: skip
    outcomes = graph(
        "Claims by outcome", "Claims by call of the kubelet and outcome, per second.", units.RequestsPerSecond,
        Query(SCOPE.rate(plugin.CLAIM_TIME, "call", "outcome", part="count"), "{{call}} {{outcome}}"), empty=NO_EVENT,
    )  # fmt: skip
    refusals = graph(
        "Refused claims by reason",
        "After a refused prepare the pod waits for a minute. After a refused unprepare the pod does not end.",
        units.Short,
        Query(SCOPE.recent_by_labels(plugin.CLAIM_REFUSALS, "call", "reason", alive=plugin.DRA_BUILD), "{{at}}"),
        bars=True, empty=NO_DRIVER,
    )  # fmt: skip
    waiting = graph(
        "Claims that wait", "Claims that are being prepared or unprepared.", units.Short,
        Query(sum_of(SCOPE.of(plugin.CLAIMS_WAITING), "call"), "{{call}}"), colours=CALL_COLOURS, up_to=1,
        empty=NO_DRIVER,
    )  # fmt: skip
    return Section("Claims", 9, ((12, times), (12, latency), (8, outcomes), (8, refusals), (8, waiting)))


def _slices() -> Section:
    devices = graph(
        "GPUs in ResourceSlices", "Devices of the drivers. New claims get healthy devices only.", units.Short,
        Query(sum_of(SCOPE.of(plugin.SLICE_DEVICES), "health"), "{{health}}"),
        colours={"healthy": GREEN, "unhealthy": ORANGE}, stacked=True, empty=NO_DRIVER,
    )  # fmt: skip
    writes = graph(
        "Writes of ResourceSlices", "Attempts to write the slice of a node, by outcome, per second.",
        units.RequestsPerSecond, Query(SCOPE.rate(plugin.SLICE_WRITES, "outcome"), "{{outcome}}"),
        colours={"written": GOOD}, empty=NO_EVENT,
    )  # fmt: skip
    return Section("ResourceSlices", 8, ((12, devices), (12, writes)))


def _costs() -> Section:
    cpu = graph(
        "CPU of the driver", "The highest CPU use of a driver, in cores.", units.Short,
        Query(largest(SCOPE.of_processes(f"rate({SCOPE.of(CPU)}[{RECENT}])", plugin.DRA_BUILD)), "driver"),
        empty=NO_EVENT,
    )  # fmt: skip
    memory = graph(
        "Memory of the driver", "The highest memory use of a driver.", units.BytesIEC,
        Query(largest(SCOPE.of_processes(SCOPE.of(RESIDENT), plugin.DRA_BUILD)), "driver"), empty=NO_DRIVER,
    )  # fmt: skip
    versions = table(
        "Versions of the driver", "Nodes by version.", {"version": "Version"},
        Column("Nodes", f"count by (version) ({largest(SCOPE.of(plugin.DRA_BUILD), *PLACE, 'version')})"),
        empty=NO_DRIVER,
    )  # fmt: skip
    return Section("CPU and memory of the driver", 8, ((8, cpu), (8, memory), (8, versions)))


CLAIMS = Page(
    "autoclave-claims",
    "Autoclave / Claims",
    "Claims: calls, refusals, and the ResourceSlices of the DRA drivers.",
    SCOPE,
    (_overview(), _claims(), _slices(), _costs()),
)
