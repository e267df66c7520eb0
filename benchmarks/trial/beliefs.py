"""What the driver says through NVML: ``benchmarks.nvml`` writes its own page, and the figures that matter come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import nvml
from benchmarks.nvml_questions import reads_only
from benchmarks.trial.card import Where
from benchmarks.trial.figures import Measured, Unproven, one
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library


def measure(where: Where) -> list[Measured]:
    """Ask every question of the service; Unproven if one of them ends in an error."""
    host, library = Host(Path(where.root), pid_namespace=where.pid_namespace), Library()
    with reads_only():
        found = nvml.measure(host, library)
    page = nvml.write(Path(where.output), "python -m benchmarks.trial", found)
    questions = found["questions"]
    figures = [
        *(
            one(f"questions that were {word}", _count(questions, word), "", f"all answers: {page.name}")
            for word in ("told", "untold", "none", "error")
        ),
        Measured("opening NVML", tuple(1000 * it for it in found["opening_seconds"]), "ms"),
        *_idle_round(found["idle_round"]),
        *_open_files(found["open_files"]),
    ]
    if errors := [f"{it['question']} {it['about']}: {it['why']}" for it in questions if it["answer"] == "error"]:
        raise Unproven(f"these questions end in an error: {'; '.join(errors)}", tuple(figures))
    return figures


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


def _open_files(found: object) -> list[Measured]:
    """What one open file adds to the reference count of the kernel module."""
    what = "the kernel module's reference count: added by each open file"
    if not isinstance(found, dict):
        return [one(what, None, "", str(found))]
    rows = [row for row in found["rows"] if row["per open file"] is not None]
    others = (
        f"modules that depend on it: {len(found['modules'])}, programs that have a node open: {len(found['programs'])}"
    )
    return [
        *(one(f"{what} ({row['node']}, {row['with']})", row["per open file"], "") for row in rows),
        one("the kernel module's reference count: modules that depend on it", len(found["modules"]), "modules", others),
    ]
