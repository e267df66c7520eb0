"""A GPU of one numpy array, with everything that its memory and its multiprocessors can do wrong.

It does what ``scrubber/cuda/kernels`` says, and fails in ways that no driver reports. The real kernels and the real
card run above the driver's stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.fakes.cuda.machine import BASE, PAGE, UNITS
from tests.fakes.cuda.patterns import pattern_bytes

NO_UNIT = 2**64 - 1

Bytes = npt.NDArray[np.uint8]
Compared = tuple[int, int, int]  # of a comparison


@dataclass
class Faults:
    """What goes wrong, and when."""

    stuck: dict[int, int] = field(default_factory=dict)  # place -> bits that are always set
    forgets: dict[int, int] = field(default_factory=dict)  # place -> bits that flip while nothing is done
    aliases: dict[int, int] = field(default_factory=dict)  # place -> the one that answers there as well
    fails_after: int | None = None  # allocations that succeed, then the driver says something else than "no more"
    lazy: bool = False  # writes are not done
    deviating: frozenset[int] = frozenset()  # multiprocessors that compute something else
    unreached: frozenset[int] = frozenset()  # ... that no block runs on
    before: Callable[[str, int], None] = lambda _kernel, _number: None  # called before the n-th launch


class BrokenError(Exception):
    """The driver says something else than "no more memory"."""


class HostGpu:
    """One GPU. ``cells`` is its memory."""

    def __init__(self, cells: Bytes, units: int = UNITS) -> None:
        self.cells = cells
        self.units = units
        self.faults = Faults()
        self.taken: dict[int, int] = {}  # offset -> size
        self.launches = 0

    # --- memory ---

    def allocate(self, size: int) -> int | None:
        """First fit; None when there is no piece of that size."""
        if self.faults.fails_after is not None and len(self.taken) >= self.faults.fails_after:
            raise BrokenError("an illegal memory access was encountered")
        at = 0
        for offset, length in sorted(self.taken.items()):
            if offset - at >= size:
                break
            at = offset + length
        if at + size > len(self.cells):
            return None
        self.taken[at] = -(-size // PAGE) * PAGE
        return BASE + at

    @property
    def used(self) -> int:
        return sum(self.taken.values())

    def bytes_at(self, address: int, size: int) -> Bytes:
        return self.cells[address - BASE : address - BASE + size]

    # --- kernels ---

    def write(self, at: int, vectors: int, base: int, kind: int, first: int, second: int) -> None:
        self._launched("write")
        if not self.faults.lazy:
            self._store(at, pattern_bytes(kind, first, second, base, vectors).view(np.uint8).reshape(-1))

    def check(self, at: int, vectors: int, base: int, kind: int, first: int, second: int) -> Compared:
        """How many bytes differ, the first with what was read there, as the kernel packs it, and vectors compared."""
        self._launched("check")
        return self._compared(at, vectors, base, kind, first, second)

    def invert(self, at: int, vectors: int, base: int, kind: int, first: int, second: int) -> Compared:
        self._launched("invert")
        compared = self._compared(at, vectors, base, kind, first, second)
        flipped = pattern_bytes(kind, first ^ NO_UNIT, second ^ NO_UNIT, base, vectors)
        self._store(at, flipped.view(np.uint8).reshape(-1))
        return compared

    def exact(self, number: int) -> list[tuple[int, int]]:
        """Each multiprocessor that was reached, and what it computed."""
        self._launched("exact")
        reached = set(range(self.units)) - self.faults.unreached
        return [(unit, number + 1 + (unit in self.faults.deviating)) for unit in sorted(reached)]

    def rest(self) -> None:
        """Time passes: cells forget."""
        for place, bits in self.faults.forgets.items():
            self.cells[place] ^= bits

    def _launched(self, name: str) -> None:
        self.faults.before(name, self.launches)
        self.launches += 1

    def _store(self, at: int, data: Bytes) -> None:
        self.bytes_at(at, len(data))[:] = data
        for pair in self.faults.aliases.items():
            if written := [place for place in pair if at - BASE <= place < at - BASE + len(data)]:
                self.cells[[*pair]] = self.cells[max(written)]  # what was written last
        for place, bits in self.faults.stuck.items():
            self.cells[place] |= bits

    def _compared(self, at: int, vectors: int, base: int, kind: int, first: int, second: int) -> Compared:
        read = self.bytes_at(at, vectors * 16)
        places = np.flatnonzero(read != pattern_bytes(kind, first, second, base, vectors).view(np.uint8).reshape(-1))
        if not len(places):
            return 0, NO_UNIT, vectors
        return len(places), (base * 16 + int(places[0])) << 8 | int(read[places[0]]), vectors
