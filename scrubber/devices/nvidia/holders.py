"""Holders and memory in use of a GPU as NVML lists them, its idle memory, and leaked memory.

NVML lists the processes that have a context. Memory in use above the idle memory shows a holder that no list names.
The idle memory is what is in use while NVML lists no process. NVML counts the memory of the driver as reserved, not as
used, so the idle memory is near zero.

A program that only watches the GPUs, such as DCGM's profiler, may take memory without being listed. So the idle memory
rises when more is in use although NVML has listed no process since the last reading: no tenant has leaked that. A
process that NVML does not list would look the same, so for a while after a rise the holders are unknown.

A leak may exist before the first reading, and cannot be distinguished from memory of the driver then. So the idle
memory has an upper bound. The bound is above what idle GPUs show (up to a few tens of MiB), and below a bare CUDA
context (200 MiB or more), the smallest leak that is worth a reset. A smaller leak that existed before the first reading
stays unseen; neither a scrub nor a pod can reach that memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from scrubber.devices.nvidia import boards
from scrubber.devices.nvidia.nvml import (
    ArgumentError,
    BufferTooSmallError,
    Handle,
    NotSupportedError,
    ResetRequiredError,
    Session,
)
from scrubber.node import clock

IsRunning = Callable[[int], bool]  # whether a process with this pid runs

IDLE_AT_MOST = 64 * 2**20
SLICED_IDLE_AT_MOST = 128 * 2**20  # of a slice that is a whole GPU: it was seen idle with more than 80 MiB in use
_WHOLE = (" MIG 7g.", " MIG 4g.24gb", " MIG 4g.96gb")  # slices that are a whole GPU: of most GPUs, A30, RTX PRO 6000
SETTLES = 10.0  # seconds after a rise of the idle memory: the service searches all processes several times meanwhile
NOISE = 16 * 2**20  # above the idle memory and no leak: the driver allocates and frees this much by itself
TRIES = 3  # readings of a list that grows while it is read

# Not the functions without a version number: for an old driver these raise other errors than NVML does.
LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
)
_LISTS_BEFORE = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
)
_MPS = {LISTS[-1], _LISTS_BEFORE[-1]}
# The releases between answer version 3 with wider entries than pynvml reads.
_WIDE_SINCE, _NARROW_SINCE = (535, 43), (535, 104)


@dataclass(frozen=True, slots=True)
class Usage:
    """One reading. ``listed`` is None if a list could not be read and no other list names a process."""

    listed: bool | None  # whether a list names a process that runs
    least: int  # bytes in use, the lesser of before and after the lists were read, as processes start and end
    most: int


def lists(nvml: Session) -> tuple[Callable[..., Any], ...]:
    """The calls that list processes, in a version whose answers pynvml parses correctly with this driver."""
    return _LISTS_BEFORE if _WIDE_SINCE <= nvml.driver_version() < _NARROW_SINCE else LISTS


def read_usage(nvml: Session, handle: Handle, is_running: IsRunning) -> Usage:
    """Read the lists and the memory in use; for a slice by its own handle. Ended processes do not count."""
    before = boards.memory(nvml, handle).used
    answers = [_lists_process(nvml, handle, question, is_running) for question in lists(nvml)]
    listed = any(answers) or (None if None in answers else False)
    after = boards.memory(nvml, handle).used
    return Usage(listed, min(before, after), max(before, after))


def pids(nvml: Session, handle: Handle) -> frozenset[int]:
    """Every process that a list names; a list that is not supported names none.

    Nor does a device that needs a reset list any: /proc shows its holders.
    """
    listed, questions = set[int](), lists(nvml)
    try:
        for question in questions:
            with suppress(NotSupportedError):
                listed |= {process.pid for process in _listed(nvml, handle, question)}
    except ResetRequiredError:
        return frozenset()
    return frozenset(listed)


def memory_of(nvml: Session, handle: Handle, pid: int) -> int:
    """The bytes that the driver counts as the memory of a process that has a context; 0 if it does not say."""
    with suppress(NotSupportedError):
        for process in _listed(nvml, handle, lists(nvml)[0]):
            if process.pid == pid:
                return process.usedGpuMemory or 0
    return 0


def in_use(usage: Usage, idle: Idle) -> bool | None:
    """Whether the device has a holder; None if it has memory in use that no listed process explains."""
    if usage.listed is False and usage.most > idle.settled:
        return None  # an unlisted process holds memory
    return usage.listed


def leaked(usage: Usage, idle: int = IDLE_AT_MOST) -> int:
    """Bytes in use that no listed process explains."""
    excess = usage.least - idle
    return excess if usage.listed is not True and excess > NOISE else 0


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle memory of one device."""

    bytes: int
    settled: int  # without its last rise, while that is new
    risen: float = -math.inf  # uptime of the last rise
    visited: bool = False  # whether a process was listed since no more than these bytes were in use


class IdleMemory:
    """The idle memory of each device, for one instance of the driver."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], Idle] = {}

    def of(self, uuid: str, driver: str, most: int = IDLE_AT_MOST) -> Idle:
        """The bytes that no tenant has leaked; ``most`` if nothing was learned."""
        return self._idle.get((uuid, driver), Idle(most, most))

    def learn(self, uuid: str, driver: str, usage: Usage, most: int = IDLE_AT_MOST) -> Idle:
        """Update the idle memory with this reading, and return it. It never rises above ``most``."""
        idle, now = self.of(uuid, driver, most), clock.now().uptime
        if usage.listed is not False:
            idle = replace(idle, visited=True)
        elif usage.least <= idle.bytes:
            settled = usage.least if now - idle.risen >= SETTLES else min(usage.least, idle.settled)
            idle = Idle(usage.least, settled, idle.risen)
        elif usage.least <= most and not idle.visited:
            idle = Idle(usage.least, idle.settled, now)
        self._idle[uuid, driver] = idle
        return idle


def idle_at_most(model: str) -> int:
    """The bound of the idle memory. A slice that is a whole GPU idles with more, and a context there takes more."""
    return SLICED_IDLE_AT_MOST if any(profile in model for profile in _WHOLE) else IDLE_AT_MOST


def _listed(nvml: Session, handle: Handle, question: Callable[..., Any]) -> Sequence[Any]:
    """The processes on one list.

    NVML may reject the handle of a slice where slices have no list of MPS processes. Only there is that no error.
    """
    try:
        return nvml.ask(question, handle)  # type: ignore[no-any-return] # pynvml has no types
    except ArgumentError as error:
        parent = None
        if question in _MPS:
            with suppress(ArgumentError):  # only the handle of a slice that still exists has a parent
                parent = nvml.ask_optional(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        if parent is None:
            raise
        raise NotSupportedError(str(error)) from error


def _lists_process(nvml: Session, handle: Handle, question: Callable[..., Any], is_running: IsRunning) -> bool | None:
    for _ in range(TRIES):
        try:
            return any(is_running(process.pid) for process in _listed(nvml, handle, question))
        except NotSupportedError:
            return None
        except BufferTooSmallError:
            continue
    return None
