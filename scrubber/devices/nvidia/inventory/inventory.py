"""Which GPUs and slices there are.

Every round counts anew what is there and where; what a GPU or a slice is, is asked once for as long as NVML stays open.
What was seen once goes on being named, whatever becomes of it: it is the vitals that say that it is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pynvml

from scrubber.core.model import DeviceInfo
from scrubber.devices.base import DeviceError, DriverClosedError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.inventory import boards, device_info, driver, nvlinks, partitions
from scrubber.devices.nvidia.inventory.boards import Board
from scrubber.devices.nvidia.inventory.neighbours import Neighbours
from scrubber.devices.nvidia.inventory.partitions import Partition, Placement
from scrubber.devices.nvidia.nvml import SLICE, DriverGoneError, Handle, Library, Session
from scrubber.ground import log

logger = log.get("nvidia")

RENEW_EVERY = 300.0  # seconds between two tries to see a missing GPU again: opening NVML anew may take long


@dataclass(frozen=True, slots=True)
class Seen:
    """A device as it was seen last, by which instance of the driver, and what is open when it is used."""

    info: DeviceInfo
    files: tuple[str, ...]
    driver: str
    instance: int | None = None  # of a slice, its GPU instance


@dataclass(slots=True)
class _Remembered:
    """What holds until NVML is opened anew."""

    driver: str
    opening: int
    boards: dict[str, Board] = field(default_factory=dict)
    partitions: dict[Placement, Partition] = field(default_factory=dict)


@dataclass(slots=True)
class _Round:
    """One round through the GPUs."""

    present: list[tuple[int, Handle, Board]] = field(default_factory=list)
    sliced: set[str] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Inventory:
    """Looks, and remembers what it saw."""

    def __init__(self, host: Host, library: Library) -> None:
        """Nothing was seen yet."""
        self._host = host
        self._library = library
        self._known: dict[str, Seen] = {}
        self._gpus: set[str] = set()  # every GPU ever seen, sliced or not
        self._neighbours = Neighbours()
        self._remembered = _Remembered("", 0)
        self._told: frozenset[str] = frozenset()
        self._renewed = float("-inf")

    def look(self) -> tuple[DeviceInfo, ...]:
        """Every device there is or was; while the driver is let go, those that are known."""
        try:
            with self._library.session() as nvml:
                found = self._round(nvml)
        except DriverClosedError:
            return self._named()
        seen = {each.info.uuid: each for each in found.seen}
        self._known = self._known | seen  # replaced whole: others read it meanwhile
        self._tell(found.notes)
        present = {board.uuid for _, _, board in found.present}
        self._gpus |= present
        self._miss(self._gpus - present)
        return self._named()

    def seen(self, uuid: str) -> Seen:
        """What is known of a device, without asking the driver; DeviceError where nothing is, or not any more."""
        if uuid not in self._known:
            raise DeviceError(f"cannot find {uuid}: no NVIDIA GPU or MIG slice of that name was seen here")
        found = self._known[uuid]
        if found.driver != driver.instance(self._host):
            raise DeviceError(f"cannot tell where {uuid} is: the driver was loaded anew since it was seen")
        return found

    def gpu_of(self, uuid: str) -> str | None:
        """The GPU that it is, or is a part of, whatever became of the driver; None of a slice that was never seen."""
        if not uuid.startswith(SLICE):
            return uuid
        return self._known[uuid].info.parent if uuid in self._known else None

    def place_of(self, uuid: str) -> tuple[str, int | None] | None:
        """Where it was seen last, whatever became of it: PCI address and, of a slice, GPU instance."""
        found = self._known.get(uuid)
        if found is None or found.info.pci_address is None:
            return None
        return found.info.pci_address, found.instance

    def board(self, gpu: str) -> Board | None:
        """What a GPU is, also one that is offered in no form; None where it was not seen under this NVML."""
        return self._remembered.boards.get(gpu)

    def locks(self, gpu: str) -> frozenset[str]:
        """The names of all that a reset of it takes down."""
        return self._neighbours.down_with(gpu)

    def own_locks(self, gpu: str) -> frozenset[str]:
        """Those of them that tell whether it is taken down itself."""
        return self._neighbours.of(gpu)

    def domain_nodes(self, uuid: str) -> tuple[str, ...]:
        """Device nodes of the GPU, and of all that a reset takes down with it; of a slice, of its whole GPU."""
        own = self.seen(uuid)
        domain, minors = own.info.reset_domain, {own.info.minor}
        if domain is not None:
            now = (seen.info for seen in self._known.values() if seen.driver == own.driver)
            minors |= {info.minor for info in now if info.reset_domain == domain}
        nodes = {self._host.dev / f"nvidia{minor}" for minor in minors}
        if domain == nvlinks.ALL_SWITCHED:  # one that could not be read goes down as well
            nodes.update(self._host.dev.glob("nvidia[0-9]*"))
        return tuple(sorted(map(str, nodes)))

    def _named(self) -> tuple[DeviceInfo, ...]:
        known = (seen.info for seen in self._known.values())
        return tuple(sorted(known, key=lambda info: (info.index, -1 if info.slice is None else info.slice, info.uuid)))

    def _round(self, nvml: Session) -> _Round:
        """First all GPUs, then what there is on each: whom a reset takes down shows only when all were looked at."""
        self._forget(driver.instance(self._host), nvml.opening)
        found = _Round()
        for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
            with _noting(found.notes, f"cannot read GPU {index}, so nothing new of it is offered"):
                self._gpu(nvml, index, found)
        islands = self._neighbours.islands()
        for index, handle, board in found.present:
            island = islands.get(board.uuid)
            domain = self._neighbours.domain(board, island)
            if board.uuid not in found.sliced:
                found.seen.append(self._seen(device_info.of_gpu(index, board, island, domain), board))
                continue
            with _noting(found.notes, f"cannot read the slices of GPU {index}, so no new one is offered"):
                found.seen += self._slices(nvml, (index, handle, board), domain, found.notes)
        return found

    def _gpu(self, nvml: Session, index: int, found: _Round) -> None:
        handle = nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid: str = nvml.ask(pynvml.nvmlDeviceGetUUID, handle)
        if uuid not in self._remembered.boards:
            self._remembered.boards[uuid] = boards.read(nvml, self._host, handle, uuid)
        board = self._remembered.boards[uuid]
        sliced = boards.sliced(nvml, handle)
        self._neighbours.look(nvml, handle, board, sliced=sliced)
        found.present.append((index, handle, board))
        if sliced:
            found.sliced.add(uuid)

    def _slices(
        self, nvml: Session, gpu: tuple[int, Handle, Board], domain: str | None, notes: list[str]
    ) -> Iterator[Seen]:
        index, handle, board = gpu
        places = list(partitions.listed(nvml, handle, notes.append))
        if not places:
            notes.append(
                f"cannot offer anything of GPU {index} ({board.uuid}): it is in MIG mode without a slice to offer"
            )
        for place, slice_ in places:
            with _noting(notes, f"cannot offer {place.uuid}"):
                known = self._remembered.partitions
                if place not in known:
                    known[place] = partitions.read(nvml, self._host, board, handle, place, slice_)
                info = device_info.of_slice(index, board, place, known[place], domain)
                yield replace(self._seen(info, board, known[place]), instance=place.gpu_instance)

    def _seen(self, info: DeviceInfo, board: Board, partition: Partition | None = None) -> Seen:
        return Seen(info, device_info.files(self._host, board, partition), self._remembered.driver)

    def _forget(self, instance: str, opening: int) -> None:
        if self._remembered.driver != instance:
            self._neighbours = Neighbours()
        if (self._remembered.driver, self._remembered.opening) != (instance, opening):
            self._remembered = _Remembered(instance, opening)

    def _miss(self, missing: set[str]) -> None:
        if missing and time.monotonic() - self._renewed > RENEW_EVERY:
            self._renewed = time.monotonic()
            self._library.renew()

    def _tell(self, notes: list[str]) -> None:
        """Say it when it begins, not once a second."""
        for note in notes:
            if note not in self._told:
                logger.warning(note)
        self._told = frozenset(notes)


@contextmanager
def _noting(notes: list[str], what: str) -> Iterator[None]:
    """One that cannot be read keeps no other from being named; a driver that has gone is no news of a device."""
    try:
        yield
    except DriverGoneError:
        raise
    except DeviceError as error:
        notes.append(f"{what}: {error}")
