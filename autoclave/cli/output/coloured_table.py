"""Draws the headers and rows of a table on a terminal: colours, widths, wrapped cells.

This module loads rich, which takes as long as everything else that a verb loads. So it is loaded by name, and only to
write to a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich import box
from rich.console import Console
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
