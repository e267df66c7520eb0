"""The kernels in each of their forms, compiled for this processor, and launched from Python.

The forms are ``source``, as they are written; ``ptx``; and ``sm_75`` to ``sm_120``, the machine code that is shipped.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import numpy as np

from scrubber.cuda.images import FOLDER, PORTABLE
from tests.fakes.built import folder_for, made
from tests.fakes.cuda.patterns import Words
from tests.fakes.cuda.translation import ptx, sass

HERE = Path(__file__).parent
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-label")  # unrolling is nothing to it
EXACT = ("-ffp-contract=off", "-fno-strict-aliasing")  # sums are fused where the kernels say so, nowhere else
SOURCE, PTX = "source", "ptx"
# The instructions of sm_90 that a test may leave out, by kernel and address.
PLANTED_IN = "sm_90"
PLANTED = {
    ("write", 0x0020): "ULDC.64 UR4, c[0x0][0x208]",  # what stores name beside the address
    ("write", 0x13B0): "LOP3.LUT R22, R24, UR15, RZ, 0x3c, !PT",
    ("check", 0x50E0): "BAR.SYNC.DEFER_BLOCKING 0x0",  # after the first thread has set a sum to 0
    ("check", 0x4600): "ISETP.LT.U32.AND.EX P1, PT, R6, R25, PT, P1",
    ("invert", 0x0700): "LOP3.LUT R41, R12, UR4, R5, 0x96, !PT",
    ("scratch", 0x05A0): "ISETP.NE.AND P1, PT, R9, R10, PT",
    ("plant", 0x0130): "STS [R4], R7",
    ("listen", 0x01B0): "ISETP.NE.AND P0, PT, R5, R10, PT",
    ("listen", 0x0400): "IMAD.WIDE.U32 R2, R7, 0x18, R2",  # where the visits of its unit are
    ("registers", 0x2FE0): "ISETP.NE.AND P4, PT, R4, R245, PT",
    ("plant_registers", 0x00C0): "LDS R238, [R11]",
    ("listen_registers", 0x1EA0): "ISETP.NE.U32.AND P0, PT, R8, UR4, PT",
    ("exact", 0x02F0): "BAR.SYNC.DEFER_BLOCKING 0x0",  # as in check
    ("exact", 0x0830): "LOP3.LUT R15, R15, R23, R14, 0x96, !PT",
}
UNITS = 1024
NOTHING = 2**64 - 1
MAP_FIXED_NOREPLACE = 0x100000
EACH = 2**31  # with a number, the place of a fault in every 16th thread: see launch.h
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
        *((name, ctypes.c_uint32) for name in ("first_block", "first_unit")),
        ("fault", Fault),
        ("unit_of_block", ctypes.c_void_p),
    ]


class Found(ctypes.Structure):
    """What a comparison says: how many bytes differ, the first of them as the kernel packs it, the vectors compared."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("count", "first", "compared")]

    def begin(self) -> None:
        self.count, self.first, self.compared = 0, NOTHING, 0

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
    first_unit: int = 0
    first_block: int = 0  # those before it are left out
    leftovers: int = 0  # registers of a thread that hold a canary
    fault: Fault = field(default_factory=Fault)

    def raw(self) -> _Launch:
        sizes = (self.grid, self.block, self.shared_bytes, self.units, self.leftovers)
        return _Launch(*sizes, self.first_block, self.first_unit, self.fault, None)


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


def disassembler() -> str | None:
    """Of NVIDIA's machine code, from its package or from a toolkit."""
    packaged = (path for folder in sys.path for path in Path(folder).glob("nvidia/*/bin/nvdisasm"))
    return str(next(packaged, "")) or shutil.which("nvdisasm")


def missing(form: str) -> str:
    """What this machine lacks to run the kernels in a form; empty: nothing."""
    if compiler() is None:
        return "needs a C++ compiler and x86-64"
    if form not in (SOURCE, PTX) and disassembler() is None:
        return "nvdisasm is not installed: see pyproject.toml"
    return ""


def library(form: str, *, omissible: Mapping[tuple[str, int], str] | None = None) -> Path:
    """The kernels in a form, as a library that has ``emulate``: built once, and again when anything of it changes.

    The instructions ``omissible`` can be left out, each of which has to read as it is written there: the planted ones.
    """
    if omissible is None:
        omissible = PLANTED if form == PLANTED_IN else {}
    image = {SOURCE: FOLDER / "scrub.cu", PTX: FOLDER / PORTABLE}.get(form, FOLDER / f"scrub.{form}.cubin")
    written = [Path(__file__), *HERE.glob("*.cpp"), *HERE.glob("*.h"), *(HERE / "translation").glob("*.*")]
    folder = folder_for([image, *written], compiler(), sorted(omissible.items()))
    return made(folder / f"{image.name}.so", lambda unfinished: _build(unfinished, form, image, omissible))


def _build(library: Path, form: str, image: Path, omissible: Mapping[tuple[str, int], str]) -> None:
    code = library.with_suffix(".cpp")
    if form == SOURCE:
        code = HERE / "source.cpp"
    elif form == PTX:
        code.write_text(ptx.translated(image.read_text()))
    else:
        disassembly = subprocess.run([str(disassembler()), "-c", image], capture_output=True, text=True, check=True)
        code.write_text(sass.translated(image.read_bytes(), disassembly.stdout, omissible))
    machine = library.with_name("machine.o")
    _compile(machine, HERE / "emulation.cpp", "-c")
    _compile(library, code, "-shared", f'-DSCRUB_SOURCE="{image}"', str(machine))


def _compile(result: Path, code: Path, *options: str) -> None:
    ways = ("-O1", "-fPIC", "-std=c++20", *EXACT, *STRICT, f"-I{HERE}", *options)
    subprocess.run([str(compiler()), *ways, "-o", result, code], check=True)


class Emulation:
    """One GPU; its shared memory keeps what a launch leaves in it."""

    def __init__(self, path: Path) -> None:
        self._library = library = ctypes.CDLL(str(path))
        library.emulated_nth_read.restype = ctypes.c_void_p

    @contextmanager
    def without(self, kernel: str, address: int) -> Iterator[None]:
        """Leave one instruction out, of those that can be."""
        self._library.emulated_omit(kernel.encode(), address)
        try:
            yield
        finally:
            self._library.emulated_omit(b"", 0)

    def write(self, memory: Words, pattern: Pattern, shape: Shape, *, skipped: int = 0) -> None:
        """Over memory that ``skipped`` vectors precede, which no block of the shape reaches."""
        self._run("write", shape, *_place(memory, skipped), *pattern.raw())

    def check(self, memory: Words, pattern: Pattern, shape: Shape) -> tuple[int, int, int]:
        found = Found()
        self.comparing(memory, pattern, shape, found)()
        return found.answer()

    def invert(self, memory: Words, pattern: Pattern, shape: Shape, *, descending: bool) -> tuple[int, int, int]:
        found = Found()
        self.comparing(memory, pattern, shape, found, descending=descending)()
        return found.answer()

    def comparing(
        self,
        memory: Words,
        pattern: Pattern,
        shape: Shape,
        found: Found,
        *,
        descending: bool | None = None,
        skipped: int = 0,
    ) -> Callable[[], None]:
        """A pass that can be made many times: ``check``, or ``invert`` where a direction is given.

        Where it descends, the skipped vectors follow the memory.
        """
        address, size = _place(memory, 0 if descending else skipped)
        size.value = len(memory) + skipped
        ways = [] if descending is None else [ctypes.c_uint32(descending)]
        arguments = (address, size, *pattern.raw(), *ways, _to(found))
        launch = self._prepared("check" if descending is None else "invert", shape, *arguments)

        def compare() -> None:
            found.begin()
            launch()

        return compare

    def order(self, memory: Words) -> list[int]:
        """Which vectors the last launch that inverted has read, in order."""
        reads = iter(range(len(memory) + 1))
        places = iter(lambda: self._library.emulated_nth_read(ctypes.c_uint64(next(reads))), None)
        return [(place - memory.ctypes.data) // 16 for place in places]

    def on_chip(self, kernel: str, number: int, shape: Shape, *more: int) -> list[Unit]:
        """What each unit says, of all that there are, from the first."""
        units = (Unit * UNITS)()
        self._run(kernel, shape, ctypes.c_uint64(number), *map(ctypes.c_uint32, more), _to(units))
        return list(units[shape.first_unit : shape.first_unit + shape.units])

    def _run(self, kernel: str, shape: Shape, *arguments: Argument) -> None:
        self._prepared(kernel, shape, *arguments)()

    def _prepared(self, kernel: str, shape: Shape, *arguments: Argument) -> Callable[[], None]:
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        launch, name = ctypes.byref(shape.raw()), kernel.encode()
        held = addresses, arguments  # the one has the addresses of the others

        def launched() -> None:
            if self._library.emulate(name, launch, held[0]):
                raise TrapError(kernel)

        return launched


@functools.cache
def _line() -> int:
    """An address that is a multiple of 4 GiB, with memory on both sides of it."""
    line, side = 2**36, 2**16
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    at = libc.mmap(line - side, 2 * side, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if at != line - side:
        raise OSError(ctypes.get_errno(), "cannot map memory around an address of 64 GiB")
    return line


def across_the_line(vectors: int, before: int) -> Words:
    """Zeros whose address grows beyond 32 bits after some vectors, as it does inside each large allocation."""
    words = (ctypes.c_uint64 * (2 * vectors)).from_address(_line() - 16 * before)
    ctypes.memset(words, 0, ctypes.sizeof(words))
    return np.ctypeslib.as_array(words).reshape(-1, 2)


def _place(memory: Words, skipped: int) -> tuple[ctypes.c_uint64, ctypes.c_uint64]:
    """Where memory begins, and how many vectors it has, with those that are skipped before it."""
    return ctypes.c_uint64(memory.ctypes.data - 16 * skipped), ctypes.c_uint64(len(memory) + skipped)


def _to(results: ctypes.Structure | ctypes.Array[Unit]) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(results))
