"""Faults of our own making: a kernel that traps, a process killed inside a kernel, allocations that are refused.

Each is done by a process of its own. What the driver says to the kernel's log meanwhile is read, and the next process
must find a sound GPU.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from ctypes import c_uint32, c_uint64
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import pynvml

from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import MeasuredCard, Where, fresh, opened, opened_as, unheard
from benchmarks.trial.figures import Measured, Question, Unproven, one, remark
from benchmarks.trial.forks import Fork, in_a_fork, say
from policies import xids
from policies.policy_model import Policy
from policies.xids import Treatment
from scrubber.cuda import memory, selftest
from scrubber.cuda.card import CudaError, KernelFailedError, KernelProgram, Span, Sweep
from scrubber.cuda.cuda_card import THREADS
from scrubber.cuda.driver import Word, status_of
from scrubber.cuda.patterns import Pattern, PatternKind
from scrubber.devices.nvidia.health.xid_messages import GpuError, read
from scrubber.devices.nvidia.nvml import Library
from scrubber.node.kernellog import KernelLog

SMALL = memory.RUNGS[-1]
NO_KIND = 9  # of a pattern: every kernel traps
ENDLESS = 2**32 - 1  # rounds of a computation: about half an hour
INSIDE = 0.3  # seconds after the launch until the process is killed
REFUSED = 5  # allocations
HEARD = 0.5  # seconds until the kernel's log has what the driver says

STATUS = Question("CUDA's status", 719, 719, "", "a trap ends the context with a failed launch, in newer drivers too")
CALLED = Question("until the call that waits returns", 0.1, 500, "ms", "the driver stops the channel")
OPEN = Question("a worker leaves open whose fault it is", 1, 1, "", "719 alone does not count against a GPU")
GRAVE = Question("XIDs for which the usual policy quarantines", 0, 0, "", "13, 31, 43 and 45 are a program's own fault")
ENDED = Question("from SIGKILL to the end of the process", 5, 2500, "ms", "the driver stops a kernel that does not end")
LINES = Question("lines in the kernel's log for each refusal", 0, 6, "", "none from the open modules of 580")
GHOST = Question("load that the driver reports two seconds later, without a process", 0, 0, "%", "a kernel has ended")
FULL = Question("CUDA's status for whoever opens the GPU then", 2, 2, "", "a context takes memory: out of memory")
SOUND = Question("multiprocessors that compute alike in the next process", 100, 100, "%", "no error outlives a context")

TRAP, KILL, REFUSAL = "a kernel that traps", "a process that is killed inside a kernel", "a refused allocation"
CROWD = "a process holds all memory"
LATER = 2.0  # seconds: the driver averages a load over at most one


class OurFaults(MeasuredCard):
    """Launches what no scrub launches."""

    def trap(self) -> None:
        """Write a pattern of a kind that there is none of."""
        nothing = Pattern(cast("PatternKind", NO_KIND))
        self.sweep(Sweep.WRITE, nothing, [Span(self.piece(SMALL), SMALL, 0)], unheard)

    def compute_endlessly(self) -> None:
        """Compute on every multiprocessor, and wait for it."""
        words: list[Word] = [c_uint64(1), c_uint32(ENDLESS), c_uint64(self._units)]
        self._kernel(KernelProgram.EXACT.value).launch(self.units, THREADS, words)
        self.driver.get(self._units, 1)


class Heard:
    """What the driver says to the kernel's log from now on, of all GPUs."""

    def __init__(self, where: Where) -> None:
        self._log, self._place = KernelLog(Path(where.root) / "dev/kmsg"), where.pci_address.rpartition(".")[0]
        self.why = self._log.open()
        self.lines()

    def lines(self) -> list[str]:
        """The lines since the last call."""
        found: list[str] = []
        try:
            if not self.why:
                found.extend(text for _, text in self._log.messages())
        except (EOFError, OSError) as error:
            self.why = str(error)
        return [line for line in found if line.startswith(("NVRM", "nvidia"))]

    def codes(self, lines: list[str]) -> list[int]:
        """The XIDs of this GPU in them."""
        errors = (read(line) for line in lines)
        return [error.code for error in errors if isinstance(error, GpuError) and error.place == self._place]


def measure(where: Where) -> Iterator[Measured]:
    """All three; Unproven if the GPU is not sound afterwards."""
    log, unsound = Heard(where), list[str]()
    for about, fault in ((TRAP, _trapped), (KILL, _killed)):
        yield from fault(where)
        yield from _said(about, log)
        alike = in_a_fork(partial(_alike, where))
        yield SOUND.about(about).answered(100 * alike)
        unsound += [about] if alike < 1 else []
    yield from _refusals(where, log)
    yield from _crowded(where)
    if unsound:
        raise Unproven(f"the GPU does not compute alike everywhere after {' and '.join(unsound)}")


def _refusals(where: Where, log: Heard) -> Iterator[Measured]:
    if where.limit is not None:
        yield LINES.about(REFUSAL).answered(note="only a GPU without free memory refuses, which --limit forbids")
        return
    refusals = in_a_fork(partial(_refused, where))
    time.sleep(HEARD)
    lines = log.lines()
    yield one(f"{REFUSAL}: times", refusals, "")
    yield LINES.about(REFUSAL).answered(*([] if log.why else [len(lines) / refusals]), note=log.why)
    if lines:
        yield remark(f"{REFUSAL}: one of the lines", lines[-1])


def _trapped(where: Where) -> list[Measured]:
    status, seconds, undecided, text = in_a_fork(partial(_trap, where))
    return [
        STATUS.about(TRAP).answered(status),
        CALLED.about(TRAP).answered(1000 * seconds),
        OPEN.about(TRAP).answered(float(undecided), note=text),
    ]


def _trap(where: Where) -> tuple[int, float, bool, str]:
    card = opened_as(OurFaults, where)
    began = time.perf_counter()
    try:
        card.trap()
    except CudaError as error:
        status = status_of(cast("Exception", error.__cause__))
        return status, time.perf_counter() - began, isinstance(error, KernelFailedError), str(error)
    return 0, time.perf_counter() - began, False, "the kernel did not trap"


def _killed(where: Where) -> list[Measured]:
    def life(line: Connection) -> None:
        card = opened_as(OurFaults, where)
        say(line)
        card.compute_endlessly()

    worker = Fork(life)
    worker.hear()
    time.sleep(INSIDE)
    began = time.perf_counter()
    took = 1000 * (worker.end(by_force=True) - began)
    time.sleep(LATER)
    return [ENDED.about(KILL).answered(took), GHOST.about(KILL).answered(*_load(where))]


def _load(where: Where) -> list[float]:
    """Nothing where the driver does not say it."""
    library = Library()
    with reads_only(), library.session() as nvml:
        load = nvml.ask_optional(pynvml.nvmlDeviceGetUtilizationRates, nvml.handle(where.uuid))
    library.close()
    return [] if load is None else [float(load.gpu)]


def _crowded(where: Where) -> Iterator[Measured]:
    """Another process opens the GPU while no memory is free."""
    if where.limit is not None:
        yield FULL.about(CROWD).answered(note="all memory must be taken, which --limit forbids")
        return

    def hold(line: Connection) -> None:
        memory.take(opened(where))
        say(line)
        line.recv()

    holder = Fork(hold)
    holder.hear()
    status, kind, text = in_a_fork(partial(_opened_late, where))
    holder.tell()
    holder.end()
    yield FULL.about(CROWD).answered(status, note=f"{kind}: {text}")


def _opened_late(where: Where) -> tuple[int, str, str]:
    try:
        card = opened(where)
    except CudaError as error:
        return status_of(cast("Exception", error.__cause__)), type(error).__name__, str(error)
    return 0, "opened", f"{memory.take(card).size} bytes were left"


def _said(about: str, log: Heard) -> Iterator[Measured]:
    time.sleep(HEARD)
    lines = log.lines()
    codes, rules = log.codes(lines), Policy().quarantine.xids
    grave = [code for code in codes if xids.treatment(rules, code) is Treatment.QUARANTINE]
    note = log.why or ", ".join(f"{codes.count(code)} times {code}" for code in sorted({*codes})) or "no XID at all"
    yield GRAVE.about(about).answered(*([] if log.why else [len(grave)]), note=note)
    if lines:
        yield remark(f"{about}: one of the lines", lines[0])


def _alike(where: Where) -> float:
    """The part of the multiprocessors that compute what most compute."""
    card = opened(where)
    units = card.everywhere(KernelProgram.EXACT, secrets.randbits(63))
    return (len(units) - len(selftest.deviating(units))) / card.units


def _refused(where: Where) -> int:
    card = opened(where)
    whole = memory.take(card)
    whole.write(fresh("all of it"), unheard)
    refused = 1  # the last one of the ladder
    for _ in range(REFUSED):
        refused += card.allocate(SMALL) is None
    return refused
