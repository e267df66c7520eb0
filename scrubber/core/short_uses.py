"""Whether others have used a device between two answers of its witness."""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core.witness import Counted, Missed, NoWitness, Testimony


@dataclass(frozen=True, slots=True)
class Use:
    """Others have used the device, or may have."""

    unsure: str = ""  # why it is not known whether they have; empty: they have


def use_between(before: Testimony | None, now: Testimony) -> Use | None:
    """What two answers in a row say of the time between. ``before``: None if ``now`` is the first answer."""
    if isinstance(now, Missed):
        return Use(now.why)
    if isinstance(before, Missed):
        return Use(before.why)
    if not isinstance(before, Counted):
        return None
    if isinstance(now, NoWitness):  # it had one until now
        return Use(now.why)
    return Use() if now.uses > before.uses else None
