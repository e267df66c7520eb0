"""A number with its noun, and a number that several rooms judge by."""

from __future__ import annotations

LITTLE_ROOM = 100 * 2**20  # bytes: with less, the disk of the ledger is nearly full


def quantity(count: int, one: str, many: str = "") -> str:
    """``1 byte``, ``2 bytes``. ``many`` is what follows each number but 1; by default ``one`` with an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
