"""What a self-test finds, for how long it may look, and that it leaves nothing but zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from scrubber.core import measured
from scrubber.cuda import cuda_card, memory, selftest
from scrubber.cuda.card import Found, Span, Step, Sweep, Unit
from scrubber.cuda.patterns import ZERO, Pattern, PatternKind, keyed, repeated
from scrubber.cuda.selftest import Clock
from tests.fakes.cuda.machine import PAGE, UNITS

KEY = b"k" * 16
SIZE = 4 * PAGE
ALL = ("address", "inversions", "random", "retention", "arithmetic")


class Bench:
    """A self-test of a GPU, and a clock that goes on by so much with every launch."""

    def __init__(self, gpu, a_pass: float = 0.0) -> None:
        self.gpu = gpu
        self.time = 0.0
        self.rests: list[float] = []
        self.sweeps: list[tuple[Sweep, Pattern]] = []
        self.progress: list[tuple[int, int]] = []
        self.a_pass = a_pass
        self.meanwhile: Callable[[], None] = lambda: None  # what happens in a pause

    def launched(self) -> None:
        self.time += self.a_pass

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.time += seconds
        self.meanwhile()

    def run(self, seconds: float = 60.0) -> measured.Tested:
        held = self.gpu.taken()
        self.gpu.launched = self.launched
        sweep: Callable[..., tuple[Found, ...]] = held.card.sweep

        def noted(kind: Sweep, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
            self.sweeps.append((kind, pattern))
            return sweep(kind, pattern, spans, step)

        held.card.sweep = noted
        clock = Clock(lambda: self.time, self.rest)
        return selftest.run(held, KEY, seconds, lambda *progress: self.progress.append(progress), clock)


@pytest.fixture
def gpu(begin, monkeypatch):
    monkeypatch.setattr(memory, "RUNGS", (SIZE,))
    return begin(SIZE // PAGE)


def test_a_good_device_passes_all_tests_and_is_zero_afterwards(gpu):
    bench = Bench(gpu)
    tested = bench.run()
    assert (tested.tests, tested.skipped, tested.mismatch, tested.deviating) == (ALL, (), None, ())
    assert tested.units == UNITS
    assert not gpu.cells.any()
    assert bench.progress[-1][0] == bench.progress[-1][1]
    assert (gpu.launches[0], gpu.launches[-1]) == ("exact", "exact")


def held(pattern: Pattern) -> list[tuple[Sweep, Pattern]]:
    return [(Sweep.WRITE, pattern), (Sweep.CHECK, pattern)]


def turned(byte: int) -> list[tuple[Sweep, Pattern]]:
    """Upwards, then downwards back."""
    there, back = repeated(byte), repeated(byte ^ 0xFF)
    return [(Sweep.WRITE, there), (Sweep.INVERT, there), (Sweep.INVERT_DOWN, back), (Sweep.CHECK, there)]


def test_the_memory_tests_match_the_manual(gpu):
    """Own addresses; inversions of 00, 55, 33 and 0F; three random patterns; a pause under a fourth; then zeros."""
    bench = Bench(gpu)
    bench.run()
    random = [keyed(KEY, f"test {number}") for number in range(3)]
    last = keyed(KEY, "retention")
    assert bench.sweeps == [
        *held(Pattern(PatternKind.ADDRESS)),
        *(it for byte in (0x00, 0x55, 0x33, 0x0F) for it in turned(byte)),
        *(it for pattern in random for it in held(pattern)),
        *held(last),
        (Sweep.CHECK, last),
        *held(ZERO),
    ]


def test_the_address_test_finds_aliased_memory(gpu):
    """No byte that is the same everywhere could tell."""
    gpu.change(aliases={0: PAGE})
    whole = gpu.taken()
    whole.write(repeated(0x55), lambda _size: None)
    assert whole.check(repeated(0x55), lambda _size: None) is None
    tested = selftest.run(whole, KEY, 60.0, lambda *_progress: None, Clock(lambda: 0.0, lambda _seconds: None))
    assert tested.mismatch is not None
    differing = 2 * 4096 // 16  # one byte of each word
    assert (tested.mismatch.offset, tested.mismatch.count) == (2, differing)
    assert tested.tests == ("address", "arithmetic")


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_a_stuck_bit_ends_the_test_and_leaves_zeros(gpu, bits):
    gpu.change(stuck={PAGE + 5: bits})
    tested = Bench(gpu).run()
    assert tested.mismatch is not None
    assert tested.mismatch.offset == PAGE + 5
    assert tested.skipped
    assert gpu.launches[-3:] == ["write", "check", "exact"]


@pytest.mark.parametrize(("box", "pause"), [(60.0, 10.0), (12.0, 2.0)])
def test_cells_that_forget_are_found_by_the_pause_alone(gpu, box, pause):
    bench = Bench(gpu)
    bench.meanwhile = lambda: gpu.cells.__setitem__(77, gpu.cells[77] ^ 0x20)
    tested = bench.run(box)
    assert tested.mismatch is not None
    assert (tested.mismatch.offset, tested.mismatch.count) == (77, 1)
    assert (tested.tests, bench.rests) == (ALL, [pause])


@pytest.mark.parametrize("a_pass", [1.0, 2.0, 3.0])
def test_tests_without_time_are_reported_as_skipped(gpu, a_pass):
    bench = Bench(gpu, a_pass)
    tested = bench.run(30.0)
    assert tested.skipped
    assert set(tested.tests) | set(tested.skipped) == set(ALL)
    assert tested.tests[0] == "address"
    assert not gpu.cells.any()
    assert bench.time <= 30.0 + a_pass


def test_the_result_names_deviating_multiprocessors_and_counts_reached_ones(gpu, monkeypatch):
    monkeypatch.setattr(cuda_card, "TRIES", 2)
    gpu.change(deviating=[2], unreached=[1])
    tested = Bench(gpu).run()
    assert (tested.deviating, tested.units) == ((2,), UNITS - 1)
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
