"""Create simulated GPUs, their driver, and the CDI specification of them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from ground import private_files
from scrubber.core.model import DeviceInfo
from scrubber.devices.simulated import chip, layout
from scrubber.devices.simulated.layout import Counters, Driver, Faults, GpuFiles, Measured, SimulatedSettings

DEFAULT_MEMORY_BYTES = 64 * 2**20
DRIVER_VERSION = "1.0"
# Different from the settings after a reset, so that the settings step always has a setting to restore.
BASELINE = SimulatedSettings(power_limit_watts=350, persistence=True)
CDI_NAME = "autoclave-simulated.json"
_CDI_VERSION = "0.6.0"
_CDI_KIND = "nvidia.com/gpu"  # the kind in the answers of the device plugin, unless --cdi-kind says something else
CDI_SEEN_AS = "/dev/simulated-gpu{index}"  # the memory, as a container sees it


def create(root: Path, count: int, memory_bytes: int = DEFAULT_MEMORY_BYTES, boot_id: str = "") -> None:
    """Create the missing GPUs; existing GPUs keep their memory, names and faults.

    A new boot id simulates a reboot: the driver gets a new instance, and volatile state is reset.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with private_files.locked(root):  # not through a link
        root.chmod(0o700)
        if not _same_boot(root, boot_id):
            load_driver(root, boot_id)
            for place in layout.places(root):
                _reboot(place)
        for index in range(count):
            if not (root / f"gpu{index}").exists():
                _make(root, index, memory_bytes)


def load_driver(root: Path, boot_id: str = "") -> None:
    """Load the simulated driver again: proofs of the old instance are no longer valid."""
    layout.write(layout.driver_file(root), Driver(uuid.uuid4().hex, DRIVER_VERSION, boot_id))


def _same_boot(root: Path, boot_id: str) -> bool:
    file = layout.driver_file(root)
    return file.exists() and layout.read(file, Driver).boot_id == boot_id


def _reboot(place: GpuFiles) -> None:
    """Reset counters and error events; a failed row remap stays, and so do faults."""
    with private_files.locked(place.directory):
        counters = layout.read(place.counters, Counters)
        layout.write(place.counters, Counters(remap_failed=counters.remap_failed))
        layout.write(place.settings, SimulatedSettings())
        events = private_files.opened(place.events, os.O_WRONLY)
        os.ftruncate(events, 0)  # not O_TRUNC, which would come before the check
        os.close(events)


def _make(root: Path, index: int, memory_bytes: int) -> None:
    # Created under another name and renamed: no reader sees an incomplete GPU.
    place = GpuFiles(root / f".gpu{index}.{uuid.uuid4().hex}")
    place.directory.mkdir(mode=0o700)
    place.memory.touch(mode=0o600)
    os.truncate(place.memory, memory_bytes)
    chip.make(place)
    place.events.touch(mode=0o600)
    info = DeviceInfo(uuid=f"GPU-{uuid.uuid4()}", index=index, model="Simulated GPU", memory_bytes=memory_bytes)
    layout.write(place.device, info)
    layout.write(place.settings, BASELINE)
    layout.write(place.baseline, BASELINE)
    layout.write(place.counters, Counters())
    layout.write(place.readings, Measured())
    layout.write(place.faults, Faults())
    place.directory.rename(root / f"gpu{index}")


def cdi_specification(gpus: Iterable[GpuFiles]) -> dict[str, object]:
    """With this specification a container runtime shows a pod the memory of its GPU, which is named by its UUID."""
    return {"cdiVersion": _CDI_VERSION, "kind": _CDI_KIND, "devices": [_device(gpu) for gpu in gpus]}


def _device(gpu: GpuFiles) -> dict[str, object]:
    info = gpu.info()
    mount = {
        "hostPath": str(gpu.memory),
        "containerPath": CDI_SEEN_AS.format(index=info.index),
        "options": ["bind", "rw", "nosuid", "noexec"],
    }
    return {"name": info.uuid, "containerEdits": {"mounts": [mount]}}


def write_cdi(directory: Path, gpus: Iterable[GpuFiles]) -> None:
    """Replace the specification in this directory. A container runtime never reads half of it."""
    new = directory / f".{CDI_NAME}.new"
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "w") as file:
        json.dump(cdi_specification(gpus), file, indent=1)
    new.replace(directory / CDI_NAME)
