"""Which GPUs and MIG slices a node has, by NVML: names, numbers, slots, and what has gone.

Every reading lists the present devices and their positions. Their properties are read once while NVML stays open. The
inventory keeps every device that it has seen; the vitals say that a device is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pynvml

from ground import log
from scrubber.core.model import DeviceInfo
from scrubber.devices.base import DeviceError, DriverClosedError
from scrubber.devices.nvidia import boards, nvlinks, slices
from scrubber.devices.nvidia.boards import Board
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvlinks import Neighbours
from scrubber.devices.nvidia.nvml import SLICE, DriverGoneError, Handle, Library, Session
from scrubber.devices.nvidia.slices import Partition, Placement

logger = log.get("nvidia")

RENEW_EVERY = 300.0  # seconds between two tries to find a missing GPU: opening NVML again may take long


@dataclass(frozen=True, slots=True)
class Seen:
    """A device as last seen, with its driver instance and the files that a holder has open."""

    info: DeviceInfo
    files: tuple[str, ...]
    driver: str
    instance: int | None = None  # the GPU instance of a slice
    virtual: bool | None = False  # as of its GPU


@dataclass(slots=True)
class _Remembered:
    """Properties that are valid until NVML is opened again."""

    driver: str
    opening: int
    boards: dict[str, Board] = field(default_factory=dict)
    partitions: dict[Placement, Partition] = field(default_factory=dict)


@dataclass(slots=True)
class _Listing:
    """One reading of all GPUs."""

    present: list[tuple[int, Handle, Board, bool]] = field(default_factory=list)  # the last: whether it is sliced
    seen: list[Seen] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Inventory:
    """Reads the devices of the node, and remembers them."""

    def __init__(self, host: Host, library: Library) -> None:
        self._host = host
        self._library = library
        self._known: dict[str, Seen] = {}
        self._gpus: set[str] = set()  # UUIDs of all GPUs seen, sliced or not
        self.neighbours = Neighbours()
        self._remembered = _Remembered("", 0)
        self._logged: frozenset[str] = frozenset()
        self._renewed = float("-inf")

    def read(self) -> tuple[DeviceInfo, ...]:
        """Every device that is present or was seen; while the driver is released, the known devices."""
        try:
            with self._library.session() as nvml:
                listing = self._list(nvml)
        except DriverClosedError:
            return self._in_order()
        seen = {each.info.uuid: each for each in listing.seen}
        self._known = self._known | seen  # replaced, not changed: other threads read it meanwhile
        for note in listing.notes:
            if note not in self._logged:  # when it first appears, not at every reading
                logger.warning(note)
        self._logged = frozenset(listing.notes)
        present = {board.uuid for _, _, board, _ in listing.present}
        self._gpus |= present
        if self._gpus - present and time.monotonic() - self._renewed > RENEW_EVERY:
            self._renewed = time.monotonic()
            self._library.renew()
        return self._in_order()

    def seen(self, uuid: str) -> Seen:
        """A device as last seen, without asking the driver. DeviceError if never seen by this driver instance."""
        if uuid not in self._known:
            raise DeviceError(f"cannot find {uuid}: no NVIDIA GPU or MIG slice with that name was seen here")
        last = self._known[uuid]
        if last.driver != self._host.driver_instance():
            raise DeviceError(f"cannot tell where {uuid} is: the driver was reloaded after it was seen")
        return last

    def gpu_of(self, uuid: str) -> str | None:
        """The whole GPU of a device, for any driver instance; None for a slice that was never seen."""
        if not uuid.startswith(SLICE):
            return uuid
        return self._known[uuid].info.parent if uuid in self._known else None

    def place_of(self, uuid: str) -> tuple[str, int | None] | None:
        """The last PCI address and, for a slice, GPU instance; also of a lost device. None if never seen."""
        last = self._known.get(uuid)
        if last is None or last.info.pci_address is None:
            return None
        return last.info.pci_address, last.instance

    def board(self, gpu: str) -> Board | None:
        """The properties of a GPU, also if it is not offered; None if not seen since NVML was opened."""
        return self._remembered.boards.get(gpu)

    def domain_nodes(self, uuid: str) -> tuple[str, ...]:
        """Device nodes of all GPUs that a reset takes down; for a slice, the reset of its whole GPU."""
        own = self.seen(uuid)
        domain, minors = own.info.reset_domain, {own.info.minor}
        if domain is not None:
            now = (seen.info for seen in self._known.values() if seen.driver == own.driver)
            minors |= {info.minor for info in now if info.reset_domain == domain}
        nodes = {self._host.dev / f"nvidia{minor}" for minor in minors}
        if domain == nvlinks.ALL_SWITCHED:  # includes GPUs that could not be read
            nodes.update(self._host.dev.glob("nvidia[0-9]*"))
        return tuple(sorted(map(str, nodes)))

    def _in_order(self) -> tuple[DeviceInfo, ...]:
        infos = (seen.info for seen in self._known.values())
        return tuple(sorted(infos, key=lambda info: (info.index, -1 if info.slice is None else info.slice, info.uuid)))

    def _list(self, nvml: Session) -> _Listing:
        """Read all GPUs first, then their slices: reset domains need the links of all GPUs."""
        instance = self._host.driver_instance()
        if self._remembered.driver != instance:
            self.neighbours = Neighbours()
        if (self._remembered.driver, self._remembered.opening) != (instance, nvml.opening):
            self._remembered = _Remembered(instance, nvml.opening)
        listing = _Listing()
        for index in range(nvml.ask(pynvml.nvmlDeviceGetCount)):
            with _noting(listing.notes, f"cannot read GPU {index}, so nothing new of it is offered"):
                handle = nvml.gpu(index)
                uuid: str = nvml.ask(pynvml.nvmlDeviceGetUUID, handle)
                if uuid not in self._remembered.boards:
                    self._remembered.boards[uuid] = boards.read(nvml, self._host, handle, uuid)
                board = self._remembered.boards[uuid]
                sliced = boards.sliced(nvml, handle)
                if error := self.neighbours.observe(nvml, handle, board, sliced=sliced):
                    listing.notes.append(f"cannot read the NVLinks of GPU {index}: {error}")
                listing.present.append((index, handle, board, sliced))
        islands = self.neighbours.islands()
        for index, handle, board, sliced in listing.present:
            island = islands.get(board.uuid)
            domain = self.neighbours.domain(board, island)
            if not sliced:
                listing.seen.append(self._seen(_gpu_info(index, board, island, domain), board))
                continue
            with _noting(listing.notes, f"cannot read the slices of GPU {index}, so no new one is offered"):
                listing.seen += self._slices(nvml, (index, handle, board), domain, listing.notes)
        return listing

    def _slices(
        self, nvml: Session, gpu: tuple[int, Handle, Board], domain: str | None, notes: list[str]
    ) -> Iterator[Seen]:
        index, handle, board = gpu
        places = list(slices.listed(nvml, handle, notes.append))
        if not places:
            notes.append(
                f"cannot offer anything of GPU {index} ({board.uuid}): it is in MIG mode without a slice to offer"
            )
        for place, slice_ in places:
            with _noting(notes, f"cannot offer {place.uuid}"):
                partitions = self._remembered.partitions
                if place not in partitions:
                    partitions[place] = slices.read(nvml, self._host, board, handle, place, slice_)
                info = _slice_info(index, board, place, partitions[place], domain)
                yield replace(self._seen(info, board, partitions[place]), instance=place.gpu_instance)

    def _seen(self, info: DeviceInfo, board: Board, partition: Partition | None = None) -> Seen:
        # The files that a holder has open. For a slice without the GPU's node, which all its slices share.
        files: tuple[str, ...] = (str(self._host.dev / board.node),)
        if partition is not None:
            files = *(str(self._host.dev / node) for node in partition.nodes), *map(str, partition.access)
        return Seen(info, files, self._remembered.driver, virtual=board.virtual)


@contextmanager
def _noting(notes: list[str], what: str) -> Iterator[None]:
    """Note an error of one device, so that the others are still listed. An unloaded driver is an error of all."""
    try:
        yield
    except DriverGoneError:
        raise
    except DeviceError as error:
        notes.append(f"{what}: {error}")


def _gpu_info(index: int, board: Board, island: str | None, domain: str | None) -> DeviceInfo:
    """A whole GPU."""
    return DeviceInfo(
        uuid=board.uuid,
        index=index,
        model=board.model,
        memory_bytes=board.memory_bytes,
        numa_node=board.numa_node,
        pci_address=board.pci_address,
        reset_domain=domain or board.uuid,  # also the domain of its slices
        island=island,
        nodes=(f"/dev/{board.node}",),
        minor=board.minor,
        compute=board.compute,
        ecc=board.ecc,
        serial=board.serial,
    )


def _slice_info(index: int, board: Board, place: Placement, partition: Partition, domain: str | None) -> DeviceInfo:
    """A slice. It has no links, and a reset takes down at least all slices of its GPU."""
    return replace(
        _gpu_info(index, board, None, domain),
        uuid=place.uuid,
        model=partition.model,
        memory_bytes=partition.memory_bytes,
        mig=True,
        resource=partition.resource,
        nodes=tuple(f"/dev/{node}" for node in (board.node, *partition.nodes)),
        parent=board.uuid,
        slice=place.number,
    )
