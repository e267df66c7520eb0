"""The values of a result: media, endings, what a round planted, and what the next look found, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Medium(Enum):
    """Where the data of a container could be kept after it has ended."""

    MEMORY = "memory"
    HOST = "host-memory"  # pinned for the GPU
    SHARED = "shared-memory"  # of the multiprocessors
    REGISTERS = "registers"


class Ending(Enum):
    """How the first container gives up the GPU."""

    EXIT = "exit"
    KILL = "kill"  # by SIGKILL
    DELETE = "delete"  # its pod is deleted
    FORCE_DELETE = "force-delete"  # nobody waits for the end of its container
    ABORT = "abort"  # a kernel of it traps
    STAYS = "stays"  # it does not: a process of it is left behind


@dataclass(frozen=True, slots=True)
class Planted:
    """What the first container wrote, and how much of that it recognised itself: the positive control."""

    written: int
    recognised: int
    mapped: int = 0  # of what was written, in memory of cuMemCreate


@dataclass(frozen=True, slots=True)
class Look:
    """What the next container found, before it wrote anything there."""

    read: int  # how much it could read
    searched: int  # how much of that was searched for words
    recognised: int  # words of the first container
    never_written: int  # words of a key that nobody has written: the negative control
    not_zero: int | None = None  # of all that was read; None: that cannot be counted here


@dataclass(frozen=True, slots=True)
class Round:
    """One ending, and what the next container finds. ``refused``: why it got nothing; then there are no looks."""

    ending: Ending
    seconds: float  # from the end of the first container until the next one has looked
    available: int  # memory that the first container could have
    planted: Mapping[Medium, Planted]
    looks: Mapping[Medium, Look] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, slots=True)
class GpuAndDriver:
    """The GPU and its driver: a result is of these only."""

    uuid: str
    model: str
    driver: str
    memory: int
    ecc: bool
    persistence: bool | None  # None: the driver does not say
    open_modules: bool = False  # NVIDIA's open kernel modules, whose sources are published


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds on one GPU, and how they were done."""

    on: str
    began: str  # in UTC
    gpu: GpuAndDriver
    rounds: tuple[Round, ...]
    planned: int  # rounds
    beside: tuple[str, ...] = ()  # programs that might have the GPU open
    ended_early: str = ""  # if not all rounds were done: why, without names of a machine
