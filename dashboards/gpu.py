"""The page of one GPU: is it offered, and if not, why, since when, and what did Autoclave try?"""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.outages import GPU_PAGE, NO_PROOF, WHERE, problems, quarantined_gpus
from dashboards.page import Page, Section
from dashboards.panels import WIDTHS, Column, Query, graph, stat, table, timeline
from dashboards.query import DEVICE_ID, PLACE, RECENT, QueryScope, age, largest
from dashboards.style import (
    BAD,
    BETTER_ZERO,
    GREY,
    SHOULD_BE_ZERO,
    STATE_WORDS,
    YELLOW,
    value_words,
    yes_or_no,
)  # fmt: skip
from scrubber.metrics import service_metrics as service

SCOPE = QueryScope((*PLACE, "gpu"))
NAME = "GPU {{gpu}} {{uuid}}"  # a replaced GPU is shown beside its successor
RUNS = value_words({1: ("runs", YELLOW), 0: ("no step runs", GREY)})


def _status() -> Section:
    return Section("Status", 4, (
        (3, stat("Offered", "Whether the kubelet sees this GPU as Healthy.",
                 largest(SCOPE.of(service.HEALTHY), *DEVICE_ID), units.NoUnit, words=yes_or_no("yes", "no"),
                 legend=NAME)),
        (3, stat("State", "The present state of the GPU.", SCOPE.states(*DEVICE_ID), units.NoUnit, words=STATE_WORDS,
                 legend=NAME)),
        (3, stat("In this state for", "Time since the GPU entered this state.",
                 age(largest(SCOPE.of(service.STATE_SINCE), *DEVICE_ID)),
                 units.Seconds, legend=NAME)),
        (3, stat("Age of the proof", "Time since the GPU was proven clean. Only a clean GPU and a GPU in use have a "
                 "proof.", SCOPE.or_missing(age(f"({SCOPE.of_proven(service.LAST_SCRUB)})")), units.Seconds,
                 words=NO_PROOF, legend=NAME)),
        (3, stat("Coverage", "Share of its allocatable memory that the proof covers.",
                 SCOPE.or_missing(SCOPE.of_proven(service.COVERAGE)), units.PercentUnit, words=NO_PROOF,
                 legend=NAME)),
        (3, stat("Residue found", "Scrubs in the time range that found data of an earlier user. Should be 0.",
                 SCOPE.count_in_range(service.RESIDUE), levels=SHOULD_BE_ZERO)),
        (3, stat("Unauthorised use", "How often a process used the GPU while it was clean, without a grant. Should "
                 "be 0.", SCOPE.count_in_range(service.UNAUTHORISED), levels=SHOULD_BE_ZERO)),
        (3, stat("Driver errors", "XIDs in the time range. Programs of tenants cause many of them; "
                 "`autoclave xid CODE` shows which XIDs concern the hardware.",
                 SCOPE.count_in_range(service.XIDS), levels=BETTER_ZERO)),
    ))  # fmt: skip


def _history() -> Section:
    state = timeline(
        "State over time", "The state of the GPU. A gap: Prometheus got no answer.", STATE_WORDS,
        Query(f'label_replace({SCOPE.states(*DEVICE_ID)}, "short", "$1", "uuid", "(.{{1,12}}).*")', "{{short}}"),
    )  # fmt: skip
    steps = timeline(
        "Scrub steps",
        "When each step ran. A step that is shorter than the scrape interval may be missing; the "
        "Scrubs page counts all.", RUNS,
        Query(SCOPE.or_zero(largest(SCOPE.of(service.SCRUB_STEP), *DEVICE_ID, "step"), "step"), "{{step}}"),
    )  # fmt: skip
    return Section("History", 6, ((24, state), (24, steps)))


def _reasons() -> Section:
    what = table(
        "Device", "Facts from the driver. The parent of a slice is its GPU.",
        {**WHERE, "model": "Model", "pci": "PCI", "driver": "Driver", "resource": "Resource", "parent": "Parent"},
        Column("Offered",
               f"{largest(SCOPE.of(service.HEALTHY), *DEVICE_ID)} * on ({', '.join(DEVICE_ID)}) group_right () "
               + largest(SCOPE.of(service.DEVICE), *DEVICE_ID, "model", "pci", "driver", "resource", "parent"),
               words=yes_or_no("yes", "no")),
        widths={**WIDTHS, "UUID": 345, "Driver": 270},
    )  # fmt: skip
    return Section("Reasons", 5, ((24, quarantined_gpus(SCOPE)), (24, problems(SCOPE)), (24, what)))


def _health() -> Section:
    xids = graph(
        "XIDs", "Errors that the driver reported, by code. `autoclave xid CODE` explains a code.", units.Short,
        Query(SCOPE.recent_by(service.XIDS, "xid"), "{{xid}}"), bars=True,
    )  # fmt: skip
    temperature = graph(
        "Temperature", "The temperature, and the temperature from which the GPU lowers its clocks.", units.Celsius,
        Query(largest(SCOPE.of(service.TEMPERATURE), *DEVICE_ID), NAME),
        Query(largest(SCOPE.of(service.SLOWDOWN), *DEVICE_ID), "slows down at"), colours={"slows down at": BAD},
        empty="The GPU reports no temperature, or no scrub service is scraped",
    )  # fmt: skip
    power = graph(
        "Power", "The power that the GPU draws.", units.Watt, Query(largest(SCOPE.of(service.POWER), *DEVICE_ID), NAME),
        empty="The GPU reports no power, or no scrub service is scraped",
    )  # fmt: skip
    return Section("Health", 8, ((8, xids), (8, temperature), (8, power)))


def _leftovers() -> Section:
    leaked = graph(
        "Leaked memory", "Memory in use that belongs to no process, for example of a leaked context.", units.BytesIEC,
        Query(SCOPE.or_zero(largest(SCOPE.of(service.LEAKED))), "leaked"),
    )  # fmt: skip
    residue = graph(
        "Residue", "Bytes of earlier users that scrubs found and cleared. Should show no bars.", units.BytesIEC,
        Query(SCOPE.or_zero(SCOPE.increase(service.RESIDUE_BYTES, within=RECENT)), "found and cleared"), bars=True,
    )  # fmt: skip
    unasked = graph(
        "Unauthorised use over time",
        "How often a process used the GPU while it was clean, without a grant. Should show no bars.",
        units.Short, Query(SCOPE.or_zero(SCOPE.increase(service.UNAUTHORISED, within=RECENT)), "times"), bars=True,
    )  # fmt: skip
    return Section("Leftovers", 8, ((8, leaked), (8, residue), (8, unasked)))


GPU = Page(
    GPU_PAGE,
    "Autoclave / GPU",
    "Is this GPU offered, and if not, why, since when, and what did Autoclave try?",
    SCOPE,
    (_status(), _reasons(), _history(), _health(), _leftovers()),
    one=("node", "gpu"),
)
