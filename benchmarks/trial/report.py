"""What was measured of a GPU, for people and for machines."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pynvml

from benchmarks import nvml as beside
from benchmarks.trial.figures import one
from benchmarks.trial.parts import Part
from benchmarks.nvml import cut
from scrubber.cuda.images import image_for
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Library, Session

HEAD = ("part", "what", "median", "lowest", "highest", "unit", "samples", "note")
NOT_TOLD = "not told"
_SLUG = re.compile(r"[^a-z0-9]+")


def machine(library: Library, host: Host, uuid: str) -> dict[str, object]:
    """What it was taken on; what the driver does not tell is said."""
    with library.session() as nvml:
        gpu = nvml.handle(uuid)
        return beside.machine(nvml, host) | {
            "model": nvml.ask(pynvml.nvmlDeviceGetName, gpu),
            "compute capability": _told(nvml, pynvml.nvmlDeviceGetCudaComputeCapability, gpu),
            "CUDA of the driver": _told(nvml, pynvml.nvmlSystemGetCudaDriverVersion_v2),
            "ECC, now and after a reset": _told(nvml, pynvml.nvmlDeviceGetEccMode, gpu),
            "persistence mode": _told(nvml, pynvml.nvmlDeviceGetPersistenceMode, gpu),
            "MIG, now and after a reset": _told(nvml, pynvml.nvmlDeviceGetMigMode, gpu),
            "memory clock at most, MHz": _told(nvml, pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_MEM),
            "memory bus, bits": _told(nvml, pynvml.nvmlDeviceGetMemoryBusWidth, gpu),
            "CuPy": cupy(),
            "kernels": _kernels(nvml.ask_optional(pynvml.nvmlDeviceGetCudaComputeCapability, gpu)),
            "taken": time.strftime("%Y-%m-%d", time.gmtime()),
            "processor": platform.machine(),
        }


def cupy() -> str:
    """Which one is installed, by its package; loading it is left to others."""
    found = [it for it in metadata.distributions() if str(it.metadata["Name"]).lower().startswith("cupy")]
    return ", ".join(f"{it.metadata['Name']} {it.version}" for it in found) or NOT_TOLD


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
    """All figures of all parts in one."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for part in parts:
        took = one("to measure all this", part.seconds, "s")
        rows += [(part.name, *figure.cells) for figure in (*part.figures, took)]
        if part.why:
            rows.append((part.name, "failed", "not measured", "", "", "", "0", part.why))
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def page(command: str, about: dict[str, object], parts: Sequence[Part]) -> str:
    """For people."""
    return f"""# The scrub on {about["model"]}

Taken {about["taken"]} with `{command}` on one idle GPU. No setting was changed and nothing was reset; UUIDs are cut
short. GB are 10^9 bytes. Every figure is of this run; what could not be taken says so.

{beside.pairs(about)}

{table(parts)}
"""


def write(directory: Path, command: str, about: dict[str, object], parts: Sequence[Part]) -> Path:
    """The page and the same for machines, with every sample; where the page is."""
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{_SLUG.sub('-', str(about['model']).lower()).strip('-')}-scrub"
    document = {"command": command, "machine": about, "parts": [asdict(part) for part in parts]}
    (directory / f"{name}.json").write_text(cut(json.dumps(document, indent=1, default=str)) + "\n")
    file = directory / f"{name}.md"
    file.write_text(cut(page(command, about, parts)))
    return file
