"""A clear with its proof, as a worker does it, and zeros at the end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TypeVar

import pynvml

from benchmarks.nvml_questions import reads_only
from benchmarks.trial import report
from benchmarks.trial.card import Where, expect_nothing, held, taken, unheard, unwatched, zeroed
from benchmarks.trial.figures import Measured, Question, Unproven, one
from benchmarks.trial.forks import in_a_fork
from scrub_api.measurements import Uncovered
from scrubber.core.measured import OWN_BOOKS, OWN_CONTEXT
from scrubber.cuda import clearing, coverage
from scrubber.cuda.coverage import Account
from scrubber.cuda.patterns import ZERO
from scrubber.devices.nvidia.nvml import Library

PASSES = (("zero",), ("random", "zero"))  # as policies name them

_OPENED = "cuInit and a context take 0.2 to 0.5 s by reports, NVML and the kernels little more"
_CLEARS = "the driver's open modules clear memory when it is freed, from Turing on"
_CONTEXT = "reports: 256 to 612 MiB; stack and heap are made small here"
OPENED = Question("driver and context", 150, 1500, "ms", _OPENED)
LEFT = Question("bytes that were not zero before it", 0, 2**26, "bytes", f"{_CLEARS}; the rest is of our own context")
COVERED = Question("covered, of what is allocatable", 99.0, 99.8, "%", f"all but the context. {_CONTEXT}")
CONTEXT = Question(f"not covered: {OWN_CONTEXT}", 200 * 2**20, 640 * 2**20, "bytes", _CONTEXT)
BOOKS = Question(f"not covered: {OWN_BOOKS}", 0, 2**28, "bytes", "page tables: 8 bytes for 2 MiB, and what CUDA keeps")
RESERVED = Question("reserved", 2**28, 1.25 * 2**30, "bytes", "hundreds of MiB, by the totals that others print")
BY_CAUSE = {OWN_CONTEXT: CONTEXT, OWN_BOOKS: BOOKS}

Scrubbed = tuple[list[Measured], str | None]  # figures, and why they prove nothing
T = TypeVar("T")


def measure(where: Where) -> Iterator[Measured]:
    """Each list of passes in a process of its own, as in a scrub."""
    yield from _books(where, "before")
    faults = []
    for names in PASSES:
        figures, fault = in_a_fork(partial(_scrub, where, names))
        yield from figures
        faults += [fault] if fault else []
    yield from _books(where, "afterwards")
    if faults:
        raise Unproven(f"cannot prove what its memory holds: {'; '.join(faults)}")


def _scrub(where: Where, names: Sequence[str]) -> Scrubbed:
    with reads_only():
        return _scrubbed(where, names)


def _scrubbed(where: Where, names: Sequence[str]) -> Scrubbed:
    library, about = Library(), "+".join(names)
    holding = held(where, library)
    whole, took = _timed(holding.memory)
    done, cleared = _timed(lambda: clearing.clear(whole, secrets.token_bytes(16), names, unwatched))
    expect_nothing(done.mismatch, "what was written to it")
    read, verified = _timed(lambda: clearing.verify(whole, unwatched))
    expect_nothing(read.mismatch, "zeros")
    account = holding.books()
    fault = coverage.disturbance(account, whole.size)
    allocatable, uncovered = holding.account()
    found = [
        OPENED.about(about).answered(1000 * took),
        one(f"{about}: allocation, census and clear", 1000 * cleared, "ms", f"{2 * len(names)} passes"),
        one(f"{about}: verify", 1000 * verified, "ms", "1 pass"),
        LEFT.about(about).answered(done.residue_bytes or 0),
        one(f"{about}: covered", read.covered_bytes or 0, "bytes", f"{len(whole.spans)} allocations"),
        one(f"{about}: allocatable", allocatable, "bytes"),
        COVERED.about(about).answered(100 * (read.covered_bytes or 0) / allocatable),
        *(_uncovered(part).about(about).answered(part.bytes) for part in uncovered),
        *_account(about, account),
        one(f"{about}: others' memory came or went", float(fault is not None), "", fault or "0: the books agree"),
        *_books(where, f"with all of it taken ({about})", library),
    ]
    library.close()
    return found, fault


def _uncovered(part: Uncovered) -> Question:
    other = Question(f"not covered: {part.cause}", 0, 2**26, "bytes", "nobody else uses the GPU")
    return BY_CAUSE.get(part.cause, other)


def _account(about: str, account: Account) -> list[Measured]:
    """The accounts that a worker judges by, as figures."""
    return [
        one(f"{about}: books, {when}: {name}", size, "bytes")
        for when, books in (("before", account.before), ("opened", account.opened), ("after", account.after))
        for name, size in asdict(books).items()
    ]


def _books(where: Where, when: str, library: Library | None = None) -> list[Measured]:
    opened_here = library or Library()
    with reads_only(), opened_here.session() as nvml:
        told = nvml.ask(pynvml.nvmlDeviceGetMemoryInfo, nvml.handle(where.uuid), pynvml.nvmlMemory_v2)
        rows = [one(f"NVML, {when}: {name}", float(getattr(told, name)), "bytes") for name in ("total", "used", "free")]
        rows.append(RESERVED.about(f"NVML, {when}").answered(float(told.reserved)))
    if library is None:
        opened_here.close()  # nothing of the driver's may be open when this process is forked
    return rows


def leave_zeros(where: Where) -> Iterator[Measured]:
    """Leave zeros in the memory, also after a part that failed; then what ECC has counted since the trial began."""
    yield from in_a_fork(partial(_left_zero, where))
    with reads_only():
        now = report.counters(Library(), where.uuid)
    for name, count in where.counters.items():
        grown = Question(f"ECC: {name}", 0, 0, "", "nine minutes of passes are little for a sound memory")
        yield grown.answered(*([now[name] - count] if name in now else []), note="since the trial began")


def _left_zero(where: Where) -> list[Measured]:
    _, whole = taken(where)
    dirty = sum(found.count for found in whole.compare(ZERO, unheard))
    zeroed(whole)
    return [
        one("memory that was made zero and read back", whole.size, "bytes"),
        one("of it, not zero before", dirty, "bytes"),
    ]


def _timed(deed: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    done = deed()
    return done, time.perf_counter() - began
