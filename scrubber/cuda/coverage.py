"""Compute how much of a GPU's memory was covered, and what uses the rest. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from scrub_api.measurements import Uncovered
from scrubber.core.measured import OWN_BOOKS, OWN_CONTEXT, OWN_IDLE, OWN_LISTED
from scrubber.cuda.card import Free

CONTEXT_AT_MOST = 2**30  # bytes; contexts take 256 to 612 MiB. Much more is ours only if the driver says so
SLACK = 2**26  # bytes, or ...
SLACK_SHARE = 1 / 1000  # ... this share of the memory: the driver's own tables, and what CUDA itself keeps or frees


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """A GPU's memory as the driver accounts for it, in bytes."""

    total: int
    reserved: int
    used: int

    @property
    def allocatable(self) -> int:
        """The memory that processes can allocate."""
        return self.total - self.reserved

    @property
    def free(self) -> int:
        """The memory that no process has allocated."""
        return self.allocatable - self.used


@dataclass(frozen=True, slots=True)
class Account:
    """The memory at three times: before we use CUDA, by NVML; with our context, and after the passes, by CUDA.

    No document says that both count the same total. What CUDA does not show is counted as our context.
    """

    before: MemoryCounts
    opened: Free
    after: Free
    own: int = 0  # of this process, as the driver counts it, less what was taken for the passes; 0: not asked

    @property
    def context(self) -> int:
        """The bytes that our context has taken: the free memory before it was made, less what was free after."""
        return self.before.free - self.opened.free

    @property
    def allocatable(self) -> int:
        """The memory that processes can allocate, by the larger of the two totals."""
        return max(self.before.allocatable, self.opened.total)


def uncovered(account: Account, covered: int, idle: int) -> tuple[Uncovered, ...]:
    """The allocatable memory that was not covered, by cause; the parts add up to exactly this memory.

    ``idle``: the memory that is in use while the device has no holder.
    """
    rest = account.allocatable - covered
    causes = {
        OWN_IDLE: min(account.before.used, idle),
        "in use before the scrub": account.before.used - idle,
        OWN_LISTED: account.own,
        OWN_CONTEXT: account.context - account.own,
        "left free in pieces too small to take": account.after.free,
        OWN_BOOKS: rest,
    }
    uncovered = []
    for cause, size in causes.items():
        part = max(0, min(size, rest))
        rest -= part
        uncovered.append(Uncovered(cause, part))
    return tuple(gap for gap in uncovered if gap.bytes)


def disturbance(account: Account, covered: int) -> str | None:
    """Why other memory was allocated or freed meanwhile, if it was: then it is unknown whether it was covered.

    Only the net change counts: CUDA itself frees memory that it had kept. What is free at the end is not covered.
    """
    if account.opened.total != account.after.total:
        return "the memory that the driver keeps for itself changed meanwhile"
    slack = max(SLACK, int(account.before.total * SLACK_SHARE))
    # What our context took, by the free and by the used memory. The two differ as the two totals do: that is no change.
    context = account.context, account.opened.used - account.before.used
    beside = account.opened.free - account.after.free - covered  # what went while the passes took their memory
    for least, most, at_most in (
        (min(context), max(context), max(CONTEXT_AT_MOST, account.own)),
        (beside, beside, slack),
    ):
        if least > at_most:
            return f"another process took {least} bytes of its memory meanwhile"
        if most < -slack:
            return f"{-most} bytes of its memory were given back meanwhile"
    return None
