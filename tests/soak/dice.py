"""Chance that can be had again: one pair of dice for everybody who decides something, all from one seed."""

from __future__ import annotations

import random


def dice(seed: str, name: object) -> random.Random:
    """The same for the same seed and name."""
    return random.Random(f"{seed}/{name}")  # noqa: S311 - no secret comes of it
