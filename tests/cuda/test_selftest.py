"""What a self-test finds, for how long it may look, and that it leaves nothing but zeros."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from scrubber.core import measurements
from scrubber.cuda import memory, selftest
from scrubber.cuda.card import Found, Span, Step, Sweep, Unit
from scrubber.cuda.patterns import ZERO, Pattern, PatternKind, keyed, repeated
from scrubber.cuda.selftest import Clock
from tests.fakes.cuda.card import HostCard
from tests.fakes.cuda.gpu import HostGpu
from tests.fakes.cuda.machine import PAGE

KEY = b"k" * 16
SIZE = 4 * PAGE
ALL = ("address", "inversions", "random", "retention", "arithmetic")


class Bench:
    """A GPU, and a clock that goes on by so much with every launch."""

    def __init__(self, monkeypatch, a_pass: float = 0.0) -> None:
        monkeypatch.setattr(memory, "RUNGS", (SIZE,))
        self.gpu = HostGpu(np.zeros(SIZE, np.uint8))
        self.card = Watched(self.gpu)
        self.time = 0.0
        self.rests: list[float] = []
        self.kernels: list[str] = []
        self.progress: list[tuple[int, int]] = []
        self.a_pass = a_pass
        self.gpu.faults.before = self.launched

    def launched(self, kernel: str, _number: int) -> None:
        self.kernels.append(kernel)
        self.time += self.a_pass

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.time += seconds
        self.gpu.rest()

    def test(self, seconds: float = 60.0) -> measurements.Tested:
        held = memory.take(self.card)
        clock = Clock(lambda: self.time, self.rest)
        return selftest.run(held, KEY, seconds, lambda *progress: self.progress.append(progress), clock)


class Watched(HostCard):
    """Writes down what is done to the memory."""

    def __init__(self, gpu: HostGpu) -> None:
        super().__init__(gpu)
        self.sweeps: list[tuple[Sweep, Pattern]] = []

    def sweep(self, kind: Sweep, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
        self.sweeps.append((kind, pattern))
        return super().sweep(kind, pattern, spans, step)


@pytest.fixture
def bench(monkeypatch) -> Bench:
    return Bench(monkeypatch)


def test_a_good_device_passes_all_tests_and_is_zero_afterwards(bench):
    tested = bench.test()
    assert (tested.tests, tested.skipped, tested.mismatch, tested.deviating) == (ALL, (), None, ())
    assert tested.units == bench.gpu.units
    assert not bench.gpu.cells.any()
    assert bench.progress[-1][0] == bench.progress[-1][1]
    assert (bench.kernels[0], bench.kernels[-1]) == ("exact", "exact")


def held(pattern: Pattern) -> list[tuple[Sweep, Pattern]]:
    return [(Sweep.WRITE, pattern), (Sweep.CHECK, pattern)]


def turned(byte: int) -> list[tuple[Sweep, Pattern]]:
    """Upwards, then downwards back."""
    there, back = repeated(byte), repeated(byte ^ 0xFF)
    return [(Sweep.WRITE, there), (Sweep.INVERT, there), (Sweep.INVERT_DOWN, back), (Sweep.CHECK, there)]


def test_the_memory_tests_match_the_manual(bench):
    """Own addresses; inversions of 00, 55, 33 and 0F; three random patterns; a pause under a fourth; then zeros."""
    bench.test()
    random = [keyed(KEY, f"test {number}") for number in range(3)]
    last = keyed(KEY, "retention")
    assert bench.card.sweeps == [
        *held(Pattern(PatternKind.ADDRESS)),
        *(it for byte in (0x00, 0x55, 0x33, 0x0F) for it in turned(byte)),
        *(it for pattern in random for it in held(pattern)),
        *held(last),
        (Sweep.CHECK, last),
        *held(ZERO),
    ]


def test_the_address_test_finds_aliased_memory(bench):
    """No byte that is the same everywhere could tell."""
    bench.gpu.faults.aliases[2] = PAGE + 2
    whole = memory.take(HostCard(bench.gpu))
    whole.write(repeated(0x55), lambda _size: None)
    assert whole.check(repeated(0x55), lambda _size: None) is None
    bench.gpu.taken.clear()
    tested = bench.test()
    assert tested.mismatch is not None
    assert (tested.mismatch.offset, tested.mismatch.count) == (2, 1)
    assert tested.tests == ("address", "arithmetic")


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_a_stuck_bit_ends_the_test_and_leaves_zeros(bench, bits):
    bench.gpu.faults.stuck[PAGE + 5] = bits
    tested = bench.test()
    assert tested.mismatch is not None
    assert tested.mismatch.offset == PAGE + 5
    assert tested.skipped
    assert bench.kernels[-3:] == ["write", "check", "exact"]


@pytest.mark.parametrize(("box", "pause"), [(60.0, 10.0), (12.0, 2.0)])
def test_cells_that_forget_are_found_by_the_pause_alone(bench, box, pause):
    bench.gpu.faults.forgets[77] = 0x20
    tested = bench.test(box)
    assert tested.mismatch is not None
    assert (tested.mismatch.offset, tested.mismatch.count) == (77, 1)
    assert (tested.tests, bench.rests) == (ALL, [pause])


@pytest.mark.parametrize("a_pass", [1.0, 2.0, 3.0])
def test_tests_without_time_are_reported_as_skipped(monkeypatch, a_pass):
    bench = Bench(monkeypatch, a_pass)
    tested = bench.test(30.0)
    assert tested.skipped
    assert set(tested.tests) | set(tested.skipped) == set(ALL)
    assert tested.tests[0] == "address"
    assert not bench.gpu.cells.any()
    assert bench.time <= 30.0 + a_pass


def test_the_result_names_deviating_multiprocessors_and_counts_reached_ones(bench):
    bench.gpu.faults.deviating, bench.gpu.faults.unreached = frozenset({2}), frozenset({1})
    tested = bench.test()
    assert (tested.deviating, tested.units) == ((2,), bench.gpu.units - 1)
    assert "arithmetic" in tested.skipped


@pytest.mark.parametrize(
    ("runs", "named"),
    [
        ((), ()),
        ((Unit(0, 0, 7), Unit(1, 0, 7)), ()),
        ((Unit(0, 0, 7), Unit(1, 0, 8)), (0, 1)),  # it is unknown which is right
        ((Unit(0, 0, 7), Unit(1, 0, 7), Unit(2, 0, 8)), (2,)),
        ((Unit(0, 0, 7), Unit(1, 1, 7), Unit(2, 0, 7)), (1,)),  # it did not agree with itself
        ((Unit(0, 0, 7), Unit(1, 0, 7), Unit(0, 0, 7), Unit(1, 0, 9)), (1,)),  # nor did this one, later
    ],
)
def test_the_unit_that_differs_from_most_is_wrong(runs, named):
    assert selftest.deviating(runs) == named
