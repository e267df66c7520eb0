"""What a line of the log may say, and how often."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from ground import log, process_names
from scrubber.core import events as ev
from scrubber.core.model import holder_names
from scrubber.words import event_text
from tests.core import lives

Read = Callable[[], list[dict[str, Any]]]


class Clock:
    """Time that passes when the test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Pen:
    """Writes lines through the limit on repeats, and keeps those that come through."""

    def __init__(self, **limits: int) -> None:
        self.clock = Clock()
        self.repeats = log.RepeatFilter(self.clock, **limits)
        self.written: list[dict[str, Any]] = []

    def write(self, **line: object) -> bool:
        try:
            self.written.append(dict(self.repeats(None, "warning", {"event": "no", "level": "warning", **line})))
        except structlog.DropEvent:
            return False
        return True


@pytest.fixture
def read(monkeypatch) -> Read:
    """The log as a program writes it in a pod."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    log.configure("debug")
    return lambda: [json.loads(line) for line in said.getvalue().splitlines()]


def test_repeated_lines_are_written_five_times_then_counted() -> None:
    pen = Pen()
    for number in range(42):
        pen.clock.now = number / 10
        pen.write(op=f"{number:08x}", seconds=number, device="GPU-1", reason="in-use")
    assert len(pen.written) == log.MAX_REPEATS == 5
    pen.clock.now = 10.0
    assert pen.write(op="ff", device="GPU-1", reason="in-use")
    assert pen.written[-1]["left_out"] == 37
    pen.clock.now = 20.0
    assert pen.write(op="fe", device="GPU-1", reason="in-use")
    assert "left_out" not in pen.written[-1]


@given(st.lists(st.integers(0, 40), max_size=80))
def test_a_repeated_line_is_limited_and_counted(pauses: list[int]) -> None:
    pen, at = Pen(), []
    for pause in pauses:
        pen.clock.now += pause / 8
        if pen.write(device="GPU-1"):
            at.append(pen.clock.now)
    assert all(later - first >= log.WINDOW for first, later in zip(at, at[log.MAX_REPEATS :], strict=False))
    pen.clock.now += log.WINDOW
    pen.write(device="GPU-1")
    assert len(pen.written) + sum(line.get("left_out", 0) for line in pen.written) == len(pauses) + 1


@pytest.mark.parametrize(
    "other",
    [
        {"device": "GPU-2"}, {"devices": ["GPU-1"]}, {"reason": "sick"}, {"level": "error"}, {"event": "yes"},
        {"room": "jobs"}, {"error": "another"}, {"sign": "heat"}, {"exc_info": ValueError()},
    ],
)  # fmt: skip
def test_different_events_are_counted_apart(other: dict[str, object]) -> None:
    pen = Pen()
    while pen.write(device="GPU-1"):
        pass
    assert pen.write(**{"device": "GPU-1", **other})


def test_a_repeated_fault_is_one_line() -> None:
    pen = Pen()
    for number in range(8):
        try:
            raise ValueError(number)  # noqa: TRY301 - as a fault of ours is
        except ValueError as error:
            pen.write(exc_info=error if number % 2 else True)
    assert len(pen.written) == log.MAX_REPEATS


def test_the_memory_of_repeats_is_bounded_and_keeps_recent_lines() -> None:
    pen = Pen(remembered=16)
    for number in range(1000):
        pen.clock.now = number / 100
        pen.write(device="GPU-1")
        pen.write(device=f"GPU-{number}", reason="in-use")
    assert len(pen.repeats._lines) == 16
    assert sum(line["device"] == "GPU-1" and "reason" not in line for line in pen.written) == log.MAX_REPEATS


def test_every_program_limits_repeats(read: Read) -> None:
    for _ in range(50):
        log.get("api").warning("no", device="GPU-1")
    assert len(read()) == log.MAX_REPEATS


def test_a_log_line_is_json_with_room_level_time(read: Read) -> None:
    log.get("api").info("yes", op="0a1b2c3d")
    (line,) = read()
    assert (line["room"], line["level"], line["event"], line["op"]) == ("api", "info", "yes", "0a1b2c3d")
    assert line["timestamp"].endswith("Z")


NAME = st.text(max_size=20) | st.sampled_from(['" (pid 1, x)', '"', " in no container", 'a" in container b "c'])


@given(command=NAME, other=NAME, before=st.text(alphabet='a "(1)', max_size=12), after=st.text(max_size=12))
def test_no_name_that_a_tenant_can_choose_gets_past(command: str, other: str, before: str, after: str) -> None:
    one, two = (replace(lives.FOREIGN, command=f"secret{it}secret") for it in (command, other))
    for name in (
        holder_names((one, two)),
        f"pid 3 ({process_names.quoted(one.command)} in no container, state S)",
    ):
        shown = str(process_names.hide(None, "info", {"why": f"{before}{name}{after}"})["why"])
        assert "secret" not in shown
        assert process_names.NAMELESS in shown


def test_a_name_has_no_terminal_controls() -> None:
    assert process_names.describe("a\x1b[2J\nb", 7) == '"a?[2J?b" (pid 7)'


def test_process_names_are_logged_only_at_debug(read: Read) -> None:
    said = event_text.tell(ev.Soiled("it was used without a grant", (lives.FOREIGN,)))
    assert lives.FOREIGN.command in said
    log.get("ledger").warning(said, why=said)
    log.get("ledger").debug(said)
    try:
        raise RuntimeError(said)  # noqa: TRY301 - as a fault of ours is
    except RuntimeError:
        log.get("ledger").exception("fault")
    warned, debugged, fault = read()
    assert warned["event"] == warned["why"] == said.replace(f'"{lives.FOREIGN.command}"', "a process")
    assert debugged["event"] == said
    assert lives.FOREIGN.command not in json.dumps(fault)
    assert f"(pid {lives.FOREIGN.pid}, " in fault["exception"]


def test_an_unwritable_log_ends_no_program():
    program = "from ground import log; log.configure(); log.get('room').error('hear me'); print('I go on')"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.stdout == b"I go on\n"
