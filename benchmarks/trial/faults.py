"""Faults on purpose: a holder that is killed just before a scrub, an intruder beside it, and kernels that lie."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import MeasuredCard, Where, fresh, held, opened, opened_as, taken, unheard, unwatched, zeroed
from benchmarks.trial.figures import Measured, Question, Unproven, one
from benchmarks.trial.forks import Fork, in_a_fork, say
from scrubber.cuda import clearing, coverage, memory
from scrubber.cuda.card import CudaError, Found, Span, Step, Sweep
from scrubber.cuda.patterns import VECTOR, Pattern
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import boards
from scrubber.devices.nvidia.holders import NOISE
from scrubber.devices.nvidia.nvml import Library

PASSES = ("random", "zero")
GIVEN_BACK_WITHIN = 15.0  # seconds in which the driver must give back the memory of a killed process
PAUSE = 0.002  # seconds between two readings of the memory in use
INTRUDER = 2**28  # bytes; less is within the noise that a scrub allows
ROOM = 4 * INTRUDER  # bytes of memory that a GPU needs for the part with the intruder

Result = tuple[list[Measured], str]  # figures, and what went unnoticed or wrong


def measure(where: Where) -> Iterator[Measured]:
    """All faults in turn; Unproven if one of them goes unnoticed."""
    faults = []
    for fault in (_killed_before, _given_back_by_killed, _given_back_by_ended, _intruder, _lying_write, _lying_check):
        figures, why = fault(where)
        yield from figures
        faults += [why] if why else []
    in_a_fork(lambda: zeroed(taken(where)[1]))
    if faults:
        raise Unproven("; ".join(faults))


def _killed_before(where: Where) -> Result:
    """The scrub begins at once after the SIGKILL of a process that held all memory."""
    holder, scrub = _holder(where), Fork(lambda line: _scrub_when_told(where, line))
    scrub.hear()
    killed = holder.end(by_force=True)
    scrub.tell()
    done, refused = scrub.hear()
    scrub.end()
    about = "scrub that begins when a process with all memory was killed"
    if refused:
        return [one(f"{about}: refused", 1, "", refused)], f"the {about} was refused: {refused}"
    return [one(f"{about}: until it has passed", 1000 * (done - killed), "ms", "clear and verify")], ""


GIVEN_BACK = Question(
    "NVML's used, from its end until at the baseline", 5, 2000, "ms", "140 GiB are unmapped while the process ends"
)
AT_ITS_END = Question("bytes still in use when it has ended", 0, NOISE, "bytes", "the process ends after its context")


def _given_back_by_killed(where: Where) -> Result:
    return _given_back(where, "a process that is killed", by_force=True)


def _given_back_by_ended(where: Where) -> Result:
    return _given_back(where, "a process that ends", by_force=False)


def _given_back(where: Where, about: str, *, by_force: bool) -> Result:
    """How long the driver keeps the memory of a process."""
    before = _used(where)
    holder = _holder(where)
    with_all = _used(where)
    if not by_force:
        holder.tell()
    began = time.perf_counter()
    ended = holder.end(by_force=by_force)
    at_its_end = left = _used(where) - before
    while left > NOISE and time.perf_counter() < ended + GIVEN_BACK_WITHIN:
        time.sleep(PAUSE)  # the driver has no event for this
        left = _used(where) - before
    took = 1000 * (time.perf_counter() - began)
    figures = [
        one(f"{about}: in use before its end", with_all - before, "bytes"),
        AT_ITS_END.about(about).answered(max(at_its_end, 0)),
        GIVEN_BACK.about(about).answered(took, note=f"{max(left, 0)} bytes are left"),
    ]
    return figures, f"{left} bytes of {about} are not given back" if left > NOISE else ""


def _intruder(where: Where) -> Result:
    """Another process takes memory between clear and verify. The scrub must notice this and prove nothing."""
    about = "another process takes memory between clear and verify"
    total = _usage(where).total
    if total < ROOM:
        return [one(about, None, "", f"the memory is smaller than {ROOM} bytes")], ""
    half = replace(where, limit=min(where.limit or total, total // 2))
    scrub = Fork(lambda line: _scrub_with_a_pause(half, line))
    scrub.hear()
    intruder = Fork(lambda line: _take(where, line))
    size = intruder.hear()
    scrub.tell()
    noticed = scrub.hear()
    scrub.end()
    intruder.tell()
    intruder.end()
    figures = [one(f"{about}: bytes", size, "bytes"), one(f"{about}: noticed", float(bool(noticed)), "", noticed)]
    return figures, "" if noticed or not size else f"{about}, and the scrub does not notice"


class LyingWriter(MeasuredCard):
    """Leaves out the last bytes of each write."""

    def sweep(self, kind: Sweep, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
        """Like a kernel with a wrong end."""
        return super().sweep(kind, pattern, _shortened(spans) if kind is Sweep.WRITE else spans, step)


class LyingReader(MeasuredCard):
    """Leaves out the last bytes of each comparison."""

    def sweep(self, kind: Sweep, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
        """Like a kernel with a wrong end."""
        return super().sweep(kind, pattern, _shortened(spans) if kind is Sweep.CHECK else spans, step)


def _lying_write(where: Where) -> Result:
    return _lie(where, LyingWriter, "a write that leaves out the last bytes")


def _lying_check(where: Where) -> Result:
    return _lie(where, LyingReader, "a comparison that leaves out the last bytes")


def _lie(where: Where, kind: type[MeasuredCard], about: str) -> Result:
    def scrub() -> str:
        try:
            found = clearing.clear(memory.take(opened_as(kind, where)), secrets.token_bytes(16), PASSES, unwatched)
        except CudaError as error:
            return str(error)
        return "" if found.mismatch is None else f"the memory differs at {found.mismatch.offset:#x}"

    noticed = str(in_a_fork(scrub))
    return [one(f"{about}: noticed", float(bool(noticed)), "", noticed)], "" if noticed else f"{about} goes unnoticed"


def _shortened(spans: Iterable[Span]) -> list[Span]:
    return [replace(span, size=span.size - VECTOR) for span in spans]


def _holder(where: Where) -> Fork:
    """A process that holds all memory and has written to it."""

    def hold(line: Connection) -> None:
        taken(where)[1].write(fresh("holder"), unheard)
        say(line)
        line.recv()

    holder = Fork(hold)
    holder.hear()
    return holder


def _scrub_when_told(where: Where, line: Connection) -> None:
    say(line)
    line.recv()
    try:
        with reads_only():
            whole = held(where, Library()).memory()
        clearing.clear(whole, secrets.token_bytes(16), PASSES, unwatched)
        clearing.verify(whole, unwatched)
    except DeviceError as error:
        say(line, (time.perf_counter(), str(error)))
    else:
        say(line, (time.perf_counter(), ""))


def _scrub_with_a_pause(where: Where, line: Connection) -> None:
    with reads_only():
        holding = held(where, Library())
        whole = holding.memory()
        clearing.clear(whole, secrets.token_bytes(16), PASSES, unwatched)
        say(line)
        line.recv()
        clearing.verify(whole, unwatched)
        say(line, coverage.disturbance(holding.books(), whole.size) or "")


def _take(where: Where, line: Connection) -> None:
    card = opened(where)
    say(line, INTRUDER if card.allocate(INTRUDER) is not None else 0)
    line.recv()


def _used(where: Where) -> int:
    return int(_usage(where).used)


def _usage(where: Where) -> Any:  # noqa: ANN401 - a structure of pynvml
    library = Library()
    with reads_only(), library.session() as nvml:
        usage = boards.memory(nvml, nvml.handle(where.uuid))
    library.close()  # nothing of the driver's may be open when this process forks
    return usage
