"""How fast each pass over the memory is, compared with the driver's own fill and copy."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pynvml

from benchmarks.nvml_questions import reads_only
from benchmarks.trial import computed
from benchmarks.trial.card import MeasuredCard, Where, expect_nothing, fresh, part_of, taken, unheard, zeroed
from benchmarks.trial.figures import Measured, Question, one, rounds
from scrubber.core.measured import Mismatch
from scrubber.cuda.memory import GpuMemory
from scrubber.cuda.patterns import ZERO, repeated
from scrubber.devices.nvidia.nvml import Library

SIZES = (2**24, 2**28, 2**30, 2**32, 2**34, 2**36)  # bytes, then all memory
BASELINE = "cuMemsetD8"
COPY = "cuMemcpyDtoD"
_STEADY = 0x55

NOTES = {
    COPY: "one half read, the other written: together all memory",
    "invert up": "each byte read and written",
    "invert down": "each byte read and written",
}


_BLOCKS = "the context says that its waits block"
BUSY = {
    name: Question("processor time, as a part of the pass", 0, 0.2, "", _BLOCKS)
    for name in ("write keyed", "check keyed")
}


@dataclass
class Watch:
    """Seconds of each pass, by the events of the device, by the clock of the host and of its processor."""

    processor: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    device: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wall: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def launched(self, card: MeasuredCard, name: str, launch: Callable[[], None]) -> None:
        """An operation that the worker does not have."""
        began = time.perf_counter()
        self.device[name].append(card.timed(launch))
        self.wall[name].append(time.perf_counter() - began)

    def swept(self, card: MeasuredCard, name: str, deed: Callable[[], Mismatch | None]) -> None:
        """A pass of the worker; it must find no difference."""
        began, busy = time.perf_counter(), time.process_time()
        wrong = deed()
        self.processor[name].append(time.process_time() - busy)
        self.wall[name].append(time.perf_counter() - began)
        self.device[name].append(card.device_seconds())
        expect_nothing(wrong, f"what was written to it ({name})")


def measure(where: Where) -> list[Measured]:
    """All passes in turn, in several rounds, so that the temperature of the device is the same for all."""
    card, whole = taken(where)
    watch = Watch()
    for _ in rounds(where.rounds, where.share(3 / 4)):
        _round(card, whole, watch)
    now = _state(where)
    zeroed(whole)
    names = list(watch.wall)
    found = [one("memory that each pass goes over", whole.size, "bytes"), *now]
    for clock, seconds in (("device", watch.device), ("wall", watch.wall)):
        found += [_rate(f"{name}, by the {clock}", seconds[name], whole.size, NOTES.get(name, "")) for name in names]
    found += [_ratio(name, watch) for name in names if name != BASELINE]
    found += [question.about(name).answered(*busy(watch, name)) for name, question in BUSY.items()]
    return found + _of_peak(where, watch, whole.size)


def busy(watch: Watch, name: str) -> list[float]:
    """The part of each pass that a processor was busy with it."""
    return [busy / wall for busy, wall in zip(watch.processor[name], watch.wall[name], strict=True)]


def _round(card: MeasuredCard, whole: GpuMemory, watch: Watch) -> None:
    key, flipped = fresh("a pass"), repeated(_STEADY).flipped()
    watch.swept(card, "write zero", lambda: whole.write(ZERO, unheard))
    watch.swept(card, "check zero", lambda: whole.check(ZERO, unheard))
    watch.swept(card, "write keyed", lambda: whole.write(key, unheard))
    watch.swept(card, "check keyed", lambda: whole.check(key, unheard))
    watch.launched(card, COPY, lambda: _copied(card, whole))
    watch.launched(card, BASELINE, lambda: _set(card, whole))
    whole.write(repeated(_STEADY), unheard)
    watch.swept(card, "invert up", lambda: whole.invert(repeated(_STEADY), unheard))
    watch.swept(card, "invert down", lambda: whole.invert(flipped, unheard, down=True))
    expect_nothing(whole.check(repeated(_STEADY), unheard), "what was inverted")


def _state(where: Where) -> list[Measured]:
    """Clocks and temperature of the device while it is still warm: a slow clock explains a slow pass."""
    library = Library()
    with reads_only(), library.session() as nvml:
        gpu = nvml.handle(where.uuid)
        found = [
            one(f"{name}, after the last pass", nvml.ask_optional(ask, gpu, *about), unit)
            for name, ask, about, unit in (
                ("memory clock", pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_MEM,), "MHz"),
                ("clock of the multiprocessors", pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,), "MHz"),
                ("temperature", pynvml.nvmlDeviceGetTemperature, (pynvml.NVML_TEMPERATURE_GPU,), "C"),
                ("reasons for slower clocks", pynvml.nvmlDeviceGetCurrentClocksEventReasons, (), "as bits"),
            )
        ]
    library.close()
    return found


def _of_peak(where: Where, watch: Watch, size: int) -> list[Measured]:
    """The passes of a scrub as shares of the peak bandwidth, which follows from the memory clock and the bus width."""
    library = Library()
    with reads_only(), library.session() as nvml:
        gpu = nvml.handle(where.uuid)
        clock = nvml.ask_optional(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_MEM)
        width = nvml.ask_optional(pynvml.nvmlDeviceGetMemoryBusWidth, gpu)
    library.close()
    what = "the most that the memory can move"
    if not clock or not width:
        return [one(what, None, "GB/s", "the driver does not say its clock or the width of its bus")]
    peak = computed.peak(clock, width)
    scrub = [name for name in watch.device if name.startswith(("write", "check"))]
    return [
        one(what, peak, "GB/s", f"{clock} MHz, {width} bits, two transfers in each cycle"),
        *(
            Measured(f"{name}: part of it", tuple(100 * size / each / 1e9 / peak for each in watch.device[name]), "%")
            for name in scrub
        ),
        *computed.computed(size, peak, watch.device),
    ]


def _set(card: MeasuredCard, whole: GpuMemory) -> None:
    for span in whole.spans:
        card.driver.fill(span.address, 0, span.size)


def _copied(card: MeasuredCard, whole: GpuMemory) -> None:
    for span in whole.spans:
        half = span.size // 2
        card.driver.copy(span.address + half, span.address, half)


def _rate(name: str, seconds: list[float], size: int, note: str) -> Measured:
    return Measured(name, tuple(size / each / 1e9 for each in seconds), "GB/s", note)


def _ratio(name: str, watch: Watch) -> Measured:
    pairs = zip(watch.device[BASELINE], watch.device[name], strict=True)
    note = "by the device, round by round"
    return Measured(f"{name}: speed as a part of that of {BASELINE}", tuple(base / it for base, it in pairs), "", note)


def sizes(where: Where) -> Iterator[Measured]:
    """Write and read back growing parts of the memory."""
    card, whole = taken(where)
    growing = (*(size for size in SIZES if size < whole.size), whole.size)
    for number, size in enumerate(growing, start=1):
        watch, some = Watch(), part_of(whole, size)
        for _ in rounds(where.rounds, where.share(3 / 4 * number / len(growing))):
            key = fresh("a size")
            watch.swept(card, "write", partial(some.write, key, unheard))
            watch.swept(card, "check", partial(some.check, key, unheard))
        unit, name = (2**30, "GiB") if size >= 2**30 else (2**20, "MiB")
        for clock, seconds in (("wall", watch.wall), ("device", watch.device)):
            both = [write + check for write, check in zip(seconds["write"], seconds["check"], strict=True)]
            about = f"write and check {size / unit:g} {name}, by the {clock}"
            yield Measured(about, tuple(1000 * each for each in both), "ms")
            yield Measured(f"{about}: for each GB", tuple(1e12 * each / size for each in both), "ms")
    zeroed(whole)
