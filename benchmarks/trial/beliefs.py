"""What the driver says through NVML: ``benchmarks.nvml`` writes its own page, and the figures that matter come back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import nvml
from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, Unproven, one
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
