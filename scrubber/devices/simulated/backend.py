"""The backend of simulated GPUs."""

from __future__ import annotations

import fcntl
import math
import os
import select
import struct
import termios
import threading
from array import array
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from asyncinotify import Inotify, Mask

from ground import log
from scrubber.core.model import DeviceInfo, Vitals
from scrubber.devices.base import Address, DeviceError, DeviceHandling, DeviceLostError, Readings
from scrubber.devices.simulated import containers, layout, open_check
from scrubber.devices.simulated.layout import Driver, GpuFiles
from scrubber.devices.simulated.users import Users
from scrubber.node import clock
from scrubber.node.cgroups import GROUPS, Containers

logger = log.get("simulated")

_REPORT = struct.Struct("iIII")  # of inotify about a file: the number of the watch, what happened, and two zeros
_MOST = 64 * 1024  # bytes for each read of the alarm; the events themselves are not used


class Simulated:
    """The backend of GPUs made of files under one root."""

    name: str = layout.NAME
    pace: float = 1.0

    def __init__(self, root: Path, groups: Path = GROUPS, lock: int | None = None) -> None:
        """The first call reads the GPUs under ``root``. ``groups``: where the node's control groups are mounted.

        ``lock``: the descriptor that holds the lock of the service of these GPUs, until ``close``.
        """
        self._root = root
        self._pods = Containers(containers.PROC, groups=groups)
        self._driver_file = layout.driver_file(root)
        self._known: dict[str, tuple[GpuFiles, DeviceInfo]] = {}
        self._alarm: Inotify | None = None
        self._lock = lock
        self._writers = Writers()
        self._users = Users(containers.PROC)

    def lacks(self, device: DeviceInfo) -> str | None:  # noqa: ARG002 - the port's
        """Nothing is missing."""
        return None

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """All devices that are present or were present, also a known device that cannot be read any more."""
        known = dict(self._known)
        trusted = {place for place, _ in known.values()}
        for place in layout.places(self._root):
            try:
                info = place.info()
            except DeviceError:
                if place not in trusted:
                    raise
                continue
            known[info.uuid] = (place, info)
        self._known = known  # replaced at once: several threads call this
        return tuple(sorted((info for _, info in known.values()), key=lambda info: info.index))

    def driver(self) -> str:
        """Version and instance of the simulated driver."""
        driver = layout.read(self._driver_file, Driver)
        return f"{self.name} {driver.version} {driver.instance}"

    def has_holders(self, uuid: str) -> bool | None:
        """Exact while the device answers: the kernel knows whether its memory file is open."""
        place = self._present(uuid)
        return _in_use(place, lost=layout.faults(place).lost)

    def listed_holders(self, uuid: str) -> frozenset[int]:
        """Those that have its memory file or that of its chip open; not complete while one of them has."""
        return self._users.listed(uuid, self.files(uuid))

    def last_use(self, uuid: str, own: Collection[int]) -> float:  # noqa: ARG002 - the port's
        """Exact: the kernel tells when a process that could write to the device has closed it."""
        return self._writers.last_left(self.files(uuid))

    def memory(self, uuid: str) -> None:
        """None: nothing but the memory itself takes memory."""

    def vitals(self, uuid: str) -> Vitals:
        """The health in the device's files now."""
        return layout.vitals(self._present(uuid))

    def quick_observation(self, uuid: str) -> tuple[Vitals, bool | None]:
        """Vitals and holders; each file is read once."""
        place = self._present(uuid)
        found = layout.vitals(place)
        return found, _in_use(place, lost=found.lost)

    def reported(self, uuid: str) -> Vitals | None:
        """The XIDs in its event log, also while the device hangs."""
        return Vitals(xids=layout.xids(self._present(uuid)), partial=True)

    def readings(self) -> dict[str, Readings]:
        """The sensor values in the GPUs' documents."""
        found: dict[str, Readings] = {}
        for place in layout.places(self._root):
            with suppress(DeviceError):
                found[place.info().uuid] = layout.readings(place)
        return found

    def files(self, uuid: str) -> tuple[str, ...]:
        """The files of the memory and of the memory on the chip."""
        return _files(self._place(uuid))

    def reach(self, uuid: str) -> tuple[str, ...]:
        """The paths of the device alone: a reset affects no other device."""
        return self.files(uuid)

    def address(self, uuid: str, handling: DeviceHandling) -> Address:  # noqa: ARG002 - the port's
        """The device's directory."""
        return Address(self.name, str(self._place(uuid).directory))

    def container_of(self, pid: int) -> str | None:
        """The simulated container that a process belongs to."""
        return containers.of(pid, self._pods, containers.node_of(self._root))

    def living(self) -> dict[str, int]:
        """The simulated containers that have a live process, each with one of its processes."""
        return containers.living(self._pods, containers.node_of(self._root))

    def member(self, container: str) -> int | None:
        """A process of the pod, by the pod's control group. Of a container with a mark, only ``living`` finds one."""
        return self._pods.member(container)

    def pending_restores(self) -> dict[str, Address]:
        """None: a reset leaves nothing to restore."""
        return {}

    def in_reset(self, uuid: str) -> bool:  # noqa: ARG002 - the port's
        """Never: a reset ends with its worker."""
        return False

    def alarm(self) -> int | None:
        """A watch of the GPUs' documents and event logs; None if this user has too many inotify watches."""
        try:
            self._alarm = self._alarm or _watch(layout.places(self._root))
        except (OSError, DeviceError) as error:
            logger.warning("cannot watch the simulated GPUs: the monitor polls them", error=str(error))
            return None
        return self._alarm.fd

    def clear_alarm(self) -> None:
        """Reset the alarm until the next change."""
        if self._alarm is None:
            return
        poll = select.poll()
        poll.register(self._alarm.fd, select.POLLIN)
        while poll.poll(0):
            os.read(self._alarm.fd, _MOST)

    def close(self) -> None:
        """Close the alarm, stop watching the memory, and release the lock: the next service may use the GPUs."""
        if self._alarm is not None:
            self._alarm.close()
        self._writers.close()
        if self._lock is not None:
            os.close(self._lock)
        self._alarm = self._lock = None

    def release_driver(self) -> None:
        """Files need no driver."""

    def reacquire_driver(self) -> None:
        """Files need no driver."""

    def _place(self, uuid: str) -> GpuFiles:
        known = self._known.get(uuid)
        return layout.find(self._root, uuid) if known is None else known[0]

    def _present(self, uuid: str) -> GpuFiles:
        place = self._place(uuid)
        if place.info().uuid != uuid:
            raise DeviceLostError(f"cannot read {uuid}: another GPU has replaced it")
        return place


class Writers:
    """When a process that is no worker of the service last closed a memory file that it could write to.

    The kernel reports it when the last use of the opened file ends: a descriptor, a mapping, a message in transit. The
    kernel's answer whether a file is open and this report together show each use, however short it is. The kernel does
    not say who closed the file, so the closes that workers have counted (``layout.closes``) are subtracted.

    The kernel drops what does not fit into a queue, and joins equal reports that follow each other. So one queue has
    the memory of all GPUs, and another one their memory on the chip: the owner of one GPU can fill neither. More queues
    would be dear: the programs of a user share 128 inotify instances.
    """

    def __init__(self) -> None:
        """Nothing is watched yet. A file is watched from the first question about it."""
        self._turn = threading.Lock()
        self._queues: dict[str, tuple[Inotify, dict[int, Path]]] = {}  # by file name: the files by number of the watch
        self._watched: set[Path] = set()
        self._left: dict[Path, float] = {}  # by the directory of a GPU
        self._closes: dict[Path, int] = {}  # how many closes the kernel has reported, and those before the watch
        self._refused = ""

    def last_left(self, files: Collection[str]) -> float:
        """The uptime at which it was noticed that a process had closed one of these files; minus infinity before."""
        paths = [Path(file) for file in files]
        with self._turn:
            try:
                for path in paths:
                    if path not in self._watched:
                        self._watch(path)
                self._read()
            except OSError as error:
                if str(error) != self._refused:
                    self._refused = str(error)
                    logger.warning(
                        "cannot watch the memory of simulated GPUs: a short use is not seen", error=str(error)
                    )
            return max((self._left.get(path.parent, -math.inf) for path in paths), default=-math.inf)

    def close(self) -> None:
        """Stop watching."""
        with self._turn:
            for queue, _ in self._queues.values():
                queue.close()
            self._queues, self._watched = {}, set()

    def _watch(self, path: Path) -> None:
        if path.name not in self._queues:
            self._queues[path.name] = Inotify(), {}
        queue, files = self._queues[path.name]
        self._closes.setdefault(path.parent, layout.closes(path.parent))
        counter = layout.GpuFiles(path.parent).closes
        layout.count_closes(path.parent, 0)
        for file in (counter, path):  # between the closes of workers, the counter's report keeps theirs apart
            files[queue.add_watch(file, Mask.CLOSE_WRITE).wd] = file
        self._watched.add(path)

    def _read(self) -> None:
        used = set[Path]()
        reported = False
        for queue, files in self._queues.values():
            for number, mask, *_ in _reports(queue):
                reported, file = True, files.get(number)
                if file is None:  # reports were lost: they may be of any file
                    used |= self._closes.keys()
                elif mask & Mask.IGNORED:  # the file is gone, and another one of its name is not watched
                    used.add(file.parent)
                    self._watched.discard(file)
                    del files[number]
                elif file in self._watched:
                    self._closes[file.parent] += 1
        # Counted after the reports were read: a worker counts before it closes, so no reported close is missing.
        counted = {gpu: layout.closes(gpu) for gpu in self._closes} if reported else {}
        for gpu in used | {gpu for gpu, count in counted.items() if self._closes[gpu] > count}:
            self._left[gpu], self._closes[gpu] = clock.now().uptime, counted[gpu]


def _reports(queue: Inotify) -> Iterable[tuple[int, ...]]:
    """The reports that wait now, and no more: a tenant may cause reports faster than they can be read."""
    waiting = array("i", [0])
    fcntl.ioctl(queue.fd, termios.FIONREAD, waiting)
    return _REPORT.iter_unpack(os.read(queue.fd, waiting[0]) if waiting[0] else b"")


def _in_use(place: GpuFiles, *, lost: bool) -> bool | None:
    try:
        return None if lost else open_check.is_open(_files(place))
    except open_check.RefusedError:
        return None


def _files(place: GpuFiles) -> tuple[str, ...]:
    return str(place.memory), str(place.chip)


def _watch(places: Iterable[GpuFiles]) -> Inotify:
    """A watch over all present GPUs: a rename replaces a document, or a line is appended to the event log.

    Changes of their memory do not count.
    """
    watch = Inotify()
    for place in places:
        watch.add_watch(place.directory, Mask.MOVED_TO | Mask.ONLYDIR)
        if place.events.exists():  # without it, ``vitals`` fails
            watch.add_watch(place.events, Mask.MODIFY)
    return watch
