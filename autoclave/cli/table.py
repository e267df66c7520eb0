"""Prints tables: for people on a terminal, for grep and awk elsewhere.

Elsewhere there are no colours, no lines, and no cut or wrapped cells. Two spaces separate columns, and an empty cell
is a dash, so that ``awk '{print $3}'`` finds the third column.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import click

from autoclave.cli import human

EMPTY = "-"

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Page:
    """A table that changes in place, for a screen that may have no room for all rows."""

    headers: Sequence[str]
    rows: Rows
    urgent: int  # this many rows at the beginning matter most
    below: Callable[[int], Iterable[str]]  # the lines below the table, if only the first N rows are shown
    notes: Sequence[str]


def show(headers: Sequence[str], rows: Rows) -> None:
    """Print a table on stdout. Without headers, only its rows."""
    if not headers and not rows:
        return
    if sys.stdout.isatty():
        importlib.import_module("autoclave.cli.terminal").show(headers, rows)
    else:
        click.echo(plain(headers, rows))


def plain(headers: Sequence[str], rows: Rows) -> str:
    """A table as text."""
    cells = [[human.printable(cell) or EMPTY for cell in row] for row in (headers, *rows) if row]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)
