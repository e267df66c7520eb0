"""What only a terminal gets: coloured tables, a view that changes in place, and bars.

This module loads rich, which takes as long as everything else that a verb loads. So ``table``, ``status_watch`` and
``job_progress`` load this module by name, and only when they write to a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich import box, live
from rich import progress as bars
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from scrubber.cli import human, table
from scrubber.core import views

WIDEST = 10_000  # characters: wider than any table
STYLES = {
    "clean": "green",
    "yes": "green",
    "ok": "green",
    "warning": "yellow",
    "broken": "bold red",
    "granted": "cyan",
    "in_use": "cyan",
    "scrubbing": "yellow",
    "dirty": "yellow",
    "unknown": "yellow",
    "quarantined": "bold red",
    "no": "bold red",
}


LAST_AT_LEAST = 24  # characters of the last column, which wraps


def show(headers: Sequence[str], rows: table.Rows) -> None:
    """Print a table on stdout. Without room for all columns, no cell is cut: each row is one line, however long."""
    shown, terminal = drawn(headers, rows), Console()
    whole = Measurement.get(terminal, terminal.options.update_width(WIDEST), shown).maximum
    last = max(len(human.printable(row[-1])) for row in (headers, *rows))
    fits = whole - max(0, last - LAST_AT_LEAST) <= terminal.width
    Console(width=terminal.width if fits else whole).print(shown)


def drawn(headers: Sequence[str], rows: table.Rows) -> RenderableType:
    """A table for a terminal. Only the last column wraps when the terminal is too narrow."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for header in headers:
        shown.add_column(header, no_wrap=header != headers[-1], overflow="fold")
    for row in rows:
        # Text, not str: rich would read brackets in a str as markup.
        shown.add_row(*(Text(human.printable(cell) or table.EMPTY, style=STYLES.get(cell, "")) for cell in row))
    return shown


@contextmanager
def view() -> Iterator[Callable[[Sequence[RenderableType], Sequence[str]], None]]:
    """Shows tables and notes in place of what it showed before."""

    def update(tables: Sequence[RenderableType], notes: Sequence[str]) -> None:
        screen.update(Group(*tables, *(Text(note, style="bold red") for note in notes)), refresh=True)

    with live.Live(auto_refresh=False) as screen:
        yield update


@contextmanager
def progress(devices: Mapping[str, views.DeviceStatus]) -> Iterator[Callable[[views.ScrubProgress], None]]:
    """Shows the progress of the devices as bars on stderr."""
    columns = (
        bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TextColumn("{task.fields[amount]}"),
        bars.TransferSpeedColumn(),
    )  # fmt: skip
    with bars.Progress(*columns, console=Console(stderr=True)) as shown:
        yield _Bars(shown, devices)


class _Bars:
    """A bar for each device. A new step restarts the bar, so that the speed is that of the step."""

    def __init__(self, progress: bars.Progress, devices: Mapping[str, views.DeviceStatus]) -> None:
        self._progress = progress
        self._devices = devices
        self._steps: dict[str, str] = {}
        self._tasks = {it: progress.add_task(self._said(it, "waiting"), total=None, amount="") for it in devices}

    def __call__(self, message: views.ScrubProgress) -> None:
        task = self._tasks[message.device]
        if message.result is not None:
            end = 1 if message.result.clean else 0
            said = self._said(message.device, message.result.state)
            self._progress.update(task, description=said, completed=end, total=1, amount="")
        elif message.step:
            if self._steps.get(message.device) != message.step:
                self._steps[message.device] = message.step
                self._progress.reset(task, description=self._said(message.device, message.step))
            done, total = message.done_bytes, message.total_bytes
            amount = f"{human.size(done)} of {human.size(total)}" if total else ""
            self._progress.update(task, completed=done, total=total or None, amount=amount)

    def _said(self, device: str, what: str) -> str:
        return escape(f"GPU {self._devices[device].name} {what:<11}")
