"""Create simulated GPUs and their driver."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from scrubber.core.model import DeviceInfo
from scrubber.devices.simulated import chip, documents, layout
from scrubber.devices.simulated.documents import Counters, Driver, Faults, Measured, SimulatedSettings
from scrubber.devices.simulated.layout import GpuFiles
from scrubber.ground import private_files

DEFAULT_MEMORY_BYTES = 64 * 2**20
DRIVER_VERSION = "1.0"
# Different from the settings after a reset, so that the settings step always has a setting to restore.
BASELINE = SimulatedSettings(power_limit_watts=350, persistence=True)


def create(root: Path, count: int, memory_bytes: int = DEFAULT_MEMORY_BYTES, boot_id: str = "") -> None:
    """Create the missing GPUs; existing GPUs keep their memory, names and faults.

    A new boot id simulates a reboot: the driver gets a new instance, and volatile state is reset.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with layout.locked(root):  # not through a link
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
    documents.write(layout.driver_file(root), Driver(uuid.uuid4().hex, DRIVER_VERSION, boot_id))


def _same_boot(root: Path, boot_id: str) -> bool:
    file = layout.driver_file(root)
    return file.exists() and documents.read(file, Driver).boot_id == boot_id


def _reboot(place: GpuFiles) -> None:
    """Reset counters and error events; a failed row remap stays, and so do faults."""
    with layout.locked(place.directory):
        counters = documents.read(place.counters, Counters)
        documents.write(place.counters, Counters(remap_failed=counters.remap_failed))
        documents.write(place.settings, SimulatedSettings())
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
    documents.write(place.device, info)
    documents.write(place.settings, BASELINE)
    documents.write(place.baseline, BASELINE)
    documents.write(place.counters, Counters())
    documents.write(place.readings, Measured())
    documents.write(place.faults, Faults())
    place.directory.rename(root / f"gpu{index}")
