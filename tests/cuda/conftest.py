"""One GPU of the stand-in for the driver of CUDA, and the worker's own card on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pytest

from scrubber.cuda import cuda_card, memory
from scrubber.cuda.driver import CudaDriver, Kernel, Word
from tests.fakes.cuda.fixtures import in_this_process, libraries
from tests.fakes.cuda.machine import PAGE, CudaMachine, equip
from tests.fakes.nvml.machine import Machine

OWN = 2 * PAGE  # the context, and the page of results
SWEEPS = ("write", "check", "invert")


class Bench:
    """The GPU. Nothing opens it before ``card`` is asked for."""

    def __init__(self, machine: CudaMachine) -> None:
        self.machine = machine
        self.launches: list[str] = []  # kernels that ran since the card was ready
        self.launched: Callable[[], None] = lambda: None

    @property
    def uuid(self) -> str:
        return self.machine.machine.gpu(0).uuid

    @cached_property
    def card(self) -> cuda_card.CudaCard:
        card = cuda_card.opened(self.uuid, self.machine.machine.gpu(0).pci)
        card.ready()
        self.launches.clear()
        return card

    @cached_property
    def cells(self) -> npt.NDArray[np.uint8]:
        """The memory that a scrub can take, as any other process would find it."""
        return np.memmap(self.machine.memory(self.uuid), np.uint8, "r+")[OWN:]

    def change(self, **faults: object) -> None:
        """Plant faults; places in memory count from the first one that a scrub can take."""
        for fault in ("stuck", "aliases"):
            if isinstance(places := faults.get(fault), dict):
                others = OWN if fault == "aliases" else 0
                faults[fault] = {OWN + place: others + value for place, value in places.items()}
        self.machine.change(self.uuid, **faults)

    def taken(self) -> memory.GpuMemory:
        return memory.take(self.card)

    def record_launch(self, kernel: str) -> None:
        self.launches.append(kernel)
        self.launched()


@pytest.fixture
def begin(tmp_path, monkeypatch) -> Iterator[Callable[[int], Bench]]:
    """Begins with a GPU of which a scrub can take so many pages."""
    find, launch = CudaDriver.kernel, Kernel.launch
    names: dict[Kernel, str] = {}
    benches: list[Bench] = []

    def found(driver: CudaDriver, module: int, name: str) -> Kernel:
        kernel = find(driver, module, name)
        names[kernel] = name
        return kernel

    def launched(kernel: Kernel, blocks: int, threads: int, words: Sequence[Word], shared: int = 0) -> None:
        if names[kernel] not in SWEEPS or words[1].value:
            benches[-1].record_launch(names[kernel])
        launch(kernel, blocks, threads, words, shared)

    monkeypatch.setattr(CudaDriver, "kernel", found)
    monkeypatch.setattr(Kernel, "launch", launched)
    with ExitStack() as stack:

        def bench(pages: int) -> Bench:
            gpus = Machine.h200(tmp_path / "machine", 1).gpus
            machine = equip(tmp_path / "cuda", gpus, libraries(), pages * PAGE + OWN)
            benches.append(Bench(stack.enter_context(in_this_process(machine))))
            return benches[-1]

        yield bench
