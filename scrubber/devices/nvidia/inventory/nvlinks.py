"""Which GPUs NVLink connects, and which of them a reset of one GPU takes down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pynvml

from scrubber.devices.nvidia.inventory import pci
from scrubber.devices.nvidia.nvml import ArgumentError, Handle, Session

ALL_SWITCHED = "nvswitch"  # the reset domain of GPUs on NVSwitches: a node has one fabric


@dataclass(frozen=True, slots=True)
class Links:
    """The active links of one GPU."""

    peers: frozenset[str] = frozenset()  # PCI addresses at the other ends, of GPUs and other devices
    switched: bool = False


def of(nvml: Session, handle: Handle) -> Links:
    """The other ends of all active links; empty for a GPU without NVLink."""
    peers: set[str] = set()
    switched = False
    for link in _active(nvml, handle):
        if (
            nvml.ask_optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        ):
            switched = True
        elif (remote := nvml.ask_optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)) is not None:
            peers.add(pci.address(remote))
    return Links(frozenset(peers), switched)


def islands(gpus: Mapping[str, tuple[str, Links]]) -> dict[str, str]:
    """The island of each GPU that is connected to another: the UUID of the first GPU of the island.

    ``gpus`` maps a UUID to PCI address and links. All GPUs on switches of a node form one island.
    """
    root = {uuid: uuid for uuid in gpus}

    def find(uuid: str) -> str:
        return uuid if root[uuid] == uuid else find(root[uuid])

    for one, other in _pairs(gpus):
        first, second = sorted((find(one), find(other)))
        root[second] = first
    found = {uuid: find(uuid) for uuid in gpus}
    crowded = {island for uuid, island in found.items() if island != uuid}
    return {uuid: island for uuid, island in found.items() if island in crowded}


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


def _active(nvml: Session, handle: Handle) -> Iterator[int]:
    return (link for link, up in states(nvml, handle) if up)


def _pairs(gpus: Mapping[str, tuple[str, Links]]) -> Iterator[tuple[str, str]]:
    at = {place: uuid for uuid, (place, _) in gpus.items()}
    switched = [uuid for uuid, (_, links) in gpus.items() if links.switched]
    yield from ((switched[0], uuid) for uuid in switched[1:])
    for uuid, (_, links) in gpus.items():
        yield from ((uuid, at[peer]) for peer in links.peers if peer in at)
