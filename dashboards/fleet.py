"""The fleet page: is the fleet healthy, and if not, where? It reads recording rules for sums over all nodes."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.outages import NODE, TO_GPU, TO_NODE, WHERE, firing_alerts, group_counts, quarantined_gpus
from dashboards.page import Page, Section
from dashboards.panels import NO_EVENT_RECORDED, NO_RECORDING, Column, Query, graph, heatmap, stat, table
from dashboards.query import (
    ALERTS,
    DEVICE_ID,
    DEVICES,
    HOOK_TIMES,
    LATE,
    PLACE,
    RECENT,
    REFUSALS,
    SCRUBS,
    SCRUBS_OF_NODES,
    TIMES_TO_CLEAN,
    QueryScope,
    largest,
    smallest,
    sum_of,
    with_labels,
)  # fmt: skip
from dashboards.style import (
    BAD,
    BETTER_ZERO,
    GOOD,
    GREY,
    GROUP_COLOURS,
    NO_ROW,
    PATH_COLOURS,
    QUANTILE_COLOURS,
    SHOULD_BE_ZERO,
    distinct_colours,
    value_words,
)  # fmt: skip
from scrubber.metrics.service_metrics import COVERAGE, QUARANTINED, RESIDUE, TIME_TO_CLEAN

SCOPE = QueryScope(("cluster",))
SILENT = value_words({0: ("all", BAD), 1: ("service", BAD), 2: ("plugin", BAD), 3: ("both", BAD)})
# A replaced GPU stays in quarantine for good. It does not count.
REPLACED = SCOPE.of(QUARANTINED, reason="replaced")
OUT = f"{largest(SCOPE.of(QUARANTINED), *DEVICE_ID)} unless {largest(REPLACED, *DEVICE_ID)}"


def _should_be_zero() -> Section:
    critical = SCOPE.of(ALERTS, alertname=("Autoclave.*",), alertstate="firing", severity="critical")
    return Section("Should be zero", 4, (
        (6, stat("Critical alerts", "Firing alerts that need a person now. The table below lists all alerts.",
                 SCOPE.or_zero(f"count({critical})"), levels=SHOULD_BE_ZERO)),
        (6, stat("Nodes silent", "Nodes whose scrub service or device plugin is down or unreachable, or was scraped "
                 "in the last 6 hours and is no longer scraped. The other panels miss these nodes.",
                 SCOPE.or_zero(f"count({SCOPE.silent_nodes()})"), levels=SHOULD_BE_ZERO)),
        (6, stat("Nodes not ready", "Nodes that hand out no GPU. The /readyz of the scrub service, or of the device "
                 "plugin, says why.", SCOPE.or_zero(f"count({SCOPE.not_ready()})"),
                 levels=SHOULD_BE_ZERO)),
        (6, stat("Residue found", "Scrubs in the time range that found data of an earlier user. The driver had not "
                 "cleared it; the scrub did.", SCOPE.count_in_range(RESIDUE), levels=SHOULD_BE_ZERO)),
    ))  # fmt: skip


def _alerts() -> Section:
    return Section("Alerts", 14, ((24, firing_alerts(SCOPE)),))


def _out() -> Section:
    return Section("Out of service", 8, ((24, quarantined_gpus(SCOPE)),))


def _trends() -> Section:
    groups = graph(
        "GPUs over time",
        "All GPUs by their group: each is available, in use, preparing, blocked or quarantined.",
        units.Short,
        Query(sum_of(SCOPE.of(DEVICES), "availability"), "{{availability}}"),
        colours=GROUP_COLOURS, stacked=True, beside=True, empty=NO_RECORDING,
    )  # fmt: skip
    to_clean = graph(
        "Time to clean",
        "Time from the release of a GPU to its next proof, over 5 minutes, as percentiles. A gap: no GPU was "
        "cleaned.",
        units.Seconds,
        *(Query(f"histogram_quantile({part:g}, {sum_of(SCOPE.of(TIMES_TO_CLEAN), 'le')}) >= 0", legend)
          for part, legend in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))),
        colours=QUANTILE_COLOURS, empty=NO_EVENT_RECORDED,
    )  # fmt: skip
    return Section("Trends", 9, ((12, groups), (12, to_clean)))


def _hooks() -> Section:
    latency = heatmap(
        "Hook latency",
        "Time that the hooks took, including the wait for a scrub, as calls per second. The limits are 5 s for "
        "Allocate and 25 s for PreStartContainer. Most calls take milliseconds.",
        sum_of(SCOPE.of(HOOK_TIMES), "le"),
        empty=NO_EVENT_RECORDED,
    )
    refusals = graph(
        "Refusals per hour",
        "Refused calls of the kubelet per hour, as a rate over 5 minutes. For each refusal, a pod waits or fails.",
        units.Short,
        Query(SCOPE.or_zero(f"3600 * {sum_of(SCOPE.of(REFUSALS), 'reason')} > 0", "reason"), "{{reason}}"),
        stacked=True, up_to=1, empty=NO_RECORDING,
    )  # fmt: skip
    budget = graph(
        "Hand-overs that missed the objective",
        "Share of the hand-overs that were refused or took over 5 s. The objective is at most 0.1 %: the dashed "
        "line. A gap: no hand-over.",
        units.PercentUnit,
        *(Query(f"max({SCOPE.of(late)})", window) for window, late in LATE.items()),
        levels=((0, GOOD), (0.001, BAD)), colours=distinct_colours(*LATE), up_to=0.002,
        empty=NO_EVENT_RECORDED,
    )  # fmt: skip
    return Section("Hooks", 9, ((9, latency), (8, refusals), (7, budget)))


def _work() -> Section:
    rate = f"3600 * {sum_of(SCOPE.of(SCRUBS), 'path', 'outcome')}"
    scrubs = graph(
        "Scrubs per hour",
        "Finished scrubs by path and outcome, as a rate over 5 minutes.",
        units.Short,
        Query(SCOPE.or_zero(with_labels(rate, "path", "outcome"), "at"), "{{at}}"),
        colours={f"{path} passed": colour for path, colour in PATH_COLOURS.items()}, empty=NO_RECORDING,
    )  # fmt: skip
    coverage = graph(
        "Coverage",
        "Share of the allocatable memory that the proofs cover: the lowest and the mean of all GPUs that are clean or "
        "in use. The driver keeps the rest. A fall means that proofs cover less than before.",
        units.PercentUnit,
        Query(smallest(SCOPE.of_proven(COVERAGE)), "lowest"), Query(f"avg({SCOPE.of_proven(COVERAGE)})", "mean"),
        colours=distinct_colours("lowest", "mean"), up_to=1,
        empty="No GPU is clean or in use, or no scrub service is scraped",
    )  # fmt: skip
    residue = graph(
        "Residue over time",
        "Scrubs that found data of an earlier user. Should show no bars.",
        units.Short,
        Query(SCOPE.or_zero(SCOPE.increase(RESIDUE, within=RECENT)), "scrubs with residue"),
        colours={"scrubs with residue": BAD}, bars=True,
    )  # fmt: skip
    return Section("Scrubs", 8, ((8, scrubs), (8, coverage), (8, residue)))


def _nodes() -> Section:
    slowest = table(
        "Slowest nodes", "Nodes with the longest average time from release to proof in the time range.", NODE,
        Column("Time to clean", f"topk(10, {SCOPE.mean(TIME_TO_CLEAN, *PLACE)})", units.Seconds),
        links={"Node": TO_NODE}, empty="No GPU was cleaned in this time range", sorted_by="Time to clean",
    )  # fmt: skip
    out = table(
        "Nodes with most GPUs in quarantine", "Nodes by the number of GPUs in quarantine, without replaced ones.", NODE,
        Column("In quarantine", SCOPE.or_not_scraped(f"topk(10, count by ({', '.join(PLACE)}) ({OUT}))", "node",
                                                     NO_ROW),
               levels=BETTER_ZERO, words=value_words({NO_ROW: ("unknown", GREY)})),
        links={"Node": TO_NODE}, empty="No GPU is in quarantine", sorted_by="In quarantine",
    )  # fmt: skip
    silent = table(
        "Silent nodes",
        "Nodes whose scrub service or device plugin is down or unreachable, or was scraped in the "
        "last 6 hours and is no longer scraped.", NODE,
        Column("Silent", SCOPE.or_not_scraped(SCOPE.silent_nodes(), "node", 0), units.NoUnit, words=SILENT),
        links={"Node": TO_NODE}, empty="Prometheus scrapes every node",
    )  # fmt: skip
    busiest = table(
        "Busiest nodes", "Nodes by finished scrubs, as a rate over 5 minutes.", NODE,
        Column("Scrubs per hour", f"topk(10, 3600 * {sum_of(SCOPE.of(SCRUBS_OF_NODES), *PLACE)})", units.Short),
        links={"Node": TO_NODE}, empty=NO_RECORDING, sorted_by="Scrubs per hour",
    )  # fmt: skip
    return Section("Nodes", 8, ((6, slowest), (6, out), (6, silent), (6, busiest)))


def _proofs() -> Section:
    thin = table(
        "Lowest coverage", "The clean GPUs, and GPUs in use, whose proof covers the smallest share of their memory.",
        WHERE,
        Column("Coverage", f"bottomk(10, {SCOPE.of_proven(COVERAGE)})", units.PercentUnit),
        links={"GPU": TO_GPU}, sorted_by="Coverage", rising=True,
        empty="No GPU is clean or in use, or no scrub service is scraped",
    )  # fmt: skip
    return Section("Proofs", 8, ((24, thin),), folded=True)


FLEET = Page(
    "autoclave-fleet",
    "Autoclave / Fleet",
    "Is the fleet healthy, and if not, where?",
    SCOPE,
    (
        group_counts(SCOPE, DEVICES),
        _should_be_zero(),
        _alerts(),
        _out(),
        _trends(),
        _hooks(),
        _work(),
        _nodes(),
        _proofs(),
    ),
)
