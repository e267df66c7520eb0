"""MIG slices: which there are on a GPU, by which name pods ask for them, and which files open them.

A slice is a GPU instance, which has memory of its own, with the one compute instance in it. Several compute instances
share the memory of theirs: none of them can be wiped, or handed out, alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pynvml

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.inventory import boards
from scrubber.devices.nvidia.nvml import ArgumentError, Handle, NotFoundError, Session

_PROFILE = re.compile(r"MIG ((?:\d+c\.)?\d+g\.\d+gb)((?:[+-][a-z][a-z.]*)*)$")
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a slice is now: its number on the GPU, and its instances."""

    uuid: str
    number: int
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class Partition:
    """What a slice is for as long as it is in its place."""

    model: str
    profile: str  # as in 1g.18gb, or 1g.18gb+me
    memory_bytes: int
    capabilities: tuple[int, ...]  # numbers of the device nodes that open its two instances
    access: tuple[Path, ...]  # the driver's files for the same

    @property
    def resource(self) -> str:
        """What NVIDIA's device plugin calls it, where a plus may not stand."""
        return f"nvidia.com/mig-{self.profile.replace('+', '.')}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Device nodes that open its two instances."""
        return tuple(f"nvidia-caps/nvidia-cap{number}" for number in self.capabilities)


def listed(nvml: Session, gpu: Handle, note: Callable[[str], None]) -> Iterator[tuple[Placement, Handle]]:
    """The slices of a GPU that can be handed out; ``note`` hears of those that share their memory.

    One that cannot be read stops the list: it may share the memory of any other.
    """
    found = []
    for number in range(nvml.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu)):
        try:
            handle = nvml.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, number)
            found.append((_place(nvml, handle, number), handle))
        except (NotFoundError, ArgumentError):
            continue  # no slice has this number
    crowd = Counter(place.gpu_instance for place, _ in found)
    for place, handle in found:
        if crowd[place.gpu_instance] == 1:
            yield place, handle
        else:
            note(f"cannot offer {place.uuid}: its memory is shared by {crowd[place.gpu_instance]} slices")


def read(nvml: Session, host: Host, board: boards.Board, gpu: Handle, place: Placement, handle: Handle) -> Partition:
    """Ask for all of it."""
    model: str = nvml.ask(pynvml.nvmlDeviceGetName, handle)
    files = _access_files(host, board, place)
    return Partition(
        model=model,
        profile=_profile(nvml, gpu, place, model),
        memory_bytes=boards.memory(nvml, handle).total,
        capabilities=tuple(_capability(file) for file in files),
        access=files,
    )


def _place(nvml: Session, handle: Handle, number: int) -> Placement:
    return Placement(
        uuid=nvml.ask(pynvml.nvmlDeviceGetUUID, handle),
        number=number,
        gpu_instance=nvml.ask(pynvml.nvmlDeviceGetGpuInstanceId, handle),
        compute_instance=nvml.ask(pynvml.nvmlDeviceGetComputeInstanceId, handle),
    )


def _access_files(host: Host, board: boards.Board, place: Placement) -> tuple[Path, ...]:
    instance = host.proc_driver / f"capabilities/gpu{board.minor}/mig/gi{place.gpu_instance}"
    return instance / "access", instance / f"ci{place.compute_instance}/access"


def _capability(file: Path) -> int:
    try:
        found = _MINOR.search(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceError(f"cannot tell which device node opens a MIG slice: {error}") from error
    if found is None:
        raise DeviceError(f"cannot tell which device node opens a MIG slice: {file} does not say it")
    return int(found[1])


def _profile(nvml: Session, gpu: Handle, place: Placement, model: str) -> str:
    """From the name, as in "NVIDIA H200 MIG 1g.18gb"; its attributes from the GPU instance where the name has none."""
    found = _PROFILE.search(model)
    if found is None:
        raise DeviceError(f"cannot tell the MIG profile of {model!r}")
    size, attributes = found.groups()
    return f"{size}{attributes or _attributes(nvml, gpu, place)}"


def _attributes(nvml: Session, gpu: Handle, place: Placement) -> str:
    instance = nvml.ask_optional(pynvml.nvmlDeviceGetGpuInstanceById, gpu, place.gpu_instance)
    info = None if instance is None else nvml.ask_optional(pynvml.nvmlGpuInstanceGetInfo, instance)
    if info is None:
        return ""
    names = (name for number, name in _profiles(nvml, gpu) if number == info.profileId)
    found = _PROFILE.search(next(names, ""))
    return found[2] if found else ""


def _profiles(nvml: Session, gpu: Handle) -> Iterator[tuple[int, str]]:
    """What the GPU can be cut into: number and name."""
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = nvml.ask_optional(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, number)
        except ArgumentError:
            continue  # this driver knows fewer
        if profile is not None:
            yield profile.id, profile.name
