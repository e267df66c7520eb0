"""The kernels as they are written, compiled for this processor, and launched from Python."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from scrubber.cuda.images import FOLDER
from tests.fakes.cuda.patterns import Words

HERE = Path(__file__).parent
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")  # unrolling is nothing to it
EXACT = "-ffp-contract=off"  # sums are fused where the kernels say so, nowhere else
UNITS = 1024
NOTHING = 2**64 - 1
Argument = ctypes.c_uint32 | ctypes.c_uint64 | ctypes.c_void_p


class TrapError(Exception):
    """A kernel refused what it was launched with."""


class Where(IntEnum):
    """What fails, where a fault is planted: see emulation.h."""

    NOWHERE = 0
    SHARED = 1
    REGISTER = 2
    SUM = 3
    WIDE = 4
    SINE = 5
    LOGARITHM = 6
    ROOT = 7
    HALVES = 8
    BYTES = 9


class Fault(ctypes.Structure):
    """See launch.h."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("where", "block", "moment", "place", "flip")]


class _Launch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("grid", "block", "shared_bytes", "units", "leftovers")),
        ("fault", Fault),
        ("unit_of_block", ctypes.c_void_p),
    ]


class _Found(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("count", "first", "compared")]

    def answer(self) -> tuple[int, int, int]:
        return self.count, self.first, self.compared


class Unit(ctypes.Structure):
    """What a kernel says of one multiprocessor."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("visits", "wrong")),
        *((name, ctypes.c_uint64) for name in ("digest", "compared")),
    ]


@dataclass(frozen=True)
class Shape:
    """How a kernel is launched, and on what."""

    grid: int = 3
    block: int = 32
    shared_bytes: int = 0
    units: int = 4
    leftovers: int = 0  # registers of a thread that hold a canary
    fault: Fault = field(default_factory=Fault)

    def raw(self) -> _Launch:
        return _Launch(self.grid, self.block, self.shared_bytes, self.units, self.leftovers, self.fault, None)


@dataclass(frozen=True)
class Pattern:
    """The arguments that the kernels take for a pattern, and where it begins."""

    kind: int
    k0: int = 0
    k1: int = 0
    base: int = 0

    def raw(self) -> tuple[Argument, ...]:
        long = ctypes.c_uint64
        return long(self.base), ctypes.c_uint32(self.kind), long(self.k0), long(self.k1)


def compiler() -> str | None:
    """The C++ compiler, where the emulation knows the stacks of the processor."""
    return shutil.which("c++") if platform.machine() == "x86_64" else None


def load(library: Path) -> Emulation:
    """A GPU that runs these kernels."""
    return Emulation(ctypes.CDLL(str(library)))


def build(library: Path, source: Path = FOLDER / "scrub.cu") -> None:
    """Compile them."""
    cxx = compiler()
    assert cxx is not None
    command = [cxx, "-shared", "-fPIC", "-std=c++20", "-O1", EXACT, *STRICT, f'-DSCRUB_SOURCE="{source}"']
    subprocess.run([*command, "-o", str(library), str(HERE / "emulation.cpp"), str(HERE / "source.cpp")], check=True)


class Emulation:
    """One GPU; its shared memory keeps what a launch leaves in it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.emulated_nth_read.restype = ctypes.c_void_p

    def write(self, memory: Words, pattern: Pattern, shape: Shape) -> None:
        self._run("write", shape, _address(memory), *_size(memory), *pattern.raw())

    def check(self, memory: Words, pattern: Pattern, shape: Shape) -> tuple[int, int, int]:
        """How many bytes differ, the first of them as the kernel packs it, and how many vectors were compared."""
        found = _Found(0, NOTHING, 0)
        arguments = (_address(memory), *_size(memory), *pattern.raw())
        self._run("check", shape, *arguments, _to(found))
        return found.answer()

    def invert(self, memory: Words, pattern: Pattern, shape: Shape, *, descending: bool) -> tuple[int, int, int]:
        found = _Found(0, NOTHING, 0)
        arguments = (_address(memory), *_size(memory), *pattern.raw(), ctypes.c_uint32(descending))
        self._run("invert", shape, *arguments, _to(found))
        return found.answer()

    def order(self, memory: Words) -> list[int]:
        """Which vectors the last launch that inverted has read, in order."""
        reads = iter(range(len(memory) + 1))
        places = iter(lambda: self._library.emulated_nth_read(ctypes.c_uint64(next(reads))), None)
        return [(place - memory.ctypes.data) // 16 for place in places]

    def on_chip(self, kernel: str, number: int, shape: Shape, *more: int) -> list[Unit]:
        """What each unit says, of all that there are."""
        units = (Unit * UNITS)()
        self._run(kernel, shape, ctypes.c_uint64(number), *map(ctypes.c_uint32, more), _to(units))
        return list(units[: shape.units])

    def _run(self, kernel: str, shape: Shape, *arguments: Argument) -> None:
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        if self._library.emulate(kernel.encode(), ctypes.byref(shape.raw()), addresses):
            raise TrapError(kernel)


def _address(memory: Words) -> ctypes.c_void_p:
    return ctypes.c_void_p(memory.ctypes.data)


def _to(results: ctypes.Structure | ctypes.Array[Unit]) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(results))


def _size(memory: Words) -> tuple[ctypes.c_uint64]:
    return (ctypes.c_uint64(len(memory)),)
