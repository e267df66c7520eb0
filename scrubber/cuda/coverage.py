"""Compute how much of a GPU's memory was covered, and what uses the rest. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core.measurements import OWN_BOOKS, OWN_CONTEXT, OWN_IDLE, Uncovered

CONTEXT_AT_MOST = 2**30  # bytes; contexts take 256 to 500 MiB. More than twice as much is not ours
NOISE = 2**21  # one page of the driver: we free no memory meanwhile, so this is for rounding only
SLACK = 2**26  # bytes, or ...
SLACK_SHARE = 1 / 1000  # ... this share of the memory: the driver's own tables for our allocations


@dataclass(frozen=True, slots=True)
class Books:
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
    """The memory at four times: before we use CUDA, with our context, with all memory taken, and after the passes."""

    before: Books
    opened: Books
    taken: Books
    after: Books


def uncovered(account: Account, covered: int, idle: int) -> tuple[Uncovered, ...]:
    """The allocatable memory that was not covered, by cause; the parts add up to exactly this memory.

    ``idle``: the memory that is in use while the device has no holder.
    """
    rest = account.before.allocatable - covered
    causes = {
        OWN_IDLE: min(account.before.used, idle),
        "in use before the scrub": account.before.used - idle,
        OWN_CONTEXT: account.opened.used - account.before.used,
        "left free in pieces too small to take": account.after.free,
        OWN_BOOKS: rest,
    }
    found = []
    for cause, size in causes.items():
        part = max(0, min(size, rest))
        rest -= part
        found.append(Uncovered(cause, part))
    return tuple(it for it in found if it.bytes)


def disturbance(account: Account, covered: int) -> str | None:
    """Why other memory was allocated or freed meanwhile, if it was: then it is unknown whether it was covered."""
    books = (account.before, account.opened, account.taken, account.after)
    if len({(it.total, it.reserved) for it in books}) > 1:
        return "the memory that the driver keeps for itself changed meanwhile"
    slack = max(SLACK, int(account.before.total * SLACK_SHARE))
    beside = (
        (account.opened.used - account.before.used, CONTEXT_AT_MOST),
        (account.taken.used - account.opened.used - covered, slack),
        (account.after.used - account.taken.used, slack),
    )
    for change, most in beside:
        if change > most:
            return f"another process took {change} bytes of its memory meanwhile"
        if change < -NOISE:
            return f"{-change} bytes of its memory were given back meanwhile"
    return None
