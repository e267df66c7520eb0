"""What the queries of the pages mean: promtool evaluates them with invented series."""

import pytest

from dashboards import outages, query, shipped, style
from plugin.metrics import plugin_metrics as plugin
from scrubber.core.model import State
from scrubber.metrics import service_metrics
from tests.dashboards import promtool
from tests.dashboards.panel_queries import panel_queries

pytestmark = promtool.needed

SCOPE = query.QueryScope(("cluster", "node"))
BUILD = 'autoclave_build_info{node="n1"}'
GPU = 'node="n1", gpu="0", uuid="GPU-a"'
ALIVE = {BUILD: "1x60"}
DEAD = {BUILD: "1x10 stale"}


def asked(expression, series, expected):
    """A unit test that evaluates after half an hour, with a sample every half minute and a range of 10 minutes."""
    shown = {**shipped.EVERYTHING, "__range": "10m"}
    question = {
        "expr": shipped.filled(expression, shown),
        "eval_time": "30m",
        "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
    }
    return promtool.unit_test("30s", series, [question])


def answers(tmp_path, expression, series, expected):
    promtool.run_unit_tests(tmp_path, {"query": asked(expression, series, expected)})


CASES = {
    "a counter that grew counts what it grew by": (
        SCOPE.increase(service_metrics.ESCALATIONS), {'autoclave_escalations_total{node="n1"}': "0x50 1x20"}, {"{}": 1},
    ),
    "a counter that was born with its first count and has ended since counts it": (
        SCOPE.increase(service_metrics.ESCALATIONS),
        ALIVE | {'autoclave_escalations_total{node="n1"}': "_x50 1x3 stale"}, {"{}": 1},
    ),
    "a counter of the plugin is born in a plugin": (
        SCOPE.increase(plugin.HOOK_REFUSALS),
        {
            'autoclave_plugin_build_info{node="n1"}': "1x60",
            'autoclave_hook_refusals_total{node="n1", hook="Allocate", reason="in-use"}': "_x50 1x20",
        },
        {"{}": 1},
    ),
    "all that a process has counted that began in the time shown is of that time": (
        SCOPE.increase(service_metrics.ESCALATIONS),
        {
            'autoclave_escalations_total{node="n1"}': "_x50 1x20",
            'process_start_time_seconds{node="n1", job="autoclave-scrubber"}': "_x50 1480x20",
        },
        {"{}": 1},
    ),
    "a counter that is heard after a gap is not born then": (
        SCOPE.increase(service_metrics.ESCALATIONS),
        {
            BUILD: "1x5 stale _x43 1x20",
            'autoclave_escalations_total{node="n1"}': "3x5 stale _x43 3x20",
            'process_start_time_seconds{node="n1", job="autoclave-scrubber"}': "0x5 stale _x43 0x20",
        },
        {"{}": 0},
    ),
    "to a Prometheus that is new no counter is": (
        SCOPE.increase(service_metrics.ESCALATIONS),
        {
            BUILD: "_x50 1x20",
            'autoclave_escalations_total{node="n1"}': "_x50 3x20",
            'process_start_time_seconds{node="n1", job="autoclave-scrubber"}': "_x50 0x20",
        },
        {"{}": 0},
    ),
    "a counter that was not heard for one scrape was not born then": (
        SCOPE.increase(service_metrics.ESCALATIONS),
        {'autoclave_escalations_total{node="n1"}': "7x39 stale 7x20"}, {"{}": 0},
    ),
    "nothing to count is a zero while the service is heard": (
        SCOPE.or_zero(SCOPE.increase(service_metrics.RESIDUE)), ALIVE, {"{}": 0},
    ),
    "nothing to count is nothing when the service is silent": (
        SCOPE.or_zero(SCOPE.increase(service_metrics.RESIDUE)), DEAD, {},
    ),
    "what there is to count is not joined by a zero": (
        SCOPE.or_zero(SCOPE.increase(service_metrics.XIDS, "xid"), "xid"),
        {**ALIVE, f'autoclave_xids_total{{{GPU}, xid="79"}}': "_x50 1x20"}, {'{xid="79"}': 1},
    ),
    "the zero bears a name where others do": (
        SCOPE.or_zero(SCOPE.increase(service_metrics.XIDS, "xid"), "xid"), ALIVE, {'{xid="none"}': 0},
    ),
    "a table is empty while the service is heard": (
        SCOPE.or_not_scraped(query.largest(SCOPE.of(service_metrics.QUARANTINED), "reason"), "reason", -1), ALIVE, {},
    ),
    "a table has a row when nothing is heard": (
        SCOPE.or_not_scraped(query.largest(SCOPE.of(service_metrics.QUARANTINED), "reason"), "reason", -1), DEAD,
        {'{reason="nothing is scraped"}': -1},
    ),
    "a node that is heard is not silent": (SCOPE.silent(), ALIVE, {}),
    "a node that was heard is silent": (SCOPE.silent(), DEAD, {'{node="n1"}': 1}),
    "a node that has not been reached for long is silent as long as it is looked for": (
        SCOPE.silent(), {'up{node="n1", job="autoclave-scrubber"}': "0x60"}, {'{node="n1"}': 0},
    ),
    "a silent node says which part of it is": (
        SCOPE.silent_nodes(),
        {
            'autoclave_build_info{node="n1"}': "1x60", 'autoclave_plugin_build_info{node="n1"}': "1x10 stale",
            'autoclave_build_info{node="n2"}': "1x10 stale", 'autoclave_plugin_build_info{node="n2"}': "1x60",
            'up{node="n3", job="autoclave-scrubber"}': "0x60", 'up{node="n3", job="autoclave-plugin"}': "0x60",
            'autoclave_build_info{node="n4"}': "1x60", 'autoclave_plugin_build_info{node="n4"}': "1x60",
        },
        {'{node="n1"}': 2, '{node="n2"}': 1, '{node="n3"}': 3},
    ),
    "a node whose plugin is not ready is not ready": (
        SCOPE.not_ready(),
        {'autoclave_ready{node="n1"}': "1x60", 'autoclave_plugin_ready{node="n1"}': "0x60"}, {'{node="n1"}': 0},
    ),
    "the counts of a node are those of its newest process": (
        query.sum_of(SCOPE.of(query.DEVICES), "availability"),
        {
            'autoclave_devices{node="n1", instance="old", availability="available"}': "2x60",
            'autoclave_devices{node="n1", instance="old", availability="blocked"}': "0x60",
            'process_start_time_seconds{node="n1", instance="old", job="autoclave-scrubber"}': "100x60",
            'autoclave_devices{node="n1", instance="new", availability="available"}': "1x60",
            'autoclave_devices{node="n1", instance="new", availability="blocked"}': "1x60",
            'process_start_time_seconds{node="n1", instance="new", job="autoclave-scrubber"}': "200x60",
            'autoclave_devices{node="n2", instance="only", availability="available"}': "8x60",
        },
        {'{availability="available"}': 9, '{availability="blocked"}': 1},
    ),
    "only a device that was proven and not soiled since shows its proof": (
        SCOPE.of_proven(service_metrics.COVERAGE),
        {
            f'autoclave_scrub_coverage_ratio{{node="n1", gpu="{gpu}", uuid="GPU-{gpu}"}}': "0.5x60" for gpu in range(7)
        } | {
            f'autoclave_device_state{{node="n1", gpu="{gpu}", uuid="GPU-{gpu}", state="{state}"}}': "1x60"
            for gpu, state in enumerate(style.STATE_COLOURS)
        },
        {f'{{node="n1", gpu="{gpu}", uuid="GPU-{gpu}"}}': 0.5 for gpu in (3, 4, 5)},
    ),
    "a figure of a process is its own also while an update shows two versions of it": (
        query.largest(SCOPE.of_processes(SCOPE.of(query.RESIDENT), service_metrics.BUILD)),
        {
            'process_resident_memory_bytes{node="n1", instance="i"}': "7x60",
            'autoclave_build_info{node="n1", instance="i", version="1"}': "1x60",
            'autoclave_build_info{node="n1", instance="i", version="2"}': "1x60",
        },
        {"{}": 7},
    ),
    "what happened once is in one bar, whenever it was": (
        f"sum_over_time(({SCOPE.increase(service_metrics.XIDS, 'xid', within=query.RECENT)})[25m:90s])",
        ALIVE | {f'autoclave_xids_total{{{GPU}, xid="{it}"}}': f"0x{it} 1x30" for it in (40, 42, 43)},
        {f'{{xid="{it}"}}': 1 for it in (40, 42, 43)},
    ),
    "a state is a number, also while two scrapers tell of it": (
        SCOPE.states(*query.DEVICE_ID),
        {
            f'autoclave_device_state{{{GPU}, pod="{pod}", state="{word}"}}': f"{word == 'dirty':d}x60"
            for pod in "ab" for word in style.STATE_COLOURS
        },
        {f"{{{GPU}}}": 1},
    ),
    "a device without a sensor has a row": (
        SCOPE.or_missing(SCOPE.of(service_metrics.TEMPERATURE)),
        {f'autoclave_device_info{{{GPU}, model="x"}}': "1x60"}, {f"{{{GPU}}}": style.NO_ROW},
    ),
    "a device with a sensor has its figure only": (
        SCOPE.or_missing(SCOPE.of(service_metrics.TEMPERATURE)),
        {
            f'autoclave_device_info{{{GPU}, model="x"}}': "1x60",
            f"autoclave_device_temperature_celsius{{{GPU}}}": "55x60",
        },
        {f"{{{GPU}}}": 55},
    ),
    "a mean is of what was done in the time shown": (
        SCOPE.mean(service_metrics.TIME_TO_CLEAN, *query.PLACE),
        {
            'autoclave_time_to_clean_seconds_sum{node="n1"}': "100x45 104x20",
            'autoclave_time_to_clean_seconds_count{node="n1"}': "1x45 3x20",
        },
        {'{node="n1"}': 2},
    ),
    "a quantile of nothing is not there": (
        SCOPE.quantile(0.95, service_metrics.TIME_TO_CLEAN),
        {
            'autoclave_time_to_clean_seconds_bucket{node="n1", le="1.0"}': "1x70",
            'autoclave_time_to_clean_seconds_bucket{node="n1", le="+Inf"}': "1x70",
        },
        {},
    ),
    "a mean of nothing is not there": (
        SCOPE.mean(service_metrics.TIME_TO_CLEAN, *query.PLACE),
        {
            'autoclave_time_to_clean_seconds_sum{node="n1"}': "100x70",
            'autoclave_time_to_clean_seconds_count{node="n1"}': "1x70",
        },
        {},
    ),
}  # fmt: skip


def test_each_query_returns_the_expected_result(tmp_path):
    promtool.run_unit_tests(tmp_path, {name: asked(*case) for name, case in CASES.items()})


SAID = {
    "gpu": "0",
    "uuid": "GPU-a",
    "state": "clean",
    "reason": "lost",
    "hook": "Allocate",
    "outcome": "ok",
    "le": "5.0",
}


def one_of_each(values):
    """A series of every metric of both tables, for one node with one GPU."""
    made = {}
    for row in (*service_metrics.TABLE, *plugin.TABLE):
        for name in row.series:
            has = [label for label in row.all_labels if label != "le" or name.endswith("_bucket")]
            labels = {label: SAID.get(label, "x") for label in has} | {"cluster": "c", "node": "n1"}
            said = ", ".join(f'{label}="{value}"' for label, value in labels.items())
            made[f"{name}{{{said}}}"] = values
    return made


def test_without_scrapes_no_panel_shows_a_zero(tmp_path):
    """A zero would be green. All series ended 50 minutes ago; the time range is 3 hours."""
    queries = panel_queries({"__range": "3h"})
    kinds = {
        (uid, panel["title"]): panel["type"] for uid, page in shipped.pages().items() for panel in shipped.panels(page)
    }
    stats = [it for it in queries if kinds.get((it.page, it.panel)) == "stat"]
    zeros = [{"expr": f"({it.expression}) == 0", "eval_time": "250m", "exp_samples": []} for it in stats]
    assert len(zeros) > 30
    promtool.run_unit_tests(tmp_path, {"zeros": promtool.unit_test("1m", one_of_each("1x200 stale"), zeros)})


def test_a_probation_without_a_holder_has_no_time(tmp_path):
    """The next test of GPU 0 is in a minute, that of GPU 1 is due, GPU 2 waits for an operator, GPU 3 is tested now."""
    series = ALIVE | {
        f'autoclave_quarantined{{node="n1", gpu="{gpu}", uuid="GPU-{gpu}", reason="x"}}': "1x60" for gpu in range(4)
    }
    for gpu, due in ((0, 1860), (1, 60), (3, 60)):
        series[f'autoclave_quarantine_next_probe_timestamp_seconds{{node="n1", gpu="{gpu}", uuid="GPU-{gpu}"}}'] = (
            f"{due}x60"
        )
    series['autoclave_device_state{node="n1", gpu="3", uuid="GPU-3", state="scrubbing"}'] = "1x60"
    shown = dict(zip(range(4), (60, outages.DUE, outages.NEVER, outages.RUNS), strict=True))
    asked_for = {(it.page, it.panel, it.ref): it.expression for it in panel_queries()}
    for uid in ("autoclave-fleet", "autoclave-node", "autoclave-gpu"):
        answers(
            tmp_path,
            asked_for[uid, "Quarantined GPUs", "C"],
            series,
            {f'{{node="n1", gpu="{gpu}", uuid="GPU-{gpu}", reason="x"}}': value for gpu, value in shown.items()},
        )


def asked_by(uid, title):
    """The only query of a panel."""
    [expression] = [it.expression for it in panel_queries() if (it.page, it.panel) == (uid, title)]
    return expression


@pytest.mark.parametrize("uid", ["autoclave-gpu", "autoclave-node"])
def test_a_quarantined_gpu_is_a_problem(tmp_path, uid):
    """It has its lane, and no lane says that there is no problem."""
    out = {f'autoclave_quarantined{{{GPU}, reason="memory-fault"}}': "1x60"}
    what = "quarantined: memory-fault"
    lane = f'{{{GPU}, reason="memory-fault", what="{what}", at="n1 GPU 0: {what}"}}'
    answers(tmp_path, asked_by(uid, "Problems over time"), ALIVE | out, {lane: 1})
    answers(tmp_path, asked_by(uid, "Problems over time"), ALIVE, {'{at="none"}': 0})


def test_the_lane_of_a_state_has_a_short_label(tmp_path):
    """A label takes the room of its lane. A short UUID is its own label."""
    uuids = {"GPU-f46214a2-799e-410c-96a5-17b18a62b03c": "GPU-f46214a2", "GPU-a": "GPU-a"}
    series = {f'autoclave_device_state{{node="n1", gpu="0", uuid="{uuid}", state="clean"}}': "1x60" for uuid in uuids}
    shown = {
        f'{{node="n1", gpu="0", uuid="{uuid}", short="{short}"}}': style.NUMBER_OF[State.CLEAN]
        for uuid, short in uuids.items()
    }
    answers(tmp_path, asked_by("autoclave-gpu", "State over time"), series, shown)


# Firing alerts: labels, for how many seconds each is true, and the cell of its details in the table.
FIRING = (
    ({"alertname": "AutoclaveGpuQuarantined", "gpu": "1", "uuid": "GPU-b", "reason": "memory-fault"}, 900,
     "memory-fault"),
    ({"alertname": "AutoclaveGpuFatalXid", "gpu": "0", "uuid": "GPU-a", "xid": "79"}, 600, "79"),
    ({"alertname": "AutoclaveRegistrationsFailing", "resource": "nvidia.com/gpu", "outcome": "refused"}, 300,
     "nvidia.com/gpu refused"),
    ({"alertname": "AutoclaveTargetDown", "job": "autoclave-plugin"}, 60, "autoclave-plugin"),
    ({"alertname": "AutoclaveLedgerFault"}, 30, ""),
)  # fmt: skip


def test_firing_alerts_show_their_details_and_their_age(tmp_path):
    """An alert without further labels has no details. Of two alerts that share a row, the older one counts."""
    twin = ({**FIRING[0][0], "uuid": "GPU-c"}, 300)
    series, rows, now = dict(ALIVE), [], 120  # early, because promtool evaluates all rules up to this time
    for labels, seconds, *details in (*FIRING, twin):
        place = 'node="n1", severity="warning", ' + ", ".join(f'{name}="{value}"' for name, value in labels.items())
        series |= {
            f'ALERTS{{{place}, alertstate="firing"}}': "1x10",
            f"ALERTS_FOR_STATE{{{place}}}": f"{now - seconds}x10",
        }
        row = {name: labels[name] for name in ("alertname", "gpu") if name in labels} | {"summary": labels["alertname"]}
        row |= {"node": "n1", "severity": "warning", "details": "".join(details)}
        shown = ", ".join(f'{name}="{value}"' for name, value in row.items() if value)
        rows += [{"labels": f"{{{shown}}}", "value": seconds}] if details else []
    series['ALERTS{alertname="AutoclaveNodeOut", node="n1", alertstate="pending"}'] = "1x10"
    series['ALERTS_FOR_STATE{alertname="AutoclaveNodeOut", node="n1"}'] = "0x10"
    question = {"expr": asked_by("autoclave-fleet", "Firing alerts"), "eval_time": f"{now}s", "exp_samples": rows}
    promtool.run_unit_tests(tmp_path, {"alerts": promtool.unit_test("30s", series, [question])})


def test_a_plugin_that_is_down_makes_the_fleet_unhealthy(tmp_path):
    alive = {BUILD: "1x60", 'autoclave_ready{node="n1"}': "1x60"}
    dead = {'autoclave_plugin_build_info{node="n1"}': "1x10 stale", 'autoclave_plugin_ready{node="n2"}': "0x60"}
    expressions = {it.panel: it.expression for it in panel_queries() if it.page == "autoclave-fleet"}
    for title in ("Nodes silent", "Nodes not ready"):
        answers(tmp_path, expressions[title], alive | dead, {"{}": 1})


def test_versions_are_shown_also_during_an_update(tmp_path):
    update = {
        f'autoclave_build_info{{node="n1", version="{it}", backend="nvidia", instance="{it}"}}': "1x60" for it in "12"
    }
    policy = {'autoclave_policy_info{node="n1", policy="p", digest="d"}': "1x60"}
    versions = next(it.expression for it in panel_queries() if (it.page, it.panel) == ("autoclave-node", "Versions"))
    answers(
        tmp_path, f"count({versions})", update | policy | {'autoclave_policy_concessions{node="n1"}': "0x60"}, {"{}": 1}
    )


def test_a_quarantine_is_marked_once_at_any_query_interval(tmp_path):
    out = {f'autoclave_quarantined{{{GPU}, reason="lost"}}': "_x21 1x60"}  # 10 minutes 30 seconds after the beginning
    event = next(it["expr"] for it in shipped.pages()["autoclave-fleet"]["annotations"]["list"])
    marks = shipped.filled(event, {**shipped.EVERYTHING, "__interval": "5m"})
    answers(tmp_path, f"sum_over_time(({marks})[25m:5m])", out, {f'{{{GPU}, reason="lost"}}': 1})
