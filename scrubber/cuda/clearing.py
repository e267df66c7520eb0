"""Overwrite a memory and prove it: count the old data, then write and read back each pattern, the last one zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scrubber.core.measurements import Mismatch, joined
from scrubber.cuda import patterns
from scrubber.cuda.card import Found, Progress
from scrubber.cuda.memory import GpuMemory, counted, mismatch

PLACES = 8  # the most offsets of old data that are reported


@dataclass(frozen=True, slots=True)
class Cleared:
    """The old data before the first write, and the bytes that did not hold a pattern."""

    residue_bytes: int
    residue_at: tuple[int, ...]  # where it begins, in the first spans with old data
    mismatch: Mismatch | None
    covered: int  # bytes, as counted by the device in the last comparison; 0 without a pattern


@dataclass(frozen=True, slots=True)
class Verified:
    """The bytes that were not zero, and the number of compared bytes as counted by the device."""

    mismatch: Mismatch | None
    covered: int


def clear(memory: GpuMemory, key: bytes, names: Sequence[str], progress: Progress) -> Cleared:
    """Count the old data, then write and read back each pattern in order."""
    chosen = [patterns.named(name, key) for name in names]
    step = counted(progress, memory.size * (1 + 2 * len(chosen)))
    residue = [found for found in memory.compare(patterns.ZERO, step) if found.count]
    wrong: Mismatch | None = None
    covered = 0
    for pattern in chosen:
        memory.write(pattern, step)
        found = memory.compare(pattern, step)
        wrong, covered = joined(wrong, mismatch(found, pattern)), _covered(found)
    places = tuple(found.offset for found in residue[:PLACES])
    return Cleared(sum(found.count for found in residue), places, wrong, covered)


def verify(memory: GpuMemory, progress: Progress) -> Verified:
    """Read all memory: each byte must be zero."""
    found = memory.compare(patterns.ZERO, counted(progress, memory.size))
    return Verified(mismatch(found, patterns.ZERO), _covered(found))


def _covered(found: Sequence[Found]) -> int:
    return sum(it.compared for it in found)
