"""How scrubs go: how long they take, what they find, what fails, and whose fault that is."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.look import (
    BETTER_ZERO,
    NEUTRAL,
    PATH_COLOURS,
    QUANTILE_COLOURS,
    SHOULD_BE_ZERO,
    STATE_COLOURS,
    STEP_COLOURS,
    TRIGGER_COLOURS,
)  # fmt: skip
from dashboards.outages import TO_GPU, WHERE
from dashboards.page import Band, Page
from dashboards.panels import Ask, Column, figure, heat, lines, rows
from dashboards.query import DEVICE_ID, LATELY, PLACE, QueryScope, least, most, total
from scrubber.metrics import table as service

SCOPE = QueryScope(PLACE)
QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
UNPROVEN = "No GPU has been proven clean yet, or no scrub service is scraped"
UNSEEN = "No step has run yet, or no scrub service is scraped"


def _glance() -> Band:
    share = f"{SCOPE.grown(service.SCRUB_ENDS, outcome='passed')} / ({SCOPE.grown(service.SCRUB_ENDS)} > 0)"
    return Band("At a glance", 4, (
        (4, figure("Scrubs", "Scrubs that ended in the time shown.", SCOPE.counted(service.SCRUB_ENDS))),
        (4, figure("Passed", "Part of the scrubs in the time shown that ended with a proof. Others were put off, "
                   "escalated or failed: see below.", share, units.PercentUnit,
                   empty="No scrub ended in this time, or no scrub service is scraped")),
        (4, figure("Least coverage", "Part of the allocatable memory that the thinnest of the last proofs covers.",
                   least(SCOPE.of(service.COVERAGE)), units.PercentUnit, empty=UNPROVEN)),
        (4, figure("Overwritten", "Memory that was overwritten and read back in the time shown.",
                   SCOPE.counted(service.SCRUBBED), units.BytesIEC)),
        (4, figure("Escalated", "Fast paths that failed in the time shown and went on as slow ones.",
                   SCOPE.counted(service.ESCALATIONS), levels=BETTER_ZERO)),
        (4, figure("Residue found", "Scrubs in the time shown that found bytes of an earlier user. Should be 0.",
                   SCOPE.counted(service.RESIDUE), levels=SHOULD_BE_ZERO)),
    ))  # fmt: skip


def _time() -> Band:
    durations = heat(
        "Duration of scrubs",
        "Scrubs that ended with a proof, as scrubs per second.",
        SCOPE.rate(service.SCRUB_TIME, "le", part="bucket"),
        empty=UNPROVEN,
    )
    to_clean = lines(
        "Time to clean",
        "From the release of a GPU until it was proven clean. Each dot is a scrub, with its receipt.",
        units.Seconds,
        *(Ask(SCOPE.quantile(part, service.TIME_TO_CLEAN), called) for part, called in QUANTILES),
        colours=QUANTILE_COLOURS, receipts=True,
    )  # fmt: skip
    paths = lines(
        "Time of each path", "95 % of the scrubs by this path took no longer. Each dot is a scrub, with its receipt.",
        units.Seconds, Ask(SCOPE.quantile(0.95, service.SCRUB_TIME, "path"), "{{path}}"),
        colours=PATH_COLOURS, receipts=True, empty=UNPROVEN,
    )  # fmt: skip
    steps = lines(
        "Time of each step", "95 % of these steps took no longer, however they ended. A gap: the step did not run.",
        units.Seconds, Ask(SCOPE.quantile(0.95, service.STEP_TIME, "step"), "{{step}}"),
        colours=STEP_COLOURS, beside=True,
        empty=UNSEEN,
    )  # fmt: skip
    return Band("Time", 9, ((12, durations), (12, to_clean), (12, paths), (12, steps)))


def _why() -> Band:
    triggers = lines(
        "What began them", "Scrubs that ended, by what had begun them.", units.Short,
        Ask(SCOPE.happenings(service.SCRUB_ENDS, "trigger"),
            "{{trigger}}"), bars=True, colours=TRIGGER_COLOURS,
    )  # fmt: skip
    outcomes = lines(
        "How they ended", "Scrubs by path and outcome.", units.Short,
        Ask(SCOPE.events(service.SCRUB_ENDS, "path", "outcome"), "{{at}}"),
        bars=True, colours={f"{path} passed": colour for path, colour in PATH_COLOURS.items()},
    )  # fmt: skip
    failures = lines(
        "Steps that did not pass",
        "By step, outcome, and whose fault it was: a device's leads to quarantine, a tenant's and the service's to "
        "another try.",
        units.Short,
        Ask(SCOPE.events(service.STEP_FAILURES, "step", "outcome", "blame"), "{{at}}"), bars=True,
    )  # fmt: skip
    return Band("Causes and ends", 8, ((8, triggers), (8, outcomes), (8, failures)))


def _deeds() -> Band:
    speed = lines(
        "Speed", "Memory that was overwritten and read back, per second.", units.BytesPerSecondIEC,
        Ask(SCOPE.rate(service.SCRUBBED), "overwritten and read back"),
    )  # fmt: skip
    processes = lines(
        "Processes", "Found by scrubs on their devices, by kind, and ended by them.", units.Short,
        Ask(SCOPE.happenings(service.PROCESSES, "kind"), "{{kind}} found"),
        Ask(SCOPE.grown(service.TERMINATED, within=LATELY), "ended"), bars=True,
    )  # fmt: skip
    resets = lines(
        "Resets", "Resets of devices, by how they ended.", units.Short,
        Ask(SCOPE.happenings(service.RESETS, "outcome"), "{{outcome}}"),
        bars=True,
    )  # fmt: skip
    return Band("Deeds", 8, ((8, speed), (8, processes), (8, resets)))


def _ends() -> Band:
    into = lines(
        "Into quarantine", "Devices that were taken out, by reason.", units.Short,
        Ask(SCOPE.happenings(service.QUARANTINES, "reason"),
            "{{reason}}"), bars=True,
    )  # fmt: skip
    back = lines(
        "Back from quarantine", "Devices that came back: by evidence, or by a person's word.", units.Short,
        Ask(SCOPE.happenings(service.RETURNS, "by"), "{{by}}"), bars=True,
    )  # fmt: skip
    thin = rows(
        "Thinnest proofs", "The GPUs whose last proof covers the least of their memory.", WHERE,
        Column("Coverage", f"bottomk(10, {most(SCOPE.of(service.COVERAGE), *DEVICE_ID)})", units.PercentUnit,
               NEUTRAL),
        links={"GPU": TO_GPU}, empty=UNPROVEN, sorted_by="Coverage", rising=True,
    )  # fmt: skip
    rules = rows(
        "Policies in force", "Nodes by the policy in force and the digest of all that it says.",
        {"policy": "Policy", "digest": "Digest"},
        Column("Nodes", f"count by (policy, digest) ({most(SCOPE.of(service.POLICY), *PLACE, 'policy', 'digest')})"),
    )  # fmt: skip
    waiting = lines(
        "Waiting and in a scrub", "GPUs by state, without those in use and those that are clean.", units.Short,
        Ask(SCOPE.or_none(total(SCOPE.of(service.STATE, state=("unknown", "dirty", "scrubbing")), "state"), "state"),
            "{{state}}"), colours=STATE_COLOURS, stacked=True, up_to=1,
    )  # fmt: skip
    return Band("Before and after", 8, ((8, waiting), (8, into), (8, back), (12, thin), (12, rules)))


SCRUBS = Page(
    "autoclave-scrubs",
    "Autoclave / Scrubs",
    "How scrubs go: how long they take, what they find, what fails, and whose fault that is.",
    SCOPE,
    (_glance(), _time(), _why(), _deeds(), _ends()),
)
