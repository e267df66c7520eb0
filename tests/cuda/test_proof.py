"""A device that does not say of every byte that it has looked at it has proven nothing: that is never a clean answer.

On the card that has a GPU, over the stand-in for CuPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from scrubber.core.measurements import Scratched
from scrubber.core.model import Findings
from scrubber.cuda import clearing, device, memory, selftest
from scrubber.cuda.card import NOWHERE, Card, CardBusyError, CudaError, KernelProgram, Sweep
from scrubber.cuda.patterns import ZERO
from scrubber.cuda.selftest import Clock
from tests.fakes.cuda.device import Device
from tests.fakes.cuda.fixtures import in_this_process
from tests.fakes.cuda.gpu import PAGE, HostGpu, Units
from tests.fakes.cuda.machine import CudaGpu, CudaMachine

UUID, PCI = "GPU-of-this-test", "0000:01:00.0"
KEY = b"k" * 16
SIZE = 6 * PAGE
UNREACHED = 4 * 1024  # bytes of shared memory of four units that the system reserves

COMPARISONS: dict[str, Callable[[memory.GpuMemory], object]] = {
    "check": lambda held: held.check(ZERO, unheard),
    "census": lambda held: held.compare(ZERO, unheard),
    "invert": lambda held: held.invert(ZERO, unheard),
    "invert-down": lambda held: held.invert(ZERO, unheard, down=True),
    "clear": lambda held: clearing.clear(held, KEY, ("random", "zero"), unwatched),
    "verify": lambda held: clearing.verify(held, unwatched),
}
WORK: dict[str, Callable[[memory.GpuMemory], object]] = {
    **COMPARISONS,
    "scratch": lambda held: clearing.scratch(held.card, KEY),
    "self-test": lambda held: selftest.run(held, KEY, 6.0, unwatched, Clock(lambda: 0.0, lambda _seconds: None)),
}
FAULTS: dict[str, dict[str, Callable[[int], int]]] = {
    "nothing": {"reached": lambda _vectors: 0},
    "half": {"reached": lambda vectors: vectors // 2},
    "all but one": {"reached": lambda vectors: vectors - 1},
    "one too many": {"counted": lambda vectors: vectors + 1},
    "twice": {"counted": lambda vectors: vectors * 2},
}


def unheard(_size: int) -> None:
    """Progress is not reported."""


def unwatched(_done: int, _total: int) -> None:
    """Progress is not reported."""


def ready() -> device.CudaCard:
    """The device, with its kernels loaded."""
    card = device.opened(UUID, PCI)
    card.ready()
    return card


@dataclass
class Bench:
    """A card, and what is behind it."""

    card: Card
    gpu: HostGpu
    cupy: Any


@pytest.fixture
def machine(tmp_path) -> CudaMachine:
    claims, cells = tmp_path / "claims", tmp_path / "memory"
    claims.mkdir()
    cells.write_bytes(bytes(SIZE))
    machine = CudaMachine(tmp_path / "gpus.json")
    machine.write({UUID: CudaGpu(str(cells), str(claims), PCI)})
    return machine


@pytest.fixture
def real(machine) -> Iterator[Bench]:
    with in_this_process(machine):
        card = ready()
        cupy: Any = __import__("cupy")
        yield Bench(card, cupy.cuda.runtime.device().gpu, cupy)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", COMPARISONS)
def test_memory_compared_twice_or_partly_is_no_answer(real, kind, fault):
    held = memory.take(real.card)
    for name, does in FAULTS[fault].items():
        setattr(real.gpu.faults, name, does)
    with pytest.raises(CudaError, match=r"memory of GPU-.*: \d+ of the \d+ bytes from \d+ on were compared"):
        COMPARISONS[kind](held)


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize(
    ("part", "why"), [("kernel", "0 of the .* bytes from .* on were compared"), ("copy", "contradicts itself")]
)
def test_a_gpu_program_that_never_ran_gives_no_result(real, monkeypatch, kind, part, why):
    held = memory.take(real.card)
    if part == "kernel":
        monkeypatch.setattr(real.cupy.RawKernel, "__call__", lambda *_words, **_more: None)
    else:
        monkeypatch.setattr(real.cupy.cuda.runtime, "memcpy", lambda *_words: None)
    with pytest.raises(CudaError, match=f"memory of {UUID}: .*{why}"):
        COMPARISONS[kind](held)


def test_a_span_that_was_not_overwritten_is_found(real):
    held = memory.take(real.card)
    last = held.spans[-1]
    launches = iter(range(len(held.spans)))
    real.gpu.faults.reached = lambda vectors: 0 if next(launches) == len(held.spans) - 1 else vectors
    assert len(held.spans) > 1
    with pytest.raises(CudaError, match=f"0 of the {last.size} bytes from {last.start} on"):
        held.check(ZERO, unheard)


@pytest.mark.parametrize("reason", [(0, 5 << 8), (3, NOWHERE)], ids=["a place and no count", "a count and no place"])
@pytest.mark.parametrize("kind", ["check", "invert"])
def test_a_contradictory_answer_does_not_count(real, kind, reason):
    held = memory.take(real.card)
    setattr(real.gpu, kind, lambda _at, vectors, *_more: (*reason, vectors))
    with pytest.raises(CudaError, match="contradicts itself"):
        COMPARISONS[kind](held)


# --- multiprocessors ---


@pytest.mark.parametrize("program", KernelProgram)
def test_a_program_with_missing_blocks_is_no_answer(real, monkeypatch, program):
    run, grids = real.gpu.program, iter((0, 3, 5))
    for ran in (0, 3, 5):
        monkeypatch.setattr(real.gpu, "program", lambda name, number, _blocks: run(name, number, next(grids)))
        with pytest.raises(CudaError, match=f"cannot run {program.value} on {UUID}: {ran} of 4 blocks"):
            real.card.everywhere(program, 1)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("program", [KernelProgram.SCRATCH, KernelProgram.REGISTERS])
def test_a_partly_overwritten_unit_gives_no_result(real, program, fault):
    [real.gpu.faults.counted] = FAULTS[fault].values()
    with pytest.raises(CudaError, match=rf"cannot run {program.value} on {UUID}: \d+ of \d+ words .*multiprocessor 0"):
        real.card.everywhere(program, 1)


@pytest.mark.parametrize("size", [4, 1024, 110 * 1024, 226 * 1024])
def test_a_unit_needs_all_shared_memory_of_a_block(real, monkeypatch, size):
    """However the launch came to be so small: what the unit has is asked of the device."""
    opened = real.cupy.cuda.runtime.device()
    run = opened.program
    monkeypatch.setattr(opened, "program", lambda *words: run(*words[:-1], size))
    with pytest.raises(CudaError, match=f"cannot run scratch on {UUID}: {size // 2} of {227 * 512} words"):
        clearing.scratch(real.card, KEY)


def during(name: str, units: set[int], first: int, last: int) -> Units:
    """These units, in some runs of this program."""
    return lambda program, run: frozenset(units if program == name and first <= run <= last else ())


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
def test_a_unit_counts_if_both_programs_reached_and_passed_it(real, program, missed, leaky, reached, faulty):
    first = real.gpu.runs[program] + 1
    real.gpu.faults.unreached = during(program, {3}, first, first + missed - 1)
    real.gpu.faults.leaky = during(program, leaky, first, first)
    assert clearing.scratch(real.card, KEY) == Scratched(4, reached, faulty, UNREACHED)


def test_a_unit_with_two_different_results_is_wrong(real):
    first = real.gpu.runs["exact"] + 1
    real.gpu.faults.unreached = during("exact", {3}, first, first)
    real.gpu.faults.deviating = during("exact", {0}, first, first)
    assert [unit.number for unit in real.card.everywhere(KernelProgram.EXACT, 7) if unit.wrong] == [0]


def test_a_result_of_zero_does_not_prove_a_computation(real, monkeypatch):
    monkeypatch.setattr(real.gpu, "_exact", lambda _unit, _number: (0, 0))
    held = memory.take(real.card)
    with pytest.raises(CudaError, match=r"cannot test GPU-.*: multiprocessors \[0, 1, 2, 3\] .* computed nothing"):
        selftest.run(held, KEY, 6.0, unwatched, Clock(lambda: 0.0, lambda _seconds: None))


# --- what is had before all memory is taken ---


def test_stack_prints_and_heap_leave_their_room_to_the_scrub(real):
    """A page for the context and one for results: all else is covered."""
    held = memory.take(real.card)
    assert (held.size, real.gpu.used) == (SIZE - 2 * PAGE, SIZE)
    assert clearing.clear(held, KEY, ("zero",), unwatched).covered_bytes == SIZE - 2 * PAGE


def test_no_event_is_made_once_the_memory_is_taken(real, monkeypatch):
    held = memory.take(real.card)
    for name in ("eventCreate", "eventCreateWithFlags", "malloc"):
        monkeypatch.setattr(real.cupy.cuda.runtime, name, lambda *_words: pytest.fail("it takes memory"))
    clearing.clear(held, KEY, ("random", "zero"), unwatched)
    assert clearing.verify(held, unwatched) == Findings(held.size)


@pytest.mark.parametrize("work", WORK)
def test_every_kernel_runs_once_before_memory_is_taken(real, work):
    held = memory.take(real.card)
    assert real.card.allocate(PAGE) is None
    WORK[work](held)


@pytest.mark.parametrize("rungs", [1, 2])
def test_many_spans_are_reported_in_order(real, monkeypatch, rungs):
    monkeypatch.setattr(device, "_MOST_SPANS", 3)
    monkeypatch.setattr(memory, "RUNGS", (rungs * PAGE, PAGE))
    held = memory.take(real.card)
    steps: list[int] = []
    marked = [span for number, span in enumerate(held.spans) if number % 2]
    for span in marked:
        real.gpu.bytes_at(span.address, 1)[:] = 1
    found = real.card.sweep(Sweep.CHECK, ZERO, held.spans, steps.append)
    assert [it.offset for it in found if it.count] == [span.start for span in marked]
    assert [it.compared for it in found] == steps == [span.size for span in held.spans]


@pytest.mark.parametrize(
    "program", [KernelProgram.REGISTERS, KernelProgram.PLANT_REGISTERS, KernelProgram.LISTEN_REGISTERS]
)
def test_registers_that_the_driver_keeps_in_memory_are_refused(machine, monkeypatch, program):
    """But only by who runs that kernel: no scrub is prevented by another one."""
    with in_this_process(machine):
        kernel = __import__("cupy").RawKernel
        monkeypatch.setattr(kernel, "local_size_bytes", property(lambda it: 8 * (it.name == program.value)))
        if program is not KernelProgram.REGISTERS:
            assert clearing.scratch(ready(), KEY) == Scratched(4, 4, 0, UNREACHED)
        with pytest.raises(CardBusyError, match=f"cannot use {UUID}: .*, {program.value} would keep in memory"):
            device.opened(UUID, PCI).everywhere(program, 1)


def test_no_kernel_is_loaded_that_no_scrub_runs(machine, monkeypatch):
    """Each takes memory, which could not be covered then."""
    with in_this_process(machine):
        module, named = __import__("cupy").RawModule, set[str]()
        load: Callable[[object, str], object] = module.get_function

        def watched(it: object, name: str) -> object:
            named.add(name)
            return load(it, name)

        monkeypatch.setattr(module, "get_function", watched)
        ready()
    assert named == {"write", "check", "invert", "scratch", "registers", "exact"}


@pytest.mark.parametrize("named", [False, True], ids=["not named", "named"])
@pytest.mark.parametrize(
    ("counted", "status", "lacks"), [("", 1, 1024), ("attribute", 1, 2048), ("launch", 1, 2048), ("launch", 701, 2048)]
)
def test_a_block_overwrites_what_the_driver_grants(machine, monkeypatch, named, counted, status, lacks):
    """Newer architectures keep 1024 bytes a block for the system. A driver may count them as the kernel's own, or not.

    ``lacks``: the shared memory of a multiprocessor that no block gets.
    """
    machine.change(UUID, names_reserved=named, counts_reserved=counted, refuses_size_with=status)
    launch, taken = Device.program, set[int]()

    def launched(opened: Device, name: str, number: int, *words: int) -> None:
        taken.update(words[-1:] if name == "scratch" else ())
        launch(opened, name, number, *words)

    monkeypatch.setattr(Device, "program", launched)
    with in_this_process(machine):
        card = ready()
        assert clearing.scratch(card, KEY) == Scratched(4, 4, 0, 4 * lacks)
        for program in KernelProgram:
            assert len(card.everywhere(program, 1)) == 4
    assert taken == {228 * 1024 - lacks}


# --- whose fault it is ---


@pytest.mark.parametrize(
    ("status", "remedy"),
    {
        **dict.fromkeys((2, 46), "process"),
        **dict.fromkeys((34, 35, 36, 803, 804), "cuda12"),
        **dict.fromkeys((1, 9, 98, 200, 209, 218, 222, 300, 400, 500, 701, 720, 800, 801), "update Autoclave"),
        **dict.fromkeys((221, 223), "libnvidia-ptxjitcompiler"),
        **dict.fromkeys((301, 302, 303, 304), "limits of the service"),
        **dict.fromkeys((802,), "nvidia-fabricmanager"),
        **dict.fromkeys((805, 806, 807, 808, 809), "MPS"),
    }.items(),
)
def test_a_refusal_without_device_fault_has_a_remedy(machine, status, remedy):
    machine.change(UUID, refuses=status)
    with in_this_process(machine), pytest.raises(CardBusyError, match=f"cannot open {UUID}: CUDA says .*; .*{remedy}"):
        ready()


@pytest.mark.parametrize("status", [1, 701])
def test_a_launch_refused_at_each_size_accuses_no_device(machine, monkeypatch, status):
    with in_this_process(machine):
        cupy = __import__("cupy")

        def refuse(*_size: object) -> None:
            raise cupy.cuda.driver.CUDADriverError(status, "CUDA_ERROR: refused")

        monkeypatch.setattr(cupy.RawKernel, "_demand_room", refuse)
        with pytest.raises(CardBusyError, match=r"CUDA_ERROR: refused; .*update Autoclave"):
            ready()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(({"refuses": status}, "CUDA says") for status in (3, 100, 101, 214, 220, 700, 719, 810, 999)),
        *(({"shown": shown}, f"CUDA shows {shown} devices where one was asked") for shown in (0, 2)),
    ],
)
def test_an_ambiguous_fault_is_the_devices(machine, change, why):
    machine.change(UUID, **change)
    with in_this_process(machine), pytest.raises(CudaError, match=why) as reason:
        ready()
    assert type(reason.value) is CudaError
