"""All available memory is overwritten with an unpredictable pattern, read back, and left as zeros."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core.measurements import Mismatch, joined
from scrubber.core.model import Findings
from scrubber.cuda import clearing, memory, patterns
from scrubber.cuda.card import CudaError, Found, Span, Step, Sweep
from scrubber.cuda.patterns import Pattern, PatternKind
from tests.fakes.cuda.card import HostCard
from tests.fakes.cuda.gpu import HostGpu
from tests.fakes.cuda.machine import PAGE
from tests.fakes.cuda.patterns import pattern_bytes

KEY = bytes(range(16))
SIZE = 8 * PAGE
PASSES = ("random", "zero")


def nothing(_done: int, _total: int) -> None:
    """Progress is not reported."""


@pytest.fixture
def gpu(monkeypatch) -> HostGpu:
    monkeypatch.setattr(memory, "RUNGS", (4 * PAGE, 2 * PAGE, PAGE))
    return HostGpu(np.zeros(SIZE, np.uint8))


def taken(gpu: HostGpu) -> memory.GpuMemory:
    return memory.take(HostCard(gpu))


@given(kind=st.sampled_from(PatternKind), words=st.tuples(*[st.integers(0, 2**64 - 1)] * 2), base=st.integers(0, 2**45))
def test_the_stream_gives_each_place_its_bytes(kind, words, base):
    held = pattern_bytes(kind, words[0], words[1], base, 3).tobytes()
    assert bytes(Pattern(kind, *words).byte(base * 16 + place) for place in range(48)) == held


def test_streams_differ_by_key_and_purpose():
    assert len({patterns.keyed(key, label) for key in (KEY, KEY[::-1]) for label in ("clear", "retention")}) == 4


@pytest.mark.parametrize(("name", "key", "why"), [("random", b"", "its key is missing"), ("noise", KEY, "'noise'")])
def test_an_invalid_pattern_is_not_written(gpu, name, key, why):
    gpu.cells[:] = 7
    with pytest.raises(ValueError, match=why):
        clearing.clear(taken(gpu), key, ("zero", name), nothing)
    assert (gpu.cells == 7).all()


def test_all_memory_is_taken_in_ever_smaller_pieces(gpu):
    gpu.taken[PAGE] = PAGE  # somebody is in the way
    spans = taken(gpu).spans
    assert [span.size // PAGE for span in spans] == [4, 2, 1]
    assert [span.start // PAGE for span in spans] == [0, 4, 6]
    assert gpu.used == SIZE


@pytest.mark.parametrize(("passes", "left"), [(PASSES, 0), (("random", "ones"), 0xFF)])
def test_residue_is_counted_located_and_overwritten(gpu, passes, left):
    said: list[tuple[int, int]] = []
    held = taken(gpu)
    gpu.cells[5000:5006] = list(b"secret")
    gpu.cells[SIZE - 1] = 7
    for census in (1, 16):  # a small allocation is searched completely
        cleared = clearing.clear(held, KEY, passes, lambda *progress: said.append(progress), census)
        assert (cleared.covered_bytes, cleared.searched_bytes, cleared.mismatch) == (SIZE, SIZE, None)
        assert (gpu.cells == left).all()
        if census == 1:
            assert (cleared.residue_bytes, cleared.residue_at) == (7, (5000, SIZE - 1))
            assert said == sorted(said)
            assert said[-1] == (3 * SIZE, 3 * SIZE)


def test_only_the_first_places_of_residue_are_reported(monkeypatch):
    monkeypatch.setattr(memory, "RUNGS", (PAGE,))
    cleared = clearing.clear(taken(HostGpu(np.ones(12 * PAGE, np.uint8))), KEY, ("zero",), nothing)
    assert cleared.residue_bytes == 12 * PAGE
    assert cleared.residue_at == tuple(number * PAGE for number in range(clearing.PLACES))


@pytest.mark.parametrize("passes", [("zero",), PASSES])
def test_a_bit_that_is_stuck_is_found_wherever_it_is(gpu, passes):
    place = 6 * PAGE + 77
    gpu.faults.stuck[place] = 0x10
    held = taken(gpu)
    mismatch = joined(clearing.clear(held, KEY, passes, nothing).mismatch, clearing.verify(held, nothing).mismatch)
    assert mismatch is not None
    assert mismatch.offset == place
    assert mismatch.got == mismatch.expected | 0x10


def test_the_verify_finds_a_bit_that_flips_between_passes(gpu):
    held = taken(gpu)
    clearing.clear(held, KEY, PASSES, nothing)
    gpu.cells[3 * PAGE + 9] ^= 0x04
    assert clearing.verify(held, nothing) == Findings(SIZE, mismatch=Mismatch(3 * PAGE + 9, 0, 4, 1))


def test_the_random_pattern_finds_a_device_that_writes_nothing(gpu):
    gpu.faults.lazy = True
    held = taken(gpu)
    assert clearing.clear(held, b"", ("zero",), nothing).mismatch is None, "zeros need no key"
    wrong = clearing.clear(held, KEY, PASSES, nothing).mismatch
    assert wrong is not None
    assert wrong.count > SIZE * 0.9


def test_two_patterns_take_four_passes_and_zeros_take_two(gpu):
    seen: list[str] = []
    gpu.faults.before = lambda kernel, _number: seen.append(kernel)
    held = taken(gpu)
    census_and_write = ["check", "write"] * len(held.spans)
    clearing.clear(held, KEY, PASSES, nothing)
    clearing.verify(held, nothing)  # it reads the last pattern back
    assert seen == [*census_and_write, *(it for it in ("check", "write", "check") for _ in held.spans)]
    seen.clear()
    assert clearing.clear(held, KEY, ("zero",), nothing).covered_bytes == SIZE
    clearing.verify(held, nothing)
    assert seen == [*census_and_write, *["check"] * len(held.spans)]


def test_the_next_memory_is_allocated_while_the_last_is_written(gpu, monkeypatch):
    seen: list[object] = []
    gpu.faults.before = lambda kernel, _number: seen.append(kernel)
    card = HostCard(gpu)
    allocate = card.allocate

    def asked(size: int) -> int | None:
        seen.append(size // PAGE)
        return allocate(size)

    monkeypatch.setattr(card, "allocate", asked)
    memory.all_free(card).write(patterns.ZERO, lambda _size: None)
    assert seen == [4, "write", 4, "write", 1]


def test_a_driver_failure_is_not_the_end_of_memory(gpu):
    gpu.faults.fails_after = 1
    with pytest.raises(CudaError, match="cannot take memory"):
        taken(gpu)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("pages", [3, 7])
def test_allocation_ends_when_the_smallest_block_is_refused(pages, monkeypatch):
    card = HostCard(HostGpu(np.zeros(pages * PAGE, np.uint8)))
    refused: list[int] = []
    allocate = card.allocate

    def asked(size: int) -> int | None:
        address = allocate(size)
        refused.extend([size] if address is None else [])
        return address

    monkeypatch.setattr(card, "allocate", asked)
    assert memory.take(card).size == pages * PAGE
    assert refused == [PAGE], "only a refusal says that there is no more"


class Reader(HostCard):
    """Says that it has compared what it was told to, which is too large to be there."""

    def __init__(self, gpu: HostGpu) -> None:
        super().__init__(gpu)
        self.read: list[Span] = []

    def sweep(self, _kind: Sweep, _pattern: Pattern, spans: Iterable[Span], _step: Step) -> tuple[Found, ...]:
        parts = tuple(spans)
        self.read += parts
        return tuple(Found(compared=span.size) for span in parts)


@given(first=st.integers(0, 2**64 - 1), begin=st.integers(0, 9), size=st.integers(32, 40))
def test_a_sample_reads_places_chosen_by_the_key(first, begin, size):
    card = Reader(HostGpu(np.zeros(0, np.uint8)))
    held = memory.GpuMemory(card)
    stretch = memory.STRETCH // 2
    span = Span(2**40, size * stretch, begin * stretch)
    for first_of in range(first, first + 16):
        held.sample(patterns.ZERO, 16, first_of, span)
    assert sorted((it.start, it.size) for it in card.read) == sorted(_stretches(span))
    assert all(it.address - it.start == span.address - span.start for it in card.read)


def _stretches(span: Span) -> list[tuple[int, int]]:
    cuts = sorted({span.start, span.start + span.size, *range(0, span.start + span.size, memory.STRETCH)})
    return [(low, high - low) for low, high in pairwise(cuts) if low >= span.start]


def test_a_downward_inversion_begins_at_the_top(gpu, monkeypatch):
    held = taken(gpu)
    order: list[tuple[Sweep, int]] = []
    gpu.cells[PAGE + 3], gpu.cells[6 * PAGE + 5] = 7, 9
    sweep = held.card.sweep

    def watched(kind: Sweep, pattern: Pattern, spans: Sequence[Span], step: Step) -> tuple[Found, ...]:
        order.extend((kind, span.start // PAGE) for span in spans)
        return sweep(kind, pattern, spans, step)

    monkeypatch.setattr(held.card, "sweep", watched)
    assert held.invert(patterns.ZERO, lambda _size: None, down=True) == Mismatch(PAGE + 3, 0, 7, 2)
    assert order == [(Sweep.INVERT_DOWN, place) for place in (4, 0)]
    assert (gpu.cells == 0xFF).all()
