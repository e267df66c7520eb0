"""MIG slices: what a GPU is divided into, their resource names for pods, the files that open them, and their layout.

A slice is a GPU instance, which has memory of its own, with one compute instance. Several compute instances of one GPU
instance share its memory, so none of them can be scrubbed or offered alone.

A reset of a GPU removes its slices, so the worker lays them out again afterwards. A slice that is created with the same
profile in the same place has the same UUID. With another UUID it is another device, which is an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from ctypes import byref, c_uint
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import boards
from scrubber.devices.nvidia.host import Host
from scrubber.devices.nvidia.nvml import ArgumentError, Handle, NotFoundError, Session

_PROFILE = re.compile(r"MIG ((?:\d+c\.)?\d+g\.\d+gb)((?:[+-][a-z][a-z.]*)*)$")
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)
_MOST_INSTANCES = 16  # more than any GPU has


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
    resource: str  # the name of NVIDIA's device plugin, such as nvidia.com/mig-1g.18gb.me
    memory_bytes: int
    nodes: tuple[str, ...]  # the device nodes of its two instances
    access: tuple[Path, ...]  # the driver's access files of its two instances


def listed(nvml: Session, gpu: Handle, warn: Callable[[str], None]) -> Iterator[tuple[Placement, Handle]]:
    """The slices of a GPU that can be offered; calls ``warn`` for slices that share their memory.

    A slice that cannot be read ends the listing with an error: it may share the memory of any other slice.
    """
    placed = [
        (
            Placement(
                uuid=nvml.ask(pynvml.nvmlDeviceGetUUID, handle),
                number=number,
                gpu_instance=nvml.ask(pynvml.nvmlDeviceGetGpuInstanceId, handle),
                compute_instance=nvml.ask(pynvml.nvmlDeviceGetComputeInstanceId, handle),
            ),
            handle,
        )
        for number, handle in _numbered(nvml, gpu, nvml.ask)
    ]
    slices_of_instance = Counter(place.gpu_instance for place, _ in placed)
    for place, handle in placed:
        if slices_of_instance[place.gpu_instance] == 1:
            yield place, handle
        else:
            warn(f"cannot offer {place.uuid}: its memory is shared by {slices_of_instance[place.gpu_instance]} slices")


def read(nvml: Session, host: Host, board: boards.Board, gpu: Handle, place: Placement, handle: Handle) -> Partition:
    """Read all properties of a slice."""
    model: str = nvml.ask(pynvml.nvmlDeviceGetName, handle)
    instance = host.proc_driver / f"capabilities/gpu{board.minor}/mig/gi{place.gpu_instance}"
    access = instance / "access", instance / f"ci{place.compute_instance}/access"
    match = _PROFILE.search(model)
    if match is None:
        raise DeviceError(f"cannot tell the MIG profile of {model!r}")
    size, attributes = match.groups()  # of a name such as "NVIDIA H200 MIG 1g.18gb"
    profile = f"{size}{attributes or _attributes(nvml, gpu, place)}"
    return Partition(
        model=model,
        resource=f"nvidia.com/mig-{profile.replace('+', '.')}",
        memory_bytes=boards.memory(nvml, handle).total,
        nodes=tuple(f"nvidia-caps/nvidia-cap{_capability(file)}" for file in access),
        access=access,
    )


def _numbered(nvml: Session, gpu: Handle, ask: Callable[..., Any]) -> Iterator[tuple[int, Handle]]:
    """The handles of a GPU's slices, if it can have slices. The numbers of the slices can have gaps.

    ``ask`` decides whether a refusal of NVML to name a slice is an error, or means that the GPU has none.
    """
    for number in range(nvml.ask_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
        try:
            slice_ = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, number)
        except (NotFoundError, ArgumentError):
            continue
        if slice_ is None:  # the GPU has no slices
            return
        yield number, slice_


def _capability(file: Path) -> int:
    try:
        found = _MINOR.search(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceError(f"cannot tell which device node opens a MIG slice: {error}") from error
    if found is None:
        raise DeviceError(f"cannot tell which device node opens a MIG slice: {file} does not name it")
    return int(found[1])


def _attributes(nvml: Session, gpu: Handle, place: Placement) -> str:
    """The attributes of the profile of a slice's GPU instance, for a name of the slice that has none."""
    instance = nvml.ask_optional(pynvml.nvmlDeviceGetGpuInstanceById, gpu, place.gpu_instance)
    info = None if instance is None else nvml.ask_optional(pynvml.nvmlGpuInstanceGetInfo, instance)
    if info is None:
        return ""
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = nvml.ask_optional(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, number)
        except ArgumentError:
            continue  # this driver has fewer profiles
        if profile is not None and profile.id == info.profileId:
            match = _PROFILE.search(profile.name)
            return match[2] if match else ""
    return ""


@dataclass(frozen=True, slots=True)
class Part:
    """A compute instance, which is the slice that a container gets."""

    uuid: str
    profile: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance: it has memory of its own, which its parts share."""

    profile: int
    start: int
    size: int
    parts: tuple[Part, ...]


Layout = tuple[Instance, ...]


def layout(session: Session, gpu: str) -> Layout:
    """The layout now, without GPU instances that have no part, because they are not devices."""
    device = session.handle(gpu)
    by_instance: dict[int, list[Handle]] = {}
    for _, slice_ in _numbered(session, device, session.ask_optional):
        by_instance.setdefault(session.ask(pynvml.nvmlDeviceGetGpuInstanceId, slice_), []).append(slice_)
    instances = []
    for number, slices in sorted(by_instance.items()):
        instance = session.ask(pynvml.nvmlDeviceGetGpuInstanceById, device, number)
        whole = session.ask(pynvml.nvmlGpuInstanceGetInfo, instance)
        parts = []
        for slice_ in slices:
            part_number = session.ask(pynvml.nvmlDeviceGetComputeInstanceId, slice_)
            part = session.ask(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, part_number)
            info = session.ask(pynvml.nvmlComputeInstanceGetInfo_v2, part)
            uuid = session.ask(pynvml.nvmlDeviceGetUUID, slice_)
            parts.append(Part(uuid, info.profileId, info.placement.start, info.placement.size))
        instances.append(Instance(whole.profileId, whole.placement.start, whole.placement.size, tuple(parts)))
    return tuple(instances)


def uuids(instances: Layout) -> frozenset[str]:
    """The UUIDs of the slices in a layout."""
    return frozenset(part.uuid for one in instances for part in one.parts)


def describe(instances: Layout) -> tuple[str, ...]:
    """A layout as text for people."""
    return tuple(f"profile {one.profile} at {one.start} of size {one.size}" for one in instances)


def lay_out(session: Session, gpu: str, target: Layout) -> None:
    """Create the missing slices; DeviceError if a UUID is not the same as before."""
    present = {(one.profile, one.start, part.profile, part.start) for one in layout(session, gpu) for part in one.parts}
    for one in target:
        if absent := [part for part in one.parts if (one.profile, one.start, part.profile, part.start) not in present]:
            device = session.handle(gpu)
            instance = _without_parts(session, device, one)
            if instance is None:
                place = byref(pynvml.c_nvmlGpuInstancePlacement_t(one.start, one.size))
                create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
                instance = session.ask(create, device, one.profile, place)
            _create_parts(session, instance, absent)
    if missing := sorted(uuids(target) - uuids(layout(session, gpu))):
        raise DeviceError(f"{', '.join(missing)} did not come back: create the slices of {gpu} again")


def _without_parts(session: Session, device: Handle, one: Instance) -> Handle | None:
    """The instance, if only its parts are missing, because a worker was killed before it created them."""
    instances, count = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)(), c_uint(_MOST_INSTANCES)
    if session.ask_optional(pynvml.nvmlDeviceGetGpuInstances, device, one.profile, instances, byref(count)) is None:
        return None
    for instance in instances[: count.value]:
        if session.ask(pynvml.nvmlGpuInstanceGetInfo, instance).placement.start == one.start:
            return instance
    return None


def _create_parts(session: Session, instance: Handle, parts: Iterable[Part]) -> None:
    for part in parts:
        place = byref(pynvml.c_nvmlComputeInstancePlacement_t(part.start, part.size))
        session.ask(pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement, instance, part.profile, place)
