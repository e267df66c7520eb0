"""Which GPUs NVLink connects, and which of them a reset of one GPU takes down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pynvml

from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia.boards import Board
from scrubber.devices.nvidia.nvml import ArgumentError, DriverGoneError, Handle, Session, pci_address

ALL_SWITCHED = "nvswitch"  # the reset domain of GPUs on NVSwitches, of which a node has one fabric, or of all GPUs
LINKS_HOLD = 60.0  # seconds; a fabric manager may come up, or a link go down, at any time


@dataclass(frozen=True, slots=True)
class Links:
    """The active links of one GPU."""

    peers: frozenset[str] = frozenset()  # PCI addresses at the other ends, of GPUs and other devices
    switched: bool = False


def of(nvml: Session, handle: Handle) -> Links:
    """The other ends of all active links; empty for a GPU without NVLink."""
    peers: set[str] = set()
    switched = False
    for link in (link for link, up in states(nvml, handle) if up):
        kind = nvml.ask_optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            switched = True
        elif (remote := nvml.ask_optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)) is not None:
            peers.add(pci_address(remote))
    return Links(frozenset(peers), switched)


def islands(gpus: Mapping[str, tuple[str, Links]]) -> dict[str, str]:
    """The island of each GPU that is connected to another: the UUID of the first GPU of the island.

    ``gpus`` maps a UUID to PCI address and links. All GPUs on switches of a node form one island.
    """
    root = {uuid: uuid for uuid in gpus}

    def find(uuid: str) -> str:
        return uuid if root[uuid] == uuid else find(root[uuid])

    at = {place: uuid for uuid, (place, _) in gpus.items()}
    switched = [uuid for uuid, (_, links) in gpus.items() if links.switched]
    pairs = [(switched[0], uuid) for uuid in switched[1:]]
    pairs += [(uuid, at[peer]) for uuid, (_, links) in gpus.items() for peer in links.peers if peer in at]
    for one, other in pairs:
        first, second = sorted((find(one), find(other)))
        root[second] = first
    island_of = {uuid: find(uuid) for uuid in gpus}
    crowded = {island for uuid, island in island_of.items() if island != uuid}
    return {uuid: island for uuid, island in island_of.items() if island in crowded}


def resets_alone(architecture: int) -> bool:
    """Whether a reset of this architecture never takes down linked GPUs."""
    return architecture >= int(pynvml.NVML_DEVICE_ARCH_HOPPER)


def reset_domain(architecture: int, island: str | None, *, switches: bool) -> str | None:
    """The reset domain of a GPU; None if a reset takes down this GPU only.

    From Hopper on, a reset takes down one GPU. For Ampere and Ada this holds on a node without switches. With switches
    and no running fabric manager, a reset takes down all GPUs, and nothing shows now whether the manager will run then.
    For older GPUs, a reset takes down the whole island.
    """
    if resets_alone(architecture):
        return None
    if architecture >= pynvml.NVML_DEVICE_ARCH_AMPERE:
        return ALL_SWITCHED if switches else None
    return island


def states(nvml: Session, handle: Handle) -> Iterator[tuple[int, bool]]:
    """Each reported link, and whether it is up."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = nvml.ask_optional(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        except ArgumentError:  # after the last link of this GPU
            return
        if state is not None:
            yield link, state == pynvml.NVML_FEATURE_ENABLED


@dataclass(frozen=True, slots=True)
class _KnownBoard:
    """The links of a GPU at the last reading. None: not read yet, so they may lead to any other GPU."""

    read_at: float
    place: str
    links: Links | None


class Neighbours:
    """The links between the GPUs of a node: their islands and reset domains, for one instance of the driver.

    A lost GPU stays in its island, so that the other GPUs keep the name of theirs. A GPU that was once in a reset
    domain stays in it, because a link that is down may come up again.
    """

    def __init__(self) -> None:
        self._known: dict[str, _KnownBoard] = {}
        self._domains: dict[str, str] = {}

    def observe(self, nvml: Session, handle: Handle, board: Board, *, sliced: bool) -> DeviceError | None:
        """Read the links of a GPU. If that fails, keep the last reading, and return the error.

        A sliced GPU does not use its links, but a reset may follow them.
        """
        if sliced and resets_alone(board.architecture):
            return None
        last = self._known.get(board.uuid, _KnownBoard(float("-inf"), board.pci_address, None))
        if time.monotonic() - last.read_at <= LINKS_HOLD:
            return None
        try:
            self._known[board.uuid] = _KnownBoard(time.monotonic(), board.pci_address, of(nvml, handle))
        except (DeviceLostError, DriverGoneError):
            raise
        except DeviceError as error:
            self._known[board.uuid] = last
            return error
        return None

    def islands(self) -> dict[str, str]:
        """The island of each GPU that is connected to another."""
        return islands({uuid: (board.place, board.links or Links()) for uuid, board in self._known.items()})

    def domain(self, board: Board, island: str | None) -> str | None:
        """The reset domain of a GPU; call this after all GPUs were observed."""
        links = [board.links for board in self._known.values()]
        domain = reset_domain(board.architecture, island, switches=any(each and each.switched for each in links))
        if None in links and not resets_alone(board.architecture):
            domain = ALL_SWITCHED
        if domain is not None and board.uuid not in self._domains:
            # GPUs of the same island may have a domain name already.
            islands = self.islands()
            own = islands.get(board.uuid)
            others = sorted(other for other in self._domains if own is not None and islands.get(other) == own)
            self._domains[board.uuid] = self._domains[others[0]] if others else domain
        return self._domains.get(board.uuid)

    def down_with(self, gpu: str) -> frozenset[str]:
        """Every GPU that a reset of it takes down, itself included, and the name of the domain."""
        domains = dict(self._domains)  # a copy: another thread may observe meanwhile
        domain = domains.get(gpu, gpu)
        return frozenset({gpu, domain, *(other for other, theirs in domains.items() if theirs == domain)})

    def of(self, gpu: str) -> frozenset[str]:
        """The GPU and the name of its domain."""
        return frozenset({gpu, self._domains.get(gpu, gpu)})
