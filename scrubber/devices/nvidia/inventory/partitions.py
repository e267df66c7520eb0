"""MIG slices: the slices of a GPU, their resource names for pods, and the files that open them.

A slice is a GPU instance, which has memory of its own, with one compute instance. Several compute instances of one GPU
instance share its memory, so none of them can be scrubbed or offered alone.
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
    """The position of a slice: its number on the GPU, and its instances."""

    uuid: str
    number: int
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class Partition:
    """The properties of a slice that stay while its position stays."""

    model: str
    profile: str  # such as 1g.18gb, or 1g.18gb+me
    memory_bytes: int
    capabilities: tuple[int, ...]  # numbers of the device nodes of its two instances
    access: tuple[Path, ...]  # the driver's access files of its two instances

    @property
    def resource(self) -> str:
        """The resource name of NVIDIA's device plugin, where a plus becomes a dot."""
        return f"nvidia.com/mig-{self.profile.replace('+', '.')}"

    @property
    def nodes(self) -> tuple[str, ...]:
        """The device nodes of its two instances."""
        return tuple(f"nvidia-caps/nvidia-cap{number}" for number in self.capabilities)


def listed(nvml: Session, gpu: Handle, note: Callable[[str], None]) -> Iterator[tuple[Placement, Handle]]:
    """The slices of a GPU that can be offered; calls ``note`` for slices that share their memory.

    A slice that cannot be read ends the listing with an error: it may share the memory of any other slice.
    """
    found = []
    for number in range(nvml.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu)):
        try:
            handle = nvml.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, number)
            found.append((_place(nvml, handle, number), handle))
        except (NotFoundError, ArgumentError):
            continue  # no slice has this number
    slices_of_instance = Counter(place.gpu_instance for place, _ in found)
    for place, handle in found:
        if slices_of_instance[place.gpu_instance] == 1:
            yield place, handle
        else:
            note(f"cannot offer {place.uuid}: its memory is shared by {slices_of_instance[place.gpu_instance]} slices")


def read(nvml: Session, host: Host, board: boards.Board, gpu: Handle, place: Placement, handle: Handle) -> Partition:
    """Read all properties of a slice."""
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
        raise DeviceError(f"cannot tell which device node opens a MIG slice: {file} does not name it")
    return int(found[1])


def _profile(nvml: Session, gpu: Handle, place: Placement, model: str) -> str:
    """The profile from a name such as "NVIDIA H200 MIG 1g.18gb"; attributes may come from the GPU instance."""
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
    """The GPU instance profiles of a GPU: number and name."""
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = nvml.ask_optional(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, number)
        except ArgumentError:
            continue  # this driver has fewer profiles
        if profile is not None:
            yield profile.id, profile.name
