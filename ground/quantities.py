"""A number with its noun."""

from __future__ import annotations


def quantity(count: int, one: str, many: str = "") -> str:
    """``1 byte``, ``2 bytes``. ``many`` is what follows each number but 1; by default ``one`` with an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
