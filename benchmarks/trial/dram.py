"""Whether the passes reach the memory: the bytes that the memory itself moved, counted by ``ncu`` where it is."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.trial.card import Where, expect_nothing, fresh, taken, unheard
from benchmarks.trial.figures import Measured, NotDone, Unproven, one
from benchmarks.trial.programs import last_line, output_of

SIZE = 2**33  # bytes: many times what any cache holds
ENOUGH = 0.98  # of the bytes of a pass: less means that a cache answered
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
PROFILER = ("ncu", "--csv", "--print-units", "base", "--metrics", f"{READ},{WRITTEN}", "--clock-control", "none")


def measure(where: Where) -> Iterator[Measured]:
    """One write and one comparison under the profiler; Unproven if a cache answered."""
    if shutil.which(PROFILER[0]) is None:
        raise NotDone("ncu (Nsight Compute) is not here")
    limited = replace(where, limit=min(where.limit or SIZE, SIZE))
    status, said = output_of([*PROFILER, sys.executable, "-m", "benchmarks.trial.dram"], where=limited)
    sizes = [int(line.removeprefix(_SAID)) for line in said.splitlines() if line.startswith(_SAID)]
    if status or not sizes:
        raise NotDone(f"ncu ends with status {status}: {last_line(said)}")
    moved = _moved(said)
    shares = {"write": moved["write", WRITTEN] / sizes[0], "check": moved["check", READ] / sizes[0]}
    for name, share in shares.items():
        yield one(f"{name}: bytes that the memory moved, of those of the pass", 100 * share, "%")
    if low := [name for name, share in shares.items() if share < ENOUGH]:
        raise Unproven(f"a cache answered instead of the memory: {', '.join(low)}")


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
