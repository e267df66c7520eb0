"""Read, write and compare the memory of a simulated GPU in complete chunks, at memcpy speed.

A pattern returns the bytes of one chunk. ``random`` is a keyed stream of one chunk's length, rotated by a different
amount in each of the chunks of 64 GiB. So data of an older clear, of another chunk or of another address does not
match.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scrubber.core.measurements import Mismatch, joined
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import layout
from scrubber.devices.simulated.layout import GpuFiles, StuckBit

CHUNK = 2**18  # a chunk and its pattern fit into the cache of a core

Pattern = Callable[[int, int], memoryview]  # chunk number, length -> bytes

_ZEROS = memoryview(bytes(CHUNK))
_ONES = memoryview(b"\xff" * CHUNK)
_TURN = 0x5BD1  # odd: each chunk number below CHUNK has its own rotation, and those of neighbours differ widely
Step = Callable[[int], None]  # bytes done

PLACES = 4  # reported offsets, one for each chunk: enough to locate old data, too few to reveal its content


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """The open file that stands for the memory of a device."""

    handle: int
    size: int
    stuck_bits: tuple[StuckBit, ...]
    writes: bool = True  # False: what is written is lost, and what was there before is read

    def residue(self, step: Step, *, cut: bool) -> tuple[int, tuple[int, ...]]:
        """Count the bytes that are not zero, from the end to the beginning, and find where they begin.

        ``cut`` takes away each page that was counted; new ones take their places. A tenant may have kept the old pages
        without the file, in a pipe or an io_uring.
        """
        count, begins = 0, list[int]()
        for number, chunk in self._chunks(step, None, downwards=True):
            if chunk != zero(number, len(chunk)):
                count += len(chunk) - chunk.count(0)
                begins.insert(0, number * CHUNK + len(chunk) - len(chunk.lstrip(b"\0")))
            if cut and self.writes:
                os.ftruncate(self.handle, number * CHUNK)
        os.ftruncate(self.handle, self.size)
        return count, tuple(begins[:PLACES])

    def fill(self, pattern: Pattern, step: Step) -> None:
        """Write a pattern to all memory."""
        for number, offset, length in _pieces(self.size):
            self._write(offset, pattern(number, length))
            step(length)

    def compare(self, pattern: Pattern, step: Step, then: Pattern | None = None) -> Mismatch | None:
        """Read all memory back: the first difference, and the number of differences.

        ``then`` overwrites each chunk after the comparison.
        """
        found: Mismatch | None = None
        for number, chunk in self._chunks(step, then):
            expected = pattern(number, len(chunk))
            if chunk != expected:
                found = joined(found, _difference(number * CHUNK, expected, chunk))
        return found

    def write_and_compare(self, pattern: Pattern, step: Step) -> Mismatch | None:
        """Write a pattern to all memory and read it back."""
        self.fill(pattern, step)
        return self.compare(pattern, step)

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
        if not self.writes:
            return
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
def opened(place: GpuFiles, stuck_bits: tuple[StuckBit, ...], *, writes: bool = True) -> Iterator[MemoryFile]:
    """Open the memory during the block only: an idle worker is not a holder."""
    size = place.info().memory_bytes
    try:
        with layout.opened(place.memory) as handle:
            os.ftruncate(handle, size)  # a tenant may have made it smaller or larger
            yield MemoryFile(handle, size, stuck_bits, writes)
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


def zero(_number: int, length: int) -> memoryview:
    """Zeros."""
    return _ZEROS[:length]


def ones(_number: int, length: int) -> memoryview:
    """Every bit set."""
    return _ONES[:length]


def keyed(key: bytes) -> Pattern:
    """A stream that cannot be predicted without the key."""
    stream = memoryview(hashlib.shake_128(key).digest(CHUNK) * 2)

    def pattern(number: int, length: int) -> memoryview:
        start = number * _TURN % CHUNK
        return stream[start : start + length]

    return pattern


def by_name(name: str, key: bytes) -> Pattern:
    """The pattern with this name."""
    match name:
        case "zero":
            return zero
        case "ones":
            return ones
        case "random" if key:
            return keyed(key)
    raise ValueError(f"cannot write pattern {name!r}: the pattern is unknown, or its key is missing")
