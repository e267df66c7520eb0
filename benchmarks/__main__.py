"""Run every measurement, and print the figures.

python -m benchmarks [--quick] [--only NAME] [--keep]

With ``--keep``, ``make docs`` writes ``docs/measurements/service.md`` anew from what was measured.
"""

from __future__ import annotations

import argparse
import platform
import sqlite3
import sys
from pathlib import Path

import grpc

from benchmarks import (
    absence,
    acquire,
    big_node,
    chain,
    dra,
    fast_job,
    fence,
    hooks,
    idle,
    in_front,
    release,
    sealing,
    service_page,
    standby,
    start,
)
from benchmarks.figures import Figure, table
from demo.stage import run

MEASUREMENTS = {
    "chain": chain.measure,
    "release": release.measure,
    "waits": release.waits,
    "hooks": hooks.measure,
    "in_front": in_front.measure,
    "dra": dra.measure,
    "acquire": acquire.measure,
    "start": start.measure,
    "absence": absence.measure,
    "standby": standby.measure,
    "idle": idle.measure,
    "big_node": big_node.measure,
    "fast_job": fast_job.measure,
    "fence": fence.measure,
    "sealing": sealing.measure,
}


def machine() -> dict[str, str]:
    """What the figures were taken on."""
    cpus = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": f"{len(cpus)} x {cpus[0] if cpus else platform.machine()}",
        "memory": f"{kib / 2**20:.1f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "sqlite": sqlite3.sqlite_version,
    }


def main() -> None:
    """Measure, print, and keep what was measured if that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples: to see that it runs, not to quote")
    parser.add_argument("--only", choices=MEASUREMENTS, help="one of the measurements")
    parser.add_argument("--keep", action="store_true", help="write the figures into the record of the service")
    options = parser.parse_args()
    if options.quick and options.keep:
        parser.error("--quick takes too few samples for a record: leave out --quick or --keep")
    figures: list[Figure] = []
    for name, measure in MEASUREMENTS.items():
        if options.only in (None, name):
            sys.stderr.write(f"measuring {name} ...\n")
            measured = run(measure(quick=options.quick))
            figures += measured
            if options.keep:
                service_page.keep(name, machine(), measured)
    print(table(figures))


if __name__ == "__main__":
    main()
