"""Whether the passes reach the memory: the bytes that the memory itself moved, counted by ``ncu`` where it is."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.trial.card import Where, expect_nothing, fresh, taken, unheard
from benchmarks.trial.figures import Measured, NotDone, Unproven, one

ROOT = Path(__file__).parents[2]
SIZE = 2**33  # bytes: many times what any cache holds
ENOUGH = 0.98  # of the bytes of a pass: less means that a cache answered
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
PROFILER = ("ncu", "--csv", "--print-units", "base", "--metrics", f"{READ},{WRITTEN}", "--clock-control", "none")


def measure(where: Where) -> list[Measured]:
    """One write and one comparison under the profiler; Unproven if a cache answered."""
    if shutil.which(PROFILER[0]) is None:
        raise NotDone("ncu (Nsight Compute) is not here")
    limited = replace(where, limit=min(where.limit or SIZE, SIZE))
    done = subprocess.run(
        [*PROFILER, sys.executable, "-m", "benchmarks.trial.dram"],
        cwd=ROOT,
        input=json.dumps(asdict(limited)),
        capture_output=True,
        text=True,
        check=False,
    )
    sizes = [int(line.removeprefix(_SAID)) for line in done.stdout.splitlines() if line.startswith(_SAID)]
    if done.returncode or not sizes:
        last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        raise NotDone(f"ncu ends with status {done.returncode}: {last}")
    moved = _moved(done.stdout)
    shares = {"write": moved["write", WRITTEN] / sizes[0], "check": moved["check", READ] / sizes[0]}
    figures = [
        one(f"{name}: bytes that the memory moved, of those of the pass", 100 * it, "%") for name, it in shares.items()
    ]
    if low := [name for name, share in shares.items() if share < ENOUGH]:
        raise Unproven(f"a cache answered instead of the memory: {', '.join(low)}", tuple(figures))
    return figures


_SAID = "autoclave: bytes of a pass: "


def _moved(text: str) -> dict[tuple[str, str], float]:
    """The bytes by kernel and metric; launches without memory add nothing that counts."""
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[tuple[str, str], float] = defaultdict(float)
    for row in csv.DictReader(lines[head:]):
        name = (row.get("Kernel Name") or "").partition("(")[0]
        found[name, row["Metric Name"]] += float(row["Metric Value"].replace(",", ""))
    return found


def main() -> None:
    """Run as the process that the profiler observes."""
    where = Where(**json.load(sys.stdin))
    _, whole = taken(where)
    key = fresh("memory")
    whole.write(key, unheard)
    expect_nothing(whole.check(key, unheard), "what was written to it")
    print(f"{_SAID}{whole.size}")


if __name__ == "__main__":
    main()
