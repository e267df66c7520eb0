"""The two ways to scrub. Apart from the other policy words, because the plugin reads it and loads no pydantic."""

from __future__ import annotations

from enum import Enum


class Path(str, Enum):
    """How thorough a scrub is."""

    FAST = "fast"
    SLOW = "slow"
