"""What a worker may prepare while the last tenant still has the GPU, and how much sooner a scrub ends then."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pynvml

from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import MeasuredCard, Where, fresh, opened, unheard, zeroed
from benchmarks.trial.driver import MeasuringDriver
from benchmarks.trial.figures import Measured, NotDone, Question, remark, rounds
from benchmarks.trial.forks import Fork, say
from scrubber.cuda import cuda_card, cupy_loading, memory
from scrubber.devices.nvidia import boards, holders
from scrubber.devices.nvidia.nvml import Library

MOST = 6  # rounds
KEPT = 3.0  # seconds for which a started CUDA is kept, before the driver is asked what it costs
_CLEARS = "the driver clears freed memory first, 0.17 s when it was measured by a worker with a context"


@dataclass(frozen=True)
class Seen:
    """What the driver says of a GPU, and the kernel of a process that has it open."""

    used: int  # bytes
    listed: bool  # whether the driver lists the process
    watts: float
    resident: int  # bytes of the process that it shares with no other


def measure(where: Where) -> Iterator[Measured]:
    """Each way in turn, round by round; a process fills the memory, and is killed."""
    if where.limit is not None:
        raise NotDone("all memory must be taken, which --limit forbids")
    yield from _kept(where)
    found: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    for _ in rounds(MOST, where.ends):
        for name, (prepare, _) in WAYS.items():
            found[name].append(_scrubbed(where, prepare))
    for name, (_, (low, high)) in WAYS.items():
        for moment, samples in zip(MOMENTS, zip(*found[name], strict=True), strict=True):
            figure = f"{name}: from the end of the last process to {moment}"
            took = tuple(1000 * it for it in samples)
            if moment == MOMENTS[-1]:
                yield Question(figure, low, high, "ms", _CLEARS).answered(*took)
            else:
                yield Measured(figure, took, "ms")


MOMENTS = ("a worker with CUDA and a context", "all memory allocated", "the end of four passes")


def _nothing(where: Where) -> MeasuredCard:
    return opened(where)


def _cuda_started(where: Where) -> MeasuringDriver:
    cuda_card.only(where.uuid)
    driver = MeasuringDriver(cupy_loading.load())
    driver.devices()
    return driver


Prepare = Callable[[Where], object]
WAYS: dict[str, tuple[Prepare | None, tuple[float, float]]] = {
    "nothing is ready": (None, (250, 500)),
    "CUDA is started, without a context": (_cuda_started, (230, 400)),
    "the context is made": (_nothing, (230, 400)),
}


def _scrubbed(where: Where, prepare: Prepare | None) -> list[float]:
    """The seconds from the end of the process that had filled the memory to each moment."""

    def heir(line: Connection) -> None:
        ready = prepare(where) if prepare is not None else None
        say(line)
        line.recv()
        card = ready if isinstance(ready, MeasuredCard) else opened(where)
        moments = [time.perf_counter()]
        whole = memory.take(card)
        moments.append(time.perf_counter())
        whole.write(key := fresh("ahead"), unheard)
        whole.check(key, unheard)
        zeroed(whole)
        say(line, [*moments, time.perf_counter()])

    def owner(line: Connection) -> None:
        memory.take(opened(where)).write(fresh("owner"), unheard)
        say(line)

    next_one = Fork(heir) if prepare is not None else None
    if next_one is not None:
        next_one.hear()
    last_one = Fork(owner)
    last_one.hear()
    gone = last_one.end(by_force=True)
    if next_one is None:
        next_one = Fork(heir)
        next_one.hear()
    next_one.tell()
    moments: list[float] = next_one.hear()
    next_one.end()
    return [moment - gone for moment in moments]


def _kept(where: Where) -> Iterator[Measured]:
    """What a process with CUDA, but without a context, costs the GPU and the node."""
    before = _seen(where, 0)

    def idle(line: Connection) -> None:
        _cuda_started(where)
        say(line, os.getpid())
        line.recv()
        say(line)

    fork = Fork(idle)
    pid = fork.hear()
    time.sleep(KEPT)
    after = _seen(where, pid)
    fork.tell()
    fork.hear()
    fork.end()
    about = "CUDA is started, without a context"
    more = Question(f"{about}: memory of the GPU that it takes", 0, 0, "bytes", "only a context takes memory")
    yield more.answered(after.used - before.used)
    yield remark(f"{about}: the driver lists the process", "yes" if after.listed else "no")
    yield Measured(f"{about}: power of the GPU, more than before", (after.watts - before.watts,), "W")
    yield Measured(f"{about}: memory of the node that the process shares with no other", (after.resident,), "bytes")


def _seen(where: Where, pid: int) -> Seen:
    library = Library()
    with reads_only(), library.session() as nvml:
        gpu = nvml.handle(where.uuid)
        used = boards.memory(nvml, gpu).used
        listed = holders.pids(nvml, gpu) or ()
        watts = nvml.ask(pynvml.nvmlDeviceGetPowerUsage, gpu) / 1000
    library.close()
    rollup = Path(f"/proc/{pid or os.getpid()}/smaps_rollup").read_text()
    own = sum(1024 * int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    return Seen(used, pid in listed, watts, own)
