"""The use counter of a device: how often others have used it up to now, and whether uses were missed.

A short use begins and ends between two observations, so only a use counter notices it. Which use counter a device has
depends on its backend and on its settings. If a device has no use counter, this is known, and people are told. If the
use counter of a device cannot answer, others may have used the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from policies.values import FenceMode
from scrubber.core.moments import Moment


class UseCounter(Enum):
    """What counts the short uses of a device, in the words of status and receipts."""

    FENCE = "fence in the kernel"
    FILES = "watch on files"


@dataclass(frozen=True, slots=True)
class FenceReading:
    """What the fence does with a device at a moment, and the opens of others that it has counted up to then.

    Two readings of one counter can be compared. What the fence may have missed is counted as a gap.
    """

    at: Moment
    mode: FenceMode = FenceMode.OFF  # OFF: nothing is counted ...
    why: str = ""  # ... for this reason
    counter: str = ""  # names what has counted, which another one does not continue
    passed: int = 0  # times that others were let through, also those that the policy ignores
    ignored: int = 0  # so many of them
    refused: int = 0
    gaps: int = 0
    exempt: str = ""  # the digest of who may open it at any time; empty: nobody may
    below: str = ""  # the control group outside of which nobody is counted, for trials; empty: all are

    @property
    def uses(self) -> int:
        """How often others have used the device. What may have been missed counts as a use."""
        return self.passed - self.ignored + self.gaps


@dataclass(frozen=True, slots=True)
class Counted:
    """All uses by others up to now are counted. A use that may have been missed before counts as a use."""

    by: UseCounter
    uses: int  # only grows
    missed: str = field(default="", compare=False)  # why something may have been missed since the last count
    fence: FenceReading | None = field(default=None, compare=False)  # if the fence has counted

    @property
    def words(self) -> str:
        """The use counter, as status and receipts say it."""
        return self.by.value

    @property
    def kind(self) -> str:
        """The use counter as a value, for programs."""
        return self.by.name.lower()


@dataclass(frozen=True, slots=True)
class NoUseCounter:
    """The device has no use counter, for a reason that is known: short uses of it are not noticed."""

    why: str
    kind: ClassVar[str] = "none"

    @property
    def words(self) -> str:
        """The sentence of status and receipts that there is no use counter."""
        return f"none: {self.why}"


@dataclass(frozen=True, slots=True)
class Missed:
    """The device has a use counter that cannot answer now: whether others have used the device is not known."""

    why: str  # and what to do
    kind: ClassVar[str] = "unknown"

    @property
    def words(self) -> str:
        """The sentence of status that nothing is known."""
        return f"not known: {self.why}"


UseReading = Counted | NoUseCounter | Missed
