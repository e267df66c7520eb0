"""The paths of a simulated GPU's files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from scrubber.core.model import DeviceInfo
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import documents

NAME = "simulated"  # of the backend


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__, and creating paths is slow for the monitor
class GpuFiles:
    """The directory of one simulated GPU."""

    directory: Path

    @cached_property
    def memory(self) -> Path:
        """The sparse file that is the device memory."""
        return self.directory / "memory"

    @cached_property
    def chip(self) -> Path:
        """The file that is the on-chip memory of all units; GPUs of an older version have none."""
        return self.directory / "scratch"

    @cached_property
    def device(self) -> Path:
        """The description of the device."""
        return self.directory / "device.json"

    @cached_property
    def settings(self) -> Path:
        """The settings in force."""
        return self.directory / "settings.json"

    @cached_property
    def baseline(self) -> Path:
        """The settings that should be in force."""
        return self.directory / "baseline.json"

    @cached_property
    def counters(self) -> Path:
        """The error counters."""
        return self.directory / "counters.json"

    @cached_property
    def readings(self) -> Path:
        """The sensor values; GPUs of an older version have none."""
        return self.directory / "readings.json"

    @cached_property
    def faults(self) -> Path:
        """The injected faults."""
        return self.directory / "faults.json"

    @cached_property
    def events(self) -> Path:
        """The driver's error events, one a line: the XID, and the uptime at which it was reported."""
        return self.directory / "events.log"

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


@lru_cache(maxsize=4096)
def _place(root: Path, name: str) -> GpuFiles:
    return GpuFiles(root / name)


def service_lock(root: Path) -> int | None:
    """Take the lock of the service of these GPUs; None if another service has it."""
    lock = os.open(root / "service.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
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
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
