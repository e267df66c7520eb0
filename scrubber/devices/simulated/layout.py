"""The files of simulated GPUs: how they are made, and what they say of faults, memory, driver and vitals.

A document is a small JSON file, which is replaced atomically and read strictly. One that is missing, incomplete or
unexpected is a ``DeviceError``, never a healthy default.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

from ground import private_files
from ground.documents import strict_json
from scrubber.core.model import AilmentKind, DeviceInfo, Sign, Vitals, Xid
from scrubber.devices.base import DeviceError, DeviceLostError, Readings
from scrubber.devices.simulated import loops, open_check
from scrubber.fence.numbers import number_of

MODEL = "Simulated GPU"  # by which others know it
NAME = "simulated"  # of the backend
UNITS = 8  # that compute
UNIT_BYTES = 128 * 1024  # on-chip memory of each
DEFAULT_MEMORY_BYTES = 64 * 2**20
DRIVER_VERSION = "1.0"
CDI_NAME = "autoclave-simulated.json"
_CDI_VERSION = "0.6.0"
_CDI_KIND = "nvidia.com/gpu"  # the kind in the answers of the device plugin, unless --cdi-kind says something else
CDI_SEEN_AS = "/dev/simulated-gpu{index}"  # the memory, as a container sees it

T = TypeVar("T")
_PIECE = 64 * 1024  # bytes for each read
_POLL_SECONDS = 0.02  # a blocked call notices after this time that its fault was healed


@dataclass(frozen=True, slots=True)
class Driver:
    """The simulated driver; it gets a new instance id when it is loaded again."""

    instance: str
    version: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """The settings that a pod may have changed. The defaults are the settings after a reset."""

    graphics_clock_mhz: int = 1410
    memory_clock_mhz: int = 1593
    power_limit_watts: int = 400
    compute_mode: str = "default"
    persistence: bool = False
    ecc: bool = True


# Different from the settings after a reset, so that the settings step always has a setting to restore.
FIRST_SEEN = SimulatedSettings(power_limit_watts=350, persistence=True)


@dataclass(frozen=True, slots=True)
class Counters:
    """What the device has counted since its last reset."""

    ecc_uncorrectable: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    leaked_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The sensor values of the device."""

    celsius: float = 41.0
    slowdown_celsius: float = 90.0
    watts: float = 75.0


class Resetting(Enum):
    """How a reset behaves."""

    WORKS = "works"
    REFUSED = "refused"
    SLOW = "slow"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class StuckBit:
    """A memory cell that always reads one."""

    offset: int
    bit: int


@dataclass(frozen=True, slots=True)
class Faults:
    """The injected faults."""

    lost: bool = False
    hang: bool = False
    stall_clears: bool = False
    skip_clears: bool = False  # what a clear writes is lost: it must find that, or verify
    reset: Resetting = Resetting.WORKS
    reset_seconds: float = 0.0
    stuck_bits: tuple[StuckBit, ...] = ()
    bad_units: tuple[int, ...] = ()  # units that compute wrong results
    skip_scratch: bool = False  # what scratch writes is lost: it must find that
    signs: tuple[Sign, ...] = ()  # reported until the device is healed


Document = Driver | SimulatedSettings | Counters | Measured | Faults | DeviceInfo


def read(path: Path, kind: type[T]) -> T:
    """The document in a file; DeviceError unless it has exactly the fields of ``kind``."""
    try:
        return cast("T", _decoded(cast("type", kind), contents(path)))
    except OSError as error:
        raise DeviceError(f"cannot read {path.name} of {path.parent.name}: {error}") from error
    except ValueError as error:  # nothing forces a document to the disk: a power cut may empty it
        anew = f"{path}: the driver is loaded anew" if kind is Driver else f"{path.parent}: another GPU takes its place"
        raise DeviceError(
            f"cannot read {path.name} of {path.parent.name}: {error}; if a power cut has damaged it, or another "
            f"version has written it, stop the service, remove {anew} at the next start"
        ) from error


def contents(path: Path) -> bytes:
    """The content of a small file, with three system calls: the monitor reads many of them often."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        text = part = os.read(handle, _PIECE)
        while len(part) == _PIECE:
            part = os.read(handle, _PIECE)
            text += part
        return text
    finally:
        os.close(handle)


@lru_cache(maxsize=4096)
def _decoded(kind: type, text: bytes) -> object:
    # The monitor reads each document each second. The cache key is the content, not the times: two writes within one
    # clock tick can leave the same inode, size and time, and then a fault would be read as healthy.
    return strict_json.build(kind, strict_json.parse(text))


def write(path: Path, document: Document) -> None:
    """Replace a document atomically: a reader sees either the old or the new one."""
    private_files.replace(path, strict_json.encode(document, indent=2), durable=False)


class GpuFiles:
    """The files of one simulated GPU, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        """Paths only: no file is opened."""
        self.directory = directory
        self.memory = directory / "memory"  # the device memory: a sparse file, or the node of a loop device ...
        self.cells = directory / "cells"  # ... over this one
        self.chip = directory / "scratch"  # the on-chip memory of all units
        self.device = directory / "device.json"  # the description of the device
        self.settings = directory / "settings.json"  # the settings in force
        self.first_seen = directory / "baseline.json"  # the settings that should be in force
        self.counters = directory / "counters.json"  # the error counters
        self.readings = directory / "readings.json"  # the sensor values
        self.faults = directory / "faults.json"  # the injected faults
        self.events = directory / "events.log"  # the driver's errors, one a line: the XID, and the uptime of its report
        self.closes = directory / "closes"  # has one byte for each time that a worker closed a memory file

    def info(self) -> DeviceInfo:
        """The description of the device."""
        return replace(read(self.device, DeviceInfo), simulated=True)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a memory file, with its owner and mode restored: its tenant may change them, as those of any file.

    The lock lets nobody ask the kernel who has the file open (``open_check``) while a worker opens or closes it.

    The close is counted, so that it is told from that of another process (``simulated_backend.Writers``). The counter
    is closed before and after it: so the kernel does not join its report with that of another close.
    """
    with private_files.locked(path.parent):
        handle = _opened(path)
    try:
        yield handle
    finally:
        with ExitStack() as unlocking:
            try:
                unlocking.enter_context(private_files.locked(path.parent))
                with suppress(OSError):  # another process has it open, such as a bystander: its own close is told apart
                    open_check.keep_others_out(handle)
                with suppress(OSError):
                    count_closes(path.parent, 1)
            finally:
                os.close(handle)  # also without the lock: this process would count as a holder as long as it runs
            with suppress(OSError):
                count_closes(path.parent, 0)


def count_closes(directory: Path, more: int) -> None:
    """Count so many more closes, and create the counter if it is missing. To close the counter is reported, too."""
    counter = private_files.opened(GpuFiles(directory).closes, os.O_WRONLY | os.O_CREAT)
    try:
        os.ftruncate(counter, os.fstat(counter).st_size + more)
    finally:
        os.close(counter)


def closes(directory: Path) -> int:
    """How often workers have closed a memory file of the GPU in this directory. A close is counted before it is done.

    Not counted: the close of a worker that was killed.
    """
    try:
        return GpuFiles(directory).closes.stat().st_size
    except FileNotFoundError:
        return 0


def _opened(path: Path) -> int:
    made = path.parent.stat()  # no tenant sees the directory
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(handle, made.st_uid, made.st_gid)
        os.fchmod(handle, private_files.PRIVATE_FILE)
    finally:
        os.close(handle)
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


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
    return private_files.try_lock(root / "service.lock")


def find(root: Path, uuid: str) -> GpuFiles:
    """The GPU with this UUID."""
    for place in places(root):
        if place.info().uuid == uuid:
            return place
    raise DeviceLostError(f"cannot find {uuid}: no simulated GPU has this UUID under {root}")


def faults(place: GpuFiles) -> Faults:
    """The current faults. While the device hangs, this call blocks, as a driver call does."""
    while (current := read(place.faults, Faults)).hang:
        time.sleep(_POLL_SECONDS)
    return current


def wait_for_reset(place: GpuFiles, seconds: float) -> None:
    """Block for so long, or until the GPU is healed."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and read(place.faults, Faults).reset_seconds:
        time.sleep(_POLL_SECONDS)


def stall(place: GpuFiles, meanwhile: Callable[[], None]) -> None:
    """Block while the fault ``stall_clears`` is set, and call ``meanwhile`` again and again."""
    while read(place.faults, Faults).stall_clears:
        meanwhile()
        time.sleep(_POLL_SECONDS)


def vitals(place: GpuFiles) -> Vitals:
    """The health, from the counters, the faults and the event log."""
    injected = faults(place)
    counters = read(place.counters, Counters)
    hot, limit = (measured := read(place.readings, Measured)).celsius, measured.slowdown_celsius
    heat = (Sign(AilmentKind.HEAT, f"it has {hot:.0f} degrees Celsius, and lowers its clocks from {limit:.0f} on"),)
    return Vitals(
        lost=injected.lost,
        xids=xids(place),
        ecc_uncorrectable=counters.ecc_uncorrectable,
        remap_pending=counters.remap_pending,
        remap_failed=counters.remap_failed,
        leaked_bytes=counters.leaked_bytes,
        signs=injected.signs + (heat if hot >= limit else ()),
    )


def readings(place: GpuFiles) -> Readings:
    """The sensor values."""
    if faults(place).lost:
        raise DeviceLostError(f"cannot read the sensors of {place.directory.name}: it has fallen off the bus")
    measured = read(place.readings, Measured)
    return Readings(place.info().index, measured.celsius, measured.slowdown_celsius, measured.watts)


def xids(place: GpuFiles) -> tuple[Xid, ...]:
    """The events in the log; DeviceError if a line is incomplete or cannot be parsed."""
    try:
        return _numbered(contents(place.events))
    except (OSError, OverflowError, ValueError) as error:  # ValueError: also a line with too many words
        raise DeviceError(f"cannot read events.log of {place.directory.name}: {error}") from error


def _numbered(text: bytes) -> tuple[Xid, ...]:
    *lines, rest = text.decode().split("\n")
    if rest:
        raise ValueError("the last line is not complete")
    events: list[Xid] = []
    for line in lines:
        code, at = line.split(" ") if " " in line else (line, "0")
        # The number follows from the time, as with a real driver, so numbers still rise after a new log begins.
        number = max(events[-1].number + 1 if events else 1, int(float(at) * 1e6))
        events.append(Xid(number, int(code), float(at)))
    return tuple(events)


def create(root: Path, count: int, memory_bytes: int = DEFAULT_MEMORY_BYTES, boot_id: str = "") -> None:
    """Create the missing GPUs; existing GPUs keep their memory, names and faults.

    A new boot id simulates a reboot: the driver gets a new instance, and volatile state is reset.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with private_files.locked(root):  # not through a link
        root.chmod(0o700)
        driver = driver_file(root)
        if not driver.exists() or read(driver, Driver).boot_id != boot_id:
            load_driver(root, boot_id)
            for place in places(root):
                _reboot(place)
        for index in range(count):
            if not (root / f"gpu{index}").exists():
                _make(root, index, memory_bytes)


def make_nodes(root: Path) -> str:
    """Make the memory of each GPU a device node, where this user can. Empty, or why one stays a file."""
    return next(filter(None, [_make_node(place) for place in places(root)]), "")


def _make_node(place: GpuFiles) -> str:
    try:
        size = place.info().memory_bytes
        if not loops.can_attach(size) or loops.leads_to(place.memory, place.cells):
            return ""
        if not place.memory.is_block_device():
            place.memory.rename(place.cells)
        os.truncate(place.cells, size)  # a tenant may have made it smaller or larger while it was a file
        loops.attach(place.cells, place.memory)
    except DeviceError:
        return ""  # its description is damaged: who reads it next says so
    except OSError as error:
        with suppress(FileNotFoundError):
            place.cells.rename(place.memory)
        return str(error)
    return ""


def remove_node(place: GpuFiles) -> None:
    """Make the memory of a GPU a file again."""
    if not place.memory.is_block_device():
        return
    if loops.leads_to(place.memory, place.cells):
        loops.detach(place.memory)
    place.cells.rename(place.memory)


def load_driver(root: Path, boot_id: str = "") -> None:
    """Load the simulated driver again: proofs of the old instance are no longer valid."""
    write(driver_file(root), Driver(uuid.uuid4().hex, DRIVER_VERSION, boot_id))


def _reboot(place: GpuFiles) -> None:
    """Reset counters and error events; a failed row remap stays, and so do faults."""
    with private_files.locked(place.directory):
        counters = read(place.counters, Counters)
        write(place.counters, Counters(remap_failed=counters.remap_failed))
        write(place.settings, SimulatedSettings())
        events = private_files.opened(place.events, os.O_WRONLY)
        os.ftruncate(events, 0)  # not O_TRUNC, which would come before the check
        os.close(events)


def _make(root: Path, index: int, memory_bytes: int) -> None:
    # Created under another name and renamed: no reader sees an incomplete GPU.
    place = GpuFiles(root / f".gpu{index}.{uuid.uuid4().hex}")
    place.directory.mkdir(mode=0o700)
    place.memory.touch(mode=0o600)
    os.truncate(place.memory, memory_bytes)
    handle = private_files.opened(place.chip, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(handle, UNITS * UNIT_BYTES)
    os.close(handle)
    place.events.touch(mode=0o600)
    info = DeviceInfo(uuid=f"GPU-{uuid.uuid4()}", index=index, model=MODEL, memory_bytes=memory_bytes)
    write(place.device, info)
    write(place.settings, FIRST_SEEN)
    write(place.first_seen, FIRST_SEEN)
    write(place.counters, Counters())
    write(place.readings, Measured())
    write(place.faults, Faults())
    place.directory.rename(root / f"gpu{index}")


def cdi_specification(gpus: Iterable[GpuFiles]) -> dict[str, object]:
    """With this specification a container runtime shows a pod the memory of its GPU, which is named by its UUID."""
    devices: list[dict[str, object]] = []
    for gpu in gpus:
        info = gpu.info()
        seen_as, number = CDI_SEEN_AS.format(index=info.index), number_of(gpu.memory)
        edits: dict[str, object]
        if number is not None:
            node = {"type": "b", "major": number.major, "minor": number.minor, "permissions": "rw"}
            edits = {"deviceNodes": [{"path": seen_as, **node}]}
        else:
            options = ["bind", "rw", "nosuid", "noexec"]
            edits = {"mounts": [{"hostPath": str(gpu.memory), "containerPath": seen_as, "options": options}]}
        devices.append({"name": info.uuid, "containerEdits": edits})
    return {"cdiVersion": _CDI_VERSION, "kind": _CDI_KIND, "devices": devices}


def write_cdi(directory: Path, gpus: Iterable[GpuFiles]) -> None:
    """Replace the specification in this directory. A container runtime never reads half of it."""
    path, text = directory / CDI_NAME, json.dumps(cdi_specification(gpus), indent=1)
    private_files.remove_leftovers(path)
    private_files.replace(path, text.encode(), private_files.READABLE_FILE)
