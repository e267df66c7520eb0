"""Context, kernels and memory apart: which part of a worker's start costs what, and which allocations are fast."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.trial.card import MeasuredCard, Where, opened_as, zeroed
from benchmarks.trial.figures import Measured, Question
from benchmarks.trial.forks import in_a_fork
from scrubber.cuda import memory
from scrubber.cuda.card import Span
from scrubber.cuda.driver import status_of
from scrubber.cuda.memory import GpuMemory

OUT_OF_MEMORY = 2  # a status of CUDA
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
EIGHT, ONE = "with eight connections", "as usual"
VIRTUAL = "1024 MiB, created and mapped"
LARGEST = {"8192 MiB": 2**33, "1024 MiB": 2**30, "256 MiB": 2**28}
_WAITS = "6 ms on an H100, 110 ms on an H200, where the driver still cleared what the process before had freed"
STARTED = {
    EIGHT: (
        Question("context", 50, 600, "ms", "100 ms on an H100: the driver makes channels and copies its own code"),
        Question("load the kernels", 0.2, 30, "ms", "they are loaded lazily: the file is read, little is copied"),
        Question("limits, memory for results, first launches", 1, 150, "ms", "seven kernels are copied"),
    ),
    ONE: (
        Question("context", 30, 500, "ms", "one channel for work instead of eight: half of it"),
        Question("load the kernels", 0.2, 30, "ms", "as usual"),
        Question("limits, memory for results, first launches", 1, 150, "ms", "as usual"),
    ),
}
TAKEN = {
    "8192 MiB": Question("all memory, 8192 MiB at most", 2, 400, "ms", _WAITS),
    "1024 MiB": Question("all memory, 1024 MiB at most", 3, 400, "ms", _WAITS),
    "256 MiB": Question("all memory, 256 MiB at most", 10, 500, "ms", f"{_WAITS}; and 0.07 ms for each call"),
    VIRTUAL: Question(f"all memory, {VIRTUAL}", 3, 400, "ms", _WAITS),
}

Times = dict[str, float]


class StepByStep(MeasuredCard):
    """Notes how long each step of its start takes."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type] # passed on
        self.times: Times = {}

    def _make_context(self) -> None:
        self.times["context"] = _seconds(self.driver.make_context)
        super()._make_context()
        self.times["load the kernels"] = _seconds(lambda: self.driver.load(str(self._image())))

    def _load(self) -> None:
        self.times["limits, memory for results, first launches"] = _seconds(super()._load)


class ManyConnections(StepByStep):
    """With as many channels as CUDA makes by itself."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        os.environ[CONNECTIONS] = "8"  # CUDA reads it when it starts, which is later


def measure(where: Where) -> Iterator[Measured]:
    """Each size of allocation in a process of its own, with and without the usual number of connections."""
    for how, questions in STARTED.items():
        found = [in_a_fork(partial(_started, where, how, what)) for what in TAKEN]
        for question in questions:
            yield question.about(how).answered(*(1000 * times[question.what] for times, _, _ in found))
        for (times, count, size), question in zip(found, TAKEN.values(), strict=True):
            note = f"{count} allocations, {size} bytes"
            yield question.about(how).answered(1000 * times["memory"], note=note)


def _started(where: Where, how: str, what: str) -> tuple[Times, int, int]:
    card = opened_as(ManyConnections if how == EIGHT else StepByStep, where)
    began = time.perf_counter()
    spans = [*(_mapped(card, where.limit) if what == VIRTUAL else _allocated(card, LARGEST[what]))]
    card.times["memory"] = time.perf_counter() - began
    whole = GpuMemory(card, spans)
    zeroed(whole)
    return card.times, len(spans), whole.size


def _allocated(card: MeasuredCard, largest: int) -> Iterator[Span]:
    start = 0
    for size in (rung for rung in memory.RUNGS if rung <= largest):
        while size <= card.memory().free and (address := card.allocate(size)) is not None:
            yield Span(address, size, start)
            start += size


def _mapped(card: MeasuredCard, limit: int | None) -> Iterator[Span]:
    """Memory in pieces of 1 GiB, and one for the rest, below addresses that follow each other."""
    page, piece = memory.RUNGS[-1], LARGEST["1024 MiB"]
    whole = min(card.memory().free, limit or card.memory().free) // page * page
    address = card.driver.reserve(whole)
    for start in range(0, whole, piece):
        size = min(piece, whole - start)
        try:
            card.driver.map(address + start, card.driver.create(size), size)
        except card.driver.Error as error:
            if status_of(error) != OUT_OF_MEMORY:  # the tables for it may take what was free
                raise
            return
        yield Span(address + start, size, start)


def _seconds(deed: Callable[[], object]) -> float:
    began = time.perf_counter()
    deed()
    return time.perf_counter() - began
