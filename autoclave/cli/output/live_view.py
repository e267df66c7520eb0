"""A screen of tables on a terminal that changes in place, as large as the terminal.

This module loads rich, which takes as long as everything else that a verb loads. So it is loaded by name, and only to
write to a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import live
from rich.console import Console, Group
from rich.text import Text

from autoclave.cli.output import text_tables
from autoclave.cli.output.coloured_table import drawn, narrowest


@contextmanager
def view() -> Iterator[Callable[[text_tables.Page], None]]:
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
