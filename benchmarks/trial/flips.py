"""Each single bit that can be flipped in a small memory, on the GPU.

What a kernel must answer follows from the place alone: one byte, its offset, and what stands there. The tests of the
kernels show that the emulation answers this. Here each byte of a block of threads is flipped: in runs of accesses and
in the rest after them, for every kind and direction, and also where the memory begins beyond 2^32 vectors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from ctypes import c_uint32, c_uint64
from dataclasses import dataclass

from benchmarks.trial.card import MeasuredCard, Where, opened
from benchmarks.trial.figures import Measured, Question, Unproven, one
from scrubber.cuda.card import NOWHERE, Span, Sweep
from scrubber.cuda.driver import Word
from scrubber.cuda.patterns import VECTOR, ZERO, Pattern, PatternKind

THREADS, RUN = 32, 4  # of one block; accesses in flight, as in the kernels
RESTS = (0, 1, THREADS, 3 * THREADS + 5)  # vectors after the last whole run
BASES = (0, 2**33 + 7)  # vectors before the memory
PATTERNS = {
    PatternKind.CONSTANT: Pattern(PatternKind.CONSTANT, 0x0123456789ABCDEF, 0xFEDCBA9876543210),
    PatternKind.ADDRESS: Pattern(PatternKind.ADDRESS, 5, 2**63 + 7),
    PatternKind.KEYED: Pattern(PatternKind.KEYED, 2**64 - 3, 0x1122334455667788),
}
SIZE = 2**21
NOTHING = b"".join(number.to_bytes(8, "little") for number in (0, NOWHERE, 0))  # the result before a comparison
ALL = "flipped bits that the trial had time for"
WRONG = Question(
    "flips that a kernel does not report exactly", 0, 0, "", "shipped code reports all of these in the emulation"
)
LATE = Question(ALL, 99.9, 100, "%", "40 microseconds for each of some hundred thousand")


@dataclass(frozen=True)
class Case:
    """One way to compare a memory."""

    kind: Sweep
    pattern: Pattern
    base: int
    vectors: int

    def __str__(self) -> str:
        return f"{self.kind.value} {self.pattern.kind.name.lower()}, {self.vectors} vectors from {self.base} on"


def measure(where: Where) -> Iterator[Measured]:
    """All cases; Unproven if one answer is wrong."""
    bench, wrong = Bench(opened(where)), list[str]()
    asked = everything = 0
    for case in cases():
        places = [*flips(case.vectors)]
        everything += len(places)
        if time.monotonic() < where.ends:
            answered, bad = bench.run(case, places, where.ends)
            asked += answered
            wrong += bad
    bench.leave_zeros()
    yield one("flipped bits that were to be found", everything, "")
    yield LATE.answered(100 * asked / everything)
    yield WRONG.answered(len(wrong), note="; ".join(wrong[:3]))
    if wrong:
        raise Unproven(f"{len(wrong)} of {asked} flipped bits are not reported as they are: {wrong[0]}")


def cases() -> Iterator[Case]:
    """Every kernel that compares, with every kind that it takes."""
    for kind in (Sweep.CHECK, Sweep.INVERT, Sweep.INVERT_DOWN):
        for pattern in PATTERNS.values():
            if kind is Sweep.CHECK or pattern.kind is not PatternKind.KEYED:
                yield from (Case(kind, pattern, base, RUN * THREADS + rest) for base in BASES for rest in RESTS)


def flips(vectors: int) -> Iterator[tuple[int, int]]:
    """Each byte with one of its bits; from one vector to the next another one."""
    return ((place, 1 << (place + place // VECTOR) % 8) for place in range(vectors * VECTOR))


class Bench:
    """A small memory of the GPU, and the kernels as one block of threads."""

    def __init__(self, card: MeasuredCard) -> None:
        address = card.piece(SIZE)
        self._card, self._address, self._result = card, address, address + SIZE // 2

    def run(self, case: Case, places: list[tuple[int, int]], ends: float) -> tuple[int, list[str]]:
        """How many flips were answered in time, and the wrong answers."""
        driver, wrong, asked = self._card.driver, [], 0
        pattern, size = case.pattern, case.vectors * VECTOR
        self._launch(case, pattern, Sweep.WRITE)
        held = driver.get(self._address, size)
        for place, bit in places:
            if time.monotonic() > ends:
                break
            flipped = held[place] ^ bit
            driver.put(self._address + place, bytes([flipped]))
            driver.put(self._result, NOTHING)
            self._launch(case, pattern, case.kind)
            answer = driver.get(self._result, len(NOTHING))
            due = (1, (case.base * VECTOR + place) << 8 | flipped, case.vectors)
            if answer != b"".join(number.to_bytes(8, "little") for number in due):
                wrong.append(f"{case}: bit {bit} of byte {place} is answered with {answer.hex(' ', 8)}")
            if case.kind is Sweep.CHECK:
                driver.put(self._address + place, held[place : place + 1])
            else:
                pattern, held = pattern.flipped(), bytes(byte ^ 0xFF for byte in held)
            asked += 1
        if driver.get(self._address, size) != held:
            wrong.append(f"{case}: the memory does not hold its pattern at the end")
        return asked, wrong

    def leave_zeros(self) -> None:
        """In all of the memory."""
        self._card.sweep(Sweep.WRITE, ZERO, [Span(self._address, SIZE, 0)], lambda _size: None)

    def _launch(self, case: Case, pattern: Pattern, kind: Sweep) -> None:
        words: list[Word] = [c_uint64(self._address), c_uint64(case.vectors), c_uint64(case.base)]
        words += [c_uint32(pattern.kind), c_uint64(pattern.first), c_uint64(pattern.second)]
        if kind in (Sweep.INVERT, Sweep.INVERT_DOWN):
            words.append(c_uint32(kind is Sweep.INVERT_DOWN))
        if kind is not Sweep.WRITE:
            words.append(c_uint64(self._result))
        self._card.launch_block(kind, THREADS, words)
