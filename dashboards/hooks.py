"""The page of the hooks: calls, refusals, registrations, and the resources that the two programs use."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.page import Page, Section
from dashboards.panels import NO_EVENT, NO_PLUGIN, Column, Query, graph, heatmap, stat, table
from dashboards.query import CPU, PLACE, RECENT, RESIDENT, QueryScope, age, largest, smallest, sum_of
from dashboards.scrubs import QUANTILES
from dashboards.style import HEALTH_COLOURS, QUANTILE_COLOURS, SHOULD_BE_ZERO, distinct_colours
from plugin.metrics import plugin_metrics as plugin
from scrubber.metrics import service_metrics as service

SCOPE = QueryScope(PLACE)
NODE = "{{node}}"
HOOK_COLOURS = distinct_colours("Allocate", "PreStartContainer", "GetPreferredAllocation")


def _overview() -> Section:
    silent = f"count({SCOPE.silent(plugin.BUILD)})"
    no_service = f"count({largest(SCOPE.of(plugin.SCRUBBER), *PLACE)} == 0)"
    no_kubelet = f"count({SCOPE.of(plugin.CONNECTED)} == 0)"
    return Section("Overview", 4, (
        (4, stat("Plugins", "Device plugins that Prometheus scrapes.",
                 f"count({largest(SCOPE.of(plugin.BUILD), *PLACE)})",
                 empty=NO_PLUGIN)),
        (4, stat("Silent plugins", "Plugins that are down or unreachable, or were scraped in the last 6 hours and "
                 "are no longer scraped.",
                 SCOPE.or_zero(silent, alive=plugin.BUILD), levels=SHOULD_BE_ZERO, empty=NO_PLUGIN)),
        (4, stat("Plugins not ready", "Plugins that get no answer from the scrub service, or that have an unregistered "
                 "resource.",
                 SCOPE.or_zero(f"count({largest(SCOPE.of(plugin.READY), *PLACE)} == 0)", alive=plugin.BUILD),
                 levels=SHOULD_BE_ZERO, empty=NO_PLUGIN)),
        (4, stat("No scrub service", "Plugins that get no answer from the scrub service. They offer no GPU.",
                 SCOPE.or_zero(no_service, alive=plugin.BUILD), levels=SHOULD_BE_ZERO, empty=NO_PLUGIN)),
        (4, stat("No kubelet", "Resources whose device list no kubelet reads.",
                 SCOPE.or_zero(no_kubelet, alive=plugin.BUILD), levels=SHOULD_BE_ZERO, empty=NO_PLUGIN)),
        (4, stat("Refusals", "Calls of the kubelet in the time range that were refused.",
                 SCOPE.count_in_range(plugin.HOOK_REFUSALS, alive=plugin.BUILD), empty=NO_PLUGIN)),
    ))  # fmt: skip


def _hooks() -> Section:
    answers = heatmap(
        "Hook latency",
        "Time that the hooks took, including the wait for a scrub, as calls per second. The limits are 5 s for "
        "Allocate and 25 s for PreStartContainer.",
        SCOPE.rate(plugin.HOOK_TIME, "le", part="bucket"),
        empty=NO_EVENT,
    )
    latency = graph(
        "Latency of each hook",
        "The 99th percentile. Each dot is a call, with the receipt that the answer relies "
        "on.", units.Seconds,
        Query(SCOPE.quantile(0.99, plugin.HOOK_TIME, "hook"), "{{hook}}"), colours=HOOK_COLOURS, receipts=True,
        empty=NO_EVENT,
    )  # fmt: skip
    outcomes = graph(
        "Hook calls", "Calls by hook and outcome, per second.", units.RequestsPerSecond,
        Query(SCOPE.rate(plugin.HOOK_TIME, "hook", "outcome", part="count"), "{{hook}} {{outcome}}"), empty=NO_EVENT,
    )  # fmt: skip
    refusals = graph(
        "Refusals by reason", "Refused calls. For each refusal, a pod waits or fails.", units.Short,
        Query(SCOPE.recent_by_labels(plugin.HOOK_REFUSALS, "hook", "reason", alive=plugin.BUILD), "{{at}}"), bars=True,
        empty=NO_PLUGIN,
    )  # fmt: skip
    return Section("Hooks", 9, ((12, answers), (12, latency), (12, outcomes), (12, refusals)))


def _service() -> Section:
    requests = graph(
        "Latency of the scrub service",
        "The 99th percentile of the requests of the plugin, including the wait for "
        "a scrub. Each dot is a request, with its receipt.", units.Seconds,
        Query(SCOPE.quantile(0.99, service.REQUESTS, "request"), "{{request}}"),
        colours=distinct_colours("acquire", "start"), receipts=True,
        empty=NO_EVENT,
    )  # fmt: skip
    refused = graph(
        "Refusals of the scrub service", "Refused requests by request and reason.", units.Short,
        Query(SCOPE.recent_by_labels(service.REQUEST_REFUSALS, "request", "reason"), "{{at}}"), bars=True,
    )  # fmt: skip
    writes = graph(
        "Ledger write time", "Time to write a row durably. Every answer waits for a write.", units.Seconds,
        *(Query(SCOPE.quantile(part, service.LEDGER_APPEND), legend) for part, legend in QUANTILES),
        colours=QUANTILE_COLOURS, empty=NO_EVENT,
    )  # fmt: skip
    failures = graph(
        "Failed observations", "Observations of devices or of the node that failed, by node.", units.Short,
        Query(SCOPE.increase(service.ROUND_FAILURES, *PLACE, within=RECENT), NODE), bars=True, empty=NO_EVENT,
    )  # fmt: skip
    return Section("Scrub service", 8, ((12, requests), (12, refused), (12, writes), (12, failures)))


def _kubelet() -> Section:
    registrations = graph(
        "Registrations",
        "Registrations with the kubelet, failed attempts and lost registrations, by cause. After a "
        "restart of the kubelet, the plugin registers each resource once.", units.Short,
        Query(SCOPE.recent_by_labels(plugin.REGISTRATIONS, "resource", "outcome", alive=plugin.BUILD), "{{at}}"),
        bars=True,
        empty=NO_PLUGIN,
    )  # fmt: skip
    sent = graph(
        "Lists sent", "Device lists that the plugin sent to the kubelet, per second: one for each change.",
        units.MessagesPerSecond, Query(SCOPE.rate(plugin.LISTS, "resource"), "{{resource}}"),
        empty=NO_EVENT,
    )  # fmt: skip
    listed = graph(
        "GPUs reported to the kubelets", "Devices of each resource by the health that the kubelet sees.", units.Short,
        Query(sum_of(SCOPE.of(plugin.LISTED), "resource", "health"), "{{resource}} {{health}}"),
        colours=HEALTH_COLOURS, stacked=True,
        empty="No device plugin is scraped, or it has no resource",
    )  # fmt: skip
    return Section("Kubelet", 8, ((8, registrations), (8, sent), (8, listed)))


def _costs() -> Section:
    parts = (("service", service.BUILD), ("plugin", plugin.BUILD))
    cpu = graph(
        "CPU", "The highest CPU use of a service or plugin, in cores.", units.Short,
        *(Query(largest(SCOPE.of_processes(f"rate({SCOPE.of(CPU)}[{RECENT}])", build)), name) for name, build in parts),
        colours=distinct_colours("service", "plugin"), empty=NO_EVENT,
    )  # fmt: skip
    memory = graph(
        "Memory", "The highest memory use of a service or plugin.", units.BytesIEC,
        *(Query(largest(SCOPE.of_processes(SCOPE.of(RESIDENT), build)), name) for name, build in parts),
        colours=distinct_colours("service", "plugin"),
    )  # fmt: skip
    versions = table(
        "Versions of the plugin", "Nodes by version.", {"version": "Version"},
        Column("Nodes", f"count by (version) ({largest(SCOPE.of(plugin.BUILD), *PLACE, 'version')})"), empty=NO_PLUGIN,
    )  # fmt: skip
    rounds = graph(
        "Oldest monitor round", "The longest time since a monitor observed all its devices.",
        units.Seconds, Query(age(smallest(SCOPE.of(service.ROUND))), "oldest"),
    )  # fmt: skip
    return Section("CPU and memory of the programs", 8, ((6, cpu), (6, memory), (6, rounds), (6, versions)))


HOOKS = Page(
    "autoclave-hooks",
    "Autoclave / Hooks",
    "Hooks: calls, refusals, registrations, and the resources that the two programs use.",
    SCOPE,
    (_overview(), _hooks(), _service(), _kubelet(), _costs()),
)
