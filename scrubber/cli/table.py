"""Prints tables: for people on a terminal, for grep and awk elsewhere.

Elsewhere there are no colours, no lines, and no cut or wrapped cells. Two spaces separate columns, and an empty cell
is a dash, so that ``awk '{print $3}'`` finds the third column.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from scrubber.cli import human

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
EMPTY = "-"

Rows = Sequence[Sequence[str]]


def show(headers: Sequence[str], rows: Rows) -> None:
    """Print a table on stdout."""
    if sys.stdout.isatty():
        Console().print(drawn(headers, rows))
    else:
        click.echo(plain(headers, rows))


def plain(headers: Sequence[str], rows: Rows) -> str:
    """A table as text."""
    cells = [[human.printable(cell) or EMPTY for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def drawn(headers: Sequence[str], rows: Rows) -> RenderableType:
    """A table for a terminal. Only the last column wraps when the terminal is too narrow."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=header != headers[-1], overflow="fold")
    for row in rows:
        # Text, not str: rich would read brackets in a str as markup.
        table.add_row(*(Text(human.printable(cell) or EMPTY, style=STYLES.get(cell, "")) for cell in row))
    return table
