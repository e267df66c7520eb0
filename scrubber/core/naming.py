"""What people call things."""

from __future__ import annotations


def named(index: int, number: int | None) -> str:
    """How people call a device: the index, and for a slice its number on that GPU, as in 0:1."""
    return str(index) if number is None else f"{index}:{number}"
