"""Scrub the on-chip memory of each multiprocessor: shared memory and registers."""

from __future__ import annotations

from scrubber.core.measurements import Scratched
from scrubber.cuda import patterns
from scrubber.cuda.card import Card, KernelProgram


def scratch(card: Card, key: bytes) -> Scratched:
    """Overwrite the on-chip memory, read it back, and leave zeros."""
    number = patterns.keyed(key, "scratch").first
    runs = [card.everywhere(program, number) for program in (KernelProgram.SCRATCH, KernelProgram.REGISTERS)]
    reached = set.intersection(*({unit.number for unit in run} for run in runs))
    faulty = {unit.number for run in runs for unit in run if unit.wrong}
    return Scratched(card.units, len(reached), len(faulty))
