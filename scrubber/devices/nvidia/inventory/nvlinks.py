"""Which GPUs are joined by NVLink, and which of them a reset of one takes down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pynvml

from scrubber.devices.nvidia.inventory import pci
from scrubber.devices.nvidia.nvml import ArgumentError, Handle, Session

ALL_SWITCHED = "nvswitch"  # the reset domain of GPUs on switches, of which a node has one fabric


@dataclass(frozen=True, slots=True)
class Links:
    """The live links of one GPU."""

    peers: frozenset[str] = frozenset()  # PCI addresses at the other end, of GPUs and of whatever else
    switched: bool = False


def of(nvml: Session, handle: Handle) -> Links:
    """What is at the other end of each link; a GPU without NVLink has none."""
    peers: set[str] = set()
    switched = False
    for link in _live(nvml, handle):
        if (
            nvml.ask_optional(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        ):
            switched = True
        elif (remote := nvml.ask_optional(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)) is not None:
            peers.add(pci.address(remote))
    return Links(frozenset(peers), switched)


def islands(gpus: Mapping[str, tuple[str, Links]]) -> dict[str, str]:
    """The island of each GPU (by UUID; with its PCI address) that is joined to another: the UUID of its first member.

    Every GPU on a switch reaches every other such GPU of the node.
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
    """Whether links have nothing to do with a reset."""
    return architecture >= int(pynvml.NVML_DEVICE_ARCH_HOPPER)


def reset_domain(architecture: int, island: str | None, *, switches: bool) -> str | None:
    """Whom a reset takes down beside the GPU itself; None where it is reset by itself.

    Newer GPUs are. Ampere and Ada are unless the node has switches: without a fabric manager all go down
    together, and whether it will be there for the reset cannot be told now. Older ones go with what they are linked to.
    """
    if resets_alone(architecture):
        return None
    if architecture >= pynvml.NVML_DEVICE_ARCH_AMPERE:
        return ALL_SWITCHED if switches else None
    return island


def states(nvml: Session, handle: Handle) -> Iterator[tuple[int, bool]]:
    """Of each link that is told of, whether it is up."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = nvml.ask_optional(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        except ArgumentError:  # past the last link of this GPU
            return
        if state is not None:
            yield link, state == pynvml.NVML_FEATURE_ENABLED


def _live(nvml: Session, handle: Handle) -> Iterator[int]:
    return (link for link, up in states(nvml, handle) if up)


def _pairs(gpus: Mapping[str, tuple[str, Links]]) -> Iterator[tuple[str, str]]:
    at = {place: uuid for uuid, (place, _) in gpus.items()}
    switched = [uuid for uuid, (_, links) in gpus.items() if links.switched]
    yield from ((switched[0], uuid) for uuid in switched[1:])
    for uuid, (_, links) in gpus.items():
        yield from ((uuid, at[peer]) for peer in links.peers if peer in at)
