"""``autoclave status`` with many GPUs: what it selects, in which order, and what a screen has room for."""

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from autoclave.cli.output import progress_bars, terminal_tables, text_tables
from autoclave.cli.verbs import status
from autoclave.cli.verbs.status import Selection
from scrub_api import admin_client, views
from scrubber.core.model import State
from tests.cli.statuses import BUSY, CLEAN, NOW, QUARANTINE, SERVICE, SICK


def names(devices):
    return [device.name for device in devices]


def test_filters_hold_together():
    devices = (
        CLEAN,
        SICK,
        replace(SICK, index=5, state="dirty", quarantine=None),
        replace(CLEAN, index=6, state="dirty"),
    )
    assert names(Selection(states=frozenset({"dirty"})).of(devices)) == ["5", "6"]
    assert names(Selection(unhealthy=True).of(devices)) == ["1", "5"]
    assert names(Selection(states=frozenset({"dirty", "clean"}), unhealthy=True).of(devices)) == ["5"]


def test_every_state_can_be_named_and_is_counted():
    assert sorted(text_tables.STATES) == sorted(state.value for state in State)


def test_failed_gpus_come_first_and_scrubbing_ones_do_not():
    job = BUSY.job
    assert job
    devices = tuple(
        replace(device, index=index)
        for index, device in enumerate((
            CLEAN,
            BUSY,  # healthy: it is clean soon
            replace(BUSY, healthy=False, job=replace(job, queue_place=2)),
            replace(BUSY, healthy=False, job=replace(job, queue_place=1)),
            replace(BUSY, healthy=False),
            replace(CLEAN, healthy=False),  # blocked
            SICK,
            SICK,
        ))
    )  # fmt: skip
    assert names(Selection(order="trouble").of(devices)) == ["6", "7", "5", "4", "3", "2", "0", "1"]
    assert names(Selection().of(devices)) == list("01234567")


def test_equal_gpus_keep_the_order_of_their_index():
    devices = (CLEAN, replace(CLEAN, index=1, since=NOW), replace(SICK, index=2), replace(CLEAN, index=3))
    assert names(Selection(order="state").of(devices)) == ["0", "1", "3", "2"]
    assert names(Selection(order="for").of(devices)) == ["1", "0", "2", "3"]


def test_the_line_of_totals_counts_states_and_unhealthy_gpus():
    use = replace(CLEAN, state="in_use")
    assert text_tables.summary([CLEAN, use, use, SICK], 4) == "4 GPUs: 1 clean, 2 in use, 1 quarantined"
    assert text_tables.summary([CLEAN, replace(use, healthy=False)], 2) == "2 GPUs: 1 clean, 1 in use; 1 not healthy"
    assert text_tables.summary([SICK], 4) == "1 of 4 GPUs: 1 quarantined"
    assert text_tables.summary([CLEAN], 1) == "1 GPU: 1 clean"
    assert text_tables.summary([], 4) == "0 of 4 GPUs"


def shown(capsys, devices, **form):
    chosen = form.pop("selection", Selection())
    status.show(views.Status(tuple(devices), SERVICE), status.Form(chosen, **form))
    return capsys.readouterr()


def test_each_fault_of_the_service_is_one_line():
    assert status.faults(replace(SERVICE, policy_fault="a:1: x\na:2: y")) == (
        "the newest policy is not in force; the service still uses the old one: a:1: x; a:2: y",
    )


def test_a_nearly_full_disk_is_a_warning(tmp_path, monkeypatch):
    free = [os.statvfs_result((4096, 4096, 10**6, blocks, blocks, 0, 0, 0, 0, 255)) for blocks in (25_600, 25_599)]
    monkeypatch.setattr(os, "statvfs", lambda _: free.pop(0))
    assert [*status.little_room(replace(SERVICE, state_dir=str(tmp_path)))] == []
    [warning] = status.little_room(replace(SERVICE, state_dir=str(tmp_path)))
    assert warning.startswith("the ledger has room for only 100.0MiB; make room in ")
    monkeypatch.undo()
    assert [*status.little_room(replace(SERVICE, state_dir="/proc", ledger_fault="disk is full"))] == []
    assert [*status.little_room(replace(SERVICE, state_dir=str(tmp_path / "elsewhere")))] == []


def test_without_headers_a_pipe_gets_rows_only(capsys):
    assert shown(capsys, [CLEAN], output="table", headers=False).out.split()[:2] == ["0", "GPU-aaaaaaaa"]
    assert shown(capsys, [], output="table", headers=False).out == ""


def test_if_no_gpu_matches_stdout_is_empty(capsys):
    printed = shown(capsys, [CLEAN], output="table", selection=Selection(unhealthy=True))
    assert printed.out == ""


def test_filters_apply_to_documents(capsys):
    printed = shown(capsys, [CLEAN, SICK], output="json", selection=Selection(unhealthy=True))
    made = json.loads(printed.out)
    assert [item["index"] for item in made["items"]] == [1]
    assert made["service"]["version"] == "0.1.0"
    assert json.loads(shown(capsys, [CLEAN], output="json", selection=Selection(unhealthy=True)).out)["items"] == []


def screen(width, height, devices, output="table", notes=()):
    console = Console(width=width, height=height, file=io.StringIO())
    form = status.Form(Selection(order="trouble"), output)
    chosen = form.selection.of(devices)
    page = status.page(chosen, len(devices), form, notes, "")
    lines = console.render_lines(terminal_tables.screenful(console, page))
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


async def test_a_watch_prints_no_table_for_seconds_and_places(capsys, monkeypatch):
    assert BUSY.job
    answers = [*(replace(BUSY, job=replace(BUSY.job, queue_place=place)) for place in (12, 11, None)), CLEAN]
    answers[3:3] = [replace(BUSY, job=replace(BUSY.job, still_seconds=it, step_seconds=it)) for it in (1.0, 15.0, 40.0)]

    async def answer(*_: object, **__: object) -> views.Status:
        return views.Status((answers.pop(0),), SERVICE)

    async with admin_client.AdminClient(Path("/nowhere")) as admin:
        monkeypatch.setattr(admin, "status", answer)
        with pytest.raises(IndexError):  # there is no further answer
            await status.follow(admin, (), status.Form(Selection(), "table", headers=False))
    printed = [line.split()[2] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["scrubbing", "scrubbing", "clean"]


USED = replace(CLEAN, state="in_use", owner="uid-7", pod="namespace/train/main-container")
LONG = replace(SICK, quarantine=replace(QUARANTINE, detail="a long story " * 30))


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("gpus", [1, 8, 56, 112])
@pytest.mark.parametrize("output", ["table", "wide"])
def test_a_live_view_fits_its_screen_and_shows_trouble(width, gpus, output):
    sick = {gpus - 1, gpus // 2}
    devices = [replace(LONG if number in sick else CLEAN, index=number) for number in range(gpus)]
    lines = screen(width, 24, devices, output, notes=["the ledger cannot be written"])
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    for index in sick:
        assert any(line.startswith(f"{index} ") and "quarantined" in line for line in lines)
    assert lines[-1] == "the ledger cannot be written"
    rows = sum(line[:1].isdigit() and "GPU-" in line for line in lines)
    hidden = f"below the end of the screen: {gpus - rows} GPU"
    assert any(line.startswith(hidden) for line in lines) is (rows < gpus)
    if output == "table":
        assert len(lines) == 24 or rows == gpus


def test_a_live_view_with_room_shows_whole_notes():
    lines = screen(80, 24, [LONG, USED])
    assert "".join(lines).count("story") == 30
    assert "…" not in "".join(lines)
    assert lines[-1] == "2 GPUs: 1 in use, 1 quarantined"


def test_a_live_view_shows_whole_notes_of_failed_gpus():
    """Of many, it cuts the notes: then more of these GPUs have room."""
    few = screen(80, 24, [*([SICK] * 3), *([USED] * 109)])
    assert sum("probation in 45s" in line for line in few) == 3
    assert {line[-1] for line in few if "in_use" in line} == {"…"}
    scrubbed = screen(80, 24, [*([SICK] * 3), *([replace(BUSY, healthy=False)] * 109)])
    assert sum("probation in 45s" in line for line in scrubbed) == 3
    many = screen(80, 24, [*([SICK] * 15), *([CLEAN] * 97)])
    assert sum("quarantined" in line for line in many[:-2]) == 15
    assert "…" in "".join(many)


def test_a_small_live_view_shows_the_totals():
    assert screen(80, 3, [CLEAN, SICK]) == [
        "2 GPUs: 1 clean, 1 quarantined",
        "below the end of the screen: 2 GPUs: 1 clean, 1 quarantined",
    ]


def test_bars_fit_their_screen_and_show_failed_scrubs():
    console = Console(width=80, height=24, file=io.StringIO())
    devices = {f"GPU-{number}": replace(CLEAN, index=number) for number in range(112)}
    shown = progress_bars.Screenful(console)
    show = progress_bars.Bars(shown, devices)
    with shown:
        show(views.ScrubProgress("GPU-50", "j", "clear", 1, 2))
        show(views.ScrubProgress("GPU-3", "j", result=views.ScrubResult(clean=True, state="clean")))
        show(views.ScrubProgress("GPU-111", "j", result=views.ScrubResult(clean=False, state="quarantined")))
        in_use = views.ScrubResult(clean=False, state="in_use", reason="in-use")
        show(views.ScrubProgress("GPU-110", "", result=in_use))
        show(views.ScrubProgress("GPU-7", "j", queue_place=12))
    with console.capture() as seen:
        console.print(*shown.get_renderables(), sep="\n")
    lines = seen.get().splitlines()
    assert len(lines) == 24
    said = "112 GPUs: 1 not clean, 1 left alone, 1 running, 108 waiting, 1 clean; not all fit on this screen"
    assert " ".join(" ".join(lines[-2:]).split()) == said
    assert "for a slot, 12th" in lines[6]  # GPU 3 is clean, and not shown
    bars = [" ".join(line.split()[:3]) for line in lines[:-2]]
    printed = ["GPU 50 clear", "GPU 110 in_use", "GPU 111 quarantined"]
    assert bars == [*(f"GPU {it} waiting" for it in range(20) if it != 3), *printed]
    assert "?" not in seen.get()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("--state q", ["quarantined"]), ("--sort-by m", ["memory", "model"]), ("-o j", ["json"])],
)
def test_values_of_flags_are_completed(autoclave, typed, offered):
    run = autoclave(_AUTOCLAVE_COMPLETE="bash_complete", COMP_WORDS=f"autoclave status {typed}", COMP_CWORD="3")
    assert run.stdout.split() == [f"plain,{value}" for value in offered]
