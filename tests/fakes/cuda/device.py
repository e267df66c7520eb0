"""A GPU as one process has it open: what it takes is written down for as long as it lives."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes.cuda.gpu import PAGE, BrokenError, Faults, HostGpu, always
from tests.fakes.cuda.machine import CudaGpu

CONTEXT = PAGE  # what a context costs at least
LIMITS = {0: 1024, 1: 2**20, 2: 2**23}  # bytes of stack a thread, print buffer, device heap: if no others are asked for
THREADS = 1024  # whose stacks a context has room for
CODE = PAGE  # what loading a kernel needs
_FOUND, _UNIT = struct.Struct("<QQQ"), struct.Struct("<IIQQ")
_REGISTERS = dict.fromkeys(("registers", "plant_registers", "listen_registers"), 240 * 256)  # words of a block


class OutOfMemoryError(Exception):
    """There is no piece of that size."""


class Device:
    """Opened once a process."""

    def __init__(self, place: CudaGpu) -> None:
        self.place = place
        self._node = None if place.node is None else os.open(place.node, os.O_RDONLY | os.O_CLOEXEC)
        cells = np.memmap(place.memory, np.uint8, "r+")
        self.gpu = HostGpu(cells, place.units)
        self._claim = claim(place, str(os.getpid()))
        self.gpu.faults = self._faults()
        self.events: dict[int, float | None] = {}  # when each was recorded
        self._numbers = itertools.count(1)
        self._launches: dict[str, int] = {}
        self._loaded: set[str] = set()
        self._limits = dict(LIMITS)
        self._context = self.allocate(self._context_size())

    def allocate(self, size: int) -> int:
        self._launching("allocate", self.gpu.allocations)
        address = self.gpu.allocate(size)
        if address is None:
            raise OutOfMemoryError
        self._tell()
        return address

    def free(self, address: int) -> None:
        """Nothing at all for 0, as there."""
        if address:
            self.gpu.free(address)
            self._tell()

    def books(self) -> tuple[int, int]:
        """What is free and what there is, less what every process that lives has taken."""
        others = sum(_taken(it) for it in Path(self.place.claims).iterdir() if it.name != str(os.getpid()))
        return len(self.gpu.cells) - self.gpu.used - others, len(self.gpu.cells)

    def limit(self, number: int, size: int) -> None:
        """The context has room for so much of it; one that something else was taken beside stays as it is."""
        self._limits[number] = size
        if self.gpu.in_one_piece():
            self.gpu.resize(self._context, self._context_size())
            self._tell()

    def _context_size(self) -> int:
        stack, *others = (self._limits[number] for number in LIMITS)
        return max(CONTEXT, stack * THREADS + sum(others))

    def load(self, kernel: str) -> None:
        """At its first launch a kernel is loaded, which needs memory of the device: where none is left it fails."""
        if kernel not in self._loaded:
            if self.gpu.gap(CODE) is None:
                raise OutOfMemoryError
            self._loaded.add(kernel)

    def put(self, address: int, data: bytes) -> None:
        self.gpu.bytes_at(address, len(data))[:] = np.frombuffer(data, np.uint8)

    def get(self, address: int, size: int) -> bytes:
        return self.gpu.bytes_at(address, size).tobytes()

    def event(self) -> int:
        number = next(self._numbers)
        self.events[number] = None
        return number

    def sweep(self, name: str, words: list[Any]) -> None:
        if name == "write":
            self.gpu.write(*words)
            return
        found = words.pop()
        count, first, compared = self.gpu.check(*words) if name == "check" else self.gpu.invert(*words)
        before, lowest, already = _FOUND.unpack(self.get(found, _FOUND.size))
        self.put(found, _FOUND.pack(before + count, min(lowest, first), already + compared))

    def program(self, name: str, number: int, units: int, blocks: int, shared: int) -> None:
        words = {**dict.fromkeys(("scratch", "listen"), shared // 4), **_REGISTERS}.get(name, 0)
        looked_at = words * 2 if name in ("scratch", "registers") else words
        for unit, runs, wrong, digest in self.gpu.program(name, number, blocks):
            errors = runs * self.gpu.faults.counted(looked_at)
            self.put(units + unit * _UNIT.size, _UNIT.pack(runs, wrong, digest, errors))

    def _tell(self) -> None:
        os.pwrite(self._claim, f"{self.gpu.used:<20}".encode(), 0)

    def _faults(self) -> Faults:
        place = self.place
        return Faults(
            stuck={int(at): bits for at, bits in place.stuck.items()},
            fails_after=place.fails_after,
            lazy=place.lazy,
            deviating=always(*place.deviating),
            leaky=always(*place.leaky),
            unreached=always(*place.unreached),
            before=self._launching,
        )

    def _launching(self, kernel: str, _number: int) -> None:
        self._launches[kernel] = self._launches.get(kernel, 0) + 1
        launch = f"{kernel} {self._launches[kernel]}"
        if launch == self.place.stops_at:
            os.write(os.open(self.place.stop, os.O_RDWR | os.O_CLOEXEC), b"!")
            signal.pause()
        if launch == self.place.dies_at:
            os.kill(os.getpid(), self.place.dies_of)
        if launch == self.place.fails_at:
            raise BrokenError("unspecified launch failure")
        if self.place.taken_at is not None and launch == self.place.taken_at[0]:
            os.pwrite(claim(self.place, "somebody"), str(self.place.taken_at[1]).encode(), 0)


def _taken(path: Path) -> int:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # it lives
            return int(file.read() or 0)
        return 0


def claim(place: CudaGpu, name: str) -> int:
    """Counts for as long as this process has it open."""
    handle = os.open(Path(place.claims) / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle
