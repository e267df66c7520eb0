"""The interface that a scrub needs of a GPU: ``Card``, its units and spans, kernel programs, and errors of CUDA.

It is small, so that the code around it can be tested without a GPU. ``cuda_card`` implements it with CuPy. Each
implementation computes the patterns as ``patterns`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ground.quantities import quantity
from scrubber.cuda.patterns import VECTOR, Pattern

Step = Callable[[int], None]  # bytes done
Progress = Callable[[int, int], None]  # bytes done, bytes in all

NOWHERE = 2**64 - 1  # the offset of the first difference if there is no difference


class CudaError(Exception):
    """CUDA refused or failed. The message is for operators."""


class CardBusyError(CudaError):
    """The GPU cannot be used now, because something on the node prevents it. The device is not at fault."""


class NotStartedError(CudaError):
    """CUDA did not start: the node or this container lacks something, or the device is broken."""


class KernelFailedError(CudaError):
    """A kernel ended with an exception: a fault of the kernel, or of the device."""


class Sweep(Enum):
    """The operation on each vector of a memory."""

    WRITE = "write"
    CHECK = "check"
    INVERT = "invert"  # compare, then write the flipped pattern, upwards ...
    INVERT_DOWN = "invert-down"  # ... or downwards


class KernelProgram(Enum):
    """A program that runs on each multiprocessor, with one number as its argument."""

    SCRATCH = "scratch"  # overwrite shared memory, read it back, leave zeros
    REGISTERS = "registers"  # the same for the register file
    EXACT = "exact"  # compute a result that depends on the number only
    PLANT = "plant"  # leave a word in shared memory ...
    LISTEN = "listen"  # ... and count how often it is found there before any write
    PLANT_REGISTERS = "plant_registers"
    LISTEN_REGISTERS = "listen_registers"


@dataclass(frozen=True, slots=True)
class Span:
    """One allocation, and its offset in all allocated memory."""

    address: int
    size: int
    start: int


@dataclass(frozen=True, slots=True)
class Free:
    """The memory of a device as CUDA counts it, in bytes."""

    free: int
    total: int

    @property
    def used(self) -> int:
        """The memory that is not free."""
        return self.total - self.free


@dataclass(frozen=True, slots=True)
class Found:
    """The wrong bytes of a span: how many, and the first, by its offset in all allocated memory."""

    count: int = 0
    offset: int = 0
    got: int = 0
    compared: int = 0  # bytes, as counted by the device; 0 after a write

    @classmethod
    def decoded(cls, count: int, first: int, compared: int) -> Found:
        """Decode the answer of a kernel. An answer that contradicts itself proves nothing."""
        if (count == 0) != (first == NOWHERE):
            differ = quantity(count, "byte differs", "bytes differ")
            raise CudaError(f"its answer contradicts itself: {differ}, and the first is {first:#x}")
        if count == 0:
            return cls(compared=compared * VECTOR)
        return cls(count, first >> 8, first & 0xFF, compared * VECTOR)


@dataclass(frozen=True, slots=True)
class Unit:
    """One multiprocessor that a program ran on."""

    number: int
    wrong: int  # wrong words; for ``LISTEN`` the words that were found
    digest: int = 0  # of the computed result


class Card(Protocol):
    """One GPU or slice, used by one worker only."""

    name: str  # for messages
    units: int  # multiprocessors
    capability: tuple[int, int]  # of CUDA, by which the kernels are chosen

    @property
    def ungranted(self) -> int:
        """Bytes of shared memory of each multiprocessor that SCRATCH cannot reach. Known after its first run."""

    def allocate(self, size: int) -> int | None:
        """The address of new device memory; None if there is no free block of this size."""

    def memory(self) -> Free:
        """The memory that the driver says is free now."""

    def sweep(self, kind: Sweep, pattern: Pattern, spans: Iterable[Span], step: Step) -> tuple[Found, ...]:
        """Apply the operation to all spans in order; returns the result for each span.

        The next span is asked for while the device works on the last one, so that it can be allocated meanwhile.
        """

    def everywhere(self, program: KernelProgram, number: int) -> tuple[Unit, ...]:
        """Run the program until each multiprocessor has run it, with a limit; returns those that ran it."""
