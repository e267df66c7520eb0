"""Panels about quarantined GPUs and other problems, shared by several pages."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import units

from dashboards.page import link
from dashboards.panels import Column, Query, table, timeline
from dashboards.query import DEVICE_ID, QueryScope, age, largest, with_device
from dashboards.style import BAD, GOOD, GREY, NO_ROW, PLAIN, value_words
from scrubber.metrics.table import (
    BLOCKED,
    QUARANTINE_NEXT,
    QUARANTINE_PROBES,
    QUARANTINE_SINCE,
    QUARANTINED,
    SICK,
    SIGN,
)

GPU_PAGE = "autoclave-gpu"
TO_GPU = link(GPU_PAGE, node="node", gpu="gpu")
WHERE = {"cluster": "Cluster", "node": "Node", "gpu": "GPU", "uuid": "UUID"}

MISSING = value_words({NO_ROW: ("-", GREY)})
NEVER = NO_ROW - 1
WAITS_FOR_OPERATOR = value_words({NO_ROW: ("-", GREY), NEVER: ("waits for an operator", PLAIN)})
HOLDS = value_words({1: ("now", BAD), 0: ("nothing", GOOD)})


def quarantined_gpus(scope: QueryScope) -> grafana.Panel:
    """Every quarantined device: reason, duration, tests and the next test."""
    because = largest(scope.of(QUARANTINED), *DEVICE_ID, "reason")

    def per_device(expression: str) -> str:
        return scope.or_not_scraped(
            f"({expression}) * on ({', '.join(DEVICE_ID)}) group_right () {because}", "reason", NO_ROW
        )

    since = largest(scope.of(QUARANTINE_SINCE), *DEVICE_ID)
    soon = f"clamp_min({largest(scope.of(QUARANTINE_NEXT), *DEVICE_ID)} - time(), 0)"
    waits = f"{largest(scope.of(QUARANTINED), *DEVICE_ID)} * 0 + ({NEVER})"
    return table(
        "Quarantined GPUs",
        "Every GPU in quarantine, with the reason. `autoclave explain GPU` on the node shows the evidence and the "
        "command that ends the quarantine. `autoclave reinstate GPU` tests the GPU at once. A row 'nothing is "
        "scraped' means that the state of all GPUs is unknown.",
        {**WHERE, "reason": "Reason"},
        Column("In quarantine for", per_device(age(since)), units.Seconds, words=MISSING),
        Column("Tests", per_device(largest(scope.of(QUARANTINE_PROBES), *DEVICE_ID)), words=MISSING),
        Column("Next test in", per_device(f"{soon} or {waits}"), units.Seconds, words=WAITS_FOR_OPERATOR),
        links={"GPU": TO_GPU},
        empty="No GPU is in quarantine",
        sorted_by="In quarantine for",
    )  # fmt: skip


def problems(scope: QueryScope) -> grafana.Panel:
    """The signs that the driver reports, sick devices in use, and blocked scrubs."""
    signs = f'label_replace({largest(scope.of(SIGN), *DEVICE_ID, "sign")}, "what", "$1", "sign", "(.*)")'
    in_use = largest(scope.of(SICK), *DEVICE_ID, "reason")
    sick = f'label_replace({in_use}, "what", "in use and sick: $1", "reason", "(.*)")'
    blocked = f'label_replace({largest(scope.of(BLOCKED), *DEVICE_ID)} == 1, "what", "scrub is blocked", "", "")'
    anything = with_device(f"{signs} or {sick} or {blocked}", "what")
    return timeline(
        "Problems over time",
        "Signs that the driver reports, GPUs in use that will be quarantined when they are free, and blocked "
        "scrubs. `autoclave explain GPU` names the cause. A lane 'none' means that there is no problem.",
        HOLDS,
        Query(scope.or_zero(anything, "at"), "{{at}}"),
    )
