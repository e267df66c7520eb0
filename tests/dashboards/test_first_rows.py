"""What a person sees first on each page on a bad day: promtool evaluates the first row for a fleet of two nodes."""

from dashboards import shipped
from dashboards.style import NO_ROW
from scrubber.core.model import Availability, State
from tests.dashboards import promtool
from tests.dashboards.panel_queries import panel_queries

pytestmark = promtool.needed

# Each GPU with its state and its group. GPU 0 of n1 is dirty and blocked. All GPUs were proven clean once.
NODES = {
    "n1": [("dirty", "blocked"), ("in_use", "in_use"), ("clean", "available"), ("scrubbing", "preparing")],
    "n2": [
        ("quarantined", "quarantined"),
        ("quarantined", "quarantined"),
        ("granted", "in_use"),
        ("clean", "available"),
    ],
}
COVERED = {"dirty": 0.5, "in_use": 0.9, "quarantined": 0.6, "scrubbing": 0.7}
NOW = 1800  # seconds: the time of the queries


def bad_day() -> dict[str, float]:
    series: dict[str, float] = {}
    for node, gpus in NODES.items():
        series |= {
            f'autoclave_build_info{{node="{node}"}}': 1,
            f'autoclave_plugin_build_info{{node="{node}"}}': 1,
            f'autoclave_plugin_ready{{node="{node}"}}': node == "n1",
            f'autoclave_scrubber_connected{{node="{node}"}}': 1,
            f'autoclave_kubelet_connected{{node="{node}", resource="nvidia.com/gpu"}}': node == "n1",
            f'autoclave_dra_build_info{{node="{node}"}}': 1,
            f'autoclave_dra_ready{{node="{node}"}}': node == "n1",
            f'autoclave_dra_registered{{node="{node}"}}': 1,
            f'autoclave_slice_written{{node="{node}"}}': node == "n1",
            f'autoclave_ledger_fault{{node="{node}"}}': node == "n2",
        }
        for group in Availability:
            series[f'autoclave_devices{{node="{node}", availability="{group.value}"}}'] = sum(
                group.value == counted for _, counted in gpus
            )
        for number, (state, counted) in enumerate(gpus):
            gpu = f'node="{node}", gpu="{number}", uuid="GPU-{node}-{number}"'
            series |= {
                f"autoclave_device_info{{{gpu}}}": 1,
                f'autoclave_device_state{{{gpu}, state="{state}"}}': 1,
                f"autoclave_device_state_since_timestamp_seconds{{{gpu}}}": NOW - 60,
                f"autoclave_device_healthy{{{gpu}}}": counted in ("available", "in_use"),
                f"autoclave_last_scrub_timestamp_seconds{{{gpu}}}": NOW - 600,
                f"autoclave_scrub_coverage_ratio{{{gpu}}}": COVERED.get(state, 1),
            }
    return series


# For each page and choice of variables: the values of the first row, in order. None: no value.
FIRST_ROWS: list[tuple[str, dict[str, str], dict[str, float | None]]] = [
    ("autoclave-fleet", {}, {
        "All GPUs": 8, "Available": 2, "In use": 2, "Preparing": 1, "Blocked": 1, "Quarantined": 2,
    }),
    ("autoclave-node", {"node": "n1"}, {
        "All GPUs": 4, "Available": 1, "In use": 1, "Preparing": 1, "Blocked": 1, "Quarantined": 0,
    }),
    ("autoclave-gpu", {"node": "n1", "gpu": "0"}, {
        "Offered": 0, "State": list(State).index(State.DIRTY), "In this state for": 60,
        "Age of the proof": NO_ROW, "Coverage": NO_ROW, "Residue found": 0, "Unauthorised use": 0, "Driver errors": 0,
    }),
    ("autoclave-gpu", {"node": "n1", "gpu": "1"}, {
        "Offered": 1, "State": list(State).index(State.IN_USE), "In this state for": 60,
        "Age of the proof": 600, "Coverage": 0.9, "Residue found": 0, "Unauthorised use": 0, "Driver errors": 0,
    }),
    ("autoclave-scrubs", {}, {
        "Scrubs": 0, "Passed": None, "Lowest coverage": 0.9, "Overwritten": 0, "Escalated": 0, "Residue found": 0,
    }),
    ("autoclave-hooks", {}, {
        "Plugins": 2, "Silent plugins": 0, "Plugins not ready": 1, "No scrub service": 0, "No kubelet": 1,
        "Refusals": 0,
    }),
    ("autoclave-claims", {}, {
        "Drivers": 2, "Silent drivers": 0, "Drivers not ready": 1, "Not registered": 0, "Slices not written": 1,
        "Refused claims": 0,
    }),
    ("autoclave-security", {}, {"Residue found": 0, "Unauthorised use": 0, "Ledger faults": 1}),
]  # fmt: skip


def test_the_first_row_of_each_page_shows_the_bad_day(tmp_path):
    series = {name: f"{float(value):g}x60" for name, value in bad_day().items()}
    questions = []
    assert {uid for uid, *_ in FIRST_ROWS} == set(shipped.pages())
    for uid, chosen, expected in FIRST_ROWS:
        asked = {it.panel: it.expression for it in panel_queries(chosen) if it.page == uid}
        assert [panel["title"] for panel in shipped.first_row(shipped.pages()[uid])] == list(expected)
        for title, value in expected.items():
            found = [] if value is None else [{"labels": "{}", "value": value}]
            questions.append({"expr": f"sum({asked[title]})", "eval_time": f"{NOW}s", "exp_samples": found})
    promtool.run_unit_tests(tmp_path, {"first rows": promtool.unit_test("30s", series, questions)})
