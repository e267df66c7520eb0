"""Converts a GPU or a slice to a ``DeviceInfo``."""

from __future__ import annotations

from dataclasses import replace

from scrubber.core.model import DeviceInfo
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.inventory.boards import Board
from scrubber.devices.nvidia.inventory.partitions import Partition, Placement


def of_gpu(index: int, board: Board, island: str | None, domain: str | None) -> DeviceInfo:
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
    )


def of_slice(index: int, board: Board, place: Placement, partition: Partition, domain: str | None) -> DeviceInfo:
    """A slice. It has no links, and a reset takes down at least all slices of its GPU."""
    return replace(
        of_gpu(index, board, None, domain),
        uuid=place.uuid,
        model=partition.model,
        memory_bytes=partition.memory_bytes,
        mig=True,
        resource=partition.resource,
        nodes=tuple(f"/dev/{node}" for node in (board.node, *partition.nodes)),
        parent=board.uuid,
        slice=place.number,
    )


def files(host: Host, board: Board, partition: Partition | None) -> tuple[str, ...]:
    """The files that a holder has open. For a slice without the GPU's node, which all its slices share."""
    if partition is None:
        return (str(host.dev / board.node),)
    return (*(str(host.dev / node) for node in partition.nodes), *map(str, partition.access))
