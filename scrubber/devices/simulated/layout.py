"""The paths of a simulated GPU's files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from scrubber.core.model import DeviceInfo
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import documents
from scrubber.ground import private_files

NAME = "simulated"  # of the backend


class GpuFiles:
    """The files of one simulated GPU, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        """Paths only: no file is opened."""
        self.directory = directory
        self.memory = directory / "memory"  # the sparse file that is the device memory
        self.chip = directory / "scratch"  # the on-chip memory of all units
        self.device = directory / "device.json"  # the description of the device
        self.settings = directory / "settings.json"  # the settings in force
        self.baseline = directory / "baseline.json"  # the settings that should be in force
        self.counters = directory / "counters.json"  # the error counters
        self.readings = directory / "readings.json"  # the sensor values
        self.faults = directory / "faults.json"  # the injected faults
        self.events = directory / "events.log"  # the driver's errors, one a line: the XID, and the uptime of its report

    def info(self) -> DeviceInfo:
        """The description of the device."""
        return documents.read(self.device, DeviceInfo)


def driver_file(root: Path) -> Path:
    """The document of the driver, which all GPUs under a root share."""
    return root / "driver.json"


def places(root: Path) -> tuple[GpuFiles, ...]:
    """All GPUs under a root, sorted by directory name; none if the root does not exist."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.name.startswith("gpu") and entry.is_dir())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DeviceError(f"cannot list the simulated GPUs under {root}: {error.strerror}") from error
    return tuple(_place(root, name) for name in names)


@lru_cache(maxsize=4096)  # creating paths is slow for the monitor
def _place(root: Path, name: str) -> GpuFiles:
    return GpuFiles(root / name)


def service_lock(root: Path) -> int | None:
    """Take the lock of the service of these GPUs; None if another service has it."""
    lock = private_files.opened(root / "service.lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def find(root: Path, uuid: str) -> GpuFiles:
    """The GPU with this UUID."""
    for place in places(root):
        if place.info().uuid == uuid:
            return place
    raise DeviceError(f"cannot find {uuid}: no simulated GPU has this UUID under {root}")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a directory's documents against all other processes, to read, change and write them."""
    handle = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
