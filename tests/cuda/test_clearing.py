"""All available memory is overwritten with a keyed pattern, read back, and left as zeros."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrubber.core.measured import Mismatch, Verified, joined
from scrubber.cuda import clearing, memory, patterns, selftest
from scrubber.cuda.card import Card, CudaError, Found, Span, Step, Sweep
from scrubber.cuda.patterns import Pattern, PatternKind
from tests.fakes.cuda.machine import PAGE
from tests.fakes.cuda.patterns import pattern_bytes

KEY = bytes(range(16))
SIZE = 8 * PAGE
PASSES = ("random", "zero")


def nothing(_done: int, _total: int) -> None:
    """Progress is not reported."""


@pytest.fixture(autouse=True)
def _small_rungs(monkeypatch) -> None:
    monkeypatch.setattr(memory, "RUNGS", (4 * PAGE, 2 * PAGE, PAGE))


@pytest.fixture
def gpu(begin):
    return begin(SIZE // PAGE)


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
        clearing.clear(gpu.taken(), key, ("zero", name), nothing)
    assert (gpu.cells == 7).all()


def test_all_memory_is_taken_in_ever_smaller_pieces(gpu):
    first, _in_the_way = gpu.card.allocate(PAGE), gpu.card.allocate(PAGE)
    assert ctypes.CDLL(str(gpu.machine.libraries.driver)).cuMemFree_v2(ctypes.c_uint64(first)) == 0
    spans = gpu.taken().spans
    assert [span.size // PAGE for span in spans] == [4, 2, 1]
    assert [span.start // PAGE for span in spans] == [0, 4, 6]
    assert gpu.card.memory().free == 0


@pytest.mark.parametrize(("passes", "left"), [(PASSES, 0), (("random", "ones"), 0xFF)])
def test_residue_is_counted_located_and_overwritten(gpu, passes, left):
    said: list[tuple[int, int]] = []
    held = gpu.taken()
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


def test_only_the_first_places_of_residue_are_reported(monkeypatch, begin):
    monkeypatch.setattr(memory, "RUNGS", (PAGE,))
    gpu = begin(12)
    gpu.cells[:] = 1
    cleared = clearing.clear(gpu.taken(), KEY, ("zero",), nothing)
    assert cleared.residue_bytes == 12 * PAGE
    assert cleared.residue_at == tuple(number * PAGE for number in range(clearing.PLACES))


@pytest.mark.parametrize("found", [True, False])
def test_the_key_alone_finds_half_of_the_stuck_bits(gpu, found):
    """Those where it has the other value: with a new key, the chance is even."""
    place = 6 * PAGE + 77
    keys = (bytes([number] * 16) for number in range(256))
    key = next(it for it in keys if bool(patterns.by_name("random", it).byte(place) & 0x10) is not found)
    gpu.change(stuck={place: 0x10})
    held = gpu.taken()
    assert clearing.clear(held, key, ("random",), nothing).mismatch is None
    wrong = clearing.verify(held, nothing).mismatch
    assert (wrong is not None and wrong.offset == place) is found


@pytest.mark.parametrize("passes", [("zero",), PASSES])
def test_a_bit_that_is_stuck_is_found_wherever_it_is(gpu, passes):
    place = 6 * PAGE + 77
    gpu.change(stuck={place: 0x10})
    held = gpu.taken()
    mismatch = read_back(held, passes)
    assert mismatch is not None
    assert mismatch.offset == place
    assert mismatch.got == mismatch.expected | 0x10


@pytest.mark.parametrize("passes", [PASSES, ("random",)])
def test_the_verify_finds_a_flipped_bit_of_the_last_pattern(gpu, passes):
    held, place = gpu.taken(), 3 * PAGE + 9
    clearing.clear(held, KEY, passes, nothing)
    assert clearing.verify(held, nothing) == Verified(SIZE, passes[-1:])
    was = patterns.by_name(passes[-1], KEY).byte(place)
    gpu.cells[place] ^= 0x04
    wrong = Mismatch(place, was, was ^ 0x04, 1)
    assert clearing.verify(held, nothing) == Verified(SIZE, passes[-1:], mismatch=wrong)


def test_after_a_self_test_the_verify_reads_zeros_back(gpu):
    held = gpu.taken()
    clearing.clear(held, KEY, ("random",), nothing)
    selftest.run(held, KEY, 6.0, nothing, selftest.Clock(lambda: 0.0, lambda _seconds: None))
    assert clearing.verify(held, nothing) == Verified(SIZE, ("zero",))
    assert not gpu.cells.any()


@pytest.mark.parametrize("broken", [memory.GpuMemory.write, memory.GpuMemory.invert])
def test_what_a_pass_has_half_written_is_not_read_back(gpu, broken):
    held = gpu.taken()
    clearing.clear(held, KEY, PASSES, nothing)
    gpu.launched = Mock(side_effect=CudaError("it failed"))
    with pytest.raises(CudaError, match="it failed"):
        broken(held, patterns.ZERO, lambda _size: None)
    with pytest.raises(CudaError, match="this worker has not written all of it"):
        clearing.verify(held, nothing)


def read_back(held: memory.GpuMemory, passes: Sequence[str]) -> Mismatch | None:
    """What a clear with these passes and the verify after it find wrong."""
    return joined(clearing.clear(held, KEY, passes, nothing).mismatch, clearing.verify(held, nothing).mismatch)


@pytest.mark.parametrize("passes", [PASSES, ("random",)])
def test_the_random_pattern_finds_a_device_that_writes_nothing(gpu, passes):
    gpu.change(lazy=1)
    held = gpu.taken()
    assert clearing.clear(held, b"", ("zero",), nothing).mismatch is None, "zeros need no key"
    wrong = read_back(held, passes)
    assert wrong is not None
    assert wrong.count > SIZE * 0.9


@pytest.mark.parametrize("passes", [PASSES, ("random",)])
def test_the_random_pattern_finds_cells_with_two_addresses(gpu, passes):
    gpu.change(aliases={3 * PAGE: 5 * PAGE})
    held = gpu.taken()
    assert read_back(held, ("zero",)) is None
    wrong = read_back(held, passes)
    assert wrong is not None
    assert 3 * PAGE <= wrong.offset < 3 * PAGE + 4096


@pytest.mark.parametrize("alone", ["zero", "random"])
def test_two_patterns_take_four_passes_and_one_takes_two(gpu, alone):
    held = gpu.taken()
    census_and_write = ["check", "write"] * len(held.spans)
    clearing.clear(held, KEY, PASSES, nothing)
    clearing.verify(held, nothing)  # it reads the last pattern back
    assert gpu.launches == [*census_and_write, *(it for it in ("check", "write", "check") for _ in held.spans)]
    gpu.launches.clear()
    assert clearing.clear(held, KEY, (alone,), nothing).covered_bytes == SIZE
    clearing.verify(held, nothing)
    assert gpu.launches == [*census_and_write, *["check"] * len(held.spans)]


def test_the_next_memory_is_allocated_while_the_last_is_written(gpu, monkeypatch):
    allocate: Callable[[int], int | None] = gpu.card.allocate

    def asked(size: int) -> int | None:
        gpu.launches.append(size // PAGE)
        return allocate(size)

    monkeypatch.setattr(gpu.card, "allocate", asked)
    memory.all_free(gpu.card).write(patterns.ZERO, lambda _size: None)
    assert gpu.launches == [4, "write", 4, "write", 1]


def test_a_driver_failure_is_not_the_end_of_memory(gpu):
    gpu.change(fails_after=3)  # its context and its results are two
    with pytest.raises(CudaError, match="cannot take memory"):
        gpu.taken()


@pytest.mark.parametrize("pages", [3, 7])
def test_allocation_ends_when_the_smallest_block_is_refused(pages, begin, monkeypatch):
    card = begin(pages).card
    refused: list[int] = []
    allocate: Callable[[int], int | None] = card.allocate

    def asked(size: int) -> int | None:
        address = allocate(size)
        refused.extend([size] if address is None else [])
        return address

    monkeypatch.setattr(card, "allocate", asked)
    assert memory.take(card).size == pages * PAGE
    assert refused == [PAGE], "only a refusal says that there is no more"


class Reader:
    """A card that says that it has compared what it was told to, which is too large to be there."""

    def __init__(self) -> None:
        self.read: list[Span] = []

    def sweep(self, _kind: Sweep, _pattern: Pattern, spans: Iterable[Span], _step: Step) -> tuple[Found, ...]:
        parts = tuple(spans)
        self.read += parts
        return tuple(Found(compared=span.size) for span in parts)


@given(first=st.integers(0, 2**64 - 1), begin=st.integers(0, 9), size=st.integers(32, 40))
def test_a_sample_reads_places_chosen_by_the_key(first, begin, size):
    card = Reader()
    held = memory.GpuMemory(cast("Card", card))
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
    held = gpu.taken()
    order: list[tuple[Sweep, int]] = []
    gpu.cells[PAGE + 3], gpu.cells[6 * PAGE + 5] = 7, 9
    sweep: Callable[..., tuple[Found, ...]] = held.card.sweep

    def watched(kind: Sweep, pattern: Pattern, spans: Sequence[Span], step: Step) -> tuple[Found, ...]:
        order.extend((kind, span.start // PAGE) for span in spans)
        return sweep(kind, pattern, spans, step)

    monkeypatch.setattr(held.card, "sweep", watched)
    assert held.invert(patterns.ZERO, lambda _size: None, down=True) == Mismatch(PAGE + 3, 0, 7, 2)
    assert order == [(Sweep.INVERT_DOWN, place) for place in (4, 0)]
    assert (gpu.cells == 0xFF).all()
