"""An outage of the ledger: from the first write that fails or hangs, until a row tells of it.

``Works`` or ``Outage``: what the last write has shown of the disk. The functions return the state after the next event.

Rule 1: an outage begins with the first write that fails or hangs, and keeps its time and its reason. It ends only with
        a write that reaches the disk: a ledger that can be loaded may still be read-only.
Rule 2: after a failed write, memory may differ from the disk, and the disk is right. Nothing is written before the
        records are loaded again.
Rule 3: the row about an outage comes before any other row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from ground.errors import LedgerUnavailable
from scrubber.core.events import WritesFailed
from scrubber.core.model import Moment
from scrubber.core.standstills import LONG


@dataclass(frozen=True, slots=True)
class Works:
    """The last write has reached the disk."""

    untold: WritesFailed | None = None  # an outage that has ended and is in no row yet


@dataclass(frozen=True, slots=True)
class Outage:
    """A write has failed or hangs, and none has reached the disk since."""

    untold: WritesFailed  # since the first such write; it ends with the next write that reaches the disk
    fault: LedgerUnavailable  # of the newest such write
    stale: bool  # a write has failed, and did not only hang


Disk: TypeAlias = Works | Outage


def is_stale(disk: Disk) -> bool:
    """Whether the records must be loaded before the next write."""
    return isinstance(disk, Outage) and disk.stale


def hangs(disk: Disk, fault: LedgerUnavailable, began: Moment) -> Outage:
    """A write that began then has taken too long. It may still reach the disk."""
    first = disk.untold or WritesFailed(began, began, str(fault))
    return Outage(first, fault, stale=is_stale(disk))


def failed(disk: Disk, fault: LedgerUnavailable, began: Moment) -> Outage:
    """A write that began then has failed."""
    return replace(hangs(disk, fault, began), stale=True)


def wrote(disk: Outage, now: Moment) -> Disk:
    """A write or a load has succeeded. If a write was only slow, for a short time, no row tells of it."""
    if disk.stale:  # the outage ends with its row
        return disk
    lasted = now.uptime - disk.untold.since.uptime
    return Works(replace(disk.untold, until=now) if lasted >= LONG else None)


def to_tell(disk: Disk, now: Moment) -> WritesFailed | None:
    """The event that has to be written before any other; it is told once that has reached the disk."""
    return replace(disk.untold, until=now) if isinstance(disk, Outage) else disk.untold
