"""What only a terminal gets: coloured tables, a view that changes in place, and bars.

This module loads rich, which takes as long as everything else that a verb loads. So ``document`` and
the verbs ``status`` and ``scrub`` load this module by name, and only when they write to a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click
from rich import box, live
from rich import progress as bars
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autoclave.cli import human, table
from scrub_api import views

WIDEST = 10_000  # characters: wider than any table
PHASES = ("not clean", "left alone", "running", "waiting", "clean")  # of a scrub, the first ones before the others
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


LAST_AT_LEAST = 16  # characters of the last column, which wraps


def show(headers: Sequence[str], rows: table.Rows) -> None:
    """Print a table on stdout. Without room for all columns it is text as in a pipe, whose lines the terminal wraps."""
    terminal = Console()
    if narrowest(headers, rows) <= terminal.width:
        terminal.print(drawn(headers, rows))
    else:
        click.echo(table.plain(headers, rows))


def narrowest(headers: Sequence[str], rows: table.Rows) -> int:
    """The least width of a table: no cell is cut, and a long last cell wraps."""
    wide = Console(width=WIDEST)
    last = max((len(human.printable(row[-1])) for row in (headers, *rows) if row), default=0)
    return Measurement.get(wide, wide.options, drawn(headers, rows)).maximum - max(0, last - LAST_AT_LEAST)


def drawn(headers: Sequence[str], rows: table.Rows, whole: int | None = None) -> Table:
    """A table for a terminal. Only the last column wraps; after the first ``whole`` rows it is cut instead."""
    shown = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1), pad_edge=False, header_style="bold",
        show_header=bool(headers),
    )  # fmt: skip
    columns = headers or [""] * max(map(len, rows), default=0)
    for number, header in enumerate(columns, start=1):
        shown.add_column(header, no_wrap=number < len(columns), overflow="fold")
    for number, row in enumerate(rows):
        # Text, not str: rich would read brackets in a str as markup.
        texts = [Text(human.printable(cell) or table.EMPTY, style=STYLES.get(cell, "")) for cell in row]
        if whole is not None and number >= whole:
            texts[-1].no_wrap, texts[-1].overflow = True, "ellipsis"
        shown.add_row(*texts)
    return shown


@contextmanager
def view() -> Iterator[Callable[[table.Page], None]]:
    """Shows a page in place of the page before."""

    def update(page: table.Page) -> None:
        screen.update(screenful(screen.console, page), refresh=True)

    with live.Live(auto_refresh=False) as screen:
        yield update


def screenful(terminal: Console, page: table.Page) -> Group:
    """As many rows as the terminal has room for, the lines below them, and the notes.

    All rows are whole if there is room for that. Otherwise the urgent rows are whole, or none: cut rows show more GPUs.
    Without room for all columns, each row is one line, and the edge of the screen cuts it.
    """
    rows = page.rows[: terminal.height]
    width = narrowest(page.headers, page.rows)
    cut_at_edge = width > terminal.width
    for whole in (0,) if cut_at_edge else (len(page.rows), page.urgent, 0):
        count = len(rows)
        while count >= whole:
            shown = drawn(page.headers, rows[:count], whole)
            if cut_at_edge:
                shown.width = width
            below = (*map(Text, page.below(count)), *(Text(note, style="bold red") for note in page.notes))
            screen = Group(shown, *below)
            excess = len(terminal.render_lines(screen)) - terminal.height
            if excess <= 0:
                return screen
            count -= excess  # each row that is not whole is one line
    return Group(*map(Text, page.below(0)))  # there is no room for the headers


@contextmanager
def progress(devices: Mapping[str, views.DeviceStatus]) -> Iterator[Callable[[views.ScrubProgress], None]]:
    """Shows the progress of the devices as bars on stderr."""
    shown = Screenful(Console(stderr=True))
    show = Bars(shown, devices)
    with shown:
        yield show


class Screenful(bars.Progress):
    """As many bars as the terminal has room for: those of failed scrubs first, and the totals in a last line."""

    def __init__(self, terminal: Console) -> None:
        """``terminal`` shows the bars."""
        self._terminal = terminal
        super().__init__(
            bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TextColumn("{task.fields[amount]}"),
            Speed(), console=terminal,
        )  # fmt: skip

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bars and the totals."""
        if len(self.tasks) < self._terminal.height:
            yield self.make_tasks_table(self.tasks)
            return
        count = Counter(task.fields["phase"] for task in self.tasks)
        totals = ", ".join(f"{count[phase]} {phase}" for phase in PHASES if count[phase])
        line = Text(f"{len(self.tasks)} GPUs: {totals}; not all fit on this screen")
        room = self._terminal.height - len(line.wrap(self._terminal, self._terminal.width))
        most_telling = sorted(self.tasks, key=lambda task: PHASES.index(task.fields["phase"]))[:room]
        yield self.make_tasks_table(sorted(most_telling, key=lambda task: task.id))
        yield line


class Speed(bars.TransferSpeedColumn):
    """The speed of a step that moves bytes; nothing where rich shows a question mark."""

    def render(self, task: bars.Task) -> Text:
        """The speed, as rich writes it."""
        return Text() if task.finished_speed is None and task.speed is None else super().render(task)


class Bars:
    """A bar for each device. A new step restarts the bar, so that the speed is that of the step."""

    def __init__(self, progress: bars.Progress, devices: Mapping[str, views.DeviceStatus]) -> None:
        """``progress`` draws the bars."""
        self._progress = progress
        self._devices = devices
        self._steps: dict[str, str] = {}
        self._tasks = {
            device: progress.add_task(self._said(device, "waiting"), total=None, amount="", phase="waiting")
            for device in devices
        }

    def __call__(self, message: views.ScrubProgress) -> None:
        """Draw a message of the service."""
        task = self._tasks[message.device]
        if message.result is not None:
            end = 1 if message.result.clean else 0
            description = self._said(message.device, message.result.state)
            self._progress.update(
                task, description=description, completed=end, total=1, amount="", phase=_phase(message.result)
            )
        elif message.queue_place is not None:
            place = f"for a slot, {human.ordinal(message.queue_place)}"
            self._progress.update(task, description=self._said(message.device, "waiting"), amount=place)
        elif message.step:
            if self._steps.get(message.device) != message.step:
                self._steps[message.device] = message.step
                description = self._said(message.device, message.step)
                self._progress.reset(task, description=description, amount="", phase="running")
            done, total = message.done_bytes, message.total_bytes
            amount = f"{human.size(done)} of {human.size(total)}" if total else ""
            self._progress.update(task, completed=done, total=total or None, amount=amount)

    def _said(self, device: str, what: str) -> str:
        return escape(f"GPU {self._devices[device].name} {what:<11}")


def _phase(result: views.ScrubResult) -> str:
    if result.left_alone:
        return "left alone"
    return "clean" if result.clean else "running" if result.running else "not clean"
