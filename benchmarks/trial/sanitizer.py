"""The kernels under ``compute-sanitizer``, where it is: accesses outside of memory, races, wrong barriers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, Unproven, one

ROOT = Path(__file__).parents[2]
PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck", "synccheck")
DEEDS = ("model", "scratched")  # all sweeps on a small memory; the programs for the memory on the chip
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) ")


def measure(where: Where) -> list[Measured]:
    """Each tool on the kernels; Unproven if one finds an error."""
    if shutil.which(PROGRAM) is None:
        raise NotDone(f"{PROGRAM} is not here")
    figures = [_checked(where, tool, deed) for tool in TOOLS for deed in DEEDS]
    if bad := [it.what for it in figures if any(it.samples)]:
        raise Unproven(f"{PROGRAM} finds errors: {', '.join(bad)}", tuple(figures))
    return figures


def _checked(where: Where, tool: str, deed: str) -> Measured:
    done = subprocess.run(
        [PROGRAM, "--tool", tool, sys.executable, "-m", "tests.gpu.inside", deed],
        cwd=ROOT,
        input=json.dumps(asdict(where)),
        capture_output=True,
        text=True,
        check=False,
    )
    what, summary = f"{tool}: errors in {deed}", _SUMMARY.search(done.stdout + done.stderr)
    if done.returncode or summary is None:
        last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        return one(what, None, "", f"it ends with status {done.returncode}: {last}")
    return one(what, int(summary[1]), "")
