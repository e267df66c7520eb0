"""The text of a report as a page in Markdown: at one width, with foreign words that are no markup."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ground.errors import plain

WIDTH = 120  # columns of a page
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", **{sign: f"\\{sign}" for sign in "\\`[]|"}})


def words(text: str) -> str:
    """Words that may be those of another program, as a page shows them: no markup."""
    return plain(text).translate(_MARKUP)


def wrapped(text: str, after: str = "") -> str:
    """A paragraph. ``after``: what its lines but the first begin with."""
    return textwrap.fill(text, WIDTH, subsequent_indent=after, break_on_hyphens=False, break_long_words=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; nothing if it has no rows."""
    lines = (headers, ("---",) * len(headers), *rows)
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) if rows else ""
