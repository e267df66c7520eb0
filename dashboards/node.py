"""One node, or a few: can it hand out GPUs, what does each of them do, and is the service on it well?"""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import units

from dashboards.look import (
    BAD,
    GOOD,
    HEALTH_COLOURS,
    NO_ROW,
    PATH_COLOURS,
    PLAIN,
    SHOULD_BE_ZERO,
    STATE_WORDS,
    STEP_COLOURS,
    WARN,
    Levels,
    no_or_yes,
    words,
    yes_or_no,
)  # fmt: skip
from dashboards.outages import NOT_KNOWN, TO_GPU, WHERE, kept_out, wrong
from dashboards.page import Band, Page
from dashboards.panels import NO_PLUGIN, UNHEARD, Ask, Column, Words, figure, lines, rows, timeline
from dashboards.query import DEVICE_ID, LATELY, PLACE, QueryScope, age, least, most, named, total
from plugin.metrics import table as plugin
from scrubber.metrics import table as service

SCOPE = QueryScope((*PLACE, "gpu"))
STALLED: Levels = ((0, GOOD), (60, WARN), (300, BAD))


def _verdict(title: str, about: str, expression: str, said: Words, empty: str = UNHEARD) -> grafana.Panel:
    return figure(title, about, expression, units.NoUnit, words=said, empty=empty)


def _verdicts() -> Band:
    return Band("Can it hand out GPUs?", 4, (
        (3, _verdict("Service", "The worst of the scrub services looked at: ready, or /readyz says what is in the way.",
                     least(SCOPE.of(service.READY)), yes_or_no("ready", "not ready"))),
        (3, _verdict("Plugin", "The worst of the device plugins: ready when the service is heard and every resource is "
                     "registered.", least(SCOPE.of(plugin.READY)), yes_or_no("ready", "not ready"), NO_PLUGIN)),
        (3, _verdict("Service heard", "Whether the plugin hears the scrub service and believes its list. If not, no "
                     "GPU is offered.", least(SCOPE.of(plugin.SCRUBBER)), yes_or_no("heard", "not heard"), NO_PLUGIN)),
        (3, _verdict("Kubelet", "Whether the kubelet listens to the list of every resource.",
                     least(SCOPE.of(plugin.CONNECTED)), yes_or_no("listens", "does not listen"),
                     "No device plugin is scraped, or it has no resource")),
        (3, _verdict("Ledger", "Whether the ledger can be written. If not, nothing is handed out.",
                     most(SCOPE.of(service.LEDGER_FAULT)), no_or_yes("writable", "cannot be written"))),
        (3, _verdict("Policy", "Whether the policy's file is right. If not, the one before it stays in force.",
                     most(SCOPE.of(service.POLICY_FAULT)), no_or_yes("in force", "file is wrong"))),
        (3, figure("Last round", "Time since the monitor last looked at all devices, on the node where it is longest. "
                   "Minutes mean that a driver call hangs.", age(least(SCOPE.of(service.ROUND))), units.Seconds,
                   levels=STALLED)),
        (3, figure("Nodes silent", "Nodes whose scrub service or device plugin was scraped in the last 6 hours and is "
                   "not now, or cannot be scraped.",
                   SCOPE.or_none(f"count({SCOPE.silent_nodes()})"), levels=SHOULD_BE_ZERO)),
    ))  # fmt: skip


def _gpus() -> Band:
    since = age(most(SCOPE.of(service.STATE_SINCE), *DEVICE_ID))
    proof = f"time() - {most(SCOPE.of(service.LAST_SCRUB), *DEVICE_ID)}"
    table = rows(
        "GPUs",
        "Every GPU and slice: its state and since when, whether it is offered to the kubelet, how old its proof is and "
        "how much of its memory that covers. '-' is what the hardware cannot tell. The number leads to its own page.",
        WHERE,
        Column("State", SCOPE.states(*DEVICE_ID), words=STATE_WORDS, filled=True),
        Column("For", since, units.Seconds),
        Column("Offered", most(SCOPE.of(service.HEALTHY), *DEVICE_ID), words=yes_or_no("yes", "no")),
        Column("Proof is", SCOPE.or_unknown(proof), units.Seconds, words=words({NO_ROW: ("not there", PLAIN)})),
        Column("Coverage", SCOPE.or_unknown(SCOPE.of(service.COVERAGE)), units.PercentUnit, words=NOT_KNOWN),
        Column("Temperature", SCOPE.or_unknown(SCOPE.of(service.TEMPERATURE)), units.Celsius, words=NOT_KNOWN),
        Column("Leaked", SCOPE.or_unknown(SCOPE.of(service.LEAKED)), units.BytesIEC, words=NOT_KNOWN),
        links={"GPU": TO_GPU},
        sorted_by=("Node", "GPU"),
        rising=True,
    )
    course = timeline(
        "State of each GPU",
        "Where each GPU was in its life. A gap: nobody was asked, or nobody answered.",
        STATE_WORDS,
        Ask(named(SCOPE.states(*DEVICE_ID)), "{{at}}"),
    )
    return Band("GPUs", 10, ((24, table), (24, course)))


def _out() -> Band:
    refusals = lines(
        "Refusals by reason",
        "Questions of the kubelet that were answered with a no; the last one and its reason are also in the pod's "
        "events.",
        units.Short,
        Ask(SCOPE.events(plugin.HOOK_REFUSALS, "hook", "reason", alive=plugin.BUILD), "{{at}}"),
        bars=True, empty=NO_PLUGIN,
    )  # fmt: skip
    return Band("Out of service", 9, ((14, kept_out(SCOPE)), (10, refusals), (24, wrong(SCOPE))))


def _heat() -> Band:
    temperature = lines(
        "Temperature", "Of whole GPUs, below where the first of them slows itself down, as the device itself says.",
        units.Celsius, Ask(named(most(SCOPE.of(service.TEMPERATURE), *DEVICE_ID)), "{{at}}"),
        Ask(least(SCOPE.of(service.SLOWDOWN)), "slows down at"), colours={"slows down at": BAD}, beside=True,
        empty="No GPU here tells its temperature, or no scrub service is scraped",
    )  # fmt: skip
    power = lines(
        "Power", "What whole GPUs draw.", units.Watt, Ask(named(most(SCOPE.of(service.POWER), *DEVICE_ID)), "{{at}}"),
        beside=True,
        empty="No GPU here tells its power, or no scrub service is scraped",
    )  # fmt: skip
    return Band("Heat and power", 8, ((12, temperature), (12, power)))


def _scrubs() -> Band:
    ended = lines(
        "Scrubs", "Scrubs that ended, by path and outcome.", units.Short,
        Ask(SCOPE.events(service.SCRUB_ENDS, "path", "outcome"), "{{at}}"),
        bars=True, colours={f"{path} passed": colour for path, colour in PATH_COLOURS.items()},
    )  # fmt: skip
    steps = lines(
        "Time of each step", "95 % of these steps took no longer. A gap: the step did not run.", units.Seconds,
        Ask(SCOPE.quantile(0.95, service.STEP_TIME, "step"), "{{step}}"), colours=STEP_COLOURS,
        empty="No step has run yet, or no scrub service is scraped",
    )  # fmt: skip
    found = lines(
        "Processes found", "Processes that scrubs found on their devices, by kind, and those that they ended.",
        units.Short,
        Ask(SCOPE.happenings(service.PROCESSES, "kind"), "{{kind}} found"),
        Ask(SCOPE.grown(service.TERMINATED, within=LATELY), "ended"), bars=True,
    )  # fmt: skip
    return Band("Scrubs", 8, ((8, ended), (8, steps), (8, found)))


def _service() -> Band:
    who = rows(
        "Versions", "What runs on each node.", {"cluster": "Cluster", "node": "Node", "version": "Version",
                                                "backend": "Devices", "policy": "Policy", "digest": "Digest"},
        Column("Concessions", f"{most(SCOPE.of(service.CONCESSIONS), *PLACE)} * on ({', '.join(PLACE)}) group_right () "
               f"({most(SCOPE.of(service.POLICY), *PLACE, 'policy', 'digest')} * on ({', '.join(PLACE)}) "
               f"group_left (version, backend) topk by ({', '.join(PLACE)}) (1, "
               f"{most(SCOPE.of(service.BUILD), *PLACE, 'version', 'backend')}))"),  # an update shows two for a while
    )  # fmt: skip
    told = lines(
        "GPUs as the kubelet is told", "Devices of each resource by their health in the list the kubelet has.",
        units.Short, Ask(total(SCOPE.of(plugin.LISTED), "resource", "health"), "{{resource}} {{health}}"),
        colours=HEALTH_COLOURS,
        empty="No device plugin is scraped, or it has no resource",
    )  # fmt: skip
    ledger = lines(
        "Ledger over time",
        "The number of the newest row: it only grows. A fall is a ledger that was lost or set aside.",
        units.Short, Ask(most(SCOPE.of(service.LEDGER_ROWS), *PLACE), "{{node}}"),
    )  # fmt: skip
    return Band("Service", 8, ((12, who), (6, told), (6, ledger)))


NODE = Page(
    "autoclave-node",
    "Autoclave / Node",
    "Can this node hand out GPUs, what does each of them do, and is the service on it well?",
    SCOPE,
    (_verdicts(), _gpus(), _out(), _heat(), _scrubs(), _service()),
)
