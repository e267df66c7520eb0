"""The values that policies and decisions share. Workers load them without pydantic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Word(str, Enum):
    """Base of the enums whose values are words in a policy file."""


class FenceMode(Word):
    """What the kernel does when somebody opens a device that was not given to it."""

    HOLD = "hold"
    REFUSE = "refuse"
    WATCH = "watch"
    OFF = "off"


class ScrubPath(Word):
    """How thorough a scrub is. Each path does everything that the one before it does."""

    FAST = "fast"
    SLOW = "slow"
    RESET = "reset"


def most_thorough(*paths: ScrubPath | None) -> ScrubPath:
    """The most thorough of these paths; the fast path if there is none."""
    return max((path for path in paths if path is not None), key=list(ScrubPath).index, default=ScrubPath.FAST)


@dataclass(frozen=True, slots=True)
class Xid:
    """One driver error event, numbered in the order of the device's event log."""

    number: int
    code: int
    at: float = 0.0  # uptime in seconds
    action: str = ""  # what the message of XID 154 asks for: a value of ``xids.RequiredAction``
    pid: int | None = None  # the process that the message names
