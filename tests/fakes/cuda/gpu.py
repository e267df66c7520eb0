"""A GPU of one numpy array: memory that is given out in pieces, and multiprocessors that compute.

It does what ``scrubber/cuda/kernels`` says, on addresses as a kernel gets them, and everything that a GPU can do wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.fakes.cuda.patterns import pattern_bytes

BASE = 2**40  # of all addresses: none is small by accident
PAGE = 2**21
NO_UNIT = 2**64 - 1
SHARED_WORDS = 64  # of each multiprocessor

Bytes = npt.NDArray[np.uint8]
Compared = tuple[int, int, int]  # of a comparison
Units = Callable[[str, int], frozenset[int]]  # the multiprocessors of which it is true in a program's n-th run


def always(*units: int) -> Units:
    """Whatever runs there, and however often."""
    return lambda _program, _run: frozenset(units)


NONE = always()


@dataclass
class Faults:
    """What goes wrong, and when."""

    stuck: dict[int, int] = field(default_factory=dict)  # place -> bits that are always set
    forgets: dict[int, int] = field(default_factory=dict)  # place -> bits that flip while nothing is done
    aliases: dict[int, int] = field(default_factory=dict)  # place -> the one that answers there as well
    fails_after: int | None = None  # allocations that succeed, then the driver says something else than "no more"
    lazy: bool = False  # writes are not done
    reached: Callable[[int], int] = lambda vectors: vectors  # how many of them a comparison goes over ...
    counted: Callable[[int], int] = lambda vectors: vectors  # ... and how many of those it says it did
    deviating: Units = NONE  # multiprocessors that compute something else
    unreached: Units = NONE  # ... that no block runs on
    leaky: Units = NONE  # ... that do not hold what is written to their shared memory, or registers
    before: Callable[[str, int], None] = lambda _kernel, _number: None  # called before the n-th launch


class BrokenError(Exception):
    """The driver says something else than "no more memory"."""


class HostGpu:
    """One GPU. ``cells`` is its memory; who takes of it is the driver's business."""

    def __init__(self, cells: Bytes, units: int = 4) -> None:
        self.cells = cells
        self.units = units
        self.faults = Faults()
        self.taken: dict[int, int] = {}  # offset -> size
        self.shared = np.zeros((units, SHARED_WORDS), np.uint32)
        self.held = np.zeros((units, SHARED_WORDS), np.uint32)  # in registers
        self.launches = 0
        self.runs: Counter[str] = Counter()  # of each program
        self.allocations = 0

    # --- memory ---

    def allocate(self, size: int) -> int | None:
        """First fit; None when there is no piece of that size."""
        if self.faults.fails_after is not None and self.allocations >= self.faults.fails_after:
            raise BrokenError("an illegal memory access was encountered")
        at = self.gap(size)
        if at is None:
            return None
        self.allocations += 1
        self.taken[at] = -(-size // PAGE) * PAGE
        return BASE + at

    def gap(self, size: int) -> int | None:
        """Where the first free piece of that size begins."""
        at = 0
        for offset, length in sorted(self.taken.items()):
            if offset - at >= size:
                break
            at = offset + length
        return at if at + size <= len(self.cells) else None

    def in_one_piece(self) -> bool:
        """Whether nothing but one piece is taken."""
        return len(self.taken) == 1

    def resize(self, address: int, size: int) -> None:
        """The piece that is taken there is of that size from now on."""
        self.taken[address - BASE] = -(-size // PAGE) * PAGE

    def free(self, address: int) -> None:
        """KeyError when nothing was taken there."""
        del self.taken[address - BASE]

    @property
    def used(self) -> int:
        return sum(self.taken.values())

    def bytes_at(self, address: int, size: int) -> Bytes:
        return self.cells[address - BASE : address - BASE + size]

    # --- kernels ---

    def write(self, at: int, vectors: int, base: int, kind: int, first: int, second: int) -> None:
        self._launched("write", vectors)
        if not self.faults.lazy:
            self._store(at, pattern_bytes(kind, first, second, base, vectors).view(np.uint8).reshape(-1))

    def check(self, at: int, vectors: int, base: int, kind: int, first: int, second: int) -> Compared:
        """How many bytes differ, the first with what was read there, as the kernel packs it, and vectors compared."""
        self._launched("check", vectors)
        return self._compared(at, vectors, base, kind, first, second)

    def invert(self, at: int, vectors: int, base: int, kind: int, first: int, second: int, _down: int) -> Compared:
        self._launched("invert", vectors)
        found = self._compared(at, vectors, base, kind, first, second)
        vectors = self.faults.reached(vectors)
        flipped = pattern_bytes(kind, first ^ NO_UNIT, second ^ NO_UNIT, base, vectors)
        self._store(at, flipped.view(np.uint8).reshape(-1))
        return found

    def program(self, name: str, number: int, blocks: int) -> list[tuple[int, int, int, int]]:
        """Visits, wrong words and digest of each multiprocessor that was reached, with its number."""
        self._launched(name)
        self.runs[name] += 1
        unreached = self.faults.unreached(name, self.runs[name])
        reached = [unit for unit in range(self.units) if unit not in unreached]
        block_counts = Counter(reached[block % len(reached)] for block in range(blocks))
        return [(unit, times, *getattr(self, f"_{name}")(unit, number)) for unit, times in block_counts.items()]

    def _scratch(self, unit: int, number: int) -> tuple[int, int]:
        self.shared[unit] = number & 0xFFFFFFFF
        wrong = SHARED_WORDS * (unit in self.faults.leaky("scratch", self.runs["scratch"]))
        self.shared[unit] = 0
        return wrong, 0

    def _registers(self, unit: int, _number: int) -> tuple[int, int]:
        self.held[unit] = 0
        return SHARED_WORDS * (unit in self.faults.leaky("registers", self.runs["registers"])), 0

    def _exact(self, unit: int, number: int) -> tuple[int, int]:
        return 0, number + 1 + (unit in self.faults.deviating("exact", self.runs["exact"]))

    def _plant(self, unit: int, number: int) -> tuple[int, int]:
        self.shared[unit] = number
        return 0, 0

    def _listen(self, unit: int, number: int) -> tuple[int, int]:
        return int((self.shared[unit] == number).sum()), 0

    def _plant_registers(self, unit: int, number: int) -> tuple[int, int]:
        self.held[unit] = number
        return 0, 0

    def _listen_registers(self, unit: int, number: int) -> tuple[int, int]:
        return int((self.held[unit] == number).sum()), 0

    def rest(self) -> None:
        """Time passes: cells forget."""
        for place, bits in self.faults.forgets.items():
            self.cells[place] ^= bits

    def _launched(self, name: str, vectors: int = 1) -> None:
        """What goes over nothing is no launch that a fault is meant for."""
        if vectors:
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
        vectors = self.faults.reached(vectors)
        read = self.bytes_at(at, vectors * 16)
        places = np.flatnonzero(read != pattern_bytes(kind, first, second, base, vectors).view(np.uint8).reshape(-1))
        if not len(places):
            return 0, NO_UNIT, self.faults.counted(len(read) // 16)
        lowest = (base * 16 + int(places[0])) << 8 | int(read[places[0]])
        return len(places), lowest, self.faults.counted(len(read) // 16)
