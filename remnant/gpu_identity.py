"""Asks NVML which GPU a container has (UUID, board), and what its driver is."""

from __future__ import annotations

import os
from pathlib import Path

import pynvml

from remnant.round_result import GpuAndDriver
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import boards
from scrubber.devices.nvidia.boards import Board
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import Handle, Library, Session


def listed(nvml: Session) -> dict[str, Handle]:
    """The GPUs that the driver lists, by UUID, in the order of their indices."""
    count = nvml.ask(pynvml.nvmlDeviceGetCount)
    handles = [nvml.ask(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    return {nvml.ask(pynvml.nvmlDeviceGetUUID, handle): handle for handle in handles}


def whole(nvml: Session, host: Host, handle: Handle, uuid: str) -> Board:
    """A GPU that is not sliced; DeviceError if it is."""
    if boards.sliced(nvml, handle):
        raise DeviceError(f"GPU {uuid} is divided into MIG slices, which this program does not measure")
    return boards.read(nvml, host, handle, uuid)


def about(board: Board, host: Host, library: Library) -> GpuAndDriver:
    """What a result says of a GPU and its driver."""
    with library.session() as nvml:
        mode = nvml.ask_optional(pynvml.nvmlDeviceGetPersistenceMode, nvml.handle(board.uuid))
    persistence = None if mode is None else mode == pynvml.NVML_FEATURE_ENABLED
    version, kind = host.driver_version(), host.has_open_modules()
    return GpuAndDriver(board.uuid, board.model, version, board.memory_bytes, board.ecc, persistence, kind)


def of_container(host_root: Path, count: int, wanted: str) -> tuple[Board, GpuAndDriver]:
    """A GPU of this container, if possible the wanted one; DeviceError if it has not as many as it has asked for."""
    host, library = Host(host_root), Library()
    try:
        with library.session() as nvml:
            uuids = listed(nvml)
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # where all are shown, as by a scheduler for jobs
            given = uuids.keys() if visible is None else visible.split(",")
            own = [uuid for index, uuid in enumerate(uuids) if not {uuid, str(index)}.isdisjoint(given)]
            if len(own) != count:
                raise DeviceError(f"the container has {len(own)} GPUs, but it requested {count}")
            chosen = wanted if wanted in own else own[0]
            board = whole(nvml, host, uuids[chosen], chosen)
        return board, about(board, host, library)
    finally:
        library.close()
