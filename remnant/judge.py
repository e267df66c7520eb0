"""The verdict on a cell, the rounds of one medium and one ending: were the planted words recognised?

Memory that is not zero is not yet a remnant: only words of the key that was written are. A run without a finding is no
proof: it bounds how often a remnant can be there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ground.documents import units
from ground.quantities import quantity
from remnant.round_result import Ending, Look, Medium, Planted, Result, Round

_CONTEXTS_DIFFER = 64 * 2**20  # bytes, or one part in sixteen: so much less may be had where nobody holds any
ALL = frozenset({Medium.MEMORY, Medium.HOST})  # media of which the positive control must recognise every byte


class Verdict(Enum):
    """From the worst to the best."""

    REMNANT = "remnant"  # words of the first container were found
    NO_ANSWER = "no answer"  # a control failed: the test itself is broken
    HELD = "held"  # the next container does not get all of it: the first one still has a part
    NOT_ZERO = "not zero"  # something was there, and nobody knows what
    NONE = "no remnant"


EXPECTED: dict[Ending, dict[Medium, Verdict]] = {
    **{
        ending: dict.fromkeys(Medium, Verdict.NONE)
        for ending in (Ending.EXIT, Ending.KILL, Ending.DELETE, Ending.FORCE_DELETE, Ending.ABORT)
    },
    Ending.STAYS: {**dict.fromkeys(Medium, Verdict.NONE), Medium.MEMORY: Verdict.HELD},
}
"""Of NVIDIA's driver without a scrub, from Turing on: it clears memory that is freed, and asks Linux for memory of the
host that is zero, by its published source. What it does to the memory on the chip is published nowhere; on an H100 and
an H200 with driver 580 nothing was found."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One medium after one kind of ending, over all rounds."""

    medium: Medium
    ending: Ending
    expected: Verdict
    verdict: Verdict
    rounds: int
    read: int  # in all rounds
    not_zero: int | None
    searched: int
    recognised: int
    held: int  # at most, in a round
    mapped: int  # that the first container took by cuMemCreate, in all rounds
    why: str  # one sentence

    @property
    def as_expected(self) -> bool:
        """Whether it is as was written down before the run."""
        return self.verdict is self.expected


def cells(result: Result) -> tuple[Cell, ...]:
    """All cells that have a round, in the order of the enums."""
    chosen = {ending: [each for each in result.rounds if each.ending is ending] for ending in Ending}
    return tuple(
        cell(medium, rounds) for rounds in chosen.values() if rounds for medium in Medium if medium in rounds[0].planted
    )


def cell(medium: Medium, rounds: Sequence[Round]) -> Cell:
    """The cell of these rounds, which have one ending."""
    ending = rounds[0].ending
    looks = [each.looks[medium] for each in rounds if medium in each.looks]
    held = max((_held(medium, each) for each in rounds), default=0)
    verdict, why = _verdict(medium, rounds, looks, held)
    return Cell(
        medium=medium,
        ending=ending,
        expected=EXPECTED[ending][medium],
        verdict=verdict,
        rounds=len(rounds),
        read=sum(look.read for look in looks),
        not_zero=None if any(look.not_zero is None for look in looks) else sum(look.not_zero or 0 for look in looks),
        searched=sum(look.searched for look in looks),
        recognised=sum(look.recognised for look in looks),
        held=held,
        mapped=sum(each.planted[medium].mapped for each in rounds),
        why=why,
    )


def bound(rounds: int) -> float:
    """How often a remnant can be there at most, at 95 %, if no round of so many has found any. About 3 / rounds."""
    return 1 - math.pow(0.05, 1 / rounds)


def size(count: int) -> str:
    """Bytes in the largest unit in which the number is at least one."""
    amount, unit = float(count), "B"
    for unit in units.BYTES:
        if amount < 1024 or unit == "TiB":  # noqa: PLR2004 - one step between two units
            break
        amount /= 1024
    return f"{amount:.4g} {unit}"


def _verdict(medium: Medium, rounds: Sequence[Round], looks: Sequence[Look], held: int) -> tuple[Verdict, str]:
    if any(look.never_written for look in looks):
        return Verdict.NO_ANSWER, "words were recognised that nobody has written"
    if (total := sum(look.recognised for look in looks)) > 0:
        hits = sum(look.recognised > 0 for look in looks)
        return Verdict.REMNANT, f"{size(total)} of the first container, in {hits} of {quantity(len(rounds), 'round')}"
    if not all(_controlled(medium, each.planted[medium]) for each in rounds):
        return Verdict.NO_ANSWER, "the first container does not recognise its own words"
    if held or any(each.refused for each in rounds):
        less = f"the next container got {size(held)} less than the first one"
        return Verdict.HELD, next((each.refused for each in rounds if each.refused), less)
    if not looks or not all(look.read for look in looks):
        return Verdict.NO_ANSWER, "nobody has looked"
    if (strange := sum(look.not_zero or 0 for look in looks)) > 0:
        return Verdict.NOT_ZERO, f"{size(strange)} that were not zero, and no word was recognised in them"
    return Verdict.NONE, f"so in at most {100 * bound(len(rounds)):.2g} % of cases (with a confidence of 95 %)"


def _controlled(medium: Medium, planted: Planted) -> bool:
    return planted.recognised == planted.written > 0 if medium in ALL else planted.recognised > 0


def _held(medium: Medium, one: Round) -> int:
    """What the next container did not get of the memory that the first one could have."""
    if medium is not Medium.MEMORY or medium not in one.looks:
        return 0
    missing = one.available - one.looks[medium].read
    return missing if missing > min(_CONTEXTS_DIFFER, one.available // 16) else 0
