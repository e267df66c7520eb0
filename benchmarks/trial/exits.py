"""How long a worker takes to be gone, by what it has of the GPU and by how it leaves. Each scrub waits for that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NoReturn

from benchmarks.trial.card import MeasuredCard, Where, fresh, opened, unheard
from benchmarks.trial.driver import MeasuringDriver
from benchmarks.trial.figures import Measured, NotDone, Question, rounds
from benchmarks.trial.forks import Fork, say
from scrubber.cuda import cuda_card, cupy_loading, memory

MOST = 5  # rounds
Leave = Callable[[Where, Connection], NoReturn]


def measure(where: Where) -> Iterator[Measured]:
    """Each way in turn, round by round."""
    if where.limit is not None:
        raise NotDone("all memory must be taken, which --limit forbids")
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in rounds(MOST, where.ends):
        for name, (leave, _) in WAYS.items():
            found[name].append(_took(where, leave))
    for name, (_, question) in WAYS.items():
        yield question.about(name).answered(*(1000 * took for took in found[name]))


def _took(where: Where, leave: Leave) -> float:
    worker = Fork(lambda line: leave(where, line))
    began: float = worker.hear()
    return worker.end() - began


def _gone(line: Connection, last: Callable[[], object] = lambda: None) -> NoReturn:
    """As a worker ends: no exit handler runs, and the kernel closes the driver's files."""
    say(line, time.perf_counter())
    last()
    os._exit(0)


def _without_context(where: Where, line: Connection) -> NoReturn:
    cuda_card.only(where.uuid)
    MeasuringDriver(cupy_loading.load()).devices()
    _gone(line)


def _with_context(where: Where, line: Connection) -> NoReturn:
    cuda_card.only(where.uuid)
    driver = MeasuringDriver(cupy_loading.load())
    driver.devices()
    driver.make_context()
    _gone(line)


def _with_kernels(where: Where, line: Connection) -> NoReturn:
    opened(where)
    _gone(line)


def _filled(where: Where) -> tuple[MeasuredCard, list[int]]:
    card = opened(where)
    whole = memory.take(card)
    whole.write(fresh("all of it"), unheard)
    return card, [span.address for span in whole.spans]


def _with_all(where: Where, line: Connection) -> NoReturn:
    _filled(where)
    _gone(line)


def _freed(where: Where, line: Connection) -> NoReturn:
    card, addresses = _filled(where)
    _gone(line, lambda: card.driver.release(addresses))


_CHANNELS = "the driver stops the channel and takes the page tables back"
WAYS: dict[str, tuple[Leave, Question]] = {
    "CUDA started, no context": (_without_context, Question("until it is gone", 2, 60, "ms", "files are closed")),
    "with a context": (_with_context, Question("until it is gone", 20, 120, "ms", _CHANNELS)),
    "with kernels": (_with_kernels, Question("until it is gone", 20, 120, "ms", "the same")),
    "with all memory": (_with_all, Question("until it is gone", 60, 200, "ms", "all memory is unmapped as well")),
    "with all memory, which it frees first": (
        _freed,
        Question("until it is gone", 60, 220, "ms", "the same work, before the exit"),
    ),
}
