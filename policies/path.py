"""The names of the two scrub paths. They have a module of their own, so that workers load no pydantic."""

from __future__ import annotations

from enum import Enum


class Path(str, Enum):
    """How thorough a scrub is."""

    FAST = "fast"
    SLOW = "slow"
