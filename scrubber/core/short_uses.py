"""Whether others have used a device between two answers of its witness."""

from __future__ import annotations

from dataclasses import dataclass

from scrubber.core.witness import Counted, Missed, NoWitness, Testimony


@dataclass(frozen=True, slots=True)
class Use:
    """Others have used the device, or may have."""

    unsure: str = ""  # why it is not known whether they have; empty: they have


def compared(before: Testimony | None, said: Testimony) -> tuple[Testimony, Use | None]:
    """The later one of two answers, and what they say of the time between.

    Of two counts of one witness, the smaller one was given before: answers may come in another order.
    """
    match before:
        case Counted(by, uses) if isinstance(said, Counted) and said.by == by and said.uses < uses:
            return before, None
    return said, _use_between(before, said)


def _use_between(before: Testimony | None, now: Testimony) -> Use | None:
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
        return Use(f"{before.words} no longer counts, and {now.words} had not counted before")
    return Use() if now.uses > before.uses else None
