"""What a receipt says of the memory and the units of a device."""

from __future__ import annotations

from dataclasses import dataclass

ZEROS = "zero"  # the pattern that hides nothing of what a next search finds

# Said of a receipt whose ``searched_bytes`` is 0, and of one that ``leaves`` another pattern than zeros.
UNSEARCHED = "what the last owner left is not known, because the pattern of an earlier clear may have been in memory"
PATTERN_LEFT = "the pattern stays in memory unless the driver clears it: the next user may find it instead of zeros"


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A part of the memory that the scrub did not cover, and why."""

    cause: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What a scrub measured. Every receipt has these fields: where it is made, stored, sent and shown."""

    covered_bytes: int
    allocatable_bytes: int
    residue_bytes: int
    processes_found: int
    processes_terminated: int
    residue_at: tuple[int, ...] = ()  # offsets of the first bytes that the last tenant left
    uncovered: tuple[Uncovered, ...] = ()  # all that is allocatable and not covered, by cause
    patterns: tuple[str, ...] = ()  # what was written and read back, in order
    units: int | None = None  # multiprocessors; None when the path does not overwrite their memory
    units_reached: int | None = None
    shared_unreached_bytes: int | None = None  # shared memory of the units that the driver lets no program write
    units_left: tuple[str, ...] = ()  # memory of the units that the scrub does not overwrite; empty: not said
    tests: tuple[str, ...] = ()  # the tests of the self-test that were completed
    searched_bytes: int | None = None  # searched for residue; None: all that was covered; 0: see ``UNSEARCHED``
    unsupported: tuple[str, ...] = ()  # of a scrub by an older version: settings of its policy without support
    witness: str = ""  # of short uses, from the clear on: ``UseReading.words``; empty: not recorded

    @property
    def leaves(self) -> str:
        """The pattern that the scrub left in memory, by name. A self-test ends with zeros."""
        return self.patterns[-1] if self.patterns and not self.tests else ZEROS
