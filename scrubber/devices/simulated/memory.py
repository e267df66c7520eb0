"""A simulated GPU's memory under the hands of its own worker: read, written and compared in chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scrubber.core.model import Mismatch
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import patterns
from scrubber.devices.simulated.documents import StuckBit
from scrubber.devices.simulated.layout import Place
from scrubber.devices.simulated.patterns import CHUNK, Pattern

Step = Callable[[int], None]  # bytes done


@dataclass(frozen=True, slots=True)
class Memory:
    """All of a device's memory, as long as it stays open."""

    handle: int
    size: int
    stuck_bits: tuple[StuckBit, ...]

    def residue(self, step: Step) -> int:
        """How many bytes are not zero."""
        count = 0
        for number, chunk in self._chunks(step):
            if chunk != patterns.zero(number, len(chunk)):
                count += len(chunk) - chunk.count(0)
        return count

    def fill(self, pattern: Pattern, step: Step) -> None:
        """Write a pattern everywhere."""
        for number, offset, length in _pieces(self.size):
            data = self._as_held(offset, pattern(number, length))
            if os.pwrite(self.handle, data, offset) != length:
                raise DeviceError(f"cannot write memory at offset {offset}: it took only a part")
            step(length)

    def compare(self, pattern: Pattern, step: Step) -> Mismatch | None:
        """Read everything back: the first difference, and how many there are."""
        found: Mismatch | None = None
        for number, chunk in self._chunks(step):
            expected = pattern(number, len(chunk))
            if chunk != expected:
                found = joined(found, _difference(number * CHUNK, expected, chunk))
        return found

    def _chunks(self, step: Step) -> Iterator[tuple[int, bytearray]]:
        buffer = bytearray(CHUNK)
        for number, offset, length in _pieces(self.size):
            if length != len(buffer):
                buffer = bytearray(length)
            if os.preadv(self.handle, [buffer], offset) != length:
                raise DeviceError(f"cannot read memory at offset {offset}: it gave only a part")
            yield number, buffer
            step(length)

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
def opened(place: Place, stuck_bits: tuple[StuckBit, ...]) -> Iterator[Memory]:
    """The memory, open only while it is worked on: an idle worker does not use the device."""
    try:
        handle = os.open(place.memory, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield Memory(handle, os.fstat(handle).st_size, stuck_bits)
        finally:
            os.close(handle)
    except OSError as error:
        raise DeviceError(f"cannot reach the memory of {place.directory.name}: {error}") from error


def joined(first: Mismatch | None, second: Mismatch | None) -> Mismatch | None:
    """Two findings as one: the place of the first, the count of both."""
    if first is None or second is None:
        return first or second
    return Mismatch(first.offset, first.expected, first.got, first.count + second.count)


def _pieces(size: int) -> Iterator[tuple[int, int, int]]:
    for number, offset in enumerate(range(0, size, CHUNK)):
        yield number, offset, min(CHUNK, size - offset)


def _difference(base: int, expected: memoryview, got: bytearray) -> Mismatch:
    # As two long numbers, because comparing byte by byte in Python would take a second for every chunk of bad memory.
    length = len(got)
    wrong = (int.from_bytes(expected) ^ int.from_bytes(got)).to_bytes(length)
    first = length - len(wrong.lstrip(b"\0"))
    return Mismatch(base + first, expected[first], got[first], length - wrong.count(0))
