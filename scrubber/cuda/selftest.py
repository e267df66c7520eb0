"""Test a GPU's memory and arithmetic: run a list of tests in order, as far as the time allows.

The patterns find cells that do not hold a bit, that answer to another address, or that lose their content. The
arithmetic is compared bit by bit between multiprocessors, and with a second run after the memory tests: a
multiprocessor that differs from the majority is broken. Afterwards the memory is zero, and read back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from scrubber.core.measured import Mismatch, Tested, joined
from scrubber.cuda import patterns
from scrubber.cuda.card import Card, CudaError, KernelProgram, Progress, Step, Unit
from scrubber.cuda.memory import GpuMemory, counted
from scrubber.cuda.patterns import Pattern, PatternKind

INVERTED = (0x00, 0x55, 0x33, 0x0F)  # bytes that are inverted, and inverted back
ROUNDS = 3  # of random patterns
RETENTION = 1 / 6  # share of the time in which the memory is not accessed ...
LONGEST_RETENTION = 10.0  # ... at most, in seconds
RESERVED = 3  # passes: this time is reserved for the zeros at the end

ARITHMETIC = "arithmetic"


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a test."""

    now: Callable[[], float]
    pause: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class _Test:
    """One memory test, with its number of passes and its pause."""

    name: str
    passes: int
    run: Callable[[GpuMemory, Step], Mismatch | None]
    pause: float = 0.0


def run(memory: GpuMemory, key: bytes, seconds: float, progress: Progress, clock: Clock) -> Tested:
    """Run the tests as far as the time allows. The first finding ends the memory tests."""
    number = patterns.keyed(key, ARITHMETIC).first
    before = _computed(memory.card, number)
    tests = _tests(key, min(LONGEST_RETENTION, seconds * RETENTION), clock.pause)
    step = counted(progress, memory.size * (sum(test.passes for test in tests) + 2))
    ended, wrong = _on_memory(memory, tests, step, clock.now, clock.now() + seconds)
    memory.write(patterns.ZERO, step)
    wrong = joined(wrong, memory.check(patterns.ZERO, step))
    after = _computed(memory.card, number)
    computed = {unit.number for unit in before} & {unit.number for unit in after}
    if len(computed) == memory.card.units:
        ended = (*ended, ARITHMETIC)
    names = (*(test.name for test in tests), ARITHMETIC)
    skipped = tuple(name for name in names if name not in ended)
    return Tested(ended, skipped, memory.size, wrong, len(computed), deviating((*before, *after)))


def deviating(runs: tuple[Unit, ...]) -> tuple[int, ...]:
    """Multiprocessors that differ from the majority or between two runs; all of them if there is no majority."""
    digests = Counter(unit.digest for unit in runs)
    right = next((digest for digest, votes in digests.items() if votes * 2 > len(runs)), None)
    return tuple(sorted({unit.number for unit in runs if unit.wrong or unit.digest != right}))


def _computed(card: Card, number: int) -> tuple[Unit, ...]:
    """The result of each multiprocessor. No result is 0: a 0 means that nothing was computed."""
    units = card.everywhere(KernelProgram.EXACT, number)
    if idle := [unit.number for unit in units if unit.digest == 0]:
        raise CudaError(f"cannot test {card.name}: multiprocessors {idle} came to their turn and computed nothing")
    return units


def _on_memory(
    memory: GpuMemory, tests: tuple[_Test, ...], step: Step, now: Callable[[], float], ends: float
) -> tuple[tuple[str, ...], Mismatch | None]:
    """Run the tests until the first finding; returns the names of the completed tests and the finding."""
    ended: list[str] = []
    a_pass = 0.0  # seconds, of the slowest pass so far
    for test in tests:
        began = now()
        if began + (test.passes + RESERVED) * a_pass + test.pause > ends:
            step(memory.size * test.passes)
            continue
        wrong = test.run(memory, step)
        ended.append(test.name)
        if wrong is not None:
            return tuple(ended), wrong
        a_pass = max(a_pass, (now() - began - test.pause) / test.passes)
    return tuple(ended), None


def _tests(key: bytes, rest: float, pause: Callable[[float], None]) -> tuple[_Test, ...]:
    def address(memory: GpuMemory, step: Step) -> Mismatch | None:
        return _held(memory, Pattern(PatternKind.ADDRESS), step)

    def inversions(memory: GpuMemory, step: Step) -> Mismatch | None:
        wrong: Mismatch | None = None
        for pattern in map(patterns.repeated, INVERTED):
            memory.write(pattern, step)
            wrong = joined(wrong, memory.invert(pattern, step))
            wrong = joined(wrong, memory.invert(pattern.flipped(), step, down=True))
            wrong = joined(wrong, memory.check(pattern, step))
        return wrong

    def random(memory: GpuMemory, step: Step) -> Mismatch | None:
        wrong: Mismatch | None = None
        for number in range(ROUNDS):
            wrong = joined(wrong, _held(memory, patterns.keyed(key, f"test {number}"), step))
        return wrong

    def retention(memory: GpuMemory, step: Step) -> Mismatch | None:
        pattern = patterns.keyed(key, "retention")
        wrong = _held(memory, pattern, step)  # this also moves the last written data out of the caches
        pause(rest)
        return joined(wrong, memory.check(pattern, step))

    return (
        _Test("address", 2, address),
        _Test("inversions", 4 * len(INVERTED), inversions),
        _Test("random", 2 * ROUNDS, random),
        _Test("retention", 3, retention, rest),
    )


def _held(memory: GpuMemory, pattern: Pattern, step: Step) -> Mismatch | None:
    memory.write(pattern, step)
    return memory.check(pattern, step)
