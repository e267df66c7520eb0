"""What a real NVIDIA GPU tells through NVML, and how long each question takes. Only reads: nothing on it is changed.

python -m benchmarks.nvml [--output DIR] [--host-root DIR]

Writes ``<model>-nvml.md``, without serial numbers and with UUIDs cut short: it can be published.
"""

from __future__ import annotations

import argparse
import atexit
import os
import platform
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pynvml

from benchmarks.nvml_questions import TIMES, answered, cut, questions, reads_only, wrapped
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import settings
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.holders import IDLE_AT_MOST
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Handle, Library, Session
from scrubber.node import proc
from scrubber.node.node_containers import Containers

ROUNDS, OPENINGS = 20, 3
PROC = Path("/proc")
_SLUG = re.compile(r"[^a-z0-9]+")


def memory(nvml: Session) -> list[dict[str, object]]:
    """Of each GPU, in bytes, with how many processes the driver lists on it: idle means none."""
    found = []
    for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
        gpu = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        told = nvml.ask(pynvml.nvmlDeviceGetMemoryInfo, gpu, pynvml.nvmlMemory_v2)
        listed = nvml.ask_optional(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, gpu)
        row: dict[str, object] = {name: getattr(told, name) for name in ("total", "reserved", "free", "used")}
        found.append({"gpu": index, **row, "listed": None if listed is None else len(listed)})
    return found


def backend(host: Host, library: Library) -> Nvidia:
    """The service's own eyes. What they keep is gone at the end of this process."""
    kept = TemporaryDirectory(prefix="ac-")
    atexit.register(kept.cleanup)
    return Nvidia(host, Containers(Path("/proc")), Path(kept.name), library)


def looks(eyes: Nvidia, gpu: str) -> list[dict[str, object]]:
    """What the service's looks at a GPU, or its first slice, take, in milliseconds: the first, and the median."""
    uuid = next(info.uuid for info in eyes.inventory() if gpu in (info.uuid, info.parent))
    calls: dict[str, Callable[[], object]] = {
        "driver": eyes.driver,
        "inventory": eyes.inventory,
        "vitals": lambda: eyes.vitals(uuid),
        "in_use": lambda: eyes.has_holders(uuid),
        "listed": lambda: eyes.listed_holders(uuid),
    }
    return [{"look": name, **_timed(call)} for name, call in calls.items()]


def _timed(call: Callable[[], object]) -> dict[str, object]:
    took: list[float] = []
    answer: object = None
    for _ in range(TIMES):
        began = time.perf_counter()
        answer = call()
        took.append((time.perf_counter() - began) * 1000)
    short = str(answer) if isinstance(answer, bool | None) else ""
    return {"first_ms": round(took[0], 3), "median_ms": round(statistics.median(took[1:]), 3), "answer": short}


def idle_round(eyes: Nvidia) -> dict[str, object]:
    """What one of the monitor's rounds over all devices takes while nobody is on them."""
    walls, shares = [], []
    for _ in range(ROUNDS):
        wall, work = time.perf_counter(), time.process_time()
        for info in eyes.inventory():
            eyes.driver()
            eyes.vitals(info.uuid)
            eyes.has_holders(info.uuid)
        walls.append((time.perf_counter() - wall) * 1000)
        shares.append((time.process_time() - work) * 1000)
    return {
        "rounds": ROUNDS,
        "wall_ms": round(statistics.median(walls), 3),
        "processor_ms": round(statistics.median(shares), 3),
    }


def openings(library: Library) -> list[float]:
    """Seconds that opening NVML takes, each time after it was closed."""
    took = []
    for _ in range(OPENINGS):
        library.close()
        began = time.perf_counter()
        with library.session():
            took.append(round(time.perf_counter() - began, 4))
    return took


def machine(nvml: Session, host: Host, gpu: Handle) -> dict[str, object]:
    """What it was taken on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpus = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return {
        "gpus": nvml.ask(pynvml.nvmlDeviceGetCount),
        "model": nvml.ask(pynvml.nvmlDeviceGetName, gpu),
        "driver": nvml.ask(pynvml.nvmlSystemGetDriverVersion),
        "nvml": nvml.ask(pynvml.nvmlSystemGetNVMLVersion),
        "driver as the kernel tells it": _told(host.driver),
        "cpu": f"{len(cpus)} x {cpus[0] if cpus else platform.machine()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "the node's pid namespace": proc.sees_all(PROC),
    }


def _told(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except DeviceError as error:
        return f"not told: {error}"


def measure(host: Host, library: Library, uuid: str | None = None) -> dict[str, Any]:
    """All of it; what the service's own eyes cannot see here is said, and the library is asked all the same.

    ``uuid``: the GPU that is asked about; None: the first one.
    """
    with library.session() as nvml:
        if not nvml.ask(pynvml.nvmlDeviceGetCount):
            raise DeviceError("the driver lists no GPU")
        gpu = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, 0) if uuid is None else nvml.handle(uuid)
        uuid = nvml.ask(pynvml.nvmlDeviceGetUUID, gpu)
        found: dict[str, Any] = {"machine": machine(nvml, host, gpu), "memory": memory(nvml)}
        found["questions"] = [asdict(answered(nvml, question)) for question in questions(nvml, gpu)]
        found["settings"] = _told(lambda: asdict(settings.capture(nvml, uuid)))
    eyes = backend(host, library)
    devices = _told(eyes.inventory)
    found |= {"inventory": devices, "looks": [], "idle_round": {}}
    if isinstance(devices, tuple) and devices:
        found |= {"inventory": [asdict(info) for info in devices]}
        found |= {"looks": _told(lambda: looks(eyes, uuid)), "idle_round": _told(lambda: idle_round(eyes))}
    found["opening_seconds"] = openings(library)
    library.close()
    return found


def table(rows: object) -> str:
    """Markdown, of rows with the same keys; a sentence where there are none."""
    if not isinstance(rows, list) or not rows:
        return str(rows or "Nothing.")
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row[name]).replace("|", "/") for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def pairs(values: object) -> str:
    """Markdown, of names and what belongs to them."""
    if not isinstance(values, dict):
        return str(values)
    return table([{"what": name, "told": value} for name, value in values.items()])


def page(taken: str, command: str, found: dict[str, Any]) -> str:
    """For people."""
    inventory = found["inventory"]
    devices = "\n\n".join(map(pairs, inventory)) if isinstance(inventory, list) else str(inventory or "Nothing.")
    return f"""# What {found["machine"]["model"]} tells through NVML

Taken {taken} with `{command}`. Only reads; UUIDs are cut short.

{pairs(found["machine"])}

## Questions

Each was asked {TIMES} times of one GPU, through the service's own library; the median counts. Told: there is an
answer. Untold: this GPU or driver knows no such thing. None: there is nothing of that number or name. Error: all else.

{table(found["questions"])}

## Memory

In bytes. A GPU is idle where nobody is listed; {IDLE_AT_MOST} bytes in use are believed of an idle one at most.

{table(found["memory"])}

## Devices, as the service sees them

{devices}

## Settings of this GPU

{pairs(found["settings"])}

## What looking takes

In milliseconds; the first look, and the median of {TIMES - 1} more.

{table(found["looks"])}

One round over all devices, as the monitor makes them: {found["idle_round"]}. Opening NVML after it was closed:
{found["opening_seconds"]} s.
"""


def write(directory: Path, command: str, found: dict[str, Any]) -> Path:
    """The page; where it is."""
    directory.mkdir(parents=True, exist_ok=True)
    taken = time.strftime("%Y-%m-%d", time.gmtime())
    file = directory / f"{_SLUG.sub('-', str(found['machine']['model']).lower()).strip('-')}-nvml.md"
    file.write_text(wrapped(cut(page(taken, command, found))))
    return file


def main(arguments: Sequence[str]) -> int:
    """Measure and write; 2 where there is nothing to measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nvml", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/trial"), help="where to write")
    parser.add_argument(
        "--host-root", type=Path, default=Path("/"), help="where the host's /dev, /proc and /sys are seen"
    )
    options = parser.parse_args(arguments)
    host = Host(options.host_root, pid_namespace=proc.own_namespace(PROC))
    command = shlex.join(["python", "-m", "benchmarks.nvml", *arguments])
    library = Library()
    try:
        with reads_only():
            found = measure(host, library)
    except DeviceError as error:
        sys.stderr.write(f"cannot measure: {error}; run this where an NVIDIA GPU and its driver are\n")
        return 2
    print(write(options.output, command, found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
