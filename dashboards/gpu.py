"""One GPU: may it go out, and if not, why, since when, and what was tried?"""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.look import (
    BAD,
    BETTER_ZERO,
    GREY,
    SHOULD_BE_ZERO,
    STATE_WORDS,
    YELLOW,
    words,
    yes_or_no,
)  # fmt: skip
from dashboards.outages import GPU_PAGE, WHERE, kept_out, wrong
from dashboards.page import Band, Page
from dashboards.panels import Ask, Column, figure, lines, rows, timeline
from dashboards.query import DEVICE_ID, LATELY, PLACE, QueryScope, age, most
from scrubber.metrics import table as service

SCOPE = QueryScope((*PLACE, "gpu"))
NAME = "GPU {{gpu}} {{uuid}}"  # a GPU that was replaced is still there beside its successor
UNPROVEN = "It was never proven clean, or no scrub service is scraped"
RUNS = words({1: ("runs", YELLOW), 0: ("no step runs", GREY)})


def _verdicts() -> Band:
    return Band("Verdicts", 4, (
        (3, figure("May it go out?", "Whether the kubelet is offered this GPU.",
                   most(SCOPE.of(service.HEALTHY), *DEVICE_ID), units.NoUnit, words=yes_or_no("yes", "no"),
                   called=NAME)),
        (3, figure("State", "Where it is in its life.", SCOPE.states(*DEVICE_ID), units.NoUnit, words=STATE_WORDS,
                   called=NAME)),
        (3, figure("For", "How long it has been in this state.", age(most(SCOPE.of(service.STATE_SINCE), *DEVICE_ID)),
                   units.Seconds, called=NAME)),
        (3, figure("Proof is", "Time since it was last proven clean.",
                   age(most(SCOPE.of(service.LAST_SCRUB), *DEVICE_ID)), units.Seconds, called=NAME, empty=UNPROVEN)),
        (3, figure("Coverage", "Part of its allocatable memory that the last proof covers.",
                   most(SCOPE.of(service.COVERAGE), *DEVICE_ID), units.PercentUnit, called=NAME, empty=UNPROVEN)),
        (3, figure("Residue found", "Scrubs that found bytes of an earlier user in the time shown. Should be 0.",
                   SCOPE.counted(service.RESIDUE), levels=SHOULD_BE_ZERO)),
        (3, figure("Used unasked", "Times that somebody used it while it was clean, without asking. Should be 0.",
                   SCOPE.counted(service.UNAUTHORISED), levels=SHOULD_BE_ZERO)),
        (3, figure("Driver errors", "XIDs in the time shown. Many are the fault of a tenant's program; `autoclave xid "
                   "CODE` says which are not.", SCOPE.counted(service.XIDS), levels=BETTER_ZERO)),
    ))  # fmt: skip


def _life() -> Band:
    state = timeline(
        "State over time", "Where it was in its life. A gap: nobody was asked, or nobody answered.", STATE_WORDS,
        Ask(SCOPE.states(*DEVICE_ID), NAME),
    )  # fmt: skip
    steps = timeline(
        "Steps of scrubs", "Which step ran when. Steps shorter than the time between two scrapes may not be seen here; "
        "the page on scrubs counts all.", RUNS,
        Ask(SCOPE.or_none(most(SCOPE.of(service.SCRUB_STEP), *DEVICE_ID, "step"), "step"), "{{step}}"),
    )  # fmt: skip
    return Band("Its life", 6, ((24, state), (24, steps)))


def _why() -> Band:
    what = rows(
        "What it is", "From the driver. A slice has a parent: the GPU that it is a part of.",
        {**WHERE, "model": "Model", "pci": "PCI", "driver": "Driver", "resource": "Resource", "parent": "Parent"},
        Column("Offered", f"{most(SCOPE.of(service.HEALTHY), *DEVICE_ID)} * on ({', '.join(DEVICE_ID)}) group_right () "
               + most(SCOPE.of(service.DEVICE), *DEVICE_ID, "model", "pci", "driver", "resource", "parent"),
               words=yes_or_no("yes", "no")),
    )  # fmt: skip
    return Band("Why", 5, ((24, kept_out(SCOPE)), (24, wrong(SCOPE)), (24, what)))


def _health() -> Band:
    xids = lines(
        "XIDs", "Errors that the driver reported, by code. `autoclave xid CODE` explains one.", units.Short,
        Ask(SCOPE.happenings(service.XIDS, "xid"), "{{xid}}"), bars=True,
    )  # fmt: skip
    temperature = lines(
        "Temperature", "And where it slows itself down, as the device itself says.", units.Celsius,
        Ask(most(SCOPE.of(service.TEMPERATURE), *DEVICE_ID), NAME),
        Ask(most(SCOPE.of(service.SLOWDOWN), *DEVICE_ID), "slows down at"), colours={"slows down at": BAD},
        empty="This GPU does not tell its temperature, or no scrub service is scraped",
    )  # fmt: skip
    power = lines(
        "Power", "What it draws.", units.Watt, Ask(most(SCOPE.of(service.POWER), *DEVICE_ID), NAME),
        empty="This GPU does not tell its power, or no scrub service is scraped",
    )  # fmt: skip
    return Band("Health", 8, ((8, xids), (8, temperature), (8, power)))


def _left_behind() -> Band:
    leaked = lines(
        "Memory leaked", "Memory in use that no process answers for: a context that was left behind.", units.BytesIEC,
        Ask(SCOPE.or_none(most(SCOPE.of(service.LEAKED))), "leaked"),
    )  # fmt: skip
    residue = lines(
        "Residue", "Bytes of earlier users that scrubs found, and cleared. Should be empty of bars.", units.BytesIEC,
        Ask(SCOPE.or_none(SCOPE.grown(service.RESIDUE_BYTES, within=LATELY)), "found and cleared"), bars=True,
    )  # fmt: skip
    unasked = lines(
        "Used unasked over time",
        "Times that somebody used it while it was clean, without asking. Should be empty of bars.",
        units.Short, Ask(SCOPE.or_none(SCOPE.grown(service.UNAUTHORISED, within=LATELY)), "times"), bars=True,
    )  # fmt: skip
    return Band("Left behind", 8, ((8, leaked), (8, residue), (8, unasked)))


GPU = Page(
    GPU_PAGE,
    "Autoclave / GPU",
    "May this GPU go out, and if not, why, since when, and what was tried?",
    SCOPE,
    (_verdicts(), _why(), _life(), _health(), _left_behind()),
    one=("node", "gpu"),
)
