"""What a scrub needs of a GPU: one small port, so that all that is decided around it can be tried without a GPU.

``device`` implements it with CuPy. Whoever implements it keeps to the pattern arithmetic of ``patterns``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from scrubber.cuda.patterns import VECTOR, Pattern

Step = Callable[[int], None]  # bytes done
Progress = Callable[[int, int], None]  # bytes done, bytes in all

NOWHERE = 2**64 - 1  # the place of the first difference where there is none


class CudaError(Exception):
    """CUDA refused or failed: the message is for operators."""


class CardBusyError(CudaError):
    """It may not be used just now, for something on the node is in the way: no fault of the device."""


class Deed(Enum):
    """What is done to each vector of a memory."""

    WRITE = "write"
    CHECK = "check"
    INVERT = "invert"  # compare, then write the flipped pattern, upwards ...
    INVERT_DOWN = "invert-down"  # ... or downwards


class KernelProgram(Enum):
    """What runs on every multiprocessor; each takes one number."""

    SCRATCH = "scratch"  # overwrite shared memory, read it back, leave zeros
    REGISTERS = "registers"  # the same of the register file
    EXACT = "exact"  # compute something, always the same for the same number
    PLANT = "plant"  # leave a word in shared memory ...
    LISTEN = "listen"  # ... and count how often it is found there, before anything was written
    PLANT_REGISTERS = "plant_registers"
    LISTEN_REGISTERS = "listen_registers"


@dataclass(frozen=True, slots=True)
class Span:
    """One allocation, and where it begins in the whole of what was allocated."""

    address: int
    size: int
    start: int


@dataclass(frozen=True, slots=True)
class Found:
    """Bytes of a span that were not as they should be: how many, and the first of them, by its place in the whole."""

    count: int = 0
    offset: int = 0
    got: int = 0
    compared: int = 0  # bytes, as the device has counted them; none where it was only written

    @classmethod
    def told(cls, count: int, first: int, compared: int) -> Found:
        """As kernels tell it. Whoever contradicts himself has proven nothing."""
        if (count == 0) != (first == NOWHERE):
            raise CudaError(f"its answer contradicts itself: {count} bytes differ, and the first is {first:#x}")
        if count == 0:
            return cls(compared=compared * VECTOR)
        return cls(count, first >> 8, first & 0xFF, compared * VECTOR)


@dataclass(frozen=True, slots=True)
class Unit:
    """One multiprocessor that a program ran on."""

    number: int
    wrong: int  # words that were not as they should be; for ``LISTEN`` those that were found
    digest: int = 0  # of what was computed there


class Card(Protocol):
    """One GPU, or one slice of it, in the hands of the only worker that sees it."""

    name: str  # for messages
    units: int  # multiprocessors

    def allocate(self, size: int) -> int | None:
        """An address of plain device memory; None when not that much is left in one piece."""
        ...

    def sweep(self, deed: Deed, pattern: Pattern, spans: Sequence[Span], step: Step) -> tuple[Found, ...]:
        """Do it to all spans in their order; what was found in each, once all of it is done."""
        ...

    def everywhere(self, program: KernelProgram, number: int) -> tuple[Unit, ...]:
        """Run it until every multiprocessor had its turn, or does not get one: those that had."""
        ...
