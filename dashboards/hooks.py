"""The way to the kubelet: hooks, refusals, registrations, and what the two services themselves need."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from dashboards.look import HEALTH_COLOURS, QUANTILE_COLOURS, SHOULD_BE_ZERO, apart
from dashboards.page import Band, Page
from dashboards.panels import NO_PLUGIN, Ask, Column, figure, heat, lines, rows
from dashboards.query import CPU, LATELY, PLACE, RESIDENT, QueryScope, age, least, most, total
from dashboards.scrubs import QUANTILES
from plugin.metrics import table as plugin
from scrubber.metrics import table as service

SCOPE = QueryScope(PLACE)
NODE = "{{node}}"
HOOK_COLOURS = apart("Allocate", "PreStartContainer", "GetPreferredAllocation")
UNASKED = "The kubelet has asked nothing yet, or no device plugin is scraped"


def _glance() -> Band:
    silent = f"count({SCOPE.silent(plugin.BUILD)})"
    deaf = f"count({most(SCOPE.of(plugin.SCRUBBER), *PLACE)} == 0)"
    unheard = f"count({SCOPE.of(plugin.CONNECTED)} == 0)"
    return Band("At a glance", 4, (
        (4, figure("Plugins", "Device plugins that are scraped.", f"count({most(SCOPE.of(plugin.BUILD), *PLACE)})",
                   empty=NO_PLUGIN)),
        (4, figure("Plugins silent", "Scraped in the last 6 hours and not now, or looked for in vain.",
                   SCOPE.or_none(silent, alive=plugin.BUILD), levels=SHOULD_BE_ZERO, empty=NO_PLUGIN)),
        (4, figure("Not ready", "Plugins that do not hear the service, or have a resource that is not registered.",
                   SCOPE.or_none(f"count({most(SCOPE.of(plugin.READY), *PLACE)} == 0)", alive=plugin.BUILD),
                   levels=SHOULD_BE_ZERO, empty=NO_PLUGIN)),
        (4, figure("Without a service", "Plugins that do not hear the scrub service: they offer no GPU.",
                   SCOPE.or_none(deaf, alive=plugin.BUILD), levels=SHOULD_BE_ZERO, empty=NO_PLUGIN)),
        (4, figure("Without a kubelet", "Resources whose list no kubelet listens to.",
                   SCOPE.or_none(unheard, alive=plugin.BUILD), levels=SHOULD_BE_ZERO, empty=NO_PLUGIN)),
        (4, figure("Refusals", "Questions of the kubelet in the time shown that were answered with a no.",
                   SCOPE.counted(plugin.HOOK_REFUSALS, alive=plugin.BUILD), empty=NO_PLUGIN)),
    ))  # fmt: skip


def _hooks() -> Band:
    answers = heat(
        "Answers to the kubelet",
        "How long the hooks took, wait for a scrub included, as questions per second. Allocate may take 5 s, a start "
        "25 s.",
        SCOPE.rate(plugin.HOOK_TIME, "le", part="bucket"),
        empty=UNASKED,
    )
    latency = lines(
        "Latency of each hook", "99 % of the answers took no longer. Each dot is a question, with the receipt that it "
        "was answered from.", units.Seconds,
        Ask(SCOPE.quantile(0.99, plugin.HOOK_TIME, "hook"), "{{hook}}"), colours=HOOK_COLOURS, receipts=True,
        empty=UNASKED,
    )  # fmt: skip
    outcomes = lines(
        "Questions", "By hook and outcome, per second.", units.RequestsPerSecond,
        Ask(SCOPE.rate(plugin.HOOK_TIME, "hook", "outcome", part="count"), "{{hook}} {{outcome}}"), empty=UNASKED,
    )  # fmt: skip
    refusals = lines(
        "Refusals by reason", "Questions that were answered with a no. A pod waits or fails for each.", units.Short,
        Ask(SCOPE.events(plugin.HOOK_REFUSALS, "hook", "reason", alive=plugin.BUILD), "{{at}}"), bars=True,
        empty=NO_PLUGIN,
    )  # fmt: skip
    return Band("Hooks", 9, ((12, answers), (12, latency), (12, outcomes), (12, refusals)))


def _service() -> Band:
    requests = lines(
        "Latency of the scrub service", "99 % of the answers to whoever hands devices out took no longer, wait for a "
        "scrub included. Each dot is a request, with its receipt.", units.Seconds,
        Ask(SCOPE.quantile(0.99, service.REQUESTS, "request"), "{{request}}"),
        colours=apart("acquire", "start"), receipts=True,
        empty="Nothing has been asked yet, or no scrub service is scraped",
    )  # fmt: skip
    refused = lines(
        "Refusals of the scrub service", "By request and reason.", units.Short,
        Ask(SCOPE.events(service.REQUEST_REFUSALS, "request", "reason"), "{{at}}"), bars=True,
    )  # fmt: skip
    writes = lines(
        "Writing the ledger", "Time until a row was durable; every answer waits for it.", units.Seconds,
        *(Ask(SCOPE.quantile(part, service.LEDGER_APPEND), called) for part, called in QUANTILES),
        colours=QUANTILE_COLOURS,
    )  # fmt: skip
    failures = lines(
        "Looks that failed", "Looks of the monitor after a device or at the node that failed, by node.", units.Short,
        Ask(SCOPE.grown(service.ROUND_FAILURES, *PLACE, within=LATELY), NODE), bars=True,
    )  # fmt: skip
    return Band("Scrub service", 8, ((12, requests), (12, refused), (12, writes), (12, failures)))


def _kubelet() -> Band:
    registrations = lines(
        "Registrations", "With the kubelet, and tries and losses by their cause. A kubelet that restarts asks for one "
        "of each resource.", units.Short,
        Ask(SCOPE.events(plugin.REGISTRATIONS, "resource", "outcome", alive=plugin.BUILD), "{{at}}"), bars=True,
        empty=NO_PLUGIN,
    )  # fmt: skip
    sent = lines(
        "Lists sent", "Lists of devices that were sent to the kubelet, per second: one for each change of a verdict.",
        units.MessagesPerSecond, Ask(SCOPE.rate(plugin.LISTS, "resource"), "{{resource}}"),
        empty="No device plugin is scraped, or it has no resource",
    )  # fmt: skip
    listed = lines(
        "GPUs as the kubelets are told", "Devices of each resource by their health.", units.Short,
        Ask(total(SCOPE.of(plugin.LISTED), "resource", "health"), "{{resource}} {{health}}"),
        colours=HEALTH_COLOURS, stacked=True,
        empty="No device plugin is scraped, or it has no resource",
    )  # fmt: skip
    return Band("Kubelet", 8, ((8, registrations), (8, sent), (8, listed)))


def _costs() -> Band:
    parts = (("service", service.BUILD), ("plugin", plugin.BUILD))
    cpu = lines(
        "CPU", "The most that one of them uses, in cores.", units.Short,
        *(Ask(most(SCOPE.of_service(f"rate({SCOPE.of(CPU)}[{LATELY}])", build)), name) for name, build in parts),
        colours=apart("service", "plugin"),
    )  # fmt: skip
    memory = lines(
        "Memory", "The most that one of them holds.", units.BytesIEC,
        *(Ask(most(SCOPE.of_service(SCOPE.of(RESIDENT), build)), name) for name, build in parts),
        colours=apart("service", "plugin"),
    )  # fmt: skip
    versions = rows(
        "Versions of the plugin", "Nodes by version.", {"version": "Version"},
        Column("Nodes", f"count by (version) ({most(SCOPE.of(plugin.BUILD), *PLACE, 'version')})"), empty=NO_PLUGIN,
    )  # fmt: skip
    rounds = lines(
        "Oldest round of a monitor", "Time since the monitor looked at all devices, where that is longest.",
        units.Seconds, Ask(age(least(SCOPE.of(service.ROUND))), "oldest"),
    )  # fmt: skip
    return Band("The services themselves", 8, ((6, cpu), (6, memory), (6, rounds), (6, versions)))


HOOKS = Page(
    "autoclave-hooks",
    "Autoclave / Hooks",
    "The way to the kubelet: hooks, refusals, registrations, and what the two services themselves need.",
    SCOPE,
    (_glance(), _hooks(), _service(), _kubelet(), _costs()),
)
