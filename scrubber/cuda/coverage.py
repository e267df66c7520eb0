"""How much of a GPU's memory was covered, and whose the rest is. Pure: figures in, figures out."""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core.measurements import OWN_BOOKS, OWN_CONTEXT, OWN_IDLE, Uncovered

CONTEXT_AT_MOST = 2**30  # bytes; contexts are reported as 256 to 500 MiB. What is more than twice that is not ours
NOISE = 2**21  # one page of the driver: nothing of ours is given back meanwhile, so there is room for rounding only
SLACK = 2**26  # bytes, or ...
SLACK_SHARE = 1 / 1000  # ... this part of the memory: what the driver books for its own maps of what we allocate


@dataclass(frozen=True, slots=True)
class Books:
    """A GPU's memory as the driver keeps its books, in bytes."""

    total: int
    reserved: int
    used: int

    @property
    def allocatable(self) -> int:
        """What a process could ever have of it."""
        return self.total - self.reserved

    @property
    def free(self) -> int:
        """What nobody has."""
        return self.allocatable - self.used


@dataclass(frozen=True, slots=True)
class Account:
    """The books at four times: before we used CUDA, with our context, with all memory taken, and after the passes."""

    before: Books
    opened: Books
    taken: Books
    after: Books


def uncovered(account: Account, covered: int, idle: int) -> tuple[Uncovered, ...]:
    """What of the allocatable memory was not covered, by cause; together all of it, and no more.

    ``idle``: so much is in use of this device while nobody is on it.
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
    """Who else's memory came or went meanwhile: then nobody knows where it was, and what became of it."""
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
            return f"somebody else took {change} bytes of its memory meanwhile"
        if change < -NOISE:
            return f"{-change} bytes of its memory were given back meanwhile"
    return None
