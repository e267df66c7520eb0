"""The parts of the trial, each in a process of its own: a part that fails does not end the others.

``python -m benchmarks.trial.parts NAME`` is such a process. It reads its GPU from stdin, and answers on stdout.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from benchmarks.trial import (
    beliefs,
    checks,
    chip,
    dram,
    faults,
    job,
    passes,
    proof,
    sanitizer,
    service,
    start,
    variants,
)
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, Unproven
from scrubber.cuda import warmth

LAST = "zeros"  # runs at the end of every call, also after a failure


@dataclass(frozen=True)
class Kind:
    """The function of a part, and its time limit in seconds."""

    measure: Callable[[Where], list[Measured]]
    seconds: float


PARTS = {
    "nvml": Kind(beliefs.measure, 60),
    "tests": Kind(checks.measure, 240),
    "clear": Kind(proof.measure, 60),
    "residue": Kind(proof.residue, 60),
    "scratch": Kind(chip.scratch, 60),
    "self-test": Kind(chip.tested, 60),
    "timeline": Kind(start.measure, 90),
    "one worker": Kind(job.measure, 150),
    "passes": Kind(passes.measure, 60),
    "sizes": Kind(passes.sizes, 60),
    "dram": Kind(dram.measure, 120),
    "faults": Kind(faults.measure, 120),
    "service": Kind(service.measure, 180),
    "variants": Kind(variants.measure, 120),
    "sanitizer": Kind(sanitizer.measure, 180),
    LAST: Kind(proof.leave_zeros, 60),
}
ROOT = Path(__file__).parents[2]
_LAST_WORDS = 400  # characters of the output of a failed process


@dataclass(frozen=True)
class Part:
    """The figures of a part, with the reason if the part does not pass or cannot run here."""

    name: str
    seconds: float
    figures: tuple[Measured, ...] = ()
    why: str = ""  # why it failed
    not_done: str = ""


def measured(name: str, where: Where, seconds: float) -> Part:
    """Run a part in a new process, with a time limit."""
    began = time.monotonic()
    with TemporaryFile("w+") as told, TemporaryFile("w+") as said, TemporaryFile("w+") as complaints:
        json.dump(asdict(where), told)
        told.seek(0)
        status = _status(name, (told, said, complaints), seconds)
        took = time.monotonic() - began
        said.seek(0)
        complaints.seek(0)
        if status is None:
            return Part(name, took, why=f"it was not done within {seconds:.0f} s")
        if status:
            last = complaints.read().strip().rpartition("\n")[2][-_LAST_WORDS:]
            return Part(name, took, why=f"it ended with status {status}: {last or 'it said nothing'}")
        answer = json.load(said)
    figures = (Measured(**figure | {"samples": tuple(figure["samples"])}) for figure in answer["figures"])
    return Part(name, took, tuple(figures), answer["why"], answer["not_done"])


def _status(name: str, files: tuple[IO[str], IO[str], IO[str]], seconds: float) -> int | None:
    """The exit status of the process; None if it was killed. No process that it has forked is left."""
    command = [sys.executable, "-m", "benchmarks.trial.parts", name]
    told, said, complaints = files
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environment(), stdin=told, stdout=said, stderr=complaints, start_new_session=True
    )
    try:
        by_itself = _ends_within(process.pid, seconds)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # before it is reaped: until then no other process has its number
        status = process.wait()
    return status if by_itself else None


def _ends_within(pid: int, seconds: float) -> bool:
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(1000 * seconds))
    finally:
        os.close(handle)


def _environment() -> dict[str, str]:
    """The environment of a part. Its processes find the checkout: a zygote does not search its working directory."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def main(name: str) -> None:
    """Run as the process of a part. All output but the answer goes to stderr."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    where = Where(**json.load(sys.stdin))
    warmth.warm()  # as in a worker, and in the processes that are forked from here
    with answer:
        json.dump(_done(name, where), answer)


def _done(name: str, where: Where) -> dict[str, object]:
    why = not_done = ""
    figures: Sequence[Measured] = ()
    try:
        figures = PARTS[name].measure(where)
    except Unproven as error:
        figures, why = error.figures, str(error)
    except NotDone as error:
        not_done = str(error)
    return {"figures": [asdict(figure) for figure in figures], "why": why, "not_done": not_done}


if __name__ == "__main__":
    main(sys.argv[1])
