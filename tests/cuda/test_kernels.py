"""The kernels, run on the host as they are written, against a model that knows nothing of them."""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import forkserver, resource_tracker

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.compile_kernels import ARCHITECTURES
from scrubber.cuda.images import FOLDER, PORTABLE, binary
from tests import forking
from tests.fakes.cuda import emulation
from tests.fakes.cuda.emulation import (
    EACH,
    NOTHING,
    SOURCE,
    Emulation,
    Fault,
    Found,
    Pattern,
    Shape,
    TrapError,
    Where,
    across_the_line,
)
from tests.fakes.cuda.patterns import ADDRESS, CONSTANT, KEYED, Words, pattern_bytes
from tests.fakes.cuda.translation import ptx, sass
from tests.fakes.cuda.translation.elf import Elf
from tests.fakes.cuda.translation.program import UnknownCodeError

WORD = 2**64 - 1
CANARY = 0xC0FFEE11
GUARD = 0xA5A5A5A5A5A5A5A5
SCRATCH = Shape(grid=5, block=48, shared_bytes=1020, units=3)
HOLDING = Shape(grid=3, block=256, units=2)
COMPUTING = Shape(grid=4, block=64, units=2)
ON_CHIP = {
    **dict.fromkeys(["scratch", "plant", "listen"], (SCRATCH, ())),
    **dict.fromkeys(["registers", "plant_registers", "listen_registers"], (HOLDING, ())),
    "exact": (COMPUTING, (1,)),
}

words = st.integers(0, WORD)
bases = st.integers(0, 2**40)  # of a memory whose places are told: 2^40 vectors are 16 TiB
kinds = st.sampled_from([CONSTANT, ADDRESS, KEYED])
plain_kinds = st.sampled_from([CONSTANT, ADDRESS])
sizes = st.integers(0, 70) | st.integers(0, 1500)
changes = st.dictionaries(st.integers(0, 1500 * 16), st.integers(1, 255), max_size=40)  # bits of bytes by place
shapes = st.builds(Shape, grid=st.integers(1, 7), block=st.sampled_from([1, 2, 31, 32, 64, 96]))


def forms():
    """All ten in the night; in the gate, what every other image must do as well."""
    for form in ("source", "ptx", *(f"sm_{major}{minor}" for major, minor in ARCHITECTURES)):
        gate = form in ("source", "ptx", "sm_90")
        yield pytest.param(form, marks=() if gate else pytest.mark.night)


@pytest.fixture(scope="module", params=forms())
def gpu(request):
    if lack := emulation.missing(request.param):
        pytest.skip(lack)
    return Emulation(emulation.library(request.param))


def patterns(which=kinds, base=bases):
    return st.builds(Pattern, kind=which, k0=words, k1=words, base=base)


def model(pattern: Pattern, vectors: int) -> Words:
    return pattern_bytes(pattern.kind, pattern.k0, pattern.k1, pattern.base, vectors)


def complement(pattern: Pattern) -> Pattern:
    return replace(pattern, k0=pattern.k0 ^ WORD, k1=pattern.k1 ^ WORD)


def guarded(vectors: int) -> tuple[Words, Words]:
    """Memory between two guards that must stay unchanged: all of it, and the part that a kernel is given."""
    whole = np.full((vectors + 2, 2), GUARD, np.uint64)
    return whole, whole[1:-1]


def untouched(whole: Words) -> bool:
    return bool((whole[[0, -1]] == GUARD).all())


def flipped(memory: Words, places: dict[int, int]) -> Words:
    """A copy with bits of some bytes changed; places go round at its end."""
    copy = memory.copy()
    flat = copy.reshape(-1).view(np.uint8)
    for place, bits in places.items() if flat.size else ():
        flat[place % flat.size] ^= bits
    return copy


def differences(pattern: Pattern, memory: Words) -> tuple[int, int, int]:
    """What a comparison must tell: the number of bytes, the lowest as the kernels pack it, and all vectors compared."""
    got = np.ascontiguousarray(memory).reshape(-1).view(np.uint8)
    wrong = np.flatnonzero(got != model(pattern, len(memory)).reshape(-1).view(np.uint8))
    if not wrong.size:
        return 0, NOTHING, len(memory)
    lowest = int(wrong[0])
    return int(wrong.size), (pattern.base * 16 + lowest) << 8 | int(got[lowest]), len(memory)


@given(pattern=patterns(base=words), vectors=sizes, shape=shapes)
def test_write_matches_the_model_inside_its_bounds(gpu, pattern, vectors, shape):
    whole, memory = guarded(vectors)
    gpu.write(memory, pattern, shape)
    assert (memory == model(pattern, vectors)).all()
    assert untouched(whole)


def test_the_model_is_the_pattern_that_is_written_down():
    """The first outputs of SplitMix64 from the seed 0, as published; and no two vectors alike."""
    keyed = pattern_bytes(KEYED, 0, 0, 0, 3)
    assert [int(word) for word in keyed[:, 0]] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert pattern_bytes(ADDRESS, 0, 0, 5, 1).tolist() == [[5, WORD - 5]]
    assert pattern_bytes(CONSTANT, 7, 9, 5, 2).tolist() == [[7, 9], [7, 9]]
    assert len(np.unique(pattern_bytes(KEYED, 1, 2, 0, 10_000))) == 20_000


@dataclass(frozen=True)
class Pass:
    """One that compares: ``check``, or ``invert`` where it has a direction."""

    kind: int
    descending: bool | None
    base: int
    shape: Shape
    vectors: int
    line: int  # the vector whose address is a multiple of 4 GiB
    skipped: int = 0

    def unreported(self, gpu, flips):
        """Which flipped bits are not reported exactly, or do not leave the memory as it must be."""
        first = self.base + (0 if self.descending else self.skipped)
        sound = model(of_kind(self.kind, first), self.vectors)
        memory = across_the_line(self.vectors, self.line)
        flat = memory.reshape(-1).view(np.uint8)
        found = Found()
        pattern, ways = of_kind(self.kind, self.base), {"descending": self.descending, "skipped": self.skipped}
        compare = gpu.comparing(memory, pattern, self.shape, found, **ways)
        complemented = (~sound).tobytes()
        for places in flips:
            memory[:] = sound
            for place, bit in places:
                flat[place] ^= 1 << bit
            lowest = min(places)[0]
            answer = len(places), (first * 16 + lowest) << 8 | int(flat[lowest]), self.vectors
            after = memory.tobytes() if self.descending is None else complemented
            compare()
            if found.answer() != answer or memory.tobytes() != after:
                yield places


def each_bit(vectors):
    return [((place, bit),) for place, bit in itertools.product(range(16 * vectors), range(8))]


def each_byte(vectors):
    return [((place, place % 8),) for place in range(16 * vectors)]


def each_pair(vectors):
    """Of bytes in each word, and of words."""
    pairs = [*itertools.combinations(range(8), 2)]
    inside = [((8 * n + one, 0), (8 * n + other, 7)) for n in range(2 * vectors) for one, other in pairs]
    apart = [((8 * one + 5, 0), (8 * other + 2, 7)) for one, other in itertools.combinations(range(2 * vectors), 2)]
    return inside + apart


def of_kind(kind, base):
    return Pattern(kind, 0x0123456789ABCDEF, 0xFEDCBA9876543211, base)


# Where the number of a vector grows beyond 32 bits: in the base, after each vector of a run and of its tail.
BASES = [0, *(2**32 - n for n in range(1, 7)), 2**40 + 2**31]
# The same in the index: blocks that begin before 2^32, how many vectors they reach, and how many precede these.
FAR = [
    (Shape(first_block=2**32 // 12, grid=2**32 // 12 + 2, block=3), 12 + 11, 2**32 // 12 * 12),
    (Shape(first_block=2**32 // 20, grid=2**32 // 20 + 2, block=5), 17, 2**32 // 20 * 20),
]
COMPARED = [
    *itertools.product([CONSTANT, ADDRESS, KEYED], [None]),  # by check
    *itertools.product([CONSTANT, ADDRESS], [False, True]),  # by invert, upwards and downwards
]


@pytest.mark.parametrize(("kind", "descending"), COMPARED)
def test_every_single_flip_is_reported_exactly(gpu, kind, descending):
    """By one thread, each bit, byte and pair in a run and its tail; by more, each byte in rounds, runs and tails."""
    one, more, vectors = Shape(grid=1, block=1), Shape(grid=2, block=3), 24 + 12 + 11
    assert [*Pass(kind, descending, 0, one, 7, 0).unreported(gpu, each_bit(7))] == []
    assert [*Pass(kind, descending, 2**32 - 20, more, vectors, 24).unreported(gpu, each_byte(vectors))] == []
    for line, base in enumerate(BASES):
        assert [*Pass(kind, descending, base, one, 7, line).unreported(gpu, each_byte(7) + each_pair(7))] == []


@pytest.mark.parametrize(("kind", "descending"), COMPARED)
def test_flips_beyond_64_gib_are_reported_exactly(gpu, kind, descending):
    for shape, vectors, skipped in FAR:
        far = Pass(kind, descending, 5, shape, vectors, 8, skipped)
        assert [*far.unreported(gpu, each_byte(vectors))] == []


@pytest.mark.parametrize("kind", [CONSTANT, ADDRESS, KEYED])
def test_write_carries_wherever_a_number_grows(gpu, kind):
    for line, base in enumerate(BASES):
        memory = across_the_line(7, line)
        gpu.write(memory, of_kind(kind, base), Shape(grid=1, block=1))
        assert (memory == model(of_kind(kind, base), 7)).all()
    for shape, vectors, skipped in FAR:
        memory = across_the_line(vectors, 8)
        gpu.write(memory, of_kind(kind, 5), shape, skipped=skipped)
        assert (memory == model(of_kind(kind, 5 + skipped), vectors)).all()


@given(pattern=patterns(), vectors=sizes, shape=shapes, places=changes)
def test_check_finds_each_flip_with_the_lowest_first(gpu, pattern, vectors, shape, places):
    memory = flipped(model(pattern, vectors), places)
    assert gpu.check(memory, pattern, shape) == differences(pattern, memory)


@given(pattern=patterns(plain_kinds), vectors=sizes, shape=shapes, descending=st.booleans(), places=changes)
def test_invert_counts_flipped_bits_and_writes_the_complement(gpu, pattern, vectors, shape, descending, places):
    whole, memory = guarded(vectors)
    memory[:] = flipped(model(pattern, vectors), places)
    expected = differences(pattern, memory)
    assert gpu.invert(memory, pattern, shape, descending=descending) == expected
    assert (memory == ~model(pattern, vectors)).all()
    assert gpu.check(memory, complement(pattern), shape) == (0, NOTHING, vectors)
    assert untouched(whole)


def in_runs(places: list[int]) -> list[list[int]]:
    """The four vectors of a run are in flight together; those at the end are not."""
    whole = len(places) // 4 * 4
    return [*(sorted(places[n : n + 4]) for n in range(0, whole, 4)), *([place] for place in places[whole:])]


@given(vectors=sizes)
def test_one_thread_inverts_memory_in_the_given_order(gpu, vectors):
    memory, alone = np.zeros((vectors, 2), np.uint64), Shape(grid=1, block=1)
    gpu.invert(memory, Pattern(CONSTANT), alone, descending=False)
    assert in_runs(gpu.order(memory)) == in_runs(list(range(vectors)))
    gpu.invert(memory, Pattern(CONSTANT, WORD, WORD), alone, descending=True)
    assert in_runs(gpu.order(memory)) == in_runs(list(reversed(range(vectors))))


@pytest.mark.parametrize("kernel", ["write", "check", "invert"])
def test_an_unknown_kind_is_refused(gpu, kernel):
    memory = np.zeros((8, 2), np.uint64)
    more = {"descending": False} if kernel == "invert" else {}
    kinds_refused = [3, 2**32 - 1] + [KEYED] * (kernel == "invert")
    for kind in kinds_refused:
        with pytest.raises(TrapError):
            getattr(gpu, kernel)(memory, Pattern(kind), Shape(), **more)
    assert not memory.any()


def wrongs(units):
    return [unit.wrong for unit in units]


def reached(units):
    """How often each was visited, and how many words were wrong there."""
    return [(unit.visits, unit.wrong) for unit in units]


def compared(units):
    return [unit.compared for unit in units]


@given(size=st.integers(1, 400), block=st.integers(1, 70), grid=st.integers(1, 5))
def test_every_checked_word_of_shared_memory_is_counted(gpu, size, block, grid):
    """Those of all blocks of a unit: by ``scratch`` the keyed ones and the zeros, by ``listen`` once, never planted."""
    shape = Shape(grid=grid, block=block, shared_bytes=size * 4, units=2)
    blocks = [(grid + 1) // 2, grid // 2]
    assert compared(gpu.on_chip("scratch", 42, shape)) == [2 * size * times for times in blocks]
    assert compared(gpu.on_chip("listen", CANARY, shape)) == [size * times for times in blocks]
    assert compared(gpu.on_chip("plant", CANARY, shape)) == [0, 0]


@pytest.mark.parametrize(
    ("kernel", "shape", "words_compared"),
    [
        ("scratch", SCRATCH, [2 * 2 * 255, 2 * 2 * 255, 2 * 255]),
        ("registers", HOLDING, [2 * 2 * 240 * 256, 2 * 240 * 256]),
        ("plant_registers", HOLDING, [2 * 240 * 256, 240 * 256]),
        ("listen_registers", HOLDING, [2 * 240 * 256, 240 * 256]),
    ],
)
def test_each_unit_is_reached_and_each_checked_word_counted(gpu, kernel, shape, words_compared):
    units = gpu.on_chip(kernel, 42, shape)
    runs = [2, 2, 1] if kernel == "scratch" else [2, 1]
    assert ([unit.visits for unit in units], wrongs(units)) == (runs, [0] * len(runs))
    assert compared(units) == words_compared


@given(size=st.integers(1, 400), block=st.integers(1, 70), key=words)
def test_a_planted_value_is_found_until_scratch_ran(gpu, size, block, key):
    a_planted_value_is_found(gpu, size, block, key)


def a_planted_value_is_found(gpu, size, block, key):
    shape = Shape(grid=2, block=block, shared_bytes=size * 4, units=2)
    all_of_both, none_of_both = [(1, size)] * 2, [(1, 0)] * 2
    assert reached(gpu.on_chip("plant", CANARY, shape)) == none_of_both
    assert reached(gpu.on_chip("listen", CANARY, shape)) == all_of_both
    assert reached(gpu.on_chip("listen", CANARY, shape)) == all_of_both  # listening changes nothing
    assert reached(gpu.on_chip("scratch", key, shape)) == none_of_both
    assert reached(gpu.on_chip("listen", CANARY, shape)) == none_of_both
    assert reached(gpu.on_chip("listen", 0, shape)) == all_of_both  # it leaves zeros, everywhere


@pytest.mark.parametrize("block", range(5))
@pytest.mark.parametrize("moment", [0, 2])
def test_scratch_counts_each_word_that_changed_by_itself(gpu, block, moment):
    """Among the keyed words, before the first barrier, and among the zeros, before the third."""
    for place in range(block, 255, 5):
        fault = Fault(Where.SHARED, block, moment, place, 1 << place % 32)
        units = gpu.on_chip("scratch", 42, replace(SCRATCH, fault=fault))
        assert wrongs(units) == [int(number == block % 3) for number in range(3)]


@pytest.mark.parametrize("kernel", ["scratch", "plant", "listen"])
@pytest.mark.parametrize("size", [0, 1, 1022])
def test_a_partly_reached_unit_does_not_count(gpu, kernel, size):
    with pytest.raises(TrapError):
        gpu.on_chip(kernel, 1, replace(SCRATCH, shared_bytes=size))


@pytest.mark.parametrize("kernel", ON_CHIP)
def test_a_unit_beyond_the_callers_table_is_refused(gpu, kernel):
    shape, more = ON_CHIP[kernel]
    (last,) = gpu.on_chip(kernel, 1, replace(shape, grid=1, units=1, first_unit=1023), *more)
    assert last.visits == 1
    with pytest.raises(TrapError):
        gpu.on_chip(kernel, 1, replace(shape, grid=1, units=1, first_unit=1024), *more)


@pytest.mark.parametrize(("kernel", "moment"), [("registers", 0), ("registers", 481), ("plant_registers", 0)])
def test_each_changed_register_is_counted(gpu, kernel, moment):
    """Of the 240 that keep keyed words, of those that keep zeros after them, and of those that keep a canary.

    Another register in each of the first 240 threads. The next thread changes the value that all others follow from;
    the last ones, what is compared with.
    """
    for first in range(16):
        fault = Fault(Where.REGISTER, 0, moment, EACH | first, 1 << 2 * first)
        (unit,) = gpu.on_chip(kernel, 42, replace(HOLDING, grid=1, units=1, fault=fault))
        assert unit.wrong == 15 + (240 if first == 0 else 1)


@pytest.mark.parametrize("kernel", ["registers", "plant_registers", "listen_registers"])
@pytest.mark.parametrize("block", [32, 255])
def test_a_block_that_does_not_take_all_registers_is_refused(gpu, kernel, block):
    with pytest.raises(TrapError):
        gpu.on_chip(kernel, 1, replace(HOLDING, block=block))


def test_canaries_left_in_registers_are_added_up(gpu):
    """Of none, of one more each time, and of all 240."""
    for count in range(241):
        (unit,) = gpu.on_chip("listen_registers", CANARY, replace(HOLDING, grid=1, units=1, leftovers=count))
        assert unit.wrong == count * 256


def test_every_unit_computes_what_seed_and_rounds_say(gpu):
    """The same in every form."""
    source, digests = Emulation(emulation.library(SOURCE)), set()
    for seed, rounds in itertools.product((0, 1, 2, WORD), range(1, 5)):
        one, other = gpu.on_chip("exact", seed, COMPUTING, rounds)
        assert (one.visits, other.visits, one.wrong, other.wrong) == (2, 2, 0, 0)
        assert one.digest == other.digest == source.on_chip("exact", seed, COMPUTING, rounds)[0].digest != 0
        digests.add(one.digest)
    assert len(digests) == 16


@pytest.mark.parametrize("kind", [kind for kind in Where if kind >= Where.SUM])
def test_one_wrong_result_of_one_thread_changes_the_digest(gpu, kind):
    """Of any kind of arithmetic. Blocks 0 and 1 come first on their units: the later ones are compared with them."""
    (sound, _) = gpu.on_chip("exact", 7, COMPUTING, 2)
    for number, (block, moment) in enumerate(itertools.product(range(4), range(2))):
        fault = Fault(kind, block, moment, 9 * number % 64, 1 << 3 * number % 23)
        units = gpu.on_chip("exact", 7, replace(COMPUTING, fault=fault), 2)
        assert wrongs(units) == [int(number == block % 2) for number in range(2)]
        assert [unit.digest == sound.digest for unit in units] == [block != 0, block != 1]


@pytest.mark.parametrize("kind", [kind for kind in Where if kind >= Where.SUM])
def test_an_error_in_the_last_result_is_found_too(gpu, kind):
    """Nothing is computed from it any more: it is in the digest by itself."""
    (sound, _) = gpu.on_chip("exact", 7, COMPUTING, 1)
    last = {Where.HALVES: 3, Where.BYTES: 1}.get(kind, 0)
    for moment in range(last + 1):
        fault = Fault(kind, 0, moment, 63, 1)
        assert gpu.on_chip("exact", 7, replace(COMPUTING, fault=fault), 1)[0].digest != sound.digest


@pytest.mark.parametrize(("block", "rounds"), [(48, 1), (64, 0)])
def test_a_unit_without_a_result_did_not_compute(gpu, block, rounds):
    """Tensor cores take whole warps, and no round is no computation."""
    with pytest.raises(TrapError):
        gpu.on_chip("exact", 7, replace(COMPUTING, block=block), rounds)


CAUGHT = {
    "write": lambda gpu: test_write_carries_wherever_a_number_grows(gpu, ADDRESS),
    "check": lambda gpu: test_every_single_flip_is_reported_exactly(gpu, CONSTANT, None),
    "invert": lambda gpu: test_every_single_flip_is_reported_exactly(gpu, ADDRESS, descending=True),
    "scratch": lambda gpu: test_scratch_counts_each_word_that_changed_by_itself(gpu, 0, 0),
    "plant": lambda gpu: a_planted_value_is_found(gpu, 7, 3, 1),
    "listen": lambda gpu: a_planted_value_is_found(gpu, 7, 3, 1),
    "registers": lambda gpu: test_each_changed_register_is_counted(gpu, "registers", 0),
    "plant_registers": lambda gpu: test_each_unit_is_reached_and_each_checked_word_counted(
        gpu, "plant_registers", HOLDING, [2 * 240 * 256, 240 * 256]
    ),
    "listen_registers": test_canaries_left_in_registers_are_added_up,
    "exact": test_every_unit_computes_what_seed_and_rounds_say,
}


def run_its_test(kernel: str, address: int | None) -> None:
    """Run the test that must notice when the instruction at an address of a kernel is left out."""
    gpu = Emulation(emulation.library(emulation.PLANTED_IN))
    with nullcontext() if address is None else gpu.without(kernel, address):
        CAUGHT[kernel](gpu)


@cache
def exit_code(kernel: str, address: int | None) -> int | None:
    """How a process ended that did nothing but run that test. Maimed code may write over anything in its process."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    process = processes.Process(target=run_its_test, args=(kernel, address), daemon=True)
    process.start()
    for server, pid in ((forkserver._forkserver, "_forkserver_pid"), (resource_tracker._resource_tracker, "_pid")):
        forking.SERVERS.add(getattr(server, pid))  # they stay, and are no children of a test
    process.join()
    return process.exitcode


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("ULDC.64", "UR5, c[0x0][0x208]"),
        ("IMAD.WIDE.U32", "R3, R4, R5, R6"),
        ("IMAD.WIDE.U32", "R2, R4, R5, R7"),
        ("STG.E.EF.128", "desc[UR4][R3.64], R4"),
        ("STG.E.EF.128", "desc[UR4][R2.64], R6"),
        ("LDG.E.NA.128.CONSTANT", "R6, desc[UR4][R2.64]"),
        ("LDC", "R2, c[0x0][0x212]"),
        ("LDC.64", "R2, c[0x0][0x214]"),
        ("IMAD.WIDE.U32", "R2, R4, R5, c[0x0][0x21c]"),
        ("LDCU.128", "UR4, c[0x0][0x218]"),
    ],
)
def test_words_that_no_gpu_takes_together_are_refused(name, operands):
    """Registers: a pair begins at an even number, four at a multiple of four. Constants likewise, by their place."""
    code = sass._Code(Elf((FOLDER / binary(9, 0)).read_bytes()), "write")
    with pytest.raises(UnknownCodeError):
        code.statement(sass.Instruction(0, "", name, tuple(operands.split(", "))))


def test_a_prepared_launch_keeps_its_arguments():
    """It knows their addresses, and is made many times."""
    gpu, number = Emulation(emulation.library(SOURCE)), ctypes.c_uint64(7)
    kept = weakref.ref(number)
    launches = [gpu._prepared("write", Shape(), number)]
    del number
    assert (kept() is not None, len(launches)) == (True, 1)


def test_every_register_of_portable_code_begins_with_something():
    """That a program has not written, not with 0."""
    text = (FOLDER / PORTABLE).read_text()
    code, named = ptx.translated(text), {name for _, name, count in ptx.REGISTERS.findall(text) if count}
    assert {name for name in named if f"begin({name});" in code} == named >= {"p", "r", "rd", "f", "fd"}


@pytest.mark.parametrize(("kernel", "address"), emulation.PLANTED)
def test_one_instruction_less_turns_a_test_red(kernel, address):
    """Of the machine code: a test that passes with it fails without it, or its process crashes."""
    if lack := emulation.missing(emulation.PLANTED_IN):
        pytest.skip(lack)
    assert exit_code(kernel, None) == 0
    assert exit_code(kernel, address) != 0
