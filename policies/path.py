"""The names of the scrub paths. They have a module of their own, so that workers load no pydantic."""

from __future__ import annotations

from enum import Enum


class ScrubPath(str, Enum):
    """How thorough a scrub is. Each path does everything that the one before it does."""

    FAST = "fast"
    SLOW = "slow"
    RESET = "reset"


def most_thorough(*paths: ScrubPath | None) -> ScrubPath:
    """The most thorough of these paths; the fast path if there is none."""
    return max((path for path in paths if path is not None), key=list(ScrubPath).index, default=ScrubPath.FAST)
