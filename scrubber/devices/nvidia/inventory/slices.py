"""The slices that a GPU is divided into: what they are, and making one anew.

Slices do not outlive a reset of their GPU, so whoever resets it lays them out again afterwards. A slice that is made
anew with the same profile at the same place bears the same UUID; one that does not is another device, and an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from ctypes import byref, c_uint
from dataclasses import dataclass

import pynvml

from scrubber.devices.base import DeviceError, NotNowError
from scrubber.devices.nvidia.nvml import ArgumentError, Handle, InUseError, NotFoundError, ResetRequiredError, Session

_MOST_INSTANCES = 16  # on one GPU, and more than any has


@dataclass(frozen=True, slots=True)
class Part:
    """A compute instance: the slice that a container gets."""

    uuid: str
    profile: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance: memory of its own, and the parts that share it."""

    profile: int
    start: int
    size: int
    parts: tuple[Part, ...]


Layout = tuple[Instance, ...]


def layout(session: Session, gpu: str) -> Layout:
    """How a GPU is divided now; an instance without any part is nobody's device, and not told."""
    device = session.handle(gpu)
    found: dict[int, list[Handle]] = {}
    for slice_ in _devices(session, device):
        found.setdefault(session.ask(pynvml.nvmlDeviceGetGpuInstanceId, slice_), []).append(slice_)
    return tuple(_instance(session, device, number, parts) for number, parts in sorted(found.items()))


def layout_before_reset(session: Session, gpu: str) -> Layout:
    """The same; a GPU that says nothing more before it was reset tells none, and then its slices are missed later."""
    try:
        return layout(session, gpu)
    except ResetRequiredError:
        return ()


def uuids(instances: Layout) -> frozenset[str]:
    """The slices in a layout."""
    return frozenset(part.uuid for one in instances for part in one.parts)


def words(instances: Layout) -> tuple[str, ...]:
    """A layout as people read it."""
    return tuple(f"profile {one.profile} at {one.start} of size {one.size}" for one in instances)


def lay_out(session: Session, gpu: str, wanted: Layout) -> None:
    """Make what is missing, and look whether every slice is the one that it was."""
    there = {(one.profile, one.start, part.profile, part.start) for one in layout(session, gpu) for part in one.parts}
    for one in wanted:
        if absent := [part for part in one.parts if (one.profile, one.start, part.profile, part.start) not in there]:
            device = session.handle(gpu)
            _fill(session, _found(session, device, one) or _made(session, device, one), absent)
    if missing := sorted(uuids(wanted) - uuids(layout(session, gpu))):
        raise DeviceError(f"{', '.join(missing)} did not come back: lay the slices of {gpu} out again")


def recreate(session: Session, gpu: str, slice_uuid: str, first: Callable[[Instance], None]) -> None:
    """Destroy the instance that a slice is a part of, and make it anew: its memory is cleared by the driver.

    ``first`` hears what will be destroyed, so that it is known also to others when this process ends in the middle.
    """
    one = next((one for one in layout(session, gpu) if slice_uuid in uuids((one,))), None)
    if one is None:
        raise DeviceError(f"cannot make {slice_uuid} anew: {gpu} has no such slice any more")
    if len(one.parts) > 1:
        raise DeviceError(f"cannot make {slice_uuid} anew: other slices share its memory; reset the whole GPU")
    first(one)
    try:
        _destroy(session, session.handle(slice_uuid), session.handle(gpu), one)
    except InUseError as error:
        raise NotNowError(f"cannot make {slice_uuid} anew: {error}; end who uses it") from error
    except DeviceError as error:
        raise type(error)(f"cannot make {slice_uuid} anew: {error}") from error
    try:
        lay_out(session, gpu, (one,))
    except DeviceError as error:
        raise type(error)(f"cannot make {slice_uuid} anew: {error}") from error


def _devices(session: Session, device: Handle) -> Iterator[Handle]:
    """The slices of a GPU; numbers are given out with gaps."""
    for number in range(session.ask_optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, device) or 0):
        try:
            found = session.ask_optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, number)
        except (NotFoundError, ArgumentError):
            continue
        if found is None:  # it is not divided at all
            return
        yield found


def _instance(session: Session, device: Handle, number: int, slices: Iterable[Handle]) -> Instance:
    instance = session.ask(pynvml.nvmlDeviceGetGpuInstanceById, device, number)
    info = session.ask(pynvml.nvmlGpuInstanceGetInfo, instance)
    parts = tuple(_part(session, instance, one) for one in slices)
    return Instance(info.profileId, info.placement.start, info.placement.size, parts)


def _part(session: Session, instance: Handle, slice_: Handle) -> Part:
    number = session.ask(pynvml.nvmlDeviceGetComputeInstanceId, slice_)
    part = session.ask(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, number)
    info = session.ask(pynvml.nvmlComputeInstanceGetInfo_v2, part)
    uuid = session.ask(pynvml.nvmlDeviceGetUUID, slice_)
    return Part(uuid, info.profileId, info.placement.start, info.placement.size)


def _destroy(session: Session, slice_: Handle, device: Handle, one: Instance) -> None:
    """The part first, then its instance; the driver refuses either while anybody uses it."""
    number = session.ask(pynvml.nvmlDeviceGetGpuInstanceId, slice_)
    instance = session.ask(pynvml.nvmlDeviceGetGpuInstanceById, device, number)
    which = session.ask(pynvml.nvmlDeviceGetComputeInstanceId, slice_)
    part = session.ask(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, which)
    session.ask(pynvml.nvmlComputeInstanceDestroy, part)
    try:
        session.ask(pynvml.nvmlGpuInstanceDestroy, instance)
    except DeviceError:
        _fill(session, instance, one.parts)  # without its part nobody would know it for a slice again
        raise


def _found(session: Session, device: Handle, one: Instance) -> Handle | None:
    """The instance, where only its parts are missing: whoever made it, or destroyed them, ended in the middle."""
    found, count = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)(), c_uint(_MOST_INSTANCES)
    if session.ask_optional(pynvml.nvmlDeviceGetGpuInstances, device, one.profile, found, byref(count)) is None:
        return None
    return next((it for it in found[: count.value] if _start(session, it) == one.start), None)


def _start(session: Session, instance: Handle) -> int:
    return int(session.ask(pynvml.nvmlGpuInstanceGetInfo, instance).placement.start)


def _made(session: Session, device: Handle, one: Instance) -> Handle:
    place = byref(pynvml.c_nvmlGpuInstancePlacement_t(one.start, one.size))
    return session.ask(pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, device, one.profile, place)


def _fill(session: Session, instance: Handle, parts: Iterable[Part]) -> None:
    for part in parts:
        place = byref(pynvml.c_nvmlComputeInstancePlacement_t(part.start, part.size))
        session.ask(pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement, instance, part.profile, place)
