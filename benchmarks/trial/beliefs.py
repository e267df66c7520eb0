"""What the driver says through NVML: ``benchmarks.nvml`` writes its own page, and the figures that matter come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pynvml

from benchmarks import nvml
from benchmarks.nvml_questions import TIMES, reads_only
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, NotDone, Unproven, one, rounds
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library

LISTED_WITHIN = 5.0  # seconds
SHORT_USE = """
import json, os, sys, time
from benchmarks.trial.card import Where, opened
began = time.perf_counter()
opened(Where(**json.load(sys.stdin)))
print(os.getpid(), time.perf_counter() - began)
"""


def measure(where: Where) -> Iterator[Measured]:
    """Ask every question of the service; Unproven if one of them ends in an error."""
    host, library = Host(Path(where.root), pid_namespace=where.pid_namespace), Library()
    yield _references(host)
    with reads_only():
        found = nvml.measure(host, library, where.uuid)
    page = nvml.write(Path(where.output), "python -m benchmarks.trial", found)
    questions = found["questions"]
    for word in ("told", "untold", "none", "error"):
        yield one(f"questions that were {word}", _count(questions, word), "", f"all answers: {page.name}")
    yield Measured("opening NVML", tuple(1000 * it for it in found["opening_seconds"]), "ms")
    yield from _idle_round(found["idle_round"])
    if errors := [f"{it['question']} {it['about']}: {it['why']}" for it in questions if it["answer"] == "error"]:
        raise Unproven(f"these questions end in an error: {'; '.join(errors)}")


def accounts(where: Where) -> Iterator[Measured]:
    """What the driver tells of a process that has ended, and what the question costs. Needs the accounting mode."""
    library = Library()
    with reads_only(), library.session() as nvml:
        gpu = nvml.handle(where.uuid)
        if nvml.ask_optional(pynvml.nvmlDeviceGetAccountingMode, gpu) != pynvml.NVML_FEATURE_ENABLED:
            raise NotDone("the accounting mode is off or not supported; `nvidia-smi -am 1` switches it on")
        times, before = [], []
        for _ in rounds(TIMES, where.ends):
            began = time.perf_counter()
            before = nvml.ask(pynvml.nvmlDeviceGetAccountingPids, gpu)
            times.append(1000 * (time.perf_counter() - began))
        yield Measured("one question for the processes that have ended", tuple(times), "ms", f"{len(before)} listed")
        command, about = [sys.executable, "-c", SHORT_USE], json.dumps(asdict(where))
        user = subprocess.run(command, input=about, check=True, capture_output=True, text=True)
        pid, used, ended = (*map(float, user.stdout.split()), time.perf_counter())
        yield one("a process used the GPU", 1000 * used, "ms", "from its context to its end")
        while int(pid) not in (listed := nvml.ask(pynvml.nvmlDeviceGetAccountingPids, gpu)):
            if time.perf_counter() > ended + LISTED_WITHIN:
                new = sorted({*listed} - {*before})
                raise Unproven(f"{LISTED_WITHIN:g} s after its end the driver lists no process {pid:g}; new: {new}")
        yield one("the driver lists it, by its pid here", 1000 * (time.perf_counter() - ended), "ms", "after its end")


def _count(questions: list[dict[str, Any]], answer: str) -> int:
    return sum(it["answer"] == answer for it in questions)


def _idle_round(found: object) -> list[Measured]:
    if not isinstance(found, dict) or not found:
        return [one("one round of the monitor over all GPUs", None, "ms", str(found))]
    note = f"median of {found['rounds']}"
    return [
        one("one round of the monitor over all GPUs", found["wall_ms"], "ms", note),
        one("its processor time", found["processor_ms"], "ms", note),
    ]


def _references(host: Host) -> Measured:
    """What one more open file adds to the reference count of the kernel module: a second witness of who is there."""
    what, count = "the kernel module's reference count: added by an open file", host.sys_module / "refcnt"
    try:
        before = int(count.read_text())
        file = os.open(host.dev / "nvidiactl", os.O_RDONLY | os.O_CLOEXEC)
        during = int(count.read_text())
        os.close(file)
        after = int(count.read_text())
    except OSError as error:
        return one(what, None, "", f"{error.filename}: {error.strerror}")
    return one(what, during - before, "", f"{before} before, {after} afterwards")
