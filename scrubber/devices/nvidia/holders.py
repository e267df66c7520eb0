"""Who uses a GPU, as NVML tells: a quick look that may say no, and memory that nobody answers for.

The lists name processes with a context; the memory in use shows what they do not name. It is held against the idle
baseline: the least that was ever in use while nobody was listed. What the driver needs for itself is small and told
apart (it is reserved, not used), so that the baseline is near nothing.

At the first look a leak may already be there, and nothing tells it from the driver's own. So the baseline is believed
only up to a bound: more than is reported of idle GPUs (none to a few tens of MiB), and less than the smallest thing
that a tenant can leave behind and that is worth a reset, a bare CUDA context (some 200 MiB and more). A leak below the
bound that was there before the first look stays unseen; it is no memory that a scrub could reach or a tenant could get.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from scrubber.devices.nvidia.inventory import boards
from scrubber.devices.nvidia.nvml import CrowdedError, Handle, ResetRequiredError, Session, UntoldError

Lives = Callable[[int], bool]  # whether a process of this number is there

IDLE_AT_MOST = 64 * 2**20
NOISE = 16 * 2**20  # above the baseline, and still nobody's: what the driver takes and gives back as it goes
TRIES = 3  # of a list that grows faster than it is read

# Not their unnumbered namesakes, whose errors for an old driver are none of the library's.
LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What was seen. ``listed`` is None when some list could not be told and no other names anybody."""

    listed: bool | None  # somebody who lives
    least: int  # bytes in use before and after the lists were read: who came or went meanwhile is in one of them only
    most: int


def look(nvml: Session, handle: Handle, lives: Lives) -> Usage:
    """One look; of a slice by its own handle. Who is listed and has ended answers for nothing any more."""
    before = boards.memory(nvml, handle).used
    listed = _any([_named(nvml, handle, question, lives) for question in LISTS])
    after = boards.memory(nvml, handle).used
    return Usage(listed, min(before, after), max(before, after))


def pids(nvml: Session, handle: Handle) -> frozenset[int]:
    """Everybody whom a list names; a list that this device or driver does not know names nobody.

    Nor does a device that waits for a reset: who has it open shows under /proc.
    """
    found: set[int] = set()
    try:
        for question in LISTS:
            found |= {process.pid for process in nvml.told(question, handle) or ()}
    except ResetRequiredError:
        return frozenset()
    return frozenset(found)


def in_use(usage: Usage, idle: int) -> bool | None:
    """Used by somebody who is named, by nobody, or it cannot be told."""
    if usage.listed is False and usage.most > idle:
        return None  # somebody who is not named holds memory
    return usage.listed


def leaked(usage: Usage, idle: int = IDLE_AT_MOST) -> int:
    """Bytes that nobody answers for."""
    excess = usage.least - idle
    return excess if usage.listed is not True and excess > NOISE else 0


class Baselines:
    """The idle baseline of each device under one instance of the driver."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._least: dict[tuple[str, str], int] = {}

    def of(self, uuid: str, driver: str) -> int:
        """What is believed to be the driver's own."""
        return self._least.get((uuid, driver), IDLE_AT_MOST)

    def learn(self, uuid: str, driver: str, usage: Usage) -> int:
        """The baseline with this look taken into account."""
        if usage.listed is False:
            self._least[uuid, driver] = min(self.of(uuid, driver), usage.least)
        return self.of(uuid, driver)


def _any(lists: list[bool | None]) -> bool | None:
    if any(lists):
        return True
    return None if None in lists else False


def _named(nvml: Session, handle: Handle, question: Callable[..., Any], lives: Lives) -> bool | None:
    for _ in range(TRIES):
        try:
            return any(lives(process.pid) for process in nvml.ask(question, handle))
        except UntoldError:
            return None
        except CrowdedError:
            continue
    return None
