"""A device that does not say of every byte that it has looked at it has proven nothing: that is never a clean answer.

The worker's own card and CuPy, above the stand-in for the driver: launches and results are changed on their way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_uint64
from dataclasses import dataclass

import pytest

from scrubber.core.measured import Scratched, Verified
from scrubber.cuda import clearing, cuda_card, memory, selftest
from scrubber.cuda.card import (
    NOWHERE,
    CardBusyError,
    CudaError,
    KernelFailedError,
    KernelProgram,
    NotStartedError,
    Sweep,
)
from scrubber.cuda.driver import CudaDriver, Kernel, Word
from scrubber.cuda.patterns import ZERO
from scrubber.cuda.selftest import Clock
from tests.fakes.cuda.fixtures import in_this_process, libraries
from tests.fakes.cuda.machine import BASE, PAGE, UNITS, CudaMachine, equip
from tests.fakes.nvml.machine import Machine

KEY = b"k" * 16
SIZE = 6 * PAGE
UNREACHED = UNITS * 1024  # bytes of shared memory of all units that the system reserves
FOUND, UNIT = struct.Struct("<QQQ"), struct.Struct("<IIQQ")  # as the kernels write them


def verified(held: memory.GpuMemory) -> Verified:
    """A verify reads back what was written."""
    held.write(ZERO, unheard)
    return clearing.verify(held, unwatched)


COMPARISONS: dict[str, Callable[[memory.GpuMemory], object]] = {
    "check": lambda held: held.check(ZERO, unheard),
    "census": lambda held: held.compare(ZERO, unheard),
    "invert": lambda held: held.invert(ZERO, unheard),
    "invert-down": lambda held: held.invert(ZERO, unheard, down=True),
    "clear": lambda held: clearing.clear(held, KEY, ("random", "zero"), unwatched),
    "verify": verified,
}
WORK: dict[str, Callable[[memory.GpuMemory], object]] = {
    **COMPARISONS,
    "scratch": lambda held: clearing.scratch(held.card, KEY),
    "self-test": lambda held: selftest.run(held, KEY, 6.0, unwatched, Clock(lambda: 0.0, lambda _seconds: None)),
}
TOO_FEW: dict[str, Callable[[int], int]] = {
    "nothing": lambda _vectors: 0,
    "half": lambda vectors: vectors // 2,
    "all but one": lambda vectors: vectors - 1,
}
TOO_MANY: dict[str, Callable[[int], int]] = {
    "one too many": lambda vectors: vectors + 1,
    "twice": lambda vectors: vectors * 2,
}


def unheard(_size: int) -> None:
    """Progress is not reported."""


def unwatched(_done: int, _total: int) -> None:
    """Progress is not reported."""


@dataclass
class Launch:
    """One launch, before the driver gets it. ``number``: the how many-th of its kernel on more than nothing."""

    kernel: str
    number: int
    blocks: int
    words: list[Word]
    shared: int


@dataclass
class Bench:
    """The device, and what happens to launches and results between it and the worker."""

    machine: CudaMachine
    launched: Callable[[Launch], None] = lambda _launch: None
    returned: Callable[[bytes], bytes] = lambda data: data

    @property
    def uuid(self) -> str:
        return self.machine.machine.gpu(0).uuid

    def change(self, **changes: object) -> None:
        self.machine.change(self.uuid, **changes)

    def opened(self) -> cuda_card.CudaCard:
        """Nothing is loaded yet."""
        return cuda_card.opened(self.uuid, self.machine.machine.gpu(0).pci)

    def ready(self) -> cuda_card.CudaCard:
        """The device, with its kernels loaded."""
        card = self.opened()
        card.ready()
        return card

    def counting(self, wrong: Callable[[int], int]) -> None:
        """Let the device say another number of vectors or words that it has compared."""
        self.returned = lambda data: changed(data, lambda *rest: (*rest[:-1], wrong(rest[-1])))


def changed(data: bytes, change: Callable[..., tuple[int, ...]]) -> bytes:
    """The results of a launch, or those of all units, each changed. Of a unit without a visit nothing is."""
    layout = UNIT if len(data) == UNIT.size * 1024 else FOUND
    return b"".join(layout.pack(*(change(*row) if any(row) else row)) for row in layout.iter_unpack(data))


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Iterator[Bench]:
    gpus = Machine.h200(tmp_path / "machine", 1).gpus
    bench = Bench(equip(tmp_path / "cuda", gpus, libraries(), SIZE))
    names, counts = dict[Kernel, str](), dict[str, int]()
    find, launch, get = CudaDriver.kernel, Kernel.launch, CudaDriver.get

    def found(driver: CudaDriver, module: int, name: str) -> Kernel:
        kernel = find(driver, module, name)
        names[kernel] = name
        return kernel

    def launched(kernel: Kernel, blocks: int, threads: int, words: Sequence[Word], shared: int = 0) -> None:
        name = names[kernel]
        empty = name in ("write", "check", "invert") and words[1].value == 0
        counts[name] = counts.get(name, 0) + (not empty)
        asked = Launch(name, counts[name], blocks, list(words), shared)
        if not empty:
            bench.launched(asked)
        if asked.blocks:
            launch(kernel, asked.blocks, threads, asked.words, asked.shared)

    monkeypatch.setattr(CudaDriver, "kernel", found)
    monkeypatch.setattr(Kernel, "launch", launched)
    monkeypatch.setattr(CudaDriver, "get", lambda driver, address, size: bench.returned(get(driver, address, size)))
    with in_this_process(bench.machine):
        yield bench


def sweeps(change: Callable[[int], int]) -> Callable[[Launch], None]:
    """Comparisons go over another number of vectors."""

    def launched(launch: Launch) -> None:
        if launch.kernel in ("check", "invert"):
            launch.words[1] = c_uint64(change(launch.words[1].value))

    return launched


@pytest.mark.parametrize(("threads", "blocks"), [(1024, (4, 4)), (1536, (6, 4)), (2048, (8, 4))])
def test_no_more_blocks_are_launched_than_fit(bench, threads, blocks):
    asked: dict[str, int] = {}
    bench.launched = lambda launch: asked.update({launch.kernel: launch.blocks // UNITS})
    bench.change(**{"attribute.39": threads})
    held = memory.take(bench.ready())
    held.write(ZERO, unheard)
    held.check(ZERO, unheard)
    assert (asked["write"], asked["check"]) == blocks


@pytest.mark.parametrize("fault", [*TOO_FEW, *TOO_MANY])
@pytest.mark.parametrize("kind", COMPARISONS)
def test_memory_compared_twice_or_partly_is_no_answer(bench, kind, fault):
    held = memory.take(bench.ready())
    if fault in TOO_FEW:
        bench.launched = sweeps(TOO_FEW[fault])
    else:
        bench.counting(TOO_MANY[fault])
    with pytest.raises(CudaError, match=r"memory of GPU-.* that \d+ of the \d+ bytes from \d+ on were compared"):
        COMPARISONS[kind](held)


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize(
    ("part", "why"), [("kernel", "0 of the .* bytes from .* on were compared"), ("copy", "contradicts itself")]
)
def test_a_gpu_program_that_never_ran_gives_no_result(bench, kind, part, why):
    held = memory.take(bench.ready())
    if part == "kernel":
        bench.launched = lambda launch: setattr(launch, "blocks", 0)
    else:
        bench.returned = lambda data: bytes(len(data))
    with pytest.raises(CudaError, match=f"memory of {bench.uuid}: .*{why}"):
        COMPARISONS[kind](held)


def test_a_span_that_was_not_overwritten_is_found(bench):
    held = memory.take(bench.ready())
    last = held.spans[-1]
    launches = iter(range(len(held.spans)))
    bench.launched = sweeps(lambda vectors: 0 if next(launches) == len(held.spans) - 1 else vectors)
    assert len(held.spans) > 1
    with pytest.raises(CudaError, match=f"0 of the {last.size} bytes from {last.start} on"):
        held.check(ZERO, unheard)


@pytest.mark.parametrize("reason", [(0, 5 << 8), (3, NOWHERE)], ids=["a place and no count", "a count and no place"])
@pytest.mark.parametrize("kind", ["check", "invert"])
def test_a_contradictory_answer_does_not_count(bench, kind, reason):
    held = memory.take(bench.ready())
    bench.returned = lambda data: changed(data, lambda *found: (*reason, found[-1]))
    with pytest.raises(CudaError, match="contradicts itself"):
        COMPARISONS[kind](held)


# --- multiprocessors ---


@pytest.mark.parametrize("program", KernelProgram)
def test_a_program_with_missing_blocks_is_no_answer(bench, program):
    card = bench.ready()
    for ran in (0, 3, 5):
        bench.launched = lambda launch, ran=ran: setattr(launch, "blocks", ran)
        with pytest.raises(CudaError, match=f"cannot run {program.value} on {bench.uuid}: {ran} of 4 blocks"):
            card.everywhere(program, 1)


@pytest.mark.parametrize("fault", [*TOO_FEW, *TOO_MANY])
@pytest.mark.parametrize("program", [KernelProgram.SCRATCH, KernelProgram.REGISTERS])
def test_a_partly_overwritten_unit_gives_no_result(bench, program, fault):
    card = bench.ready()
    bench.counting((TOO_FEW | TOO_MANY)[fault])
    with pytest.raises(CudaError, match=rf"cannot run {program.value} on .*that \d+ of \d+ words .*multiprocessor 0"):
        card.everywhere(program, 1)


@pytest.mark.parametrize("size", [4, 1024, 110 * 1024, 226 * 1024])
def test_a_unit_needs_all_shared_memory_of_a_block(bench, size):
    """However the launch came to be so small: what the unit has is asked of the device."""
    card = bench.ready()
    bench.launched = lambda launch: setattr(launch, "shared", size)
    with pytest.raises(
        CudaError, match=f"cannot run scratch on {bench.uuid}: .* that {size // 2} of {227 * 512} words"
    ):
        clearing.scratch(card, KEY)


def erring(bench: Bench, program: str, **of_runs: tuple[set[int], range]) -> None:
    """Let units of the device err in some runs of this program, counted from now on."""
    runs = iter(range(1, 100))

    def launched(launch: Launch) -> None:
        if launch.kernel == program:
            run = next(runs)
            bench.change(**{fault: sorted(units) if run in those else () for fault, (units, those) in of_runs.items()})

    bench.launched = launched


@pytest.mark.parametrize("program", ["scratch", "registers"])
@pytest.mark.parametrize(
    ("missed", "leaky", "reached", "faulty"),
    [
        (0, set(), 4, 0),
        (19, set(), 4, 0),  # twenty launches to reach a unit in
        (20, set(), 3, 0),
        (0, {1}, 4, 1),
        (1, {0}, 4, 1),  # there are later launches, which it passes, because another unit was missed
    ],
)
def test_a_unit_counts_if_both_programs_reached_and_passed_it(bench, program, missed, leaky, reached, faulty):
    card = bench.ready()
    erring(bench, program, unreached=({3}, range(1, missed + 1)), leaky=(leaky, range(1, 2)))
    assert clearing.scratch(card, KEY) == Scratched(4, reached, faulty, UNREACHED)


def test_a_unit_with_two_different_results_is_wrong(bench):
    card = bench.ready()
    erring(bench, "exact", unreached=({3}, range(1, 2)), deviating=({0}, range(1, 2)))
    assert [unit.number for unit in card.everywhere(KernelProgram.EXACT, 7) if unit.wrong] == [0]


def test_a_result_of_zero_does_not_prove_a_computation(bench):
    held = memory.take(bench.ready())
    bench.returned = lambda data: changed(data, lambda *row: row if len(row) == 3 else (*row[:2], 0, row[3]))
    with pytest.raises(CudaError, match=r"cannot test GPU-.*: multiprocessors \[0, 1, 2, 3\] .* computed nothing"):
        selftest.run(held, KEY, 6.0, unwatched, Clock(lambda: 0.0, lambda _seconds: None))


# --- what is had before all memory is taken ---


def test_stack_prints_and_heap_leave_their_room_to_the_scrub(bench):
    """A page for the context and one for results: all else is covered."""
    held = memory.take(bench.ready())
    assert (held.size, bench.machine.taken(bench.uuid)) == (SIZE - 2 * PAGE, SIZE)
    assert clearing.clear(held, KEY, ("zero",), unwatched).covered_bytes == SIZE - 2 * PAGE


def test_no_event_is_made_once_the_memory_is_taken(bench, monkeypatch):
    held = memory.take(bench.ready())
    for name in ("event", "allocate"):
        monkeypatch.setattr(CudaDriver, name, lambda *_words: pytest.fail("it takes memory"))
    clearing.clear(held, KEY, ("random", "zero"), unwatched)
    assert clearing.verify(held, unwatched) == Verified(held.size, ("zero",))


@pytest.mark.parametrize("work", WORK)
def test_every_kernel_runs_once_before_memory_is_taken(bench, work):
    """Its first launch takes memory of the device."""
    held = memory.take(bench.ready())
    assert held.card.allocate(PAGE) is None
    WORK[work](held)


@pytest.mark.parametrize("rungs", [1, 2])
def test_many_spans_are_reported_in_order(bench, monkeypatch, rungs):
    monkeypatch.setattr(cuda_card, "_MOST_SPANS", 3)
    monkeypatch.setattr(memory, "RUNGS", (rungs * PAGE, PAGE))
    held = memory.take(bench.ready())
    held.write(ZERO, unheard)
    steps: list[int] = []
    marked = [span for number, span in enumerate(held.spans) if number % 2]
    with bench.machine.memory(bench.uuid).open("r+b") as cells:
        for span in marked:
            cells.seek(span.address - BASE)
            cells.write(b"\1")
    found = held.card.sweep(Sweep.CHECK, ZERO, held.spans, steps.append)
    assert [it.offset for it in found if it.count] == [span.start for span in marked]
    assert [it.compared for it in found] == steps == [span.size for span in held.spans]


@pytest.mark.parametrize(
    "program", [KernelProgram.REGISTERS, KernelProgram.PLANT_REGISTERS, KernelProgram.LISTEN_REGISTERS]
)
def test_registers_that_the_driver_keeps_in_memory_are_refused(bench, program):
    """But only by who runs that kernel: no scrub is prevented by another one."""
    bench.change(**{f"local.{program.value}": 8})
    if program is not KernelProgram.REGISTERS:
        assert clearing.scratch(bench.ready(), KEY) == Scratched(4, 4, 0, UNREACHED)
    with pytest.raises(CardBusyError, match=f"cannot use {bench.uuid}: .*, {program.value} would keep in memory"):
        bench.opened().everywhere(program, 1)


def test_no_kernel_is_loaded_that_no_scrub_runs(bench, monkeypatch):
    """Each takes memory, which could not be covered then."""
    load, named = CudaDriver.kernel, set[str]()

    def watched(driver: CudaDriver, module: int, name: str) -> Kernel:
        named.add(name)
        return load(driver, module, name)

    monkeypatch.setattr(CudaDriver, "kernel", watched)
    bench.ready()
    assert named == {"write", "check", "invert", "scratch", "registers", "exact"}


@pytest.mark.parametrize("named", [False, True], ids=["not named", "named"])
@pytest.mark.parametrize(
    ("counted", "status", "lacks"),
    [(None, 1, 1024), ("attribute", 1, 2048), ("launch", 1, 2048), ("launch", 701, 2048)],
)
def test_a_block_overwrites_what_the_driver_grants(bench, named, counted, status, lacks):
    """Newer architectures keep 1024 bytes a block for the system. A driver may count them as the kernel's own, or not.

    ``lacks``: the shared memory of a multiprocessor that no block gets.
    """
    bench.change(names_reserved=named, counts_reserved=counted, refuses_size_with=status)
    card = bench.ready()
    assert clearing.scratch(card, KEY) == Scratched(4, 4, 0, 4 * lacks)
    for program in KernelProgram:
        assert len(card.everywhere(program, 1)) == 4


# --- whose fault it is ---


@pytest.mark.parametrize(
    ("status", "remedy"),
    {
        **dict.fromkeys((2, 46), "process"),
        **dict.fromkeys((34, 36, 803, 804), "cuda12"),
        **dict.fromkeys((1, 200, 209, 218, 222, 300, 400, 500, 701, 720, 800, 801), "update Autoclave"),
        **dict.fromkeys((221, 223), "libnvidia-ptxjitcompiler"),
        **dict.fromkeys((301, 302, 303, 304), "limits of the service"),
        **dict.fromkeys((802,), "nvidia-fabricmanager .*nvidia-smi conf-compute -srs 1"),
        **dict.fromkeys((805, 806, 807, 808, 809, 810), "MPS"),
    }.items(),
)
def test_a_refusal_without_device_fault_has_a_remedy(bench, status, remedy):
    bench.change(refuses=status)
    with pytest.raises(CardBusyError, match=f"cannot open {bench.uuid}: CUDA says .*; .*{remedy}"):
        bench.ready()


@pytest.mark.parametrize("call", ["cuDevicePrimaryCtxRetain", "cuModuleLoad", "cuMemAlloc_v2", "cuMemcpyDtoH_v2"])
def test_a_lack_of_memory_accuses_no_device(bench, call):
    """On real GPUs, another process that has all memory shows in the call that makes the context, or in a later one."""
    bench.machine.fail(bench.uuid, call, 2)
    with pytest.raises(CardBusyError, match=r"CUDA_ERROR_OUT_OF_MEMORY.*; end the process that uses its memory"):
        bench.ready()


@pytest.mark.parametrize("call", ["cuLaunchKernel", "cuMemcpyDtoH_v2", "cuEventSynchronize"])
def test_a_lack_of_memory_in_a_scrub_accuses_no_device(bench, call):
    held = memory.take(bench.ready())
    bench.machine.fail(bench.uuid, call, 2)
    with pytest.raises(CardBusyError, match=r"cannot check memory .*CUDA_ERROR_OUT_OF_MEMORY.*; end the process"):
        held.check(ZERO, unheard)


def test_a_kernel_out_of_time_may_be_sound(bench):
    """The driver limits the time of a kernel on a GPU with a display."""
    held = memory.take(bench.ready())
    bench.machine.fail(bench.uuid, "cuEventSynchronize", 702)
    with pytest.raises(KernelFailedError, match=r"CUDA says .*; .*display"):
        held.check(ZERO, unheard)


@pytest.mark.parametrize("status", [1, 701])
def test_a_launch_refused_at_each_size_accuses_no_device(bench, status):
    bench.machine.fail(bench.uuid, "cuFuncSetAttribute", status)
    with pytest.raises(CardBusyError, match=r"CUDA says CUDA_ERROR_.*; .*update Autoclave"):
        bench.ready()


@pytest.mark.parametrize("status", [3, 100, 999])
def test_without_a_start_of_cuda_the_node_may_lack_something(bench, status):
    bench.change(refuses=status)
    with pytest.raises(NotStartedError, match=r"CUDA says .*; .* of every GPU"):
        bench.ready()
    bench.change(refuses=None)
    bench.machine.fail(bench.uuid, "cuDevicePrimaryCtxRetain", status)
    with pytest.raises(CudaError, match=r"CUDA says") as reason:
        bench.ready()
    assert type(reason.value) is CudaError


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(({"refuses": status}, "CUDA says") for status in (101, 214, 220)),
        *(({"shown": shown}, f"CUDA shows {shown} devices where one was asked") for shown in ("0", 2)),
    ],
)
def test_an_ambiguous_fault_is_the_devices(bench, change, why):
    bench.change(**change)
    with pytest.raises(CudaError, match=why) as reason:
        bench.ready()
    assert type(reason.value) is CudaError
