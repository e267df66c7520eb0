"""The self-test of a simulated GPU: the tests of a real GPU on a file, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from scrubber.core.measurements import Mismatch, Tested, joined
from scrubber.devices.base import Progress
from scrubber.devices.simulated import chip, patterns
from scrubber.devices.simulated.memory import MemoryFile, Step
from scrubber.devices.simulated.patterns import Pattern

Pass = Callable[[], Mismatch | None]  # one pass over the memory

ARITHMETIC = "arithmetic"
_PASSES = 9  # two for each pattern (write, read back), three for the inversions


@dataclass(frozen=True, slots=True)
class Box:
    """The time limit, and a check that the device still answers."""

    ends: float  # on the monotonic clock
    answers: Callable[[], object]  # raises when the device does not answer

    def over(self) -> bool:
        """Whether the time is over."""
        self.answers()
        return time.monotonic() >= self.ends


def run(cells: MemoryFile, key: bytes, bad_units: Collection[int], box: Box, progress: Progress) -> Tested:
    """Run the tests within the time limit, then write zeros and read them back in any case."""
    done, ended = 0, list[str]()
    found: Mismatch | None = None

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(done, _PASSES * cells.size)

    tests = _tests(cells, key, step)
    for name, passes in tests.items():
        left = list(passes)
        while left and not box.over():  # checked between passes, so that no finding is lost
            found = joined(found, left.pop(0)())
        ended += [] if left else [name]
    units, deviating = 0, tuple[int, ...]()
    if not box.over():
        units, deviating = chip.UNITS, chip.deviating(key, bad_units)
        ended.append(ARITHMETIC)
    for clearing in _held(cells, patterns.zero, step):
        found = joined(found, clearing())
    skipped = tuple(name for name in (*tests, ARITHMETIC) if name not in ended)
    return Tested(tuple(ended), skipped, cells.size, found, units, deviating)


def _tests(cells: MemoryFile, key: bytes, step: Step) -> Mapping[str, tuple[Pass, ...]]:
    return {
        "address": _held(cells, patterns.address, step),
        "inversions": _inverted(cells, step),
        "random": _held(cells, patterns.keyed(key), step),
    }


def _held(cells: MemoryFile, pattern: Pattern, step: Step) -> tuple[Pass, Pass]:
    return partial(cells.fill, pattern, step), partial(cells.compare, pattern, step)


def _inverted(cells: MemoryFile, step: Step) -> tuple[Pass, Pass, Pass]:
    """Invert each chunk in ascending order, then invert it back in descending order."""
    return (
        partial(cells.fill, patterns.even, step),
        partial(cells.compare, patterns.even, step, patterns.odd),
        partial(cells.compare, patterns.odd, step, patterns.even, downwards=True),
    )
