"""What steps measure on a device, and which part of its memory they cannot cover."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scrub_api.measurements import Uncovered

OWN_IDLE = "in use on an idle device, by the driver or watching programs"
OWN_CONTEXT = "the context of the scrub itself"
OWN_LISTED = "the scrub itself, as the driver counts it"
OWN_BOOKS = "the driver's own bookkeeping for the memory that the scrub took"
OURS = frozenset({OWN_IDLE, OWN_CONTEXT, OWN_LISTED, OWN_BOOKS})  # no scrub can cover these: the device is not to blame

# So much of it counts as covered where the driver does not say that it is ours. A context took 333 MiB on an H100 and
# on an H200 with driver 580.159.04; others report 256 to 612 MiB.
OURS_AT_MOST = 640 * 2**20


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Memory that did not hold what was written."""

    offset: int
    expected: int
    got: int
    count: int


def own_memory(uncovered: Iterable[Uncovered]) -> int:
    """The uncovered bytes that the scrub or the driver uses."""
    return sum(part.bytes for part in uncovered if part.cause in OURS)


def forgiven_memory(uncovered: Iterable[Uncovered]) -> int:
    """The part of ``own_memory`` that counts as covered: what the driver counts as the scrub's, and a limited rest."""
    parts = tuple(uncovered)
    listed = sum(part.bytes for part in parts if part.cause == OWN_LISTED)
    return listed + min(own_memory(parts) - listed, OURS_AT_MOST)


@dataclass(frozen=True, slots=True)
class Cleared:
    """How much of the memory was overwritten, and what was in it before."""

    covered_bytes: int  # 0: nothing was overwritten
    residue_bytes: int
    allocatable_bytes: int = 0
    mismatch: Mismatch | None = None
    residue_at: tuple[int, ...] = ()  # offsets of the first bytes that the last tenant left, never the bytes
    searched_bytes: int | None = None  # searched for data of the last tenant; None: all that was covered
    uncovered: tuple[Uncovered, ...] = ()  # what was not covered, by cause
    patterns: tuple[str, ...] = ()  # what was written, in order; each but the last was read back
    drift: tuple[str, ...] = ()  # the settings that had to be restored first


@dataclass(frozen=True, slots=True)
class Verified:
    """How much of the memory was read back."""

    covered_bytes: int  # 0: nothing was read back
    patterns: tuple[str, ...]  # the one that it must hold
    allocatable_bytes: int = 0
    mismatch: Mismatch | None = None


@dataclass(frozen=True, slots=True)
class Scratched:
    """How much of the shared memory and registers was overwritten and read back."""

    units: int  # multiprocessors that the device has
    units_reached: int  # ... and those that were overwritten
    units_faulty: int = 0  # ... and of these, those that did not hold what was written
    shared_unreached_bytes: int | None = None  # shared memory of all of them that the driver lets no program write
    units_left: tuple[str, ...] = ()  # other memory of theirs, which is not overwritten; empty: not known


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


@dataclass(frozen=True, slots=True)
class Restored:
    """Which settings were restored."""

    drift: tuple[str, ...] = ()  # those that had another value
    unsupported: tuple[str, ...] = ()  # of a scrub by an older version: settings of its policy without support


def joined(first: Mismatch | None, second: Mismatch | None) -> Mismatch | None:
    """Two mismatches as one: the offset of the first, the count of both."""
    if first is None or second is None:
        return first or second
    return Mismatch(first.offset, first.expected, first.got, first.count + second.count)
