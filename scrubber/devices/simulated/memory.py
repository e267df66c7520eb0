"""A simulated GPU's memory under the hands of its own worker: read, written and compared in chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scrubber.core.measurements import Mismatch, joined
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import patterns
from scrubber.devices.simulated.documents import StuckBit
from scrubber.devices.simulated.layout import GpuFiles
from scrubber.devices.simulated.patterns import CHUNK, Pattern

Step = Callable[[int], None]  # bytes done


PLACES = 4  # so many are told, one a chunk: enough to find them, too few to tell what they were


@dataclass(frozen=True, slots=True)
class Residue:
    """What the last user left: how much, and where."""

    bytes: int
    begins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """All of a device's memory, as long as it stays open."""

    handle: int
    size: int
    stuck_bits: tuple[StuckBit, ...]

    def residue(self, step: Step, then: Pattern | None = None) -> Residue:
        """How many bytes are not zero, and where they begin. ``then`` is written over what was looked at."""
        count, begins = 0, list[int]()
        for number, chunk in self._chunks(step, then):
            if chunk != patterns.zero(number, len(chunk)):
                count += len(chunk) - chunk.count(0)
                begins.append(number * CHUNK + len(chunk) - len(chunk.lstrip(b"\0")))
        return Residue(count, tuple(begins[:PLACES]))

    def fill(self, pattern: Pattern, step: Step) -> None:
        """Write a pattern everywhere."""
        for number, offset, length in _pieces(self.size):
            self._write(offset, pattern(number, length))
            step(length)

    def compare(
        self, pattern: Pattern, step: Step, then: Pattern | None = None, *, downwards: bool = False
    ) -> Mismatch | None:
        """Read everything back, from either end: the first difference, and how many there are.

        ``then`` is written over each chunk as soon as it was compared.
        """
        found: Mismatch | None = None
        for number, chunk in self._chunks(step, then, downwards=downwards):
            expected = pattern(number, len(chunk))
            if chunk != expected:
                wrong = _difference(number * CHUNK, expected, chunk)
                found = joined(wrong, found) if downwards else joined(found, wrong)
        return found

    def _chunks(
        self, step: Step, then: Pattern | None, *, downwards: bool = False
    ) -> Iterator[tuple[int, bytearray]]:  # fmt: skip
        """Each as it was read; it is overwritten when it was looked at."""
        buffer = bytearray(CHUNK)
        pieces = list(_pieces(self.size))
        for number, offset, length in reversed(pieces) if downwards else pieces:
            if length != len(buffer):
                buffer = bytearray(length)
            yield number, self._read(offset, buffer)
            if then is not None:
                self._write(offset, then(number, length))
            step(length)

    def _read(self, offset: int, into: bytearray) -> bytearray:
        if os.preadv(self.handle, [into], offset) != len(into):
            raise DeviceError(f"cannot read memory at offset {offset}: it gave only a part")
        return into

    def _write(self, offset: int, data: memoryview) -> None:
        if os.pwrite(self.handle, self._as_held(offset, data), offset) != len(data):
            raise DeviceError(f"cannot write memory at offset {offset}: it took only a part")

    def _as_held(self, offset: int, data: memoryview) -> memoryview | bytearray:
        """What these cells will hold: the data, but for the bits that are stuck."""
        stuck = [bit for bit in self.stuck_bits if offset <= bit.offset < offset + len(data)]
        if not stuck:
            return data
        held = bytearray(data)
        for bit in stuck:
            held[bit.offset - offset] |= 1 << bit.bit
        return held


@contextmanager
def opened(place: GpuFiles, stuck_bits: tuple[StuckBit, ...]) -> Iterator[MemoryFile]:
    """The memory, open only while it is worked on: an idle worker does not use the device."""
    try:
        handle = os.open(place.memory, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield MemoryFile(handle, os.fstat(handle).st_size, stuck_bits)
        finally:
            os.close(handle)
    except OSError as error:
        raise DeviceError(f"cannot reach the memory of {place.directory.name}: {error}") from error


def _pieces(size: int) -> Iterator[tuple[int, int, int]]:
    for number, offset in enumerate(range(0, size, CHUNK)):
        yield number, offset, min(CHUNK, size - offset)


def _difference(base: int, expected: memoryview, got: bytearray) -> Mismatch:
    # As two long numbers, because comparing byte by byte in Python would take a second for every chunk of bad memory.
    length = len(got)
    wrong = (int.from_bytes(expected) ^ int.from_bytes(got)).to_bytes(length)
    first = length - len(wrong.lstrip(b"\0"))
    return Mismatch(base + first, expected[first], got[first], length - wrong.count(0))
