"""The node of simulated GPUs: lists them, reads their health, and says who holds their files open."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import termios
import threading
from array import array
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from asyncinotify import Inotify, Mask

from ground import log
from scrubber.core.model import DeviceInfo, DeviceNumber, Vitals
from scrubber.core.use_counter import Counted, Missed, NoUseCounter, UseCounter, UseReading
from scrubber.devices import shortage
from scrubber.devices.base import UNSHOWN, Address, DeviceError, DeviceHandling, DeviceLostError, OpenFiles, Readings
from scrubber.devices.simulated import containers, layout, open_check
from scrubber.devices.simulated.layout import Driver, GpuFiles
from scrubber.fence.numbers import number_of
from scrubber.node.group_places import GROUPS
from scrubber.node.node_containers import Containers
from scrubber.node.open_files import Search, Timer, TooSlowError, separate_tables
from scrubber.node.proc import ENDED, descends, user
from scrubber.node.processes import EACH_WITHIN, Processes

logger = log.get("simulated")

_REPORT = struct.Struct("iIII")  # of inotify about a file: the number of the watch, what happened, and two zeros
_LOOKS = 4  # while the memory is open and no process shows it: a user may fork all the time
_MOST = 64 * 1024  # bytes for each read of the alarm; the events themselves are not used
_NO_INOTIFY = {
    errno.EMFILE: "its user has no inotify instance left: raise sysctl fs.inotify.max_user_instances",
    errno.ENOSPC: "its user has no inotify watch left: raise sysctl fs.inotify.max_user_watches",
}


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
        self._hidden: frozenset[Path] = frozenset()  # the directories of GPUs that this process could not open
        self._alarm: Inotify | None = None
        self._lock = lock
        self._writers = Writers()
        self._users = Users(containers.PROC)

    def lacks(self, device: DeviceInfo) -> str | None:  # noqa: ARG002 - the port's
        """Nothing is missing."""
        return None

    def open_driver(self) -> None:
        """Open each GPU that is a device node, as NVML does when it starts: it never lists one that it could not open.

        DeviceError if it could open none.
        """
        nodes = [place for place in layout.places(self._root) if place.memory.is_block_device()]
        hidden = [place for place in nodes if not _opens(place)]
        if nodes and len(hidden) == len(nodes):
            raise DeviceError("the simulated driver lists no GPU: this process may open none")
        self._hidden = frozenset(place.directory for place in hidden)

    def inventory(self) -> tuple[DeviceInfo, ...]:
        """All devices that are present or were present, also a known device that cannot be read any more."""
        devices = dict(self._known)
        trusted = {place for place, _ in devices.values()}
        for place in layout.places(self._root):
            if place.directory in self._hidden:
                continue
            try:
                info = place.info()
            except DeviceError:
                if place not in trusted:
                    raise
                continue
            devices[info.uuid] = (place, info)
        self._known = devices  # replaced at once: several threads call this
        return tuple(sorted((info for _, info in devices.values()), key=lambda info: info.index))

    def driver(self) -> str:
        """Version and instance of the simulated driver."""
        driver = layout.read(self._driver_file, Driver)
        return f"{self.name} {driver.version} {driver.instance}"

    def has_holders(self, uuid: str) -> bool | None:
        """Exact for files while the device answers: the kernel knows whether one is open."""
        place = self._present(uuid)
        return _in_use(place, lost=layout.faults(place).lost)

    def listed_holders(self, uuid: str) -> frozenset[int]:
        """Those that have its memory file or that of its chip open; not complete while one of them has."""
        return self._users.listed(uuid, _driven(self._place(uuid)))

    def read_uses(self, uuid: str) -> UseReading:
        """Exact for files: the kernel tells when a process that could write to the device has closed it."""
        if self.numbers(uuid):
            return NoUseCounter("no fence counts who opens its device node")
        return self._writers.uses(self.files(uuid))

    def open_files(self, uuid: str) -> OpenFiles:
        """The kernel says whether one is open, not how many: beside a process that shows one, nothing is known."""
        return self._users.open_files(uuid, self.files(uuid))

    def numbers(self, uuid: str) -> frozenset[DeviceNumber]:
        """That of its memory, where this is a device node."""
        try:
            number = number_of(self._place(uuid).memory)
        except OSError:
            return frozenset()
        return frozenset() if number is None else frozenset({number})

    def memory(self, uuid: str) -> None:
        """None: nothing but the memory itself takes memory."""

    def vitals(self, uuid: str) -> Vitals:
        """The health in the device's files now."""
        return layout.vitals(self._present(uuid))

    def quick_observation(self, uuid: str) -> tuple[Vitals, bool | None]:
        """Vitals and holders; each file is read once."""
        place = self._present(uuid)
        health = layout.vitals(place)
        return health, _in_use(place, lost=health.lost)

    def reported(self, uuid: str) -> Vitals | None:
        """The XIDs in its event log, also while the device hangs."""
        return Vitals(xids=layout.xids(self._present(uuid)), partial=True)

    def readings(self) -> dict[str, Readings]:
        """The sensor values in the GPUs' documents."""
        readings: dict[str, Readings] = {}
        for place in layout.places(self._root):
            with suppress(DeviceError):
                readings[place.info().uuid] = layout.readings(place)
        return readings

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

    def living(self, wanted: Collection[str] = ()) -> dict[str, int]:
        """The simulated containers that have a live process, each with one of its processes.

        ``wanted``: these are enough, if all of them live.
        """
        return containers.living(self._pods, containers.node_of(self._root), wanted)

    def member(self, container: str) -> int | None:
        """A process of the pod, by the pod's control group. Of a container with a mark, only ``living`` finds one."""
        return self._pods.member(container)

    def has_ended(self, container: str) -> bool:
        """Whether no process is left in the pod's control group. Of a container with a mark, only ``living`` tells."""
        return self._pods.has_ended(container)

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
        device = self._known.get(uuid)
        return layout.find(self._root, uuid) if device is None else device[0]

    def _present(self, uuid: str) -> GpuFiles:
        place = self._place(uuid)
        if place.info().uuid != uuid:
            raise DeviceLostError(f"cannot read {uuid}: another GPU has replaced it")
        return place


class Users:
    """Who uses the memory of each simulated GPU: the list that its driver keeps. This process is none.

    The kernel says whether a process has the memory open (``open_check``), and a search of /proc says which. While one
    of those that were found has it open, another process that opens it meanwhile may be missing from the list. Only a
    list that names nobody but workers of this service is complete: a worker must not hide who comes beside it.
    """

    def __init__(self, proc: Path) -> None:
        """None is known yet."""
        self._proc = proc
        self._known: dict[str, frozenset[int]] = {}  # by GPU
        self._processes = Processes(proc, lambda _pid: None, whole_node=False)
        self._turn = threading.Lock()  # one search at a time

    def listed(self, uuid: str, files: Sequence[str]) -> frozenset[int]:
        """Workers as well; DeviceError if a process has the memory open and none shows it. No file: no user."""
        files = [file for file in files if os.path.exists(file)]  # noqa: PTH110 -- backends return paths as text
        pids = self._those_with(files, self._known.get(uuid, ()))
        if not self._names_others(pids):
            found = self.open_files(uuid, files)
            if found.unshown:
                raise DeviceError(_hidden(uuid, files) if os.geteuid() else UNSHOWN)
            pids = found.shown_by
        self._known[uuid] = pids
        return pids

    def open_files(self, uuid: str, files: Sequence[str]) -> OpenFiles:
        """Whether one of these files is open, and who shows it: workers as well. Raises RefusedError."""
        for _ in range(_LOOKS):
            if not open_check.is_open(files):
                return OpenFiles(0, frozenset())
            with self._turn:
                holders = self._processes.holders({uuid: files})[uuid]
            if holders:
                return OpenFiles(None, frozenset(holder.pid for holder in holders))
        return OpenFiles(1, frozenset())

    def _names_others(self, pids: Iterable[int]) -> bool:
        return any(not descends(self._proc, pid, {os.getpid()}) for pid in pids)

    def _those_with(self, files: Sequence[str], among: Collection[int]) -> frozenset[int]:
        if not among:
            return frozenset()
        search = Search({"": files})
        return frozenset(pid for pid in among if pid != os.getpid() and self._has_open(search, pid))

    def _has_open(self, search: Search, pid: int) -> bool:
        timer = Timer(EACH_WITHIN)
        # A process that we may not read cannot open the files either. One that takes too long is searched for again.
        with suppress(*ENDED, PermissionError, TooSlowError):
            return any(search.held_by(task, timer) for task in separate_tables(f"{self._proc}/{pid}", timer))
        return False


class Writers:
    """How often a process that is no worker of the service has closed a memory file that it could write to.

    The kernel reports it when the last use of the opened file ends: a descriptor, a mapping, a message in transit. The
    kernel's answer whether a file is open and this report together show each use, however short it is. The kernel does
    not say who closed the file, so the closes that workers have counted (``layout.closes``) are subtracted.

    The kernel drops what does not fit into a queue, and joins equal reports that follow each other. So one queue has
    the memory of all GPUs, and another one their memory on the chip: the owner of one GPU can fill neither. More queues
    would be dear: the programs of a user share 128 inotify instances. What is dropped, and what was not watched since
    the first question, counts as a use.
    """

    def __init__(self) -> None:
        """Nothing is watched yet. A file is watched from the first question about it."""
        self._turn = threading.Lock()
        self._queues: dict[str, tuple[Inotify, dict[int, Path]]] = {}  # by file name: the files by number of the watch
        self._watched: set[Path] = set()
        self._uses: dict[Path, int] = {}  # by the directory of a GPU
        self._closes: dict[Path, int] = {}  # how many closes the kernel has reported, and those before the watch
        self._missed: set[Path] = set()  # the GPUs of which reports were lost since their uses were last counted
        self._uncounted = False  # whether reports have come since the uses were last counted
        self._said: set[str] = set()  # why some memory could not be watched

    def uses(self, files: Collection[str]) -> Counted | Missed:
        """How often a process has closed one of these files of a GPU."""
        paths = [Path(file) for file in files]
        with self._turn:
            try:
                for path in paths:
                    if path not in self._watched:
                        self._watch(path)
                self._read()
                self._count()
            except OSError as error:
                why = _why_unwatched(error)
                if why not in self._said:
                    self._said.add(why)
                    logger.warning("cannot watch the memory of a simulated GPU: it is not handed out", error=why)
                return Missed(why)
            return Counted(UseCounter.FILES, self._uses[paths[0].parent])

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
        self._uses[path.parent] = self._uses.get(path.parent, -1) + 1
        self._closes.setdefault(path.parent, layout.closes(path.parent))
        counter = layout.GpuFiles(path.parent).closes
        layout.count_closes(path.parent, 0)
        for file in (counter, path):  # between the closes of workers, the counter's report keeps theirs apart
            files[queue.add_watch(file, Mask.CLOSE_WRITE).wd] = file
        self._watched.add(path)

    def _read(self) -> None:
        for queue, files in self._queues.values():
            for number, mask, *_ in _reports(queue):
                self._uncounted, file = True, files.get(number)
                if file is None:  # reports were lost: they may be of any file
                    self._missed |= self._closes.keys()
                elif mask & Mask.IGNORED:  # the file is gone, and another one of its name is not watched
                    self._missed.add(file.parent)
                    self._watched.discard(file)
                    del files[number]
                elif file in self._watched:
                    self._closes[file.parent] += 1

    def _count(self) -> None:
        """Count after the reports were read: a worker counts before it closes, so no reported close is missing."""
        counted = {gpu: layout.closes(gpu) for gpu in self._closes} if self._uncounted else {}
        for gpu in self._missed | {gpu for gpu, count in counted.items() if self._closes[gpu] > count}:
            self._uses[gpu], self._closes[gpu] = self._uses[gpu] + 1, counted[gpu]
        self._missed, self._uncounted = set(), False


def _reports(queue: Inotify) -> Iterable[tuple[int, ...]]:
    """The reports that wait now, and no more: a tenant may cause reports faster than they can be read."""
    waiting = array("i", [0])
    fcntl.ioctl(queue.fd, termios.FIONREAD, waiting)
    return _REPORT.iter_unpack(os.read(queue.fd, waiting[0]) if waiting[0] else b"")


def _why_unwatched(error: OSError) -> str:
    """Why uses of the memory cannot be noticed, and what to do."""
    lack = shortage.of(error if error.filename is not None else DeviceError())  # inotify has other limits than files
    lack = lack or _NO_INOTIFY.get(error.errno or 0, str(error))
    return f"the scrub service cannot watch its memory: {lack}"


def _opens(place: GpuFiles) -> bool:
    """Whether this process may open the memory of a GPU."""
    try:
        os.close(os.open(place.memory, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno != errno.EPERM
    return True


def _hidden(uuid: str, files: Sequence[str]) -> str:
    hidden = f"a process that user {user(os.getpid())} may not inspect has the memory of {uuid} open"
    return f"{hidden}: `fuser -v {files[0]}`, as root, names it"


def _in_use(place: GpuFiles, *, lost: bool) -> bool | None:
    try:
        return None if lost else open_check.is_open(_driven(place))
    except open_check.RefusedError:
        return None


def _driven(place: GpuFiles) -> tuple[str, ...]:
    """What shows the driver a user. As with a real GPU, who only has the device node open is not on its list."""
    return (str(place.chip),) if place.memory.is_block_device() else _files(place)


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
