"""The parts of the measurement, each in a process of its own: one that fails does not take the others along.

``python -m benchmarks.trial.parts NAME`` is such a process. It is told where on stdin and answers on stdout.
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

from benchmarks.trial import chip, job, passes, proof, start
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, Unproven
from scrubber.cuda import warmth

PARTS: dict[str, Callable[[Where], list[Measured]]] = {
    "start-up": start.measure,
    "passes": passes.measure,
    "clear": proof.measure,
    "sizes": passes.sizes,
    "scratch": chip.scratch,
    "residue": proof.residue,
    "self-test": chip.tested,
    "one worker": job.measure,
    "zeros": proof.leave_zeros,
}
ROOT = Path(__file__).parents[2]
_LAST_WORDS = 400  # characters of what a process that failed has said


@dataclass(frozen=True)
class Part:
    """What came of one of them: figures, or why there are none, or why they do not pass."""

    name: str
    seconds: float
    figures: tuple[Measured, ...] = ()
    why: str = ""  # it failed


def measured(name: str, where: Where, seconds: float) -> Part:
    """Run it in a new process for so long at most."""
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
    return Part(name, took, tuple(figures), answer["why"])


def _status(name: str, files: tuple[IO[str], IO[str], IO[str]], seconds: float) -> int | None:
    """How the process has ended; None if it had to be ended. Nothing of what it has forked is left."""
    command = [sys.executable, "-m", "benchmarks.trial.parts", name]
    told, said, complaints = files
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environment(), stdin=told, stdout=said, stderr=complaints, start_new_session=True
    )
    try:
        by_itself = _ends_within(process.pid, seconds)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # before it is collected: until then the number is nobody else's
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
    """Whatever a part starts finds the checkout as well: a zygote does not look into its working directory."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def main(name: str) -> None:
    """Be such a process. Whatever is printed beside the answer goes to stderr."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    where = Where(**json.load(sys.stdin))
    warmth.warm()  # as a worker finds it, and whatever is forked from here
    with answer:
        json.dump(_done(name, where), answer)


def _done(name: str, where: Where) -> dict[str, object]:
    why = ""
    try:
        figures: Sequence[Measured] = PARTS[name](where)
    except Unproven as error:
        figures, why = error.figures, str(error)
    return {"figures": [asdict(figure) for figure in figures], "why": why}


if __name__ == "__main__":
    main(sys.argv[1])
