"""Overwrite a memory and prove it: what was there, each pattern written and read back, zeros at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scrubber.core.measurements import Mismatch, joined
from scrubber.cuda import patterns
from scrubber.cuda.card import Found, Progress
from scrubber.cuda.memory import GpuMemory, counted, mismatch

PLACES = 8  # of what the last user left, at most


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was found before the first write, and what did not hold what was written."""

    residue_bytes: int
    residue_at: tuple[int, ...]  # where it begins, in the first spans that hold any
    mismatch: Mismatch | None
    covered: int  # bytes, as the device has counted them in the last comparison; none where nothing was written


@dataclass(frozen=True, slots=True)
class Verified:
    """What was not zero, and how many bytes the device has counted while it looked."""

    mismatch: Mismatch | None
    covered: int


def clear(memory: GpuMemory, key: bytes, names: Sequence[str], progress: Progress) -> Cleared:
    """The census, then every pattern in its order."""
    wanted = [patterns.named(name, key) for name in names]
    step = counted(progress, memory.size * (1 + 2 * len(wanted)))
    residue = [found for found in memory.compare(patterns.ZERO, step) if found.count]
    wrong: Mismatch | None = None
    covered = 0
    for pattern in wanted:
        memory.write(pattern, step)
        found = memory.compare(pattern, step)
        wrong, covered = joined(wrong, mismatch(found, pattern)), _covered(found)
    places = tuple(found.offset for found in residue[:PLACES])
    return Cleared(sum(found.count for found in residue), places, wrong, covered)


def verify(memory: GpuMemory, progress: Progress) -> Verified:
    """Read all of it: every byte must be zero."""
    found = memory.compare(patterns.ZERO, counted(progress, memory.size))
    return Verified(mismatch(found, patterns.ZERO), _covered(found))


def _covered(found: Sequence[Found]) -> int:
    return sum(it.compared for it in found)
