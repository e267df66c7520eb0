"""Overwrite a memory and prove it: count the old data, then write and read back each pattern, the last one zeros."""

from __future__ import annotations

from collections.abc import Sequence

from scrubber.core.measurements import Mismatch, joined
from scrubber.core.model import Findings
from scrubber.cuda import patterns
from scrubber.cuda.card import Found, Progress
from scrubber.cuda.memory import GpuMemory, counted, mismatch

PLACES = 8  # the most offsets of old data that are reported


def clear(memory: GpuMemory, key: bytes, names: Sequence[str], progress: Progress) -> Findings:
    """Count the old data, then write and read back each pattern in order.

    Covered are the bytes that the device counted in the last comparison; none without a pattern.
    """
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
    left = sum(found.count for found in residue)
    return Findings(covered, residue_bytes=left, mismatch=wrong, residue_at=places)


def verify(memory: GpuMemory, progress: Progress) -> Findings:
    """Read all memory: each byte must be zero."""
    found = memory.compare(patterns.ZERO, counted(progress, memory.size))
    return Findings(_covered(found), mismatch=mismatch(found, patterns.ZERO))


def _covered(found: Sequence[Found]) -> int:
    return sum(it.compared for it in found)
