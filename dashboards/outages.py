"""Panels that several pages share: how many GPUs are in each group, quarantined GPUs and other problems."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import units

from dashboards import alert_summaries
from dashboards.page import Section, link
from dashboards.panels import WIDTHS, Column, Query, stat, table, timeline
from dashboards.query import (
    ALERT,
    ALERT_DETAILS,
    ALERTS,
    ALERTS_BEGAN,
    DEVICE_ID,
    QueryScope,
    RecordedSeries,
    age,
    largest,
    smallest,
    sum_of,
    with_device,
    with_labels,
)
from dashboards.style import BAD, BETTER_ZERO, GOOD, GREY, NEUTRAL, NO_ROW, PLAIN, value_words
from scrubber.core.model import Availability, State
from scrubber.metrics.service_metrics import (
    BLOCKED,
    QUARANTINE_NEXT,
    QUARANTINE_PROBES,
    QUARANTINE_SINCE,
    QUARANTINED,
    SICK,
    SIGN,
    STATE,
)

GPU_PAGE = "autoclave-gpu"
TO_GPU = link(GPU_PAGE, node="node", gpu="gpu")
TO_NODE = link("autoclave-node", node="node")
NODE = {"cluster": "Cluster", "node": "Node"}
WHERE = {**NODE, "gpu": "GPU", "uuid": "UUID"}

NO_PROOF = value_words({NO_ROW: ("no proof", PLAIN)})
MISSING = value_words({NO_ROW: ("-", GREY)})
NEVER = NO_ROW - 1
DUE = NEVER - 1
RUNS = DUE - 1
NEXT_TEST = value_words(
    {
        NO_ROW: ("-", GREY),
        NEVER: ("waits for an operator", PLAIN),
        DUE: ("when its cause ends", PLAIN),
        RUNS: ("runs now", PLAIN),
    }
)
HOLDS = value_words({1: ("problem", BAD), 0: ("no problem", GOOD)})

GROUPS = {
    Availability.AVAILABLE: ("Available", "GPUs that the kubelet may give to a pod now."),
    Availability.IN_USE: ("In use", "GPUs that are granted to a pod or that a pod uses."),
    Availability.PREPARING: ("Preparing", "GPUs that become available on their own, usually after a scrub."),
    Availability.BLOCKED: (
        "Blocked",
        "GPUs that no pod gets because something is in the way of a scrub. `autoclave explain GPU` says what to do.",
    ),
    Availability.QUARANTINED: ("Quarantined", "GPUs in quarantine, without replaced ones. A table shows the reasons."),
}
NEED_AN_OPERATOR = (Availability.BLOCKED, Availability.QUARANTINED)


def group_counts(scope: QueryScope, counted: RecordedSeries) -> Section:
    """The number of GPUs, and of the GPUs in each group."""
    empty = "Not scraped, or no recording rules"
    together = "GPUs and slices that Autoclave manages, without replaced ones. Each is in one of the groups beside."
    groups = (
        stat(title, about, sum_of(scope.of(counted, availability=group.value)), empty=empty,
             levels=BETTER_ZERO if group in NEED_AN_OPERATOR else NEUTRAL)
        for group, (title, about) in GROUPS.items()
    )  # fmt: skip
    panels = (stat("All GPUs", together, sum_of(scope.of(counted)), empty=empty), *groups)
    return Section("How many GPUs", 4, tuple((4, panel) for panel in panels))


def quarantined_gpus(scope: QueryScope) -> grafana.Panel:
    """Every quarantined device: reason, duration, tests and the next test."""
    because = largest(scope.of(QUARANTINED), *DEVICE_ID, "reason")

    def per_device(expression: str) -> str:
        return scope.or_not_scraped(
            f"({expression}) * on ({', '.join(DEVICE_ID)}) group_right () {because}", "reason", NO_ROW
        )

    since = largest(scope.of(QUARANTINE_SINCE), *DEVICE_ID)
    then = largest(scope.of(QUARANTINE_NEXT), *DEVICE_ID)
    runs = f"({largest(scope.of(STATE, state=State.SCRUBBING.value), *DEVICE_ID)} == 1) * 0 + ({RUNS})"
    soon = f"{runs} or {then} - time() > 0 or {then} * 0 + ({DUE})"
    waits = f"{largest(scope.of(QUARANTINED), *DEVICE_ID)} * 0 + ({NEVER})"
    return table(
        "Quarantined GPUs",
        "Every GPU in quarantine, with the reason. `autoclave explain GPU` on the node shows the evidence and the "
        "command that ends the quarantine. `autoclave reinstate GPU` tests the GPU at once. 'When its cause ends': a "
        "test is due, and Autoclave waits until the driver no longer reports the cause. A row 'nothing is scraped' "
        "means that the state of all GPUs is unknown.",
        {**WHERE, "reason": "Reason"},
        Column("In quarantine for", per_device(age(since)), units.Seconds, words=MISSING),
        Column("Tests", per_device(largest(scope.of(QUARANTINE_PROBES), *DEVICE_ID)), words=MISSING),
        Column("Next test in", per_device(f"{soon} or {waits}"), units.Seconds, words=NEXT_TEST),
        links={"GPU": TO_GPU},
        empty="No GPU is in quarantine",
        sorted_by="In quarantine for",
    )  # fmt: skip


def firing_alerts(scope: QueryScope) -> grafana.Panel:
    """Every firing alert with its summary and a link: to its runbook, or to Grafana's list of alerts."""
    firing = scope.of(ALERTS, alertname=("Autoclave.*",), alertstate="firing")
    began = scope.of(ALERTS_BEGAN, alertname=("Autoclave.*",))
    same = f"on ({', '.join((*ALERT, *ALERT_DETAILS))})"
    joined = with_labels(f"({began} and {same} {firing})", *ALERT_DETAILS, to="details")
    trimmed = f'label_replace({joined}, "details", "$1", "details", " *(.*?) *")'
    since = age(smallest(trimmed, *ALERT, "details"))
    summarised = f'label_replace({since}, "summary", "$1", "alertname", "(.*)")'
    return table(
        "Firing alerts",
        "Alerts of Autoclave, from the rules in dashboards/alerts.yaml. The runbook of an alert, "
        "docs/runbooks/ALERT.md, says what to do. The details are what the summary leaves out, for example the "
        "reason of a quarantine, the code of an XID, or the resource that the kubelet does not read.",
        {"alertname": "Alert", "severity": "Severity", "summary": "Summary", "details": "Details", **NODE,
         "gpu": "GPU"},
        Column("True for", scope.or_not_scraped(summarised, "alertname", NO_ROW), units.Seconds, words=MISSING),
        links={"Alert": alert_summaries.NO_PAGE, "Node": TO_NODE},
        label_words={"Summary": alert_summaries.summaries()},
        empty="No alert fires, if the alert rules are loaded",
        sorted_by="Severity",  # critical, warning
        rising=True,
        widths={**WIDTHS, "Node": 260},
        paged=True,
    )  # fmt: skip


def problems(scope: QueryScope) -> grafana.Panel:
    """Quarantines, the signs that the driver reports, sick devices in use, and blocked scrubs."""
    out = largest(scope.of(QUARANTINED), *DEVICE_ID, "reason")
    out = f'label_replace({out}, "what", "quarantined: $1", "reason", "(.*)")'
    signs = f'label_replace({largest(scope.of(SIGN), *DEVICE_ID, "sign")}, "what", "$1", "sign", "(.*)")'
    in_use = largest(scope.of(SICK), *DEVICE_ID, "reason")
    sick = f'label_replace({in_use}, "what", "in use and sick: $1", "reason", "(.*)")'
    blocked = f'label_replace({largest(scope.of(BLOCKED), *DEVICE_ID)} == 1, "what", "scrub is blocked", "", "")'
    anything = with_device(f"{out} or {signs} or {sick} or {blocked}", "what")
    return timeline(
        "Problems over time",
        "Quarantines, signs that the driver reports, GPUs in use that will be quarantined when they are free, and "
        "blocked scrubs. `autoclave explain GPU` names the cause. A lane 'none' means that there is no problem.",
        HOLDS,
        Query(scope.or_zero(anything, "at"), "{{at}}"),
    )
