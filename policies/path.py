"""The two scrub paths. They have a module of their own, so that the plugin imports them without pydantic."""

from __future__ import annotations

from enum import Enum


class Path(str, Enum):
    """How thorough a scrub is."""

    FAST = "fast"
    SLOW = "slow"
