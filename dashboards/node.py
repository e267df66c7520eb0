"""The page of one node or a few: can the node hand out GPUs, what does each GPU do, and does the service work?"""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import units

from dashboards.outages import MISSING, NO_PROOF, TO_GPU, WHERE, group_counts, problems, quarantined_gpus
from dashboards.page import Page, Section
from dashboards.panels import (
    NO_EVENT,
    NO_PLUGIN,
    NO_SERVICE,
    WIDTHS,
    Column,
    Query,
    ValueWords,
    graph,
    stat,
    table,
    timeline,
)
from dashboards.query import (
    DEVICE_ID,
    DEVICES_OF_NODES,
    PLACE,
    RECENT,
    QueryScope,
    age,
    largest,
    smallest,
    sum_of,
    with_device,
)
from dashboards.style import (
    BAD,
    GOOD,
    HEALTH_COLOURS,
    PATH_COLOURS,
    SHOULD_BE_ZERO,
    STATE_WORDS,
    STEP_COLOURS,
    WARN,
    Levels,
    no_or_yes,
    yes_or_no,
)  # fmt: skip
from plugin.metrics import plugin_metrics as plugin
from scrubber.metrics import service_metrics as service

SCOPE = QueryScope((*PLACE, "gpu"))
STALLED: Levels = ((0, GOOD), (60, WARN), (300, BAD))


def _verdict(title: str, description: str, expression: str, said: ValueWords, empty: str = NO_SERVICE) -> grafana.Panel:
    return stat(title, description, expression, units.NoUnit, words=said, empty=empty)


def _status() -> Section:
    return Section("Can it hand out GPUs?", 4, (
        (3, _verdict("Service", "The worst of the selected scrub services. If it is not ready, /readyz says why.",
                     smallest(SCOPE.of(service.READY)), yes_or_no("ready", "not ready"))),
        (3, _verdict("Plugin", "The worst of the selected device plugins and DRA drivers. A plugin is ready when the "
                     "scrub service answers and every resource is registered; a driver also needs its ResourceSlice.",
                     smallest(f"{SCOPE.of(plugin.READY)} or {SCOPE.of(plugin.DRA_READY)}"),
                     yes_or_no("ready", "not ready"), NO_PLUGIN)),
        (3, _verdict("Service connection",
                     "Whether the plugin or driver gets an answer from the scrub service. If not, no GPU is "
                     "offered.", smallest(SCOPE.of(plugin.SCRUBBER)), yes_or_no("connected", "no answer"),
                     NO_PLUGIN)),
        (3, _verdict("Kubelet", "Whether the kubelet reads the device list of every resource, or has accepted the DRA "
                     "driver.", smallest(f"{SCOPE.of(plugin.CONNECTED)} or {SCOPE.of(plugin.DRA_REGISTERED)}"),
                     yes_or_no("connected", "not connected"),
                     "No device plugin is scraped, or it has no resource")),
        (3, _verdict("Ledger", "Whether the ledger can be written. If not, no GPU is handed out.",
                     largest(SCOPE.of(service.LEDGER_FAULT)), no_or_yes("writable", "not writable"))),
        (3, _verdict("Policy", "Whether the policy file is valid. If not, the previous policy stays in force.",
                     largest(SCOPE.of(service.POLICY_FAULT)), no_or_yes("in force", "file has faults"))),
        (3, stat("Last round", "The longest time since a monitor observed all its devices. Minutes mean that a "
                 "driver call hangs.", age(smallest(SCOPE.of(service.ROUND))), units.Seconds,
                 levels=STALLED)),
        (3, stat("Nodes silent", "Nodes whose scrub service or device plugin is down or unreachable, or was scraped "
                 "in the last 6 hours and is no longer scraped.",
                 SCOPE.or_zero(f"count({SCOPE.silent_nodes()})"), levels=SHOULD_BE_ZERO)),
    ))  # fmt: skip


def _gpus() -> Section:
    since = age(largest(SCOPE.of(service.STATE_SINCE), *DEVICE_ID))
    proof = f"time() - ({SCOPE.of_proven(service.LAST_SCRUB)})"
    devices = table(
        "GPUs",
        "Every GPU and slice: its state, how long it has been in this state, whether the kubelet sees it as "
        "Healthy, and the age and coverage of its proof. Only a clean GPU and a GPU in use have a proof. '-' means "
        "that there is no such value. The number links to the page of the GPU.",
        WHERE,
        Column("State", SCOPE.states(*DEVICE_ID), words=STATE_WORDS, filled=True),
        Column("In this state for", since, units.Seconds),
        Column("Offered", largest(SCOPE.of(service.HEALTHY), *DEVICE_ID), words=yes_or_no("yes", "no")),
        Column("Age of the proof", SCOPE.or_missing(proof), units.Seconds, words=NO_PROOF),
        Column("Coverage", SCOPE.or_missing(SCOPE.of_proven(service.COVERAGE)), units.PercentUnit, words=MISSING),
        Column("Temperature", SCOPE.or_missing(SCOPE.of(service.TEMPERATURE)), units.Celsius, words=MISSING),
        Column("Leaked", SCOPE.or_missing(SCOPE.of(service.LEAKED)), units.BytesIEC, words=MISSING),
        links={"GPU": TO_GPU},
        sorted_by=("Node", "GPU"),
        rising=True,
        widths={**WIDTHS, "UUID": 345},
    )
    course = timeline(
        "State of each GPU",
        "The state of each GPU. A gap: Prometheus got no answer.",
        STATE_WORDS,
        Query(with_device(SCOPE.states(*DEVICE_ID)), "{{at}}"),
    )
    return Section("GPUs", 10, ((24, devices), (24, course)))


def _out() -> Section:
    refusals = graph(
        "Refusals by reason",
        "Refused calls of the kubelet. The events of the pod show the last refusal and its reason.",
        units.Short,
        Query(SCOPE.recent_by_labels(plugin.HOOK_REFUSALS, "hook", "reason", alive=plugin.BUILD), "{{at}}"),
        bars=True, empty=NO_PLUGIN,
    )  # fmt: skip
    return Section("Out of service", 9, ((24, quarantined_gpus(SCOPE)), (10, refusals), (14, problems(SCOPE))))


def _heat() -> Section:
    temperature = graph(
        "Temperature",
        "Temperature of whole GPUs, and the lowest temperature from which one of them lowers its "
        "clocks.",
        units.Celsius, Query(with_device(largest(SCOPE.of(service.TEMPERATURE), *DEVICE_ID)), "{{at}}"),
        Query(smallest(SCOPE.of(service.SLOWDOWN)), "slows down at"), colours={"slows down at": BAD}, beside=True,
        empty="No GPU here reports its temperature, or no scrub service is scraped",
    )  # fmt: skip
    power = graph(
        "Power", "Power that whole GPUs draw.", units.Watt,
        Query(with_device(largest(SCOPE.of(service.POWER), *DEVICE_ID)), "{{at}}"),
        beside=True,
        empty="No GPU here reports its power, or no scrub service is scraped",
    )  # fmt: skip
    return Section("Heat and power", 8, ((12, temperature), (12, power)))


def _scrubs() -> Section:
    ended = graph(
        "Scrubs", "Finished scrubs by path and outcome.", units.Short,
        Query(SCOPE.recent_by_labels(service.SCRUB_ENDS, "path", "outcome"), "{{at}}"),
        bars=True, colours={f"{path} passed": colour for path, colour in PATH_COLOURS.items()},
    )  # fmt: skip
    steps = graph(
        "Time of each step", "The 95th percentile of each step. A gap: the step did not run.", units.Seconds,
        Query(SCOPE.quantile(0.95, service.STEP_TIME, "step"), "{{step}}"), colours=STEP_COLOURS,
        empty=NO_EVENT,
    )  # fmt: skip
    found = graph(
        "Processes found", "Processes that scrubs found on their devices, by kind, and processes that they ended.",
        units.Short,
        Query(SCOPE.recent_by(service.PROCESSES, "kind"), "{{kind}} found"),
        Query(SCOPE.increase(service.TERMINATED, within=RECENT), "ended"), bars=True,
    )  # fmt: skip
    return Section("Scrubs", 8, ((8, ended), (8, steps), (8, found)))


def _service() -> Section:
    who = table(
        "Versions", "Versions and policies on each node.",
        {"cluster": "Cluster", "node": "Node", "version": "Version", "backend": "Devices", "policy": "Policy",
         "digest": "Digest"},
        # During an update, a node has two versions for a while.
        Column("Concessions",
               f"{largest(SCOPE.of(service.CONCESSIONS), *PLACE)} * on ({', '.join(PLACE)}) group_right () "
               f"({largest(SCOPE.of(service.POLICY), *PLACE, 'policy', 'digest')} * on ({', '.join(PLACE)}) "
               f"group_left (version, backend) topk by ({', '.join(PLACE)}) (1, "
               f"{largest(SCOPE.of(service.BUILD), *PLACE, 'version', 'backend')}))"),
    )  # fmt: skip
    readings = graph(
        "GPUs reported to the kubelet", "Devices of each resource by the health in the list of the kubelet.",
        units.Short, Query(sum_of(SCOPE.of(plugin.LISTED), "resource", "health"), "{{resource}} {{health}}"),
        colours=HEALTH_COLOURS,
        empty="No device plugin is scraped, or it has no resource",
    )  # fmt: skip
    ledger = graph(
        "Ledger over time",
        "The number of the newest row. It only grows; a fall means that a ledger was lost or set aside.",
        units.Short, Query(largest(SCOPE.of(service.LEDGER_ROWS), *PLACE), "{{node}}"),
    )  # fmt: skip
    return Section("Service", 8, ((12, who), (6, readings), (6, ledger)))


NODE = Page(
    "autoclave-node",
    "Autoclave / Node",
    "Can this node hand out GPUs, what does each GPU do, and does the service work?",
    SCOPE,
    (group_counts(SCOPE, DEVICES_OF_NODES), _status(), _gpus(), _out(), _heat(), _scrubs(), _service()),
)
