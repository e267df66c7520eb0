"""Read, write and compare the memory of a simulated GPU in chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scrubber.core.measurements import Mismatch, joined
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import layout, patterns
from scrubber.devices.simulated.layout import GpuFiles, StuckBit
from scrubber.devices.simulated.patterns import CHUNK, Pattern

Step = Callable[[int], None]  # bytes done


PLACES = 4  # reported offsets, one for each chunk: enough to locate old data, too few to reveal its content


@dataclass(frozen=True, slots=True)
class Residue:
    """The data that was left in memory: how much, and where."""

    bytes: int
    begins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """The open file that stands for the memory of a device."""

    handle: int
    size: int
    stuck_bits: tuple[StuckBit, ...]

    def residue(self, step: Step, *, cut: bool) -> Residue:
        """Count the bytes that are not zero, from the end to the beginning, and find where they begin.

        ``cut`` takes away each page that was counted; new ones take their places. A tenant may have kept the old pages
        without the file, in a pipe or an io_uring.
        """
        count, begins = 0, list[int]()
        for number, chunk in self._chunks(step, None, downwards=True):
            if chunk != patterns.zero(number, len(chunk)):
                count += len(chunk) - chunk.count(0)
                begins.insert(0, number * CHUNK + len(chunk) - len(chunk.lstrip(b"\0")))
            if cut:
                os.ftruncate(self.handle, number * CHUNK)
        os.ftruncate(self.handle, self.size)
        return Residue(count, tuple(begins[:PLACES]))

    def fill(self, pattern: Pattern, step: Step) -> None:
        """Write a pattern to all memory."""
        for number, offset, length in _pieces(self.size):
            self._write(offset, pattern(number, length))
            step(length)

    def compare(
        self, pattern: Pattern, step: Step, then: Pattern | None = None, *, downwards: bool = False
    ) -> Mismatch | None:
        """Read all memory back: the first difference, and the number of differences.

        ``then`` overwrites each chunk after the comparison. ``downwards`` starts at the last chunk.
        """
        found: Mismatch | None = None
        for number, chunk in self._chunks(step, then, downwards=downwards):
            expected = pattern(number, len(chunk))
            if chunk != expected:
                wrong = _difference(number * CHUNK, expected, chunk)
                found = joined(wrong, found) if downwards else joined(found, wrong)
        return found

    def holds(self, mismatch: Mismatch) -> bool:
        """Whether the first byte of a mismatch holds what is written to it now. A stuck bit does not."""
        expected = bytearray((mismatch.expected,))
        self._write(mismatch.offset, memoryview(expected))
        return self._read(mismatch.offset, bytearray(1)) == expected

    def _chunks(
        self, step: Step, then: Pattern | None, *, downwards: bool = False
    ) -> Iterator[tuple[int, bytearray]]:  # fmt: skip
        """Yield each chunk; ``then`` overwrites it when the caller asks for the next."""
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
            raise DeviceError(f"cannot read memory at offset {offset}: only a part was read")
        return into

    def _write(self, offset: int, data: memoryview) -> None:
        if os.pwrite(self.handle, self._as_held(offset, data), offset) != len(data):
            raise DeviceError(f"cannot write memory at offset {offset}: only a part was written")

    def _as_held(self, offset: int, data: memoryview) -> memoryview | bytearray:
        """The data that the cells hold after a write: the data with the stuck bits set."""
        stuck = [bit for bit in self.stuck_bits if offset <= bit.offset < offset + len(data)]
        if not stuck:
            return data
        held = bytearray(data)
        for bit in stuck:
            held[bit.offset - offset] |= 1 << bit.bit
        return held


@contextmanager
def opened(place: GpuFiles, stuck_bits: tuple[StuckBit, ...]) -> Iterator[MemoryFile]:
    """Open the memory during the block only: an idle worker is not a holder."""
    size = place.info().memory_bytes
    try:
        handle = layout.open_memory(place.memory)
        try:
            os.ftruncate(handle, size)  # a tenant may have made it smaller or larger
            yield MemoryFile(handle, size, stuck_bits)
        finally:
            os.close(handle)
    except OSError as error:
        raise DeviceError(f"cannot open the memory of {place.directory.name}: {error}") from error


def _pieces(size: int) -> Iterator[tuple[int, int, int]]:
    for number, offset in enumerate(range(0, size, CHUNK)):
        yield number, offset, min(CHUNK, size - offset)


def _difference(base: int, expected: memoryview, got: bytearray) -> Mismatch:
    # Compare two long integers: a Python loop over the bytes takes a second for each bad chunk.
    length = len(got)
    wrong = (int.from_bytes(expected) ^ int.from_bytes(got)).to_bytes(length)
    first = length - len(wrong.lstrip(b"\0"))
    return Mismatch(base + first, expected[first], got[first], length - wrong.count(0))
