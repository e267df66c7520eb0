"""The use counter of a device: how often others have used it up to now, and whether uses were missed.

A short use begins and ends between two observations, so only a use counter notices it. Which use counter a device has
depends on its backend and on its settings. If a device has no use counter, this is known, and people are told. If the
use counter of a device cannot answer, others may have used the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from scrubber.core.guarded import FenceReading


class UseCounter(Enum):
    """What counts the short uses of a device, in the words of status and receipts."""

    FENCE = "fence in the kernel"
    FILES = "watch on files"


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
