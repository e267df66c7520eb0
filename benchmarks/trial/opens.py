"""What it costs to open the GPU: while no process has it open, and while one has.

Without persistence mode the driver sets the GPU up at the first open, and shuts it down after the last close.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pynvml

from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import Where
from benchmarks.trial.driver import MeasuringDriver
from benchmarks.trial.figures import Measured, Question, remark, rounds
from benchmarks.trial.forks import in_a_fork
from scrubber.cuda import cuda_card, cupy_loading
from scrubber.devices.nvidia.nvml import Library

MOST = 3  # rounds
OFF, ON = "persistence mode is off", "persistence mode is on"
COLD = "nobody has it open"
_SET_UP = "the driver sets the GPU up: the open modules take 1 to 3 s for it"
_READY = "the GPU is set up"
QUESTIONS = {
    OFF: (
        Question("node: open", 800, 4000, "ms", _SET_UP),
        Question("node: close", 100, 2000, "ms", "the last close shuts the GPU down"),
        Question("NVML: open, first handle", 800, 4500, "ms", _SET_UP),
        Question("CUDA: cuInit", 800, 5000, "ms", f"{_SET_UP}, then as while it is open"),
        Question("CUDA: context", 50, 600, "ms", "cuInit has set the GPU up"),
    ),
    ON: (
        Question("node: open", 0.005, 5, "ms", _READY),
        Question("node: close", 0.001, 5, "ms", "nothing is shut down"),
        Question("NVML: open, first handle", 2, 300, "ms", _READY),
        Question("CUDA: cuInit", 5, 600, "ms", _READY),
        Question("CUDA: context", 30, 600, "ms", "a channel, page tables and 200 to 500 MiB of memory"),
    ),
}

Times = dict[str, float]


def measure(where: Where) -> Iterator[Measured]:
    """Several rounds of each. The trial does not hold the node during this part."""
    mode = in_a_fork(partial(_mode, where))
    yield remark("persistence mode", mode)
    yield from _figures(COLD, QUESTIONS[mode], [_times(where) for _ in rounds(MOST, where.share(2 / 3))])
    with _node(where).open("rb", buffering=0):
        held = [_times(where) for _ in rounds(MOST, where.ends)]
    yield from _figures("a process has it open", QUESTIONS[ON], held)


def _figures(when: str, questions: tuple[Question, ...], found: list[Times]) -> Iterator[Measured]:
    for question in questions:
        samples = tuple(1000 * times[question.what] for times in found)
        yield question.about(when).answered(*samples)


def _node(where: Where) -> Path:
    return Path(where.root) / f"dev/nvidia{where.minor}"


def _times(where: Where) -> Times:
    """Of each way to open it, one after the other."""
    began = time.perf_counter()
    file = os.open(_node(where), os.O_RDONLY | os.O_CLOEXEC)
    opened = time.perf_counter()
    os.close(file)
    closed = time.perf_counter()
    times: Times = {"node: open": opened - began, "node: close": closed - opened}
    for way in (_asked, _started):
        times |= in_a_fork(partial(way, where))
    return times


def _asked(where: Where) -> Times:
    began, library = time.perf_counter(), Library()
    with reads_only(), library.session() as nvml:
        nvml.handle(where.uuid)
    return {"NVML: open, first handle": time.perf_counter() - began}


def _started(where: Where) -> Times:
    cuda_card.only(where.uuid)
    driver = MeasuringDriver(cupy_loading.load())
    began = time.perf_counter()
    driver.devices()
    started = time.perf_counter()
    driver.make_context()
    return {"CUDA: cuInit": started - began, "CUDA: context": time.perf_counter() - started}


def _mode(where: Where) -> str:
    library = Library()
    with reads_only(), library.session() as nvml:
        mode = nvml.ask_optional(pynvml.nvmlDeviceGetPersistenceMode, nvml.handle(where.uuid))
    return ON if mode == pynvml.NVML_FEATURE_ENABLED else OFF
