"""What is printed: tables for people and for grep, documents for programs. The forms are a contract."""

import asyncio
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text
from ruamel.yaml import YAML

from autoclave.cli import service_call, worst
from autoclave.cli.output import document, human, terminal_tables, text_tables
from autoclave.cli.verbs import explain, history, scrub, status
from scrub_api import views
from scrub_api.measurements import PATTERN_LEFT, UNSEARCHED
from tests.cli.statuses import BUSY, CLEAN, DEEP, NOW, QUARANTINE, RECEIPT, SERVICE, SICK


def used(row, gpu="GPU-a", **owner):
    """A row that says who uses a GPU."""
    body = {"owner": {"container": "pod-1", "since": {"uptime": row, "wall": row}, **owner}}
    return replace(ENTRY, seq=row, device=gpu, kind="in-use", body=json.dumps(body))


def test_the_start_of_a_container_is_one_row():
    """Admitted for the kubelet, then for the container runtime, named, and seen."""
    start = [used(1), used(2), used(4, name="ns/pod/main"), used(5, name="ns/pod/main", seen=True)]
    other = used(3, "GPU-b", seen=True)
    again = [used(6, name="ns/pod/main", seen=False), used(7, name="ns/pod/main", seen=True)]
    crowded = used(8, name="ns/pod/main", seen=True, crowded=True)
    rows = [*start[:2], other, *start[2:], *again, crowded]
    assert [entry.seq for entry in text_tables.one_for_each_start(rows)] == [3, 5, 7, 8]
    released = replace(ENTRY, seq=2, device="GPU-a")
    assert [entry.seq for entry in text_tables.one_for_each_start([used(1), released, used(3)])] == [1, 2, 3]


ENTRY = views.HistoryEntry(7, CLEAN.device, 0, NOW, "op1", "released", "released: gone", '{"why": "gone"}')


def test_the_status_table_has_one_note_for_each_device():
    rows = text_tables.status([CLEAN, SICK, BUSY], NOW)
    assert rows == [
        ["0", "GPU-aaaaaaaa", "clean", "5m", "yes", ""],
        ["1", "GPU-bbbbbbbb", "quarantined", "5m", "no", "xid: xid 79 was reported; next probation in 45s"],
        ["2", "GPU-cccccccc", "scrubbing", "5m", "yes", "slow path: clear 75%"],
    ]


OPENER = views.OpenerView("nvtop", 9, "telegraf.service", "", 0.0, NOW, times=1000, refused=1000)
ASKING = replace(CLEAN, fence="refuse", openers=(OPENER, replace(OPENER, place="uid-1", pod="ml/train", refused=0)))


def test_an_explanation_names_who_asked_for_a_gpu_of_others():
    assert story(ASKING)[-5:-2] == [
        "fence   refuse",
        'asked   "nvtop" (pid 9, ml/train): at least 1000 open attempts, none refused, last 1m ago',
        '        "nvtop" (pid 9, telegraf.service): at least 1000 open attempts, 1000 refused, last 1m ago',
    ]


@pytest.mark.parametrize("days", [(2, 0), (3, 2)])
def test_who_has_not_asked_for_a_day_is_only_counted(days):
    openers = [replace(OPENER, command=f"top{day}", last=NOW - day * 86_400.0) for day in days]
    [newest, earlier] = story(replace(ASKING, openers=tuple(openers)))[-4:-2]
    assert newest.startswith(f'asked   "top{days[-1]}" ')
    assert earlier == "        1 more opener of the last week: `autoclave history 0 --warnings`"


def test_a_status_says_what_the_fence_does_in_one_line():
    assert text_tables.fence([CLEAN], "") == ""
    assert text_tables.fence([ASKING, replace(BUSY, fence="watch")], "") == (
        "fence: refuse on 1 GPU, watch on 1 GPU; 2 programs asked for GPUs that were not given to them: "
        "`autoclave explain 0`"
    )
    assert text_tables.fence([replace(CLEAN, fence="watch")], "") == "fence: watch on 1 GPU"
    assert text_tables.fence([replace(CLEAN, fence=views.WATCHES_ONLY)], "") == "fence: only watch on 1 GPU"


def test_a_fence_that_is_missing_is_said_with_its_reason(capsys, monkeypatch):
    """By ``status`` on a terminal, also with --watch, and by ``explain``."""
    without = replace(SERVICE, fence_lacks="no bpf")
    said = "fence: none stands, and pods are not kept off GPUs of others: no bpf"
    form = status.Form(status.Selection(), "table")
    monkeypatch.setattr(status, "for_people", lambda _output: True)
    status.show(views.Status((CLEAN,), without), form)
    assert capsys.readouterr().out.splitlines()[-1] == said
    assert [*status.page([CLEAN], 1, form, (), "no bpf").below(1)][-1] == said
    lines = [*explain.story(views.Explanation(CLEAN, (ENTRY,), (), "it is named"), without, NOW)]
    assert "fence   none stands, so it is not known who asks for the GPU: no bpf" in lines


OWN = views.HolderView(7, "", "train", "uid-7")
EVIL = views.HolderView(8, "", "evil", "uid-8", "ns/evil", foreign=True)
HOST = views.HolderView(9, "", "mon", "", foreign=True)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"state": "in_use", "owner": "pod-7"}, "used by pod-7"),
        ({"state": "in_use", "owner": "uid-7", "pod": "ns/train/a, ns/train/b"}, "used by ns/train/a, ns/train/b"),
        ({"state": "granted", "why": "granted", "pod": "ns/train/a"}, "granted to ns/train/a"),
        ({"state": "granted", "why": "granted"}, ""),
        ({"state": "granted", "why": "granted", "owner": "4711"}, "granted to 4711"),
        ({"state": "in_use", "healthy": False, "why": "sick: xid 79", "owner": "4711"}, "used by 4711; sick: xid 79"),
        ({"state": "in_use", "owner": "4711"}, "used by 4711"),
        (
            {"state": "in_use", "owner": "4711", "holders": (OWN, EVIL, HOST, EVIL), "was_shared": True},
            'used by 4711, and also by ns/evil, "mon" (pid 9, no container)',
        ),
        (
            {"state": "in_use", "owner": "4711", "holders": (OWN,), "was_shared": True},
            "used by 4711; another container was on it, too",
        ),
        (
            {"state": "in_use", "owner": "uid-8", "pod": "ns/evil", "holders": (EVIL,)},
            "opened while idle, by ns/evil",
        ),
        ({"state": "dirty", "why": "dirty", "setback": "a process would not go"}, "a process would not go"),
        ({"state": "dirty", "why": "released, about to be scrubbed"}, "released, about to be scrubbed"),
        ({"job": views.JobStatus("j", "fast", "retry", "", NOW, 0, 0)}, "fast path: starting"),
        ({"job": views.JobStatus("j", "fast", "retry", "", NOW, 0, 0, 12)}, "waiting for a slot, 12th (fast path)"),
        ({"job": views.JobStatus("j", "slow", "retry", "", NOW, 9, 9)}, "slow path: between two steps"),
        ({"job": views.JobStatus("j", "fast", "retry", "evict", NOW, 0, 0)}, "fast path: ending processes (evict)"),
    ],
)
def test_a_note_is_an_owner_job_setback_or_reason(change, shown):
    assert text_tables.describe(replace(CLEAN, **change)) == shown


FULL = replace(
    CLEAN, state="in_use", healthy=False, why="sick: hot", numa_node=1, pci_address="0000:3b:00.0", mig=True,
    receipt=DEEP, owner="uid-7", pod="ns/train/a", setback="late", compute="9.0", reset_domain="d", ecc=True,
    use_counter="fence in the kernel", use_counter_kind="fence",
)  # fmt: skip


def test_a_note_about_somebody_else_names_the_next_command():
    shared = replace(CLEAN, state="in_use", owner="4711", holders=(OWN, EVIL))
    said = "used by 4711, and also by ns/evil: `autoclave explain 0`"
    assert [row[-1] for row in (*text_tables.status([shared], NOW), *text_tables.wide([shared], NOW))] == [said, said]
    quarantined = replace(SICK, holders=(EVIL,))
    assert "autoclave explain" not in text_tables.status([quarantined], NOW)[0][-1]


def test_wide_has_these_columns_and_the_page_describes_each():
    """A new column turns this test red: it needs an expected cell here, and a row in docs/cli.md."""
    [row] = text_tables.wide([FULL], NOW)
    assert dict(zip(text_tables.WIDE, row, strict=True)) == {
        "GPU": "0", "UUID": "GPU-aaaaaaaa-0000", "STATE": "in_use", "FOR": "5m", "HEALTHY": "no", "MEMORY": "64MiB",
        "PCI": "0000:3b:00.0", "NUMA": "1", "DRIVER": "simulated 1.0", "POLICY": "defaults",
        "RECEIPT": "3dac54cd6a98ac39", "COVERAGE": "99.50%", "USES": "fence",
        "MODEL": "Simulated GPU (MIG)", "NOTE": "used by ns/train/a; sick: hot",
    }  # fmt: skip
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    table_of_columns = page.split("## The columns of `status -o wide`")[1].split("\n## ")[0]
    named = [name for line in table_of_columns.splitlines() for name in re.findall(r"`([A-Z]+)`", line.split(" | ")[0])]
    assert sorted(named) == sorted(text_tables.WIDE)


def test_a_plain_table_has_no_colours_lines_or_trailing_spaces():
    text = text_tables.plain(text_tables.STATUS, text_tables.status([CLEAN, SICK], NOW))
    assert text == (
        "GPU  UUID          STATE        FOR  HEALTHY  NOTE\n"
        "0    GPU-aaaaaaaa  clean        5m   yes      -\n"
        "1    GPU-bbbbbbbb  quarantined  5m   no       xid: xid 79 was reported; next probation in 45s"
    )


def test_a_plain_table_truncates_no_cell():
    assert "x" * 500 in text_tables.plain(["A", "B"], [["1", "x" * 500]])


def test_a_slice_is_named_by_gpu_and_number():
    assert text_tables.status([replace(SICK, slice=3)], NOW)[0][0] == "1:3"


def test_a_cell_cannot_break_out_of_its_line():
    assert text_tables.plain(["A"], [["x\ny\x1b[2J"]]) == "A\nx\\ny\\x1b[2J"


def drawn(width):
    paper = io.StringIO()
    console = Console(width=width, force_terminal=True, file=paper)
    rows = text_tables.status([CLEAN, replace(SICK, quarantine=replace(QUARANTINE, detail="[bold]x[/bold] " * 9))], NOW)
    console.print(terminal_tables.drawn(text_tables.STATUS, rows))
    return paper.getvalue()


def test_a_drawn_table_keeps_all_words_in_80_columns():
    text = Text.from_ansi(drawn(80)).plain
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("[bold]x[/bold]") == 9
    assert "quarantined" in text


def table_of(output, gpus):
    devices = [replace(SICK if number % 2 else CLEAN, index=number) for number in range(gpus)]
    match output:
        case "history":
            return text_tables.HISTORY, text_tables.history(
                [replace(ENTRY, index=number, text="x " * 90) for number in range(gpus)]
            )
        case "wide":
            return text_tables.WIDE, text_tables.wide(devices, NOW)
    return text_tables.STATUS, text_tables.status(devices, NOW)


@pytest.mark.parametrize("width", [60, 80, 120, 200, 300])
@pytest.mark.parametrize("gpus", [1, 112])
@pytest.mark.parametrize("output", ["table", "wide", "history"])
def test_a_table_shows_all_cells_on_any_terminal(monkeypatch, capsys, output, width, gpus):
    monkeypatch.setenv("COLUMNS", str(width))
    headers, rows = table_of(output, gpus)
    terminal_tables.show(headers, rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(headers)
    first = [line for line in lines[1:] if line[:1].strip(" ─")]  # a note may go on in a further line
    for row, line in zip(rows, first, strict=True):
        assert [cell for cell in row[:-1] if cell not in line] == []


@pytest.mark.parametrize("output", ["table", "wide", "history"])
def test_a_table_on_a_narrow_terminal_is_not_padded(monkeypatch, capsys, output):
    """The terminal would wrap the padding, and show empty lines."""
    monkeypatch.setenv("COLUMNS", "40")
    headers, rows = table_of(output, 8)
    terminal_tables.show(headers, [*rows, [*rows[0][:-1], "y" * 300]])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert len(lines) == 10


def test_common_tables_have_one_line_for_each_gpu(monkeypatch, capsys):
    gpu = replace(
        FULL, device="GPU-8665cd2c-72d3-499e-bb41-f999f998535c", model="NVIDIA H100 80GB HBM3", memory_bytes=79 * 2**30,
        driver="580.95.05 1", policy_rule="site/h100-nodes", mig=False, state="scrubbing", pod="", owner="",
        job=views.JobStatus("j", "fast", "retry", "clear", NOW, 10, 100),
    )  # fmt: skip
    done = views.ScrubProgress(gpu.device, "", result=views.ScrubResult(clean=True, state="clean", receipt=DEEP))
    tables = {
        80: (text_tables.RESULTS, text_tables.results([done], {gpu.device: gpu})),
        200: (text_tables.WIDE, text_tables.wide([gpu], NOW)),
    }
    for width, (headers, rows) in tables.items():
        monkeypatch.setenv("COLUMNS", str(width))
        terminal_tables.show(headers, rows)
        lines = capsys.readouterr().out.splitlines()
        assert (len(lines), max(map(len, lines)) <= width) == (3, True), lines


def test_a_terminal_gets_colours_unless_they_are_turned_off(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in drawn(80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in drawn(80)


def as_read(made):
    """A document as a program gets it."""
    return json.loads(json.dumps(made))


def test_the_status_document_has_devices_and_service():
    made = as_read(status.as_document(views.Status((CLEAN, SICK), SERVICE)))
    assert list(made) == ["apiVersion", "kind", "items", "service"]
    assert (made["apiVersion"], made["kind"]) == ("autoclave/v1", "DeviceStatusList")
    first, second = made["items"]
    assert first["since"] == "2027-01-15T07:55:00.000Z"
    assert first["receipt"]["finished"] == "2027-01-15T08:00:00.000Z"
    assert first["receipt"]["steps"] == [{"step": "clear", "seconds": 0.5}, {"step": "verify", "seconds": 0.25}]
    assert (first["numa_node"], first["quarantine"]) == (None, None)
    assert second["quarantine"]["next_probe_seconds"] == 45.0
    assert made["service"]["started"] == "2027-01-15T08:00:00.000Z"


def test_every_field_of_a_view_stands_in_its_document():
    made = as_read(document.fields(replace(CLEAN, receipt=DEEP)))
    assert list(made) == list(views.DeviceStatus.__dataclass_fields__)
    assert made["receipt"]["uncovered"] == [{"cause": "own context", "bytes": 3}, {"cause": "unexplained", "bytes": 2}]
    assert list(made["receipt"]) == list(views.ReceiptView.__dataclass_fields__)


def test_json_and_yaml_say_the_same(capsys):
    made = status.as_document(views.Status((CLEAN, SICK), SERVICE))
    document.emit(made, "json")
    as_json = json.loads(capsys.readouterr().out)
    document.emit(made, "yaml")
    as_yaml = YAML(typ="safe", pure=True).load(capsys.readouterr().out)
    assert as_json == as_yaml == made


def test_an_event_in_a_document_has_fields():
    made = document.entry(ENTRY)
    assert made["body"] == {"why": "gone"}
    explanation = views.Explanation(CLEAN, (ENTRY,), ("do it",), "because")
    assert document.explanation(explanation)["entries"] == [made]


def story(device, *advice, entries=(ENTRY,)):
    explanation = views.Explanation(device, entries, advice, "the defaults, because the policy has no rules")
    return list(explain.story(explanation, replace(SERVICE, policy_source="site.yaml"), NOW + 60))


def test_an_explanation_has_history_state_and_remedy():
    held = replace(SICK, holders=(views.HolderView(7, "ann", "train", "pod-a"),))
    """Each advice has a line of its own, whatever its words."""
    head, blank, now, *lines, last = story(held, "look; up: `autoclave xid 79`", "then `autoclave reinstate 1`")
    assert (head, blank) == ("GPU 1  GPU-bbbbbbbb-0000  Simulated GPU, 64MiB", "")
    assert now.startswith("now     quarantined since ")
    assert lines == [
        "        xid: xid 79 was reported",
        "        next probation, on the slow path, in 45s; probations so far: 2, last result: clear failed",
        '        used by "train" (pid 7, user ann, pod-a)',
        "        not offered to pods or jobs",
        "advice  look; up: `autoclave xid 79`",
        "        then `autoclave reinstate 1`",
        "policy  default (site.yaml): the defaults, because the policy has no rules",
        "",
    ]
    assert last.endswith("    1m ago  released: gone")


def test_a_scrub_without_progress_says_for_how_long():
    job = views.JobStatus("j1", "fast", "request", "clear", NOW, 17, 100, None, None, 45.0, 60.0, still_seconds=41.0)
    device = replace(BUSY, job=job)
    stalled = "fast path: clear 17%, no progress for 41s"
    assert text_tables.describe(device) == stalled
    assert f"a scrub runs: {stalled}, for 45s of at most 1m" in [line.strip() for line in story(device)]
    assert "progress" not in text_tables.describe(replace(device, job=replace(job, still_seconds=14.0)))


@pytest.mark.parametrize(
    ("device", "work", "before"),
    [
        (SICK, "a probation runs", "the probation before it ended with: clear failed"),
        (replace(BUSY, setback="clear failed"), "a scrub runs", "the scrub before it failed: clear failed"),
    ],
    ids=["probation", "scrub"],
)
def test_a_scrub_that_runs_shows_its_step_and_limit(device, work, before):
    job = views.JobStatus("j1", "slow", "request", "clear", NOW, 30, 40, step_seconds=12.0, step_limit=150.0)
    device = replace(device, job=job)
    lines = [line.strip() for line in story(device)]
    assert f"{work}: slow path: clear 75%, for 12s of at most 2m" in lines
    assert before in lines
    assert "next probation" not in "\n".join((*lines, text_tables.describe(device)))


def test_the_advice_during_a_ledger_fault_is_the_doctor():
    explanation = views.Explanation(CLEAN, (ENTRY,), ("let its owner end first",), "it has no rules")
    lines = [*explain.story(explanation, replace(SERVICE, ledger_fault="disk is full", policy_source="default"), NOW)]
    assert "        let its owner end first" in lines, "the advice for the GPU itself comes after it"
    assert "policy  default (shipped): it has no rules" in lines
    assert "advice  repair the ledger: `autoclave doctor` says how" in lines


def test_a_probation_that_is_due_says_what_it_waits_for():
    due = replace(SICK, quarantine=replace(QUARANTINE, next_probe_seconds=0.0))
    assert text_tables.describe(due).endswith("next probation as soon as the fault has ended and nothing prevents it")
    for fault, waits in (("", "the fault has ended and no process has the GPU open"), ("full", "the ledger can be")):
        explained = views.Explanation(due, (), (), "it has no rules")
        said = "\n".join(explain.story(explained, replace(SERVICE, ledger_fault=fault), NOW))
        assert f"path, as soon as {waits}" in said


def test_an_explanation_of_a_clean_device_names_its_receipt():
    shown = "\n".join(story(CLEAN))
    assert "proven by receipt 3dac54cd6a98ac39, not signed\n" in shown
    signed = replace(CLEAN, receipt=replace(RECEIPT, signed_by="0123456789abcdef"))
    assert "receipt 3dac54cd6a98ac39, signed by 0123456789abcdef" in "\n".join(story(signed))


def test_an_explanation_shows_the_amounts_of_the_proof():
    lines = [line.strip() for line in story(replace(CLEAN, receipt=DEEP)) if line.startswith(" " * 10)]
    assert lines == [
        "995B of 1000B (99.50%) random and zero written and read back",
        "not covered: 3B own context, 2B unexplained",
        "1MiB of residue, the first at 0x1000",
        "shared memory and registers overwritten on 132/132 units, 132KiB of shared memory out of reach",
        "not overwritten on the chip: caches, tensor memory",
        "tested: address, arithmetic",
        "use counter: none: no fence guards it",
    ]


def test_an_explanation_leaves_out_steps_that_did_not_run():
    lines = [line.strip() for line in story(CLEAN) if line.startswith(" " * 10)]
    assert lines == ["995B of 1000B (99.50%) overwritten and read back", "1MiB of residue"]


def test_an_explanation_says_that_a_pattern_stays_in_memory():
    receipt = replace(RECEIPT, patterns=("random",))
    lines = [line.strip() for line in story(replace(CLEAN, receipt=receipt)) if line.startswith(" " * 10)]
    assert lines[:2] == ["995B of 1000B (99.50%) random written and read back", PATTERN_LEFT]


def test_residue_is_unknown_after_a_clear_that_did_not_end():
    receipt = replace(RECEIPT, residue_bytes=0, searched_bytes=0)
    lines = [line.strip() for line in story(replace(CLEAN, receipt=receipt)) if line.startswith(" " * 10)]
    assert lines[1:] == [UNSEARCHED]
    [row] = text_tables.results([progress(CLEAN, result=replace(PASSED, receipt=receipt))], {CLEAN.device: CLEAN})
    assert row[2:4] == ["yes", "unknown"]


def test_an_explanation_names_the_pod_and_its_uid():
    shown = "\n".join(story(replace(CLEAN, state="in_use", owner="uid-7", pod="ns/train/main", receipt=None)))
    assert (
        "        used by ns/train/main\n        its owner is called uid-7 in the events\n        healthy: clean\n"
        in shown
    )
    for device in (replace(CLEAN, owner="uid-7"), replace(CLEAN, state="granted", pod="ns/train/main")):
        assert "in the events" not in "\n".join(story(device))


def test_an_explanation_ends_with_the_last_events():
    def step(outcome) -> views.HistoryEntry:
        body = json.dumps({"results": [{"outcome": "passed"}, {"outcome": outcome}]})
        return replace(ENTRY, kind="steps-recorded", text=f"evict passed; clear {outcome}", body=body)

    begun = replace(ENTRY, kind="scrub-started", text="scrub started")
    older = [replace(ENTRY, text=f"event {number}") for number in range(4)]
    lines = story(CLEAN, entries=(*older, begun, step("passed"), step("failed"), ENTRY, begun))
    assert lines[-6] == "last 5 of 6 events; all: `autoclave history 0 --steps`"
    shown = [line[line.index("ago") + 5 :] for line in lines[-5:]]
    assert shown == ["event 1", "event 2", "event 3", "evict passed; clear failed", "released: gone"]


@pytest.mark.parametrize(
    ("since", "limit", "steps", "said"),
    [
        (10.0, None, False, f"the ledger has no events from before {human.local(100.0)}"),
        (100.0, None, False, ""),
        (100.0, None, True, f"the ledger has no steps from before {human.local(1000.0)}"),
        (1000.0, None, True, ""),
    ],
)
def test_history_says_which_events_are_no_longer_there(since, limit, steps, said):
    assert history.left_out((100.0, 1000.0), since, limit, steps=steps) == said
    assert history.left_out((0.0, 0.0), 0.0, None, steps=True) == ""


class Admin:
    """Answers ``autoclave history`` from these rows."""

    def __init__(self, rows) -> None:
        self.rows = rows

    async def status(self, _gpus):
        return views.Status((), SERVICE)

    async def history(self, _gpu, *, limit, **_):
        return tuple(self.rows[-limit:])


@pytest.mark.parametrize(
    ("output", "rows"),
    [(("-o", "table"), [2, 4, 6]), (("-o", "table", "--steps"), [4, 5, 6]), (("-o", "jsonl"), [4, 5, 6])],
)
def test_the_limit_counts_what_history_shows(monkeypatch, output, rows):
    """Only the table shows a start as one event, and it does so before the limit."""
    starts = [used(row, name=f"ns/pod-{(row + 1) // 2}/main", seen=row % 2 == 0) for row in range(-1, 7)]
    monkeypatch.setattr(service_call, "ask", lambda _, ask: asyncio.run(ask(Admin(starts))))
    run = CliRunner().invoke(history.history, ["-n", "3", *output])
    assert [int(row) for row in re.findall(r'^(?:\{.*"seq": ?)?(\d+)', run.stdout, re.MULTILINE)] == rows
    assert " newest 3; " in run.stderr


async def stream(*messages):
    for message in messages:
        yield message


def progress(device, **about):
    return views.ScrubProgress(device.device, "j1", **about)


PASSED = views.ScrubResult(clean=True, state="clean", receipt=RECEIPT)
FAILED = views.ScrubResult(clean=False, state="quarantined", why="bit 3 is stuck", reason="scrub-failed")
GRANTED = views.ScrubResult(clean=False, state="granted", why="it: is; granted", reason="in-use", remedies=("end it",))
BOTH = {CLEAN.device: CLEAN, SICK.device: SICK}


async def test_following_prints_no_step_without_a_terminal(capsys):
    messages = (
        progress(CLEAN, queue_place=2), progress(CLEAN, queue_place=1),
        progress(CLEAN, step="evict"), progress(CLEAN, step="clear", done_bytes=1, total_bytes=9),
        progress(CLEAN, step="clear", done_bytes=5, total_bytes=9), progress(SICK, step="evict"),
        progress(CLEAN, result=PASSED), progress(SICK, result=FAILED),
    )  # fmt: skip
    results = await scrub.follow(stream(*messages), BOTH)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert {device: it.result for device, it in results.items()} == {CLEAN.device: PASSED, SICK.device: FAILED}


async def test_a_device_without_a_result_is_not_clean(capsys):
    results = await scrub.follow(stream(progress(CLEAN, result=PASSED)), BOTH)
    assert scrub.report(results, BOTH, "table", "scrub") == 1
    shown = capsys.readouterr()
    assert "1    GPU-bbbbbbbb  no" in shown.out
    assert "GPU 1 is not clean: the service sent no result" in shown.err


def test_a_device_that_appeared_meanwhile_counts_for_the_exit_code(capsys):
    results = {CLEAN.device: progress(CLEAN, result=PASSED), SICK.device: progress(SICK, result=FAILED)}
    assert scrub.report(results, {CLEAN.device: CLEAN}, "table", "scrub") == 1
    assert f"GPU {SICK.device} is not clean" in capsys.readouterr().err


def test_a_slow_result_shows_the_number_of_tests():
    passed = replace(PASSED, receipt=DEEP)
    [row] = text_tables.results([progress(CLEAN, result=passed)], BOTH)
    assert dict(zip(text_tables.RESULTS, row, strict=True)) == {
        "GPU": "0", "UUID": "GPU-aaaaaaaa", "CLEAN": "yes", "RESIDUE": "1MiB", "COVERAGE": "99.50%",
        "TESTS": "2", "TIME": "0.75s", "RECEIPT": "3dac54cd6a98ac39",
    }  # fmt: skip


def test_every_result_has_a_cell_in_every_column():
    for result in (PASSED, FAILED, GRANTED, views.ScrubResult(clean=False, state="scrubbing", running=True)):
        assert [len(row) for row in text_tables.results([progress(CLEAN, result=result)], BOTH)] == [
            len(text_tables.RESULTS)
        ]


@pytest.mark.parametrize(
    ("state", "reason", "alone"),
    [
        ("granted", "in-use", True), ("in_use", "in-use", True), ("clean", "not-quarantined", True),
        ("dirty", "in-use", False), ("granted", "not-ready", False), ("quarantined", "quarantined", False),
    ],
)  # fmt: skip
def test_only_owned_or_clean_gpus_are_left_alone(state, reason, alone):
    assert views.ScrubResult(clean=False, state=state, reason=reason).left_alone is alone


def test_one_gpu_left_alone_hides_no_failed_gpu(capsys):
    refused = views.ScrubProgress(CLEAN.device, "", result=GRANTED)
    results = {CLEAN.device: refused, SICK.device: progress(SICK, result=FAILED)}
    assert scrub.report(results, BOTH, "table", "scrub") == 1
    shown = capsys.readouterr().err
    assert "cannot scrub GPU 0: it: is; granted; end it\n" in shown
    assert "GPU 1 is not clean" in shown


def test_the_worst_gpu_gives_the_exit_code():
    assert [worst(codes) for codes in ([], [0, 4], [4, 1, 0], [1, 2], [3, 2, 1])] == [0, 4, 1, 2, 3]
