"""How long a worker takes from its start to its memory, and when the next worker has that memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from multiprocessing.connection import Connection

from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import MeasuredCard, Where, expect_nothing, fresh, opened, unheard, zeroed
from benchmarks.trial.figures import Measured, Question, one, rounds
from benchmarks.trial.forks import Fork, say
from scrubber.cuda import cuda_card, cupy_loading, memory
from scrubber.cuda.card import Span
from scrubber.cuda.driver import CudaDriver
from scrubber.cuda.memory import GpuMemory
from scrubber.cuda.patterns import ZERO
from scrubber.devices.nvidia import boards
from scrubber.devices.nvidia.nvml import Library

COLD_SHARE = 4  # forks for each new process
LATER = 1.0  # seconds
COMMAND = (sys.executable, "-m", "benchmarks.trial.start")

BEGUN = "until our first line"

CONTEXT, FIRST_LAUNCHES, EXIT = "context", "limits, kernels and their first launches", "free all and exit"
BY_STEP = {
    CONTEXT: Question(CONTEXT, 30, 600, "ms", "channels, page tables and 200 to 600 MiB of memory; cuInit was before"),
    FIRST_LAUNCHES: Question(FIRST_LAUNCHES, 1, 200, "ms", "the driver opened again, seven kernels copied"),
    EXIT: Question(EXIT, 20, 2000, "ms", "all memory is unmapped while the process ends"),
}
WHOLE = Question("from its start to the end of the last pass", 300, 2500, "ms", "a context 0.5 s, four passes 0.12 s")
ALLOCATED = Question("all of it allocated", 20, 1500, "ms", "a wait for the driver, which clears freed memory first")

Moments = dict[str, float]


def measure(where: Where) -> Iterator[Measured]:
    """New processes, then forks of this process, which has loaded CuPy and has not called CUDA."""
    yield from _figures("a new process, the first time", [_cold(where)])
    third, most = where.share(1 / 3), max(1, where.rounds // COLD_SHARE)
    yield from _figures("a new process", [_cold(where) for _ in rounds(most, third)])
    warm = [_warm(where) for _ in rounds(where.rounds, where.share(2 / 3))]
    yield from _figures("a fork of a process that has loaded CuPy", warm)
    yield from _next_ones(where)


def life(where: Where, mark: Callable[[str], None]) -> None:
    """The moments of a worker, from its first line to its last pass over all memory."""
    mark(BEGUN)
    library = Library()
    with reads_only(), library.session() as nvml:
        boards.memory(nvml, nvml.handle(where.uuid))
    library.close()
    mark("NVML: open, read the memory in use, close")
    cuda_card.only(where.uuid)
    driver = CudaDriver(cupy_loading.load())
    mark("import of CuPy")
    driver.devices()
    mark("the driver")
    driver.make_context()
    mark(CONTEXT)
    card = opened(where)
    mark(FIRST_LAUNCHES)
    whole = _taken(card, mark)
    for name, pattern in (("keyed", fresh("timeline")), ("zero", ZERO)):
        whole.write(pattern, unheard)
        mark(f"write {name}")
        expect_nothing(whole.check(pattern, unheard), f"what was written to it ({name})")
        mark(f"check {name}")


def _taken(card: MeasuredCard, mark: Callable[[str], None]) -> GpuMemory:
    """All memory, as ``memory.take`` allocates it, with a mark after each size of allocations."""
    spans: list[Span] = []
    start = 0
    for size in memory.RUNGS:
        while (address := card.allocate(size)) is not None:
            spans.append(Span(address, size, start))
            start += size
        mark(f"allocations of {size // 2**20} MiB")
    return GpuMemory(card, tuple(spans))


def _cold(where: Where) -> Moments:
    began = time.perf_counter()
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said, _ = process.communicate(json.dumps(asdict(where)))
    ended = time.perf_counter()
    if process.returncode:
        raise RuntimeError(f"cannot measure: a worker ended with status {process.returncode}")
    return {"": began, **json.loads(said), EXIT: ended}


def _warm(where: Where) -> Moments:
    def forked(line: Connection) -> None:
        moments: Moments = {}
        life(where, lambda name: moments.update({name: time.perf_counter()}))
        say(line, moments)

    fork = Fork(forked)
    moments = fork.hear()
    return {"": fork.began, **moments, EXIT: fork.end()}


def _figures(who: str, lives: list[Moments]) -> list[Measured]:
    names = list(lives[0])
    steps = []
    for before, name in pairwise(names):
        took = tuple(1000 * (moments[name] - moments[before]) for moments in lives)
        question = BY_STEP.get(name)
        steps.append(question.about(who).answered(*took) if question else Measured(f"{who}: {name}", took, "ms"))
    whole = (1000 * (moments[names[-2]] - moments[names[0]]) for moments in lives)
    return [*steps, WHOLE.about(who).answered(*whole)]


def _next_ones(where: Where) -> Iterator[Measured]:
    """How long the next process waits: the driver may still clear the memory that was given back."""
    for name, pause in (("immediately", 0.0), (f"after {LATER:g} s", LATER)):
        took, size, first = _handed_over(where, pause)
        about = f"memory that another process had written and given back, {name}"
        yield ALLOCATED.about(about).answered(1000 * took, note="by a process that was ready and waited")
        yield one(f"{about}: allocated", size, "bytes")
        yield one(f"{about}: the first write", 1000 * first, "ms")


def _handed_over(where: Where, pause: float) -> tuple[float, int, float]:
    def heir(line: Connection) -> None:
        card = opened(where)
        say(line)
        line.recv()
        moments = [time.perf_counter()]
        whole = memory.take(card)
        moments.append(time.perf_counter())
        whole.write(ZERO, unheard)
        moments.append(time.perf_counter())
        zeroed(whole)
        say(line, (moments[1] - moments[0], whole.size, moments[2] - moments[1]))

    def owner(line: Connection) -> None:
        memory.take(opened(where)).write(fresh("owner"), unheard)
        say(line)

    next_one = Fork(heir)
    next_one.hear()
    last_one = Fork(owner)
    last_one.hear()
    last_one.end()
    time.sleep(pause)
    next_one.tell()
    took, size, first = next_one.hear()
    next_one.end()
    return took, size, first


def main() -> None:
    """Run as a new process; prints the moments."""
    where = Where(**json.load(sys.stdin))
    moments: Moments = {}
    life(where, lambda name: moments.update({name: time.perf_counter()}))
    print(json.dumps(moments))


if __name__ == "__main__":
    main()
