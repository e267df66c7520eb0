"""A CDI specification of the simulated GPUs: with it a container runtime shows a pod the memory of its GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from scrubber.devices.simulated.layout import GpuFiles

VERSION = "0.6.0"
KIND = "nvidia.com/gpu"  # the kind in the answers of the device plugin, unless --cdi-kind says something else
NAME = "autoclave-simulated.json"
SEEN_AS = "/dev/simulated-gpu{index}"  # the memory, as a container sees it


def specification(gpus: Iterable[GpuFiles]) -> dict[str, object]:
    """The specification. A GPU is named by its UUID."""
    return {"cdiVersion": VERSION, "kind": KIND, "devices": [_device(gpu) for gpu in gpus]}


def _device(gpu: GpuFiles) -> dict[str, object]:
    info = gpu.info()
    mount = {
        "hostPath": str(gpu.memory),
        "containerPath": SEEN_AS.format(index=info.index),
        "options": ["bind", "rw", "nosuid", "noexec"],
    }
    return {"name": info.uuid, "containerEdits": {"mounts": [mount]}}


def write(directory: Path, gpus: Iterable[GpuFiles]) -> None:
    """Replace the specification in this directory. A container runtime never reads half of it."""
    new = directory / f".{NAME}.new"
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "w") as file:
        json.dump(specification(gpus), file, indent=1)
    new.replace(directory / NAME)
