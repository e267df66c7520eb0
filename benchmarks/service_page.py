"""Print the page of the service on simulated GPUs, from its record: a table for each measurement, with day and commit.

python -m benchmarks.service_page > docs/measurements/service.md
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import asdict
from typing import Any

from benchmarks.figures import Figure, table
from benchmarks.nvml_questions import wrapped
from benchmarks.on_gpus import RECORDS

RECORD = RECORDS / "service.json"
BESIDE = (  # figures without an aim that the page shows, because others are compared with them
    "do-nothing Python plugin, 8 devices: Allocate, p50",
    "do-nothing Python plugin, 8 devices: resident memory",
    "a container that asked nobody opens a clean device to the row of the ledger, 4 devices: p50",
    "a container that asked nobody opens a clean device to the row of the ledger, 4 devices: p99",
    "a tenant's last process gone to CLEAN, 4 devices of 64MiB, 2000 more processes: p50",
    "a tenant's last process gone to CLEAN, 4 devices of 64MiB, 136 working processes of 3000 mappings: p50",
    "a tenant's last process gone to CLEAN, 4 devices of 64MiB, of that detection: p50",
    "a tenant's last process gone to CLEAN, 4 devices of 64MiB, of that detection: p99",
    "the next pod 0 ms later, 4 devices of 64MiB, all in use: Allocate, p50",
    "a round trip that does nothing, 8 devices: p50",
    "do-nothing DRA driver: Prepare, p50",
    "autoclave dra, 8 devices of 64MiB: Prepare of a CLEAN device, p50",
    "runc without the hook, p50",
)
AT_ONCE = "the next pod at once, "  # all of these stand on the page, too
LEFT_OUT = re.compile(r"112 devices: (Allocate.*p99|verdict)|8 callers, 112|the next pod (5|1000) ms")
NO_REASON = "Why was not looked into."
TITLES = {
    "chain": "The device plugin",
    "release": "After the end of a pod",
    "waits": "What the next pod waits for",
    "hooks": "Both hooks beside other processes",
    "in_front": "In front of a vendor's plugin",
    "dra": "The DRA driver",
    "acquire": "Acquire",
    "start": "Starts",
    "absence": "An update of the service",
    "standby": "A plugin on standby",
    "idle": "The idle service",
    "big_node": "A scrub on a full node",
    "fast_job": "What a fast scrub does",
    "fence": "An open behind the fence",
    "sealing": "Receipts and the ledger",
}
BEFORE = "The aim was met before simulated GPUs took the path of NVIDIA's"
WHY = {  # of the aims that are missed
    "chain": "Two calls between Python processes and the durable row of the ledger take most of `Allocate` "
    "([the parts](cluster.md#the-start-of-a-pod)). An hour before, at the same commit, the two rows were 2.93 and "
    "4.69 ms.",
    "release": "About 100 ms of each are the passes of the simulated driver over its loop device. Other processes add "
    "one walk through their control groups and one search. A node with version 2 of control groups alone, which this "
    "machine is not, needs no walk. At `2aa5390f`, with four searches, the three rows were 203, 1495 and 1899 ms on "
    "the same machine (12 ends each). To watch 112 GPUs costs more than hoped for.",
    "hooks": "The hooks do not depend on what runs on the node. At `197c0118`, before the fence, the last row was 26 "
    "times the first one.",
    "dra": f"{BEFORE} (2.32 times). Which part of the longer path takes the time was not looked into.",
    "acquire": "Eight callers at once share one process and one ledger, so each waits for the others.",
    "absence": "In one of the turns, the next service answered late.",
    "idle": "It was 78.3 MiB before; what grew was not looked into.",
    "big_node": "Without the fence, a scrub makes two searches; one of processes with 3,000 mappings takes a second.",
}


def keep(name: str, machine: dict[str, str], figures: list[Figure]) -> None:
    """Put a measurement into the record, in place of an older one."""
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    record = _read()
    record[name] = {
        "taken": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit.stdout.strip(),
        "machine": machine,
        "figures": [asdict(figure) for figure in figures],
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def figures() -> dict[str, Figure]:
    """The figures of the record, by their names."""
    return {figure.name: figure for it in _read().values() for figure in _figures(it)}


def page() -> str:
    """The page of the committed record."""
    record = _read()
    machine = next(iter(record.values()))["machine"]
    sections = [_section(title, name, record[name], machine) for name, title in TITLES.items() if name in record]
    return wrapped(
        f"""# The scrub service on simulated GPUs

Each table is of one measurement of `make bench`, with the main figures that have an aim, and those that they are
compared with; `make bench` prints all. They were taken on one quiet machine: {_words(machine)}. `make docs` makes this
page from [the record](../../benchmarks/records/service.json). "Aim" is what was hoped for before measuring. Compare
ratios, not times, with those of another machine or another day. Simulated GPUs are files: no figure here is about a
real GPU.

"""
        + "\n\n".join(sections)
    )


def _section(title: str, name: str, measured: dict[str, Any], machine: dict[str, str]) -> str:
    place = "" if measured["machine"] == machine else f", on another machine: {_words(measured['machine'])}"
    commit = f"at `{measured['commit']}`" if measured["commit"] else "at a commit that was not noted"
    shown = [it for it in _figures(measured) if it.aim or it.name in BESIDE or it.name.startswith(AT_ONCE)]
    shown = [it for it in shown if not LEFT_OUT.search(it.name)]  # of one question, the most telling answer
    why = f"\n\n{WHY.get(name, NO_REASON)}" if any(it.missed for it in shown) else ""
    return f"## {title}\n\n{measured['taken']}, {commit}{place}.\n\n{table(shown, samples=False)}{why}"


def _words(machine: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _figures(measured: dict[str, Any]) -> list[Figure]:
    return [Figure(**{"samples": 0} | figure) for figure in measured["figures"]]  # old ones have no number of samples


def _read() -> dict[str, dict[str, Any]]:
    record: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return record


if __name__ == "__main__":
    print(page(), end="")
