"""Reads who asked for a device: the kernel writes each attempt of others into a ring that both have mapped.

The ring holds some thousand attempts. What does not fit, or is one of too many, is lost here, and not in the counts:
counts decide, and attempts explain them.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from scrubber.core.model import DeviceNumber
from scrubber.fence.kernel import program
from scrubber.fence.kernel.program import ATTEMPT, RING_BYTES

_PAGE = mmap.PAGESIZE
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_HEADER = 8  # bytes before each record; records begin at multiples of it


@dataclass(frozen=True, slots=True)
class Attempt:
    """Somebody asked to open a device that is not open to him."""

    device: DeviceNumber
    uptime: float  # seconds since boot
    pid: int
    command: str
    group: int  # the id of the control group of the process
    above: tuple[int, ...]  # those of the groups above it, from the root down, as far as they are sent
    refused: bool


class Attempts:
    """The reader's side of the ring. One at a time: what is read is gone."""

    def __init__(self, ring: int) -> None:
        """``ring``: the descriptor of the map. It is readable while there is something to read."""
        self.descriptor = ring
        self._read = mmap.mmap(ring, _PAGE)
        self._written = mmap.mmap(ring, _PAGE + 2 * RING_BYTES, prot=mmap.PROT_READ, offset=_PAGE)

    def new(self) -> Iterator[Attempt]:
        """The attempts since the last call."""
        place, end = self._place(self._read), self.end()
        while place < end:
            at = _PAGE + place % RING_BYTES
            (length,) = struct.unpack_from("<I", self._written, at)
            if length & _BUSY:
                return  # its writer has not finished; the ring becomes readable again
            size = length & ~_DISCARDED
            record = self._written[at + _HEADER : at + _HEADER + size]
            place += _HEADER + -(-size // _HEADER) * _HEADER
            struct.pack_into("<Q", self._read, 0, place)  # first: after a kill, nobody may ignore it once more
            if not length & _DISCARDED:
                yield _attempt(record)

    def waiting(self) -> bool:
        """Whether there is something to read."""
        return self._place(self._read) < self.end()

    def end(self) -> int:
        """How far the kernel has written."""
        return self._place(self._written)

    def close(self) -> None:
        """End the reading."""
        self._read.close()
        self._written.close()

    @staticmethod
    def _place(page: mmap.mmap) -> int:
        (place,) = struct.unpack_from("<Q", page, 0)
        return int(place)


def _attempt(record: bytes) -> Attempt:
    time, group, device, pid, refused, command, *above = ATTEMPT.unpack(record)
    name = command.partition(b"\0")[0].decode(errors="replace")
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)  # a process chooses its name
    return Attempt(program.number(device), time / 1e9, pid, shown, group, tuple(filter(None, above)), bool(refused))
