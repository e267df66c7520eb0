"""The page of a trial, and the facts of the machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from typing import Any

import pynvml

from benchmarks import nvml as beside
from benchmarks.nvml_questions import cut, wrapped
from benchmarks.trial.figures import Part, one
from benchmarks.trial.parts import PARTS
from benchmarks.trial.records import Records
from scrubber.cuda.images import image_for
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library, Session

HEAD = ("part", "what", "median", "lowest", "highest", "unit", "samples", "predicted", "note")
NOT_TOLD = "not told"
COUNTERS = "ECC counters at the begin"
_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED


def machine(library: Library, host: Host, uuid: str) -> dict[str, object]:
    """The facts of the machine, also which ones the driver does not report."""
    with library.session() as nvml:
        gpu = nvml.handle(uuid)
        return beside.machine(nvml, host, gpu) | {
            "compute capability": _told(nvml, pynvml.nvmlDeviceGetCudaComputeCapability, gpu),
            "CUDA of the driver": _told(nvml, pynvml.nvmlSystemGetCudaDriverVersion_v2),
            "ECC, now and after a reset": _told(nvml, pynvml.nvmlDeviceGetEccMode, gpu),
            "persistence mode": _told(nvml, pynvml.nvmlDeviceGetPersistenceMode, gpu),
            "MIG, now and after a reset": _told(nvml, pynvml.nvmlDeviceGetMigMode, gpu),
            "memory clock at most, MHz": _told(nvml, pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_MEM),
            "memory bus, bits": _told(nvml, pynvml.nvmlDeviceGetMemoryBusWidth, gpu),
            "kernels": _kernels(nvml.ask_optional(pynvml.nvmlDeviceGetCudaComputeCapability, gpu)),
            "taken": time.strftime("%Y-%m-%d", time.gmtime()),
            "processor": platform.machine(),
        }


def counters(library: Library, uuid: str) -> dict[str, float]:
    """What ECC has counted on this GPU: errors since the driver was loaded and ever, and rows."""
    kinds = {"corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": _UNCORRECTED}
    times = {"volatile": pynvml.NVML_VOLATILE_ECC, "aggregate": pynvml.NVML_AGGREGATE_ECC}
    found: dict[str, float] = {}
    with library.session() as nvml:
        gpu = nvml.handle(uuid)
        for kind, number in kinds.items():
            for since, which in times.items():
                count = nvml.ask_optional(pynvml.nvmlDeviceGetTotalEccErrors, gpu, number, which)
                found |= {} if count is None else {f"errors, {kind}, {since}": count}
        rows = nvml.ask_optional(pynvml.nvmlDeviceGetRemappedRows, gpu)
    return found | dict(zip(("rows remapped, corrected", "rows remapped, uncorrected"), rows or (), strict=False))


def _kernels(capability: tuple[int, int] | None) -> str:
    try:
        return NOT_TOLD if capability is None else image_for(capability).name
    except ValueError as error:
        return str(error)


def _told(nvml: Session, question: Any, *about: object) -> object:  # noqa: ANN401 - a function of pynvml
    try:
        answer = nvml.ask_optional(question, *about)
    except DeviceError as error:
        return f"{NOT_TOLD}: {error}"
    return NOT_TOLD if answer is None else answer


def table(parts: Sequence[Part]) -> str:
    """The figures of all parts in one table."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for part in parts:
        took = one("the whole part", part.seconds, "s")
        rows += [(part.name, *figure.cells) for figure in (*part.figures, took)]
        if part.why:
            rows.append((part.name, "FAILED", "", "", "", "", "", "", part.why))
        if part.not_done:
            rows.append((part.name, "cannot be done here", "", "", "", "", "", "", part.not_done))
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def page(about: dict[str, object], parts: Sequence[Part]) -> str:
    """The text of the page."""
    failed = [part.name for part in parts if part.why]
    not_done = [part.name for part in parts if part.not_done]
    surprises = [f"{part.name}: {figure.what}" for part in parts for figure in part.figures if figure.surprises]
    missing = [name for name in PARTS if name not in {part.name for part in parts}]
    return f"""# Autoclave on {about["model"]}

Taken from {about["taken"]} on by the trial, on one GPU that no other process used. No setting was changed and nothing
was reset. UUIDs are cut short. GB are 10^9 bytes. Every figure is of this trial. What is predicted of a median is what
the trial said when it ran. Some predictions were replaced after the first card: they test nothing on a card of that
kind.

* Parts that failed: {", ".join(failed) or "none"}
* Parts that could not be done here: {", ".join(not_done) or "none"}
* Parts that were not begun: {", ".join(missing) or "none"}
* Figures that are not as predicted: {"; ".join(surprises) or "none"}

{beside.pairs(about)}

{table(parts)}
"""


def of(records: Records) -> str:
    """The page of all parts that have ended."""
    return wrapped(cut(page(records.machine() or {}, records.parts())))


def write(records: Records) -> None:
    """Put that page beside the figures."""
    records.page.write_text(of(records))
