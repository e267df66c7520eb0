"""Tables on a terminal: colours, widths, wrapped cells, and a screen of tables that changes in place.

This module loads rich, which takes as long as everything else that a verb loads. So it is loaded by name, and only to
write to a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich import box, live
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autoclave.cli.output import human, text_tables

WIDEST = 10_000  # characters: wider than any table
LAST_AT_LEAST = 16  # characters of the last column, which wraps
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


def show(headers: Sequence[str], rows: text_tables.Rows) -> None:
    """Print a table on stdout. Without room for all columns it is text as in a pipe, whose lines the terminal wraps."""
    terminal = Console()
    if narrowest(headers, rows) <= terminal.width:
        terminal.print(drawn(headers, rows))
    else:
        click.echo(text_tables.plain(headers, rows))


def narrowest(headers: Sequence[str], rows: text_tables.Rows) -> int:
    """The least width of a table: no cell is cut, and a long last cell wraps."""
    wide = Console(width=WIDEST)
    last = max((len(human.printable(row[-1])) for row in (headers, *rows) if row), default=0)
    return Measurement.get(wide, wide.options, drawn(headers, rows)).maximum - max(0, last - LAST_AT_LEAST)


def drawn(headers: Sequence[str], rows: text_tables.Rows, whole: int | None = None) -> Table:
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
        texts = [Text(human.printable(cell) or text_tables.EMPTY, style=STYLES.get(cell, "")) for cell in row]
        if whole is not None and number >= whole:
            texts[-1].no_wrap, texts[-1].overflow = True, "ellipsis"
        shown.add_row(*texts)
    return shown


@contextmanager
def live_view() -> Iterator[Callable[[text_tables.Page], None]]:
    """Shows a page in place of the page before."""

    def update(page: text_tables.Page) -> None:
        screen.update(screenful(screen.console, page), refresh=True)

    with live.Live(auto_refresh=False) as screen:
        yield update


def screenful(terminal: Console, page: text_tables.Page) -> Group:
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
