"""The kernels under ``compute-sanitizer``, where it is: accesses outside of memory, races, wrong barriers."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator

from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, Unproven, one
from benchmarks.trial.programs import last_line, output_of

PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck")
DEEDS = ("model", "scratched")  # all sweeps on a small memory; the programs for the memory on the chip
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) ")


def measure(where: Where) -> Iterator[Measured]:
    """Each tool on the kernels; Unproven if one finds an error."""
    if shutil.which(PROGRAM) is None:
        raise NotDone(f"{PROGRAM} is not here")
    bad = []
    for figure in (_checked(where, tool, deed) for tool in TOOLS for deed in DEEDS):
        yield figure
        bad += [figure.what] if any(figure.samples) else []
    if bad:
        raise Unproven(f"{PROGRAM} finds errors: {', '.join(bad)}")


def _checked(where: Where, tool: str, deed: str) -> Measured:
    status, said = output_of([PROGRAM, "--tool", tool, sys.executable, "-m", "tests.gpu.inside", deed], where=where)
    what, summary = f"{tool}: errors in {deed}", _SUMMARY.search(said)
    if status or summary is None:
        return one(what, None, "", f"it ends with status {status}: {last_line(said)}")
    return one(what, int(summary[1]), "")
