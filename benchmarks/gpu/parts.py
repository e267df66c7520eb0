"""The parts of the measurement, each in a process of its own: one that fails does not take the others along.

``python -m benchmarks.gpu.parts NAME`` is such a process. It is told where on stdin and answers on stdout.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu import chip, job, passes, proof, start
from benchmarks.gpu.card import Where
from benchmarks.gpu.figures import Measured, Unproven
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
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.parts", name],
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, complaints = process.communicate(json.dumps(asdict(where)), timeout=seconds)
        except subprocess.TimeoutExpired:
            return Part(name, time.monotonic() - began, why=f"it was not done within {seconds:.0f} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with whatever it has forked
    took = time.monotonic() - began
    if process.returncode:
        last = complaints.strip().rpartition("\n")[2][-_LAST_WORDS:]
        return Part(name, took, why=f"it ended with status {process.returncode}: {last or 'it said nothing'}")
    answer = json.loads(said)
    figures = (Measured(**figure | {"samples": tuple(figure["samples"])}) for figure in answer["figures"])
    return Part(name, took, tuple(figures), answer["why"])


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
