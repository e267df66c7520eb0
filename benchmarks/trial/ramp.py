"""The first passes after a rest: how fast they are, and what the clock of the multiprocessors does meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection

import pynvml

from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import Where, fresh, taken, unheard, zeroed
from benchmarks.trial.figures import Measured, Question, one, remark
from benchmarks.trial.forks import Fork, say
from scrubber.devices.nvidia.nvml import Library

REST = 30.0  # seconds, or this part of the time that there is:
SHARE = 0.85
PASSES = 20
EVERY = 0.005  # seconds between two readings of the clock
FULL = 0.95  # of the highest clock
SHOWN = 40  # readings on the page

_SLOW = "at 345 MHz the 41 instructions for a vector feed 2.3 TB/s, less than the memory takes"
RESTED = Question("clock at the end of the rest", 200, 2000, "MHz", "an H100 in a virtual machine keeps its highest")
FIRST = Question("first keyed write: time, as a multiple of the last ones", 0.98, 2.0, "", _SLOW)
SECOND = Question("second keyed write: the same", 0.98, 1.3, "", "the clock is up before the first one has ended")
UP = Question("clock: from the first launch to 95 % of its highest", 0, 150, "ms", "it rises in steps if it was low")

Reading = tuple[float, int]  # seconds on the clock of all processes, MHz


def measure(where: Where) -> Iterator[Measured]:
    """One rest, then several passes."""
    reader = Fork(partial(_read, where))  # before this process calls CUDA
    reader.hear()
    card, whole = taken(where)
    whole.write(fresh("before the rest"), unheard)
    rest = min(REST, SHARE * max(0.0, where.ends - time.monotonic()))
    time.sleep(rest)
    reader.tell()
    reader.hear()
    began, seconds = time.perf_counter(), []
    for _ in range(PASSES):
        whole.write(fresh("after the rest"), unheard)
        seconds.append(card.device_seconds())
    reader.tell()
    readings = reader.hear()
    reader.end()
    steady = statistics.median(seconds[-5:])
    note = f"after {rest:.0f} s"
    yield one("keyed write: the last ones", 1000 * steady, "ms", "median of 5, by the device")
    yield FIRST.answered(seconds[0] / steady, note=note)
    yield SECOND.answered(seconds[1] / steady)
    yield from _clock(readings, began)
    zeroed(whole)


def _clock(readings: list[Reading], began: float) -> Iterator[Measured]:
    if not readings:
        yield RESTED.answered(note="the driver does not say its clock")
        return
    before = [clock for at, clock in readings if at <= began]
    highest = max(clock for _, clock in readings)
    full = next(at for at, clock in readings if clock >= FULL * highest)
    gaps = [1000 * (later - earlier) for (earlier, _), (later, _) in pairwise(readings)]
    yield RESTED.answered(*before[-1:])
    yield UP.answered(max(0.0, 1000 * (full - began)), note=f"highest: {highest} MHz")
    yield Measured("clock: between two readings", tuple(gaps), "ms")
    series = ", ".join(f"{1000 * (at - began):.0f} ms {clock}" for at, clock in readings[:SHOWN])
    yield remark("clock of the multiprocessors, MHz", series)


def _read(where: Where, line: Connection) -> None:
    """Read the clock again and again, from one message to the next."""
    readings: list[Reading] = []
    with reads_only(), Library().session() as nvml:
        gpu = nvml.handle(where.uuid)
        say(line)
        line.recv()
        while (clock := nvml.ask_optional(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM)) is not None:
            now = time.perf_counter()
            readings.append((now, clock))
            if len(readings) == 1:
                say(line)
            if line.poll(EVERY):
                break
    if not readings:
        say(line)
    line.recv()
    say(line, readings)
