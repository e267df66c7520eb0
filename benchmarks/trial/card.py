"""The card of a worker, for measurements: it also reports how long the device took.

Only processes that may call CUDA open it; see ``parts``.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.trial.driver import MeasuringDriver
from scrubber.cuda import cuda_card, cupy_loading, memory
from scrubber.cuda.card import Found, KernelProgram, Span, Step, Sweep, Unit
from scrubber.cuda.coverage import Account
from scrubber.cuda.cuda_card import KERNELS, CudaCard
from scrubber.cuda.driver import Word
from scrubber.cuda.memory import GpuMemory
from scrubber.cuda.patterns import ZERO, Pattern, keyed
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.held_memory import HeldMemory, OpenCard
from scrubber.devices.nvidia.nvml import Library


@dataclass(frozen=True)
class Where:
    """The GPU that is measured, how much of its memory, and how often."""

    uuid: str
    pci_address: str
    minor: int  # of its node below /dev
    rounds: int
    limit: int | None  # the most bytes to allocate; None: all that are free
    root: str  # where the root of the host is mounted
    pid_namespace: int
    output: str = "build/trial"  # the directory of the pages
    evidence: str = "build/trial/evidence"  # the folder for what the service said
    beside: tuple[str, ...] = ()  # programs that may have the GPU open
    holder: int = 0  # the process of the trial, which may have the GPU open
    counters: Mapping[str, float] = field(default_factory=dict)  # of ECC, at the beginning of the trial
    seconds: float = 10.0  # of the self-test
    ends: float = math.inf  # on the clock of the processes: begin no round that would end later

    def share(self, part: float) -> float:
        """When a part of the time that is left will be over."""
        now = time.monotonic()
        return now + part * (self.ends - now)


class MeasuredCard(CudaCard):
    """Launches the kernels of a worker, between two events that measure the time."""

    def __init__(self, driver: MeasuringDriver, uuid: str, limit: int | None) -> None:
        super().__init__(driver, uuid)
        self.driver = driver
        self._left = limit
        self._times: tuple[c_void_p, c_void_p] | None = None
        self._launched = False
        self.runs = 0  # of programs; tries of one program count once

    def allocate(self, size: int) -> int | None:
        """None also if the limit would be exceeded."""
        if self._left is None:
            return super().allocate(size)
        address = super().allocate(size) if size <= self._left else None
        self._left -= size if address is not None else 0
        return address

    def sweep(self, kind: Sweep, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
        """Like the card of a worker; also notes the first launch."""
        self._launched = False
        return super().sweep(kind, pattern, spans, step)

    def use(self, image: Path) -> None:
        """Use the kernels of this file, instead of the shipped ones."""
        self._module = self.driver.load(str(image))
        self._kernels.clear()
        for kind in Sweep:  # the driver loads a kernel at its first use, which takes memory
            self.launch(kind, ZERO, Span(self._found, 0, 0))
        self.device_seconds()

    def launch(self, kind: Sweep, pattern: Pattern, span: Span) -> None:
        """Start the operation on one allocation, without waiting for its end."""
        self._begin(kind, pattern, span, self._found)

    def piece(self, size: int) -> int:
        """The address of new memory; RuntimeError if there is no block of this size."""
        if (address := self.allocate(size)) is None:
            raise RuntimeError(f"cannot measure: there are no {size} free bytes in one block")
        return address

    def launch_block(self, kind: Sweep, threads: int, words: Sequence[Word]) -> None:
        """Start one block of the operation's kernel."""
        self._kernel(KERNELS[kind]).launch(1, threads, words)

    def shared_of(self, program: KernelProgram) -> int:
        """Bytes of shared memory that the kernel itself declares, as the driver reports it."""
        return self._kernel(program.value).own_shared

    def timed(self, launch: Callable[[], None]) -> float:
        """The seconds that the device takes for the launches inside the block."""
        first, last = self._clock()
        self.driver.record(first)
        launch()
        self.driver.record(last)
        return self.driver.seconds_between(first, last)

    def device_seconds(self) -> float:
        """The seconds from the first launch of the last sweep to the end of its last launch."""
        if not self._launched:
            raise RuntimeError("cannot tell how long the device took: no launch was seen")
        return self.driver.seconds_between(*self._clock())

    def _begin(self, kind: Sweep, pattern: Pattern, span: Span, place: int) -> None:
        first, last = self._clock()
        if not self._launched:
            self.driver.record(first)
            self._launched = True
        super()._begin(kind, pattern, span, place)
        self.driver.record(last)  # recorded after each launch: the last record counts

    def _ran(self, program: KernelProgram, number: int) -> list[Unit]:
        self.runs += 1
        return super()._ran(program, number)

    def _clock(self) -> tuple[c_void_p, c_void_p]:
        if self._times is None:
            self._times = (self.driver.timed_event(), self.driver.timed_event())
        return self._times


C = TypeVar("C", bound=MeasuredCard)


def unheard(_size: int) -> None:
    """Progress that is not reported."""


def unwatched(_done: int, _total: int) -> None:
    """Progress with a total that is not reported."""


class Listening(MeasuredCard):
    """Without the programs that a worker runs at once: these would overwrite the planted words."""

    loaded: Sequence[KernelProgram] = ()


def opened(where: Where) -> MeasuredCard:
    """The device, opened as a worker opens it."""
    return opened_as(MeasuredCard, where)


def opened_as(kind: type[C], where: Where) -> C:
    """The same, with a card of this kind."""
    cuda_card.only(where.uuid)
    card = kind(MeasuringDriver(cupy_loading.load()), where.uuid, where.limit)
    card.begin(where.pci_address, manager=target(where).host.memory_manager(where.pci_address))
    card.ready()
    card.runs = 0  # without the runs that loaded the programs
    return card


def taken(where: Where) -> tuple[MeasuredCard, GpuMemory]:
    """All memory of the GPU, up to the limit."""
    card = opened(where)
    return card, memory.take(card)


NO_FILES = ("/nonexistent/file", "/nonexistent")  # of settings and locks: only memory is touched here


def target(where: Where) -> WorkerTarget:
    """The GPU for a worker that works on its memory only, and keeps no file about it."""
    return WorkerTarget(
        where.uuid,
        where.root,
        where.pci_address,
        where.minor,
        None,
        *NO_FILES,
        pid_namespace=where.pid_namespace,
    )


class MeasuredHolding(HeldMemory):
    """Gives the accounts that a worker keeps of the memory, without the worker's conclusion."""

    def books(self) -> Account:
        """The accounts at their three times; the last is now."""
        return self._account()


def held(where: Where, library: Library) -> MeasuredHolding:
    """The same, with the accounts that a worker keeps."""
    open_card: OpenCard = lambda *_asked: opened(where)  # noqa: E731 - a port with one method
    return MeasuredHolding(target(where), library, open_card)


def part_of(whole: GpuMemory, size: int) -> GpuMemory:
    """The first bytes of the memory."""
    spans = tuple(
        replace(span, size=min(span.size, size - span.start)) for span in whole.spans if span.start < size
    )  # fmt: skip
    return GpuMemory(whole.card, spans)


def fresh(label: str) -> Pattern:
    """A keyed pattern with a new key."""
    return keyed(secrets.token_bytes(16), label)


def zeroed(whole: GpuMemory) -> None:
    """Leave zeros in the memory; an error if the memory does not hold them."""
    whole.write(ZERO, unheard)
    expect_nothing(whole.check(ZERO, unheard), "zeros")


def expect_nothing(mismatch: object, what: str) -> None:
    """RuntimeError if the memory does not hold what was written: then its figures are worthless."""
    if mismatch is not None:
        raise RuntimeError(f"cannot measure: memory does not hold {what}: {mismatch}")
