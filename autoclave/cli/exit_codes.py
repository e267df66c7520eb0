"""The exit codes of the command line. A module of its own, so that a verb need not load what ``failure`` knows."""

from __future__ import annotations

from collections.abc import Iterable

DONE, NOT_CLEAN, WRONG_USAGE, UNREACHABLE, LEFT_ALONE, INTERRUPTED = 0, 1, 2, 3, 4, 130
_FROM_BEST = (DONE, LEFT_ALONE, NOT_CLEAN, WRONG_USAGE, UNREACHABLE, INTERRUPTED)


def worst(codes: Iterable[int]) -> int:
    """The exit code of a verb that has these for its GPUs."""
    return max(codes, key=_FROM_BEST.index, default=DONE)
