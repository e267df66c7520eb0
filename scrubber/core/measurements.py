"""What steps measure on a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OWN_IDLE = "in use on an idle device, by the driver or watching programs"
OWN_CONTEXT = "the context of the scrub itself"
OWN_LISTED = "the scrub itself, as the driver counts it"
OWN_BOOKS = "the driver's own bookkeeping for the memory that the scrub took"
OURS = frozenset({OWN_IDLE, OWN_CONTEXT, OWN_LISTED, OWN_BOOKS})  # no scrub can cover these: the device is not to blame

# So much of it counts as covered where the driver does not say that it is ours. A context took 333 MiB on an H100 and
# on an H200 with driver 580.159.04; others report 256 to 612 MiB.
OURS_AT_MOST = 640 * 2**20

ZEROS = "zero"  # the pattern that hides nothing of what a next search finds

# Said of a receipt whose ``searched_bytes`` is 0, and of one that ``leaves`` another pattern than zeros.
UNSEARCHED = "what the last owner left is not known, because the pattern of an earlier clear may have been in memory"
PATTERN_LEFT = "the pattern stays in memory unless the driver clears it: the next user may find it instead of zeros"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Memory that did not hold what was written."""

    offset: int
    expected: int
    got: int
    count: int


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A part of the memory that the scrub did not cover, and why."""

    cause: str
    bytes: int


def own_memory(uncovered: Iterable[Uncovered]) -> int:
    """The uncovered bytes that the scrub or the driver itself takes."""
    return sum(part.bytes for part in uncovered if part.cause in OURS)


def forgiven_memory(uncovered: Iterable[Uncovered]) -> int:
    """The part of ``own_memory`` that counts as covered: what the driver counts as the scrub's, and a limited rest."""
    parts = tuple(uncovered)
    listed = sum(part.bytes for part in parts if part.cause == OWN_LISTED)
    return listed + min(own_memory(parts) - listed, OURS_AT_MOST)


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
    unsupported: tuple[str, ...] = ()  # settings of the policy that the device does not support
    witness: str = ""  # of short uses, from the clear on: ``Testimony.words``; empty: not recorded

    @property
    def leaves(self) -> str:
        """The pattern that the scrub left in memory, by name. A self-test ends with zeros."""
        return self.patterns[-1] if self.patterns and not self.tests else ZEROS


@dataclass(frozen=True, slots=True)
class Scratched:
    """How much of the shared memory and registers was overwritten and read back."""

    units: int  # multiprocessors that the device has
    reached: int  # ... and those that were overwritten
    faulty: int = 0  # ... and of these, those that did not hold what was written
    unreached_bytes: int | None = None  # shared memory of all of them that the driver lets no program write
    left: tuple[str, ...] = ()  # other memory of theirs, which is not overwritten; empty: not known


@dataclass(frozen=True, slots=True)
class Tested:
    """Which tests a self-test ran, and what it found."""

    tests: tuple[str, ...]  # completed tests, in order
    skipped: tuple[str, ...] = ()  # tests for which no time was left
    covered_bytes: int = 0  # of memory
    mismatch: Mismatch | None = None
    units: int = 0  # multiprocessors that computed
    deviating: tuple[int, ...] = ()  # units whose results differ from most others, or from their own
    repaired: tuple[str, ...] = ()  # what the hardware repaired meanwhile: no fault, but news


def joined(first: Mismatch | None, second: Mismatch | None) -> Mismatch | None:
    """Two mismatches as one: the offset of the first, the count of both."""
    if first is None or second is None:
        return first or second
    return Mismatch(first.offset, first.expected, first.got, first.count + second.count)
