"""What is out of service, and why: panels that several pages show."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import units

from dashboards.look import BAD, GOOD, GREY, NO_ROW, PLAIN, words
from dashboards.page import link
from dashboards.panels import Ask, Column, rows, timeline
from dashboards.query import DEVICE_ID, QueryScope, age, most, named
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

NOT_KNOWN = words({NO_ROW: ("-", GREY)})
NEVER = NO_ROW - 1
BY_PERSON = words({NO_ROW: ("-", GREY), NEVER: ("a person decides", PLAIN)})
HOLDS = words({1: ("now", BAD), 0: ("nothing", GOOD)})


def kept_out(scope: QueryScope) -> grafana.Panel:
    """Every quarantined device: why, since when, what was tried, what comes next."""
    because = most(scope.of(QUARANTINED), *DEVICE_ID, "reason")

    def told(expression: str) -> str:
        return scope.or_silence(
            f"({expression}) * on ({', '.join(DEVICE_ID)}) group_right () {because}", "reason", NO_ROW
        )

    since = most(scope.of(QUARANTINE_SINCE), *DEVICE_ID)
    soon = f"clamp_min({most(scope.of(QUARANTINE_NEXT), *DEVICE_ID)} - time(), 0)"
    waits = f"{most(scope.of(QUARANTINED), *DEVICE_ID)} * 0 + ({NEVER})"
    return rows(
        "Kept out now",
        "Every GPU in quarantine, with the reason. What to do: `autoclave explain GPU` on the node says what was seen "
        "and which command ends it; `autoclave reinstate GPU` brings it back after a scrub that proves it clean. "
        "A row 'nothing is scraped' means that nobody knows.",
        {**WHERE, "reason": "Reason"},
        Column("Kept out for", told(age(since)), units.Seconds, words=NOT_KNOWN),
        Column("Tried again", told(most(scope.of(QUARANTINE_PROBES), *DEVICE_ID)), words=NOT_KNOWN),
        Column("Next try in", told(f"{soon} or {waits}"), units.Seconds, words=BY_PERSON),
        links={"GPU": TO_GPU},
        empty="No GPU is in quarantine",
        sorted_by="Kept out for",
    )  # fmt: skip


def wrong(scope: QueryScope) -> grafana.Panel:
    """What the driver says is wrong with a device, and what is in the way of a scrub."""
    signs = f'label_replace({most(scope.of(SIGN), *DEVICE_ID, "sign")}, "what", "$1", "sign", "(.*)")'
    sick = (
        f'label_replace({most(scope.of(SICK), *DEVICE_ID, "reason")}, "what", "in use and sick: $1", "reason", "(.*)")'
    )
    blocked = f'label_replace({most(scope.of(BLOCKED), *DEVICE_ID)} == 1, "what", "scrub is blocked", "", "")'
    anything = named(f"{signs} or {sick} or {blocked}", "what")
    return timeline(
        "What is wrong, and when",
        "Signs that the driver shows, GPUs in use that will be taken out once they are free, and scrubs that something "
        "is in the way of. `autoclave explain GPU` names the cause. A lane 'none' means that there is nothing.",
        HOLDS,
        Ask(scope.or_none(anything, "at"), "{{at}}"),
    )
