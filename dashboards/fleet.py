"""The first page: is the fleet well, and if not, where? At 1,000 nodes it asks recording rules for all that adds up."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import units

from dashboards.look import (
    BAD,
    BETTER_ZERO,
    GOOD,
    GREY,
    NEUTRAL,
    NO_ROW,
    PATH_COLOURS,
    QUANTILE_COLOURS,
    SHOULD_BE_ZERO,
    STATE_COLOURS,
    Levels,
    apart,
    words,
)  # fmt: skip
from dashboards.outages import TO_GPU, WHERE, kept_out
from dashboards.page import Band, Page, link
from dashboards.panels import UNRECORDED, Ask, Column, figure, heat, lines, rows
from dashboards.query import (
    ALERTS,
    DEVICE_ID,
    DEVICES,
    HOOK_TIMES,
    LATE,
    LATELY,
    PLACE,
    REFUSALS,
    SCRUBS,
    SCRUBS_OF_NODES,
    TIMES_TO_CLEAN,
    QueryScope,
    least,
    most,
    together,
    total,
)  # fmt: skip
from scrubber.core.model import State
from scrubber.metrics.table import COVERAGE, HEALTHY, QUARANTINED, RESIDUE, TIME_TO_CLEAN

SCOPE = QueryScope(("cluster",))
IN_USE = (State.GRANTED.value, State.IN_USE.value)
ON_THE_WAY = (State.UNKNOWN.value, State.DIRTY.value, State.SCRUBBING.value)
TO_NODE = link("autoclave-node", node="node")
NODE = {"cluster": "Cluster", "node": "Node"}


SILENT = words({0: ("all", BAD), 1: ("service", BAD), 2: ("plugin", BAD), 3: ("both", BAD)})
# What was replaced by another in its place stays where it is, and nobody waits for it.
OUT = f"{most(SCOPE.of(QUARANTINED), *DEVICE_ID)} unless {most(SCOPE.of(QUARANTINED, reason='replaced'), *DEVICE_ID)}"


def _counted(title: str, about: str, count: str, levels: Levels = NEUTRAL) -> grafana.Panel:
    """A state that no GPU is in has no series: it counts as 0 as long as there are GPUs at all."""
    known = f"{count} or 0 * {total(SCOPE.of(DEVICES))}"
    return figure(title, about, known, levels=levels, empty="Not scraped, or no recording rules")


def _in(*states: str) -> str:
    return total(SCOPE.of(DEVICES, state=states))


def _glance() -> Band:
    return Band("At a glance", 4, (
        (3, _counted("GPUs", "GPUs and slices that are watched over, without those replaced.",
                     total(SCOPE.of(DEVICES)))),
        (3, figure("Offered", "GPUs that the kubelets may hand out or have handed out.", total(SCOPE.of(HEALTHY)))),
        (3, _counted("In use", "Granted to a pod, or used by one.", _in(*IN_USE))),
        (3, _counted("On the way", "Not proven clean yet: unknown, dirty, or in a scrub.", _in(*ON_THE_WAY))),
        (3, _counted("Kept out", "In quarantine, without those replaced; the table below says why.", f"count({OUT})",
                     levels=BETTER_ZERO)),
        (3, figure("Residue found", "Scrubs that found bytes of an earlier user in the time shown: the driver had not "
                   "cleared them, the scrub did. Should be 0.", SCOPE.counted(RESIDUE),
                   levels=SHOULD_BE_ZERO)),
        (3, figure("Nodes silent", "Nodes whose scrub service or device plugin was scraped in the last 6 hours and is "
                   "not now, or cannot be scraped. Little else on this page speaks of them.",
                   SCOPE.or_none(f"count({SCOPE.silent_nodes()})"), levels=SHOULD_BE_ZERO)),
        (3, figure("Not ready", "Nodes that hand nothing out: the /readyz of the scrub service, or of the device "
                   "plugin, says what is in the way.", SCOPE.or_none(f"count({SCOPE.not_ready()})"),
                   levels=SHOULD_BE_ZERO)),
    ))  # fmt: skip


def _out() -> Band:
    firing = most(
        SCOPE.of(ALERTS, alertname=("Autoclave.*",), alertstate="firing"), *PLACE, "gpu", "alertname", "severity"
    )
    alerts = rows(
        "Alerts that fire",
        "Alerts of Autoclave, from the rules in dashboards/alerts.yaml; each has a runbook of its name.",
        {"alertname": "Alert", "severity": "Severity", **NODE, "gpu": "GPU"},
        Column("Fires", SCOPE.or_silence(firing, "alertname", 1), units.NoUnit, words=words({1: ("now", BAD)})),
        links={"Node": TO_NODE},
        empty="No alert fires, where the alert rules are loaded",
        sorted_by="Severity",  # critical, info, warning
        rising=True,
    )
    return Band("Out of service", 8, ((14, kept_out(SCOPE)), (10, alerts)))


def _course() -> Band:
    states = lines(
        "GPUs by state",
        "Where all GPUs are in their life. Quarantined and unknown ones are not offered.",
        units.Short,
        Ask(total(SCOPE.of(DEVICES), "state"), "{{state}}"),
        colours=STATE_COLOURS, stacked=True, beside=True, empty=UNRECORDED,
    )  # fmt: skip
    to_clean = lines(
        "Time to clean",
        "From the release of a GPU until it was proven clean again, over 5 minutes: half of all, 95 % and 99 % took "
        "no longer than this. A gap: nothing was cleaned.",
        units.Seconds,
        *(Ask(f"histogram_quantile({part:g}, {total(SCOPE.of(TIMES_TO_CLEAN), 'le')}) >= 0", called)
          for part, called in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))),
        colours=QUANTILE_COLOURS, empty=UNRECORDED,
    )  # fmt: skip
    return Band("How it goes", 9, ((12, states), (12, to_clean)))


def _hooks() -> Band:
    latency = heat(
        "Answers to the kubelet",
        "How long the hooks took, wait for a scrub included, as questions per second. Allocate may take 5 s, a start "
        "25 s; the usual answer is a look-up of milliseconds.",
        total(SCOPE.of(HOOK_TIMES), "le"),
        empty=UNRECORDED,
    )
    refusals = lines(
        "Refusals an hour",
        "Questions of the kubelet that were answered with a no, an hour, as a rate of 5 minutes. A pod waits or fails "
        "for each.",
        units.Short,
        Ask(SCOPE.or_none(f"3600 * {total(SCOPE.of(REFUSALS), 'reason')} > 0", "reason"), "{{reason}}"),
        stacked=True, up_to=1, empty=UNRECORDED,
    )  # fmt: skip
    budget = lines(
        "Hand-overs outside their budget",
        "Part of the hand-overs that were refused or took longer than a policy may allow. The promise is 99.9 %: the "
        "dashed line. A gap: nothing was handed over.",
        units.PercentUnit,
        *(Ask(f"max({SCOPE.of(late)})", window) for window, late in LATE.items()),
        levels=((0, GOOD), (0.001, BAD)), colours=apart(*LATE), up_to=0.002,
        empty="Nothing was handed over yet, or the recording rules are not loaded",
    )  # fmt: skip
    return Band("Hooks", 9, ((9, latency), (8, refusals), (7, budget)))


def _work() -> Band:
    rate = f"3600 * {total(SCOPE.of(SCRUBS), 'path', 'outcome')}"
    scrubs = lines(
        "Scrubs an hour",
        "Scrubs that ended, by how thorough they were and how they ended, as a rate of 5 minutes.",
        units.Short,
        Ask(SCOPE.or_none(together(rate, "path", "outcome"), "at"), "{{at}}"),
        colours={f"{path} passed": colour for path, colour in PATH_COLOURS.items()}, empty=UNRECORDED,
    )  # fmt: skip
    coverage = lines(
        "Coverage",
        "Part of the allocatable memory that the last proofs cover: the least and the mean of all GPUs. The rest is "
        "what the driver keeps for itself; a fall means that proofs have grown thinner.",
        units.PercentUnit,
        Ask(least(SCOPE.of(COVERAGE)), "least"), Ask(f"avg({SCOPE.of(COVERAGE)})", "mean"),
        colours=apart("least", "mean"), up_to=1,
        empty="No GPU has been proven clean yet, or no scrub service is scraped",
    )  # fmt: skip
    residue = lines(
        "Residue over time",
        "Scrubs that found bytes of an earlier user. Should be empty of bars.",
        units.Short,
        Ask(SCOPE.or_none(SCOPE.grown(RESIDUE, within=LATELY)), "scrubs that found some"),
        colours={"scrubs that found some": BAD}, bars=True,
    )  # fmt: skip
    return Band("Work", 8, ((8, scrubs), (8, coverage), (8, residue)))


def _nodes() -> Band:
    slowest = rows(
        "Slowest nodes", "Where a GPU takes longest from release to proof, on average over the time shown.", NODE,
        Column("Time to clean", f"topk(10, {SCOPE.mean(TIME_TO_CLEAN, *PLACE)})", units.Seconds),
        links={"Node": TO_NODE}, empty="Nothing was cleaned in this time", sorted_by="Time to clean",
    )  # fmt: skip
    out = rows(
        "Nodes with most GPUs out", "Nodes by the number of GPUs in quarantine, without those replaced.", NODE,
        Column("Kept out", SCOPE.or_silence(f"topk(10, count by ({', '.join(PLACE)}) ({OUT}))", "node", NO_ROW),
               levels=BETTER_ZERO, words=words({NO_ROW: ("nobody knows", GREY)})),
        links={"Node": TO_NODE}, empty="No GPU is kept out", sorted_by="Kept out",
    )  # fmt: skip
    silent = rows(
        "Silent nodes", "Scraped in the last 6 hours, and not now, or looked for in vain: the scrub service, the "
        "device plugin or the node is down.", NODE,
        Column("Silent", SCOPE.or_silence(SCOPE.silent_nodes(), "node", 0), units.NoUnit, words=SILENT),
        links={"Node": TO_NODE}, empty="Every node is heard",
    )  # fmt: skip
    busiest = rows(
        "Busiest nodes", "Nodes by scrubs, as a rate of 5 minutes.", NODE,
        Column("Scrubs an hour", f"topk(10, 3600 * {total(SCOPE.of(SCRUBS_OF_NODES), *PLACE)})", units.Short),
        links={"Node": TO_NODE}, empty=UNRECORDED, sorted_by="Scrubs an hour",
    )  # fmt: skip
    return Band("Nodes", 8, ((6, slowest), (6, out), (6, silent), (6, busiest)))


def _proofs() -> Band:
    thin = rows(
        "Thinnest proofs", "The GPUs whose last proof covers the least of their memory.", WHERE,
        Column("Coverage", f"bottomk(10, {most(SCOPE.of(COVERAGE), *DEVICE_ID)})", units.PercentUnit),
        links={"GPU": TO_GPU}, sorted_by="Coverage", rising=True,
        empty="No GPU has been proven clean yet, or no scrub service is scraped",
    )  # fmt: skip
    return Band("Proofs", 8, ((24, thin),), folded=True)


FLEET = Page(
    "autoclave-fleet",
    "Autoclave / Fleet",
    "Is the fleet well, and if not, where?",
    SCOPE,
    (_glance(), _out(), _course(), _hooks(), _work(), _nodes(), _proofs()),
)
