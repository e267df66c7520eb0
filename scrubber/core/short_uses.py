"""Whether others have used a device between two answers of its witness."""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core.witness import Counted, Missed, NoWitness, Testimony


@dataclass(frozen=True, slots=True)
class Use:
    """Others have used the device, or may have."""

    unsure: str = ""  # why it is not known whether they have; empty: they have


def is_older(said: Testimony, before: Testimony | None) -> bool:
    """Whether an answer was given before another one that came first: the same witness had counted less."""
    if not isinstance(said, Counted) or not isinstance(before, Counted):
        return False
    return said.by == before.by and said.uses < before.uses


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
    if now.by != before.by:
        return Use(f"{before.by} no longer counts, and {now.by} had not counted before")
    return Use() if now.uses > before.uses else None
