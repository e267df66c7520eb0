"""The page of the scrubs: how long they take, what they find, what fails, and what causes a failure."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.outages import TO_GPU, WHERE
from dashboards.page import Page, Section
from dashboards.panels import NO_EVENT, Column, Query, graph, heatmap, stat, table
from dashboards.query import PLACE, RECENT, QueryScope, largest, smallest, sum_of
from dashboards.style import (
    BETTER_ZERO,
    NEUTRAL,
    PATH_COLOURS,
    QUANTILE_COLOURS,
    SHOULD_BE_ZERO,
    STATE_COLOURS,
    STEP_COLOURS,
    TRIGGER_COLOURS,
)  # fmt: skip
from scrubber.metrics import service_metrics as service

SCOPE = QueryScope(PLACE)
QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
UNPROVEN = "No GPU is clean or in use, or no scrub service is scraped"


def _overview() -> Section:
    share = f"{SCOPE.increase(service.SCRUB_ENDS, outcome='passed')} / ({SCOPE.increase(service.SCRUB_ENDS)} > 0)"
    return Section("Overview", 4, (
        (4, stat("Scrubs", "Scrubs that ended in the time range.", SCOPE.count_in_range(service.SCRUB_ENDS))),
        (4, stat("Passed", "Share of the scrubs in the time range that ended with a proof. The other scrubs were "
                 "blocked, cancelled, escalated or failed: see below.", share, units.PercentUnit,
                 empty=NO_EVENT)),
        (4, stat("Lowest coverage", "Share of the allocatable memory that the weakest proof of a clean GPU or a GPU in "
                 "use covers.", smallest(SCOPE.of_proven(service.COVERAGE)), units.PercentUnit, empty=UNPROVEN)),
        (4, stat("Overwritten", "Memory that was overwritten and read back in the time range.",
                 SCOPE.count_in_range(service.SCRUBBED), units.BytesIEC)),
        (4, stat("Escalated", "Scrubs in the time range that failed and continued with a reset.",
                 SCOPE.count_in_range(service.ESCALATIONS), levels=BETTER_ZERO)),
        (4, stat("Residue found", "Scrubs in the time range that found data of an earlier user. Should be 0.",
                 SCOPE.count_in_range(service.RESIDUE), levels=SHOULD_BE_ZERO)),
    ))  # fmt: skip


def _time() -> Section:
    durations = heatmap(
        "Duration of scrubs",
        "Scrubs that ended with a proof, per second.",
        SCOPE.rate(service.SCRUB_TIME, "le", part="bucket"),
        empty=NO_EVENT,
    )
    to_clean = graph(
        "Time to clean",
        "Time from the release of a GPU to its next proof. Each dot is a scrub, with its receipt.",
        units.Seconds,
        *(Query(SCOPE.quantile(part, service.TIME_TO_CLEAN), legend) for part, legend in QUANTILES),
        colours=QUANTILE_COLOURS, receipts=True, empty=NO_EVENT,
    )  # fmt: skip
    paths = graph(
        "Time of each path", "The 95th percentile of each path. Each dot is a scrub, with its receipt.",
        units.Seconds, Query(SCOPE.quantile(0.95, service.SCRUB_TIME, "path"), "{{path}}"),
        colours=PATH_COLOURS, receipts=True, empty=NO_EVENT,
    )  # fmt: skip
    steps = graph(
        "Time of each step", "The 95th percentile of each step, with any outcome. A gap: the step did not run.",
        units.Seconds, Query(SCOPE.quantile(0.95, service.STEP_TIME, "step"), "{{step}}"),
        colours=STEP_COLOURS, beside=True,
        empty=NO_EVENT,
    )  # fmt: skip
    return Section("Time", 9, ((12, durations), (12, to_clean), (12, paths), (12, steps)))


def _causes() -> Section:
    triggers = graph(
        "Triggers", "Finished scrubs by what triggered them.", units.Short,
        Query(SCOPE.recent_by(service.SCRUB_ENDS, "trigger"),
              "{{trigger}}"), bars=True, colours=TRIGGER_COLOURS,
    )  # fmt: skip
    outcomes = graph(
        "Outcomes", "Finished scrubs by path and outcome.", units.Short,
        Query(SCOPE.recent_by_labels(service.SCRUB_ENDS, "path", "outcome"), "{{at}}"),
        bars=True, colours={f"{path} passed": colour for path, colour in PATH_COLOURS.items()},
    )  # fmt: skip
    failures = graph(
        "Failed steps",
        "Failed steps by step, outcome and blame. A failure of the device leads to quarantine; after any "
        "other failure, the scrub is tried again.",
        units.Short,
        Query(SCOPE.recent_by_labels(service.STEP_FAILURES, "step", "outcome", "blame"), "{{at}}"), bars=True,
    )  # fmt: skip
    return Section("Causes and outcomes", 8, ((8, triggers), (8, outcomes), (8, failures)))


def _work() -> Section:
    speed = graph(
        "Speed", "Memory that scrubs overwrote and read back, per second.", units.BytesPerSecondIEC,
        Query(SCOPE.rate(service.SCRUBBED), "overwritten and read back"), empty=NO_EVENT,
    )  # fmt: skip
    processes = graph(
        "Processes", "Processes that scrubs found on their devices, by kind, and processes that they ended.",
        units.Short,
        Query(SCOPE.recent_by(service.PROCESSES, "kind"), "{{kind}} found"),
        Query(SCOPE.increase(service.TERMINATED, within=RECENT), "ended"), bars=True,
    )  # fmt: skip
    resets = graph(
        "Resets", "Resets of devices by outcome.", units.Short,
        Query(SCOPE.recent_by(service.RESETS, "outcome"), "{{outcome}}"),
        bars=True,
    )  # fmt: skip
    return Section("Work", 8, ((8, speed), (8, processes), (8, resets)))


def _before_and_after() -> Section:
    into = graph(
        "Quarantines", "Devices that were quarantined, by reason.", units.Short,
        Query(SCOPE.recent_by(service.QUARANTINES, "reason"),
              "{{reason}}"), bars=True,
    )  # fmt: skip
    back = graph(
        "Returns from quarantine",
        "Devices that returned from quarantine: by evidence, or by the decision of an operator.",
        units.Short,
        Query(SCOPE.recent_by(service.RETURNS, "by"), "{{by}}"), bars=True,
    )  # fmt: skip
    thin = table(
        "GPUs with the lowest coverage", "The clean GPUs, and GPUs in use, whose proof covers the smallest share of "
        "their memory.", WHERE,
        Column("Coverage", f"bottomk(10, {SCOPE.of_proven(service.COVERAGE)})", units.PercentUnit, NEUTRAL),
        links={"GPU": TO_GPU}, empty=UNPROVEN, sorted_by="Coverage", rising=True,
    )  # fmt: skip
    uncovered = graph(
        "Not covered", "Memory that the last proof of a GPU does not cover, for the GPU with the most.",
        units.BytesIEC, Query(largest(SCOPE.of(service.UNCOVERED)), "most of any GPU"), empty=UNPROVEN,
    )  # fmt: skip
    rules = table(
        "Policies in force", "Nodes by policy and digest of the policy content.",
        {"policy": "Policy", "digest": "Digest"},
        Column("Nodes", f"count by (policy, digest) ({largest(SCOPE.of(service.POLICY), *PLACE, 'policy', 'digest')})"),
    )  # fmt: skip
    waiting = graph(
        "GPUs that are not clean", "GPUs by state, without clean GPUs and GPUs in use.", units.Short,
        Query(SCOPE.or_zero(sum_of(SCOPE.of(service.STATE, state=("unknown", "dirty", "scrubbing")), "state"), "state"),
              "{{state}}"), colours=STATE_COLOURS, stacked=True, up_to=1,
    )  # fmt: skip
    return Section("Before and after", 8, ((8, waiting), (8, into), (8, back), (8, thin), (8, uncovered), (8, rules)))


SCRUBS = Page(
    "autoclave-scrubs",
    "Autoclave / Scrubs",
    "How long scrubs take, what they find, what fails, and what causes a failure.",
    SCOPE,
    (_overview(), _time(), _causes(), _work(), _before_and_after()),
)
