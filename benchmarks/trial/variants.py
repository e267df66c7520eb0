"""Measures alternatives: fewer passes, waits that do not spin, accesses in flight, cache hints, a sampled census."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.trial.card import MeasuredCard, Where, expect_nothing, fresh, opened, opened_as, taken, unheard, zeroed
from benchmarks.trial.figures import Measured, Question, remark
from benchmarks.trial.forks import in_a_fork
from benchmarks.trial.passes import Watch, busy
from deploy.compile_kernels import HEADER, OPTIONS, SOURCE, read_sources
from scrubber.cuda import memory
from scrubber.cuda.images import binary
from scrubber.cuda.memory import GpuMemory
from scrubber.cuda.patterns import ZERO, repeated

ROUNDS = 5
SAMPLE = 16  # one byte in so many
PIECE = 2**25  # bytes: the sample is the first part of each piece of this size
UNROLL = "constexpr u32 UNROLL = "
CAPABILITY = (75, 76)  # attributes of a device
LOAD, STORE = "ld.global.nc.L1::no_allocate.v2.u64", "__stcs(at, v)"
# By name: the text in the source of the kernels, and its replacement.
SOURCES: Mapping[str, Mapping[str, str]] = {
    "as shipped": {},
    **{f"{number} accesses in flight": {f"{UNROLL}4;": f"{UNROLL}{number};"} for number in (1, 2, 8)},
    "loads without a cache hint": {LOAD: "ld.global.nc.v2.u64"},
    "stores without a cache hint": {STORE: "*at = v"},
}
FOUR, FUSED = "key written and read, zeros written and read", "the two in the middle in one pass"
_EACH = "each pass moves all memory once"
CHOICES = {
    "key written and read, zeros written": Question("as a part of four passes", 0.7, 0.8, "", _EACH),
    "key written and read": Question("as a part of four passes", 0.45, 0.55, "", _EACH),
    FUSED: Question("as a part of four passes", 0.95, 1.15, "", "reads and writes together reach 79 % of the rate"),
}
BUSY = {
    "write keyed": Question("processor time, as a part of the pass", 0.8, 1.1, "", "CUDA's own choice is to spin"),
    "check keyed": Question("processor time, as a part of the pass", 0, 0.5, "", "the worker waits for events"),
}
QUIET = Question("processor time, as a part of the pass", 0, 0.2, "", "the context says that its waits block")
SLOWER = Question("time, as a part of that of a wait that spins", 0.98, 1.05, "", "one interrupt a pass")
SPINS, BLOCKS = "waits that spin", "waits that block"


def measure(where: Where) -> Iterator[Measured]:
    """Each alternative in a process of its own."""
    yield from in_a_fork(partial(_choices, where))
    yield from _waits(where)
    for name in SOURCES:
        yield from in_a_fork(partial(_compiled, where, name))
    yield from in_a_fork(partial(_census, where))


def _choices(where: Where) -> list[Measured]:
    """Fewer passes than a fast scrub has. The fused form is a pass that reads and writes, of a constant pattern."""
    card, whole = taken(where)
    parts: dict[str, list[float]] = {name: [] for name in (FOUR, *CHOICES)}
    for _ in range(ROUNDS):
        key, steady = fresh("a choice"), repeated(0x55)
        took: list[float] = []

        def timed(took: list[float] = took) -> None:
            took.append(card.device_seconds())

        whole.write(key, unheard)
        timed()
        expect_nothing(whole.check(key, unheard), "the key")
        timed()
        whole.write(ZERO, unheard)
        timed()
        expect_nothing(whole.check(ZERO, unheard), "zeros")
        timed()
        whole.write(steady, unheard)
        expect_nothing(whole.invert(steady, unheard), "what is inverted")
        timed()
        written, read, zeros, read_again, both = took
        four = sum(took[:4])
        passes = (four, written + read + zeros, written + read, written + both + read_again)
        for name, seconds in zip(parts, passes, strict=True):
            parts[name].append(1000 * seconds if name == FOUR else seconds / four)
    zeroed(whole)
    return [
        Measured(f"{FOUR}: time", tuple(parts[FOUR]), "ms", "by the device"),
        *(question.about(name).answered(*parts[name]) for name, question in CHOICES.items()),
    ]


def _waits(where: Where) -> Iterator[Measured]:
    """A context whose waits block, beside the usual one."""
    found = {how: in_a_fork(partial(_waited, where, how)) for how in (SPINS, BLOCKS)}
    for how, questions in ((SPINS, BUSY), (BLOCKS, dict.fromkeys(BUSY, QUIET))):
        for name, question in questions.items():
            yield question.about(f"{how}: {name}").answered(*busy(found[how], name))
    for name in BUSY:
        pairs = zip(found[BLOCKS].wall[name], found[SPINS].wall[name], strict=True)
        yield SLOWER.about(f"{BLOCKS}: {name}").answered(*(blocked / spun for blocked, spun in pairs))


def _waited(where: Where, how: str) -> Watch:
    card = opened_as(Spinning if how == SPINS else MeasuredCard, where)
    whole, watch, key = memory.take(card), Watch(), fresh(how)
    for _ in range(ROUNDS):
        watch.swept(card, "write keyed", lambda: whole.write(key, unheard))
        watch.swept(card, "check keyed", lambda: whole.check(key, unheard))
    zeroed(whole)
    return watch


class Spinning(MeasuredCard):
    """Its context waits as CUDA chooses."""

    def _make_context(self) -> None:
        self.driver.waits = 0
        super()._make_context()


def _compiled(where: Where, name: str) -> list[Measured]:
    """Write and compare with kernels that are compiled from a changed source."""
    try:
        card = _with_source(where, SOURCES[name])
    except Exception as error:  # noqa: BLE001 - CuPy raises what its compiler raises, and there may be none
        return [remark(f"kernels, {name}: not measured", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")]
    whole, key = memory.take(card), fresh(name)
    writes, checks = [], []
    for _ in range(ROUNDS):
        whole.write(key, unheard)
        writes.append(whole.size / card.device_seconds() / 1e9)
        expect_nothing(whole.check(key, unheard), f"what was written to it ({name})")
        checks.append(whole.size / card.device_seconds() / 1e9)
    return [
        Measured(f"kernels, {name}: write keyed", tuple(writes), "GB/s"),
        Measured(f"kernels, {name}: check keyed", tuple(checks), "GB/s"),
    ]


def _with_source(where: Where, changes: Mapping[str, str]) -> MeasuredCard:
    card, sources = opened(where), read_sources()
    text = sources[SOURCE].replace(f'#include "{HEADER}"', sources[HEADER])
    for old, new in changes.items():
        if old not in text:
            raise ValueError(f"the source of the kernels has no {old!r}")
        text = text.replace(old, new)
    major, minor = map(card.driver.attribute, CAPABILITY)
    with TemporaryDirectory() as folder:
        image = Path(folder, binary(major, minor))
        image.write_bytes(machine_code(text, f"sm_{major}{minor}"))
        card.use(image)
    return card


def machine_code(source: str, architecture: str) -> bytes:
    """Compile it with the compiler that CuPy finds (NVRTC), which opens no device."""
    nvrtc = import_module("cupy_backends.cuda.libs.nvrtc")
    program = nvrtc.createProgram(source, SOURCE, (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", *OPTIONS))
        return bytes(nvrtc.getCUBIN(program))
    finally:
        nvrtc.destroyProgram(program)


def _census(where: Where) -> list[Measured]:
    """Count the bytes that are not zero, in all memory and in a sample."""
    card, whole = taken(where)
    whole.write(ZERO, unheard)
    sample = GpuMemory(card, tuple(_sampled(whole)))
    took = {"all memory": _census_of(card, whole), "one sixteenth": _census_of(card, sample)}
    zeroed(whole)
    return [Measured(f"census of {name}", tuple(1000 * it for it in seconds), "ms") for name, seconds in took.items()]


def _sampled(whole: GpuMemory) -> Any:  # noqa: ANN401 - a generator of spans
    for span in whole.spans:
        for at in range(0, span.size, PIECE):
            size = min(PIECE, span.size - at) // SAMPLE
            if size:
                yield replace(span, address=span.address + at, size=size, start=span.start + at)


def _census_of(card: MeasuredCard, some: GpuMemory) -> list[float]:
    seconds = []
    for _ in range(ROUNDS):
        some.compare(ZERO, unheard)
        seconds.append(card.device_seconds())
    return seconds
