"""The steps of a worker on one simulated GPU: bytes of its memory and chip, written, compared, tested.

The memory is read, written and compared in complete chunks, at memcpy speed. A pattern returns the bytes of one chunk.
``random`` is a keyed stream of one chunk's length, rotated by a different amount in each of the chunks of 64 GiB. So
data of an older clear, of another chunk or of another address does not match.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

from ground import private_files
from scrubber.core.measured import Cleared, Mismatch, Restored, Scratched, Tested, Verified, joined
from scrubber.core.model import Vitals
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError, Progress
from scrubber.devices.simulated import layout, loops
from scrubber.devices.simulated.layout import Counters, Faults, GpuFiles, Resetting, SimulatedSettings, StuckBit

CHUNK = 2**18  # a chunk and its pattern fit into the cache of a core

Pattern = Callable[[int, int], memoryview]  # chunk number, length -> bytes

_ZEROS = memoryview(bytes(CHUNK))
_ONES = memoryview(b"\xff" * CHUNK)
_TURN = 0x5BD1  # odd: each chunk number below CHUNK has its own rotation, and those of neighbours differ widely
Step = Callable[[int], None]  # bytes done

PLACES = 4  # reported offsets, one for each chunk: enough to locate old data, too few to reveal its content


class SimulatedGpu:
    """One GPU made of files."""

    def __init__(self, directory: Path) -> None:
        self._place = GpuFiles(directory)
        self._written: tuple[bytes, str] | None = None  # the key and the name of the last pattern in all of the memory

    def reset(self) -> str:
        """Reset the volatile state: counters, leaks, pending remaps, settings. The memory keeps its bytes."""
        faults = self._answer()
        if faults.reset is Resetting.REFUSED:
            raise DeviceError("cannot reset: the device is in use by another client")
        layout.wait_for_reset(self._place, faults.reset_seconds)
        if faults.reset is Resetting.FAILS:
            raise DeviceError("cannot reset: the device did not come back")
        with private_files.locked(self._place.directory):
            counters = layout.read(self._place.counters, Counters)
            layout.write(self._place.counters, Counters(remap_failed=counters.remap_failed))
            layout.write(self._place.settings, SimulatedSettings())
        return "the simulated driver reset its volatile state"

    def prepare(self) -> None:
        """Do nothing: a simulated GPU needs no context."""

    def clear(self, key: bytes, patterns: Iterable[str], progress: Progress, _census: int = 1) -> Cleared:
        """Count the old data, cut it off, write each pattern, and read back each but the last."""
        names = tuple(patterns)
        chosen = tuple(by_name(name, key) for name in names)
        faults = self._answer()
        self._written = None
        with opened_memory(self._place, faults.stuck_bits, writes=not faults.skip_clears) as cells:
            # A stalled clear stops when it has taken away a half of the old data: the worst moment for a kill.
            stalling = _stalling(progress, self._place, cells.size // 2)
            step = _counted(stalling, cells.size * (1 + len(chosen)))
            residue, begins = cells.residue(step, cut=bool(chosen))
            if chosen:
                cells.fill(chosen[0], step)
            mismatch: Mismatch | None = None
            for pattern, following in pairwise(chosen):
                self._answer()
                layout.stall(self._place, lambda: step(0))
                mismatch = joined(mismatch, cells.compare(pattern, step, following))
            if mismatch is not None and cells.holds(mismatch):
                raise NotNowError("another process wrote to the memory during the clear; the memory itself is good")
            self._written = (key, names[-1]) if names else None
            covered = cells.size if chosen else 0
            return Cleared(covered, residue, cells.size, mismatch, begins)

    def verify(self, progress: Progress) -> Verified:
        """Read all memory: each byte must be as it was last written. NotNowError if it is so after one more clear."""
        self._answer()
        if self._written is None:
            raise NotNowError("cannot read back the memory: this worker has not written all of it")
        key, name = self._written
        verified = self._read_back(key, name, progress)
        if verified.mismatch is None:
            return verified
        self.clear(key, (name,), _silent)
        again = self._read_back(key, name, _silent)
        if again.mismatch is None:
            raise NotNowError("another process wrote to the memory after the clear; the memory itself is good")
        return again

    def _read_back(self, key: bytes, name: str, progress: Progress) -> Verified:
        faults = self._answer()
        with opened_memory(self._place, faults.stuck_bits) as cells:
            mismatch = cells.compare(by_name(name, key), _counted(progress, cells.size))
            return Verified(cells.size, (name,), cells.size, mismatch)

    def scratch(self, key: bytes) -> Scratched:
        """Overwrite the on-chip memory of each unit, read it back, and leave zeros."""
        return scrub_chip(self._place, key, writes=not self._answer().skip_scratch)

    def selftest(self, key: bytes, seconds: float, progress: Progress) -> Tested:
        """Test random data and arithmetic, as far as the time allows. Writing zeros afterwards takes extra time."""
        ends = time.monotonic() + seconds
        faults = self._answer()
        ended = list[str]()
        mismatch: Mismatch | None = None
        units, deviating = 0, tuple[int, ...]()
        self._written = None
        with opened_memory(self._place, faults.stuck_bits) as cells:
            step = _counted(progress, 4 * cells.size)
            if time.monotonic() < ends:
                mismatch = cells.write_and_compare(keyed(key), step)
                ended.append("random")
            self._answer()
            if time.monotonic() < ends:
                units, deviating = layout.UNITS, tuple(sorted({*faults.bad_units}))
                ended.append("arithmetic")
            mismatch = joined(mismatch, cells.write_and_compare(zero, step))
            self._written = b"", "zero"
            skipped = tuple(name for name in ("random", "arithmetic") if name not in ended)
            return Tested(tuple(ended), skipped, cells.size, mismatch, units, deviating)

    def restore_settings(self) -> Restored:
        """Restore the settings first seen; returns those that had changed."""
        self._answer()
        with private_files.locked(self._place.directory):
            current = layout.read(self._place.settings, SimulatedSettings)
            first_seen = layout.read(self._place.first_seen, SimulatedSettings)
            if current != first_seen:
                layout.write(self._place.settings, first_seen)
        names = (field.name for field in fields(SimulatedSettings))
        pairs = ((name, getattr(current, name), getattr(first_seen, name)) for name in names)
        return Restored(tuple(f"{name}: {old} -> {new}" for name, old, new in pairs if old != new))

    def vitals(self) -> Vitals:
        """The health in the device's files now."""
        self._answer()
        return layout.vitals(self._place)

    def _answer(self) -> Faults:
        faults = layout.faults(self._place)
        if faults.lost:
            raise DeviceLostError("the device has fallen off the bus: reseat or replace it, then reboot the node")
        return faults


def _silent(_done: int, _total: int) -> None:
    """Progress that is not reported."""


def _stalling(progress: Progress, place: GpuFiles, where: int) -> Progress:
    there = False

    def stalled(done: int, total: int) -> None:
        nonlocal there
        progress(done, total)
        if done >= where and not there:
            there = True
            layout.stall(place, lambda: progress(done, total))

    return stalled


def _counted(progress: Progress, total: int) -> Callable[[int], None]:
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return step


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """The open file that stands for the memory of a device."""

    handle: int
    size: int
    stuck_bits: tuple[StuckBit, ...]
    writes: bool = True  # False: what is written is lost, and what was there before is read
    node: bool = False  # whether it is a device node

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
                self._cut(number * CHUNK, len(chunk))
        if not self.node:
            os.ftruncate(self.handle, self.size)
        return count, tuple(begins[:PLACES])

    def _cut(self, offset: int, length: int) -> None:
        if self.node:
            loops.zero(self.handle, offset, length)
        else:
            os.ftruncate(self.handle, offset)

    def fill(self, pattern: Pattern, step: Step) -> None:
        """Write a pattern to all memory."""
        for number, offset, length in _pieces(self.size):
            self._write(offset, pattern(number, length))
            step(length)

    def compare(self, pattern: Pattern, step: Step, then: Pattern | None = None) -> Mismatch | None:
        """Read all memory back: the first difference, and the number of differences.

        ``then`` overwrites each chunk after the comparison.
        """
        mismatch: Mismatch | None = None
        for number, chunk in self._chunks(step, then):
            expected = pattern(number, len(chunk))
            if chunk == expected:
                continue
            # Compare two long integers: a Python loop over the bytes takes a second for each bad chunk.
            wrong = (int.from_bytes(expected) ^ int.from_bytes(chunk)).to_bytes(len(chunk))
            first = len(chunk) - len(wrong.lstrip(b"\0"))
            bad_bytes = len(chunk) - wrong.count(0)
            mismatch = joined(mismatch, Mismatch(number * CHUNK + first, expected[first], chunk[first], bad_bytes))
        return mismatch

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
        held: memoryview | bytearray = data
        if stuck := [bit for bit in self.stuck_bits if offset <= bit.offset < offset + len(data)]:
            held = bytearray(data)  # the cells hold the data with the stuck bits set
            for bit in stuck:
                held[bit.offset - offset] |= 1 << bit.bit
        if os.pwrite(self.handle, held, offset) != len(data):
            raise DeviceError(f"cannot write memory at offset {offset}: only a part was written")


@contextmanager
def opened_memory(place: GpuFiles, stuck_bits: tuple[StuckBit, ...], *, writes: bool = True) -> Iterator[MemoryFile]:
    """Open the memory during the block only: an idle worker is not a holder."""
    size = place.info().memory_bytes
    try:
        with layout.opened(place.memory) as handle:
            node = stat.S_ISBLK(os.fstat(handle).st_mode)
            if not node:
                os.ftruncate(handle, size)  # a tenant may have made it smaller or larger
            yield MemoryFile(handle, size, stuck_bits, writes, node)
    except OSError as error:
        raise DeviceError(f"cannot open the memory of {place.directory.name}: {error}") from error


def _pieces(size: int) -> Iterator[tuple[int, int, int]]:
    for number, offset in enumerate(range(0, size, CHUNK)):
        yield number, offset, min(CHUNK, size - offset)


def zero(_number: int, length: int) -> memoryview:
    """Zeros."""
    return _ZEROS[:length]


def ones(_number: int, length: int) -> memoryview:
    """Every bit set."""
    return _ONES[:length]


def keyed(key: bytes) -> Pattern:
    """A stream of its own for each key."""
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


def scrub_chip(place: GpuFiles, key: bytes, *, writes: bool = True) -> Scratched:
    """Write a keyed pattern and then zeros to new pages of each unit, and read both back.

    A unit that fails is tried once more. If it fails again, it is faulty; if it passes then, this raises NotNowError.
    Without ``writes``, nothing is written, and what is there is read back.
    """
    try:
        with layout.opened(place.chip) as handle:
            if writes:
                os.ftruncate(handle, 0)
            os.ftruncate(handle, layout.UNITS * layout.UNIT_BYTES)
            faulty = [unit for unit in range(layout.UNITS) if not _holds(handle, unit, key, writes=writes)]
            if any(_holds(handle, unit, key, writes=writes) for unit in faulty):
                raise NotNowError("another process wrote to the on-chip memory meanwhile; the memory itself is good")
    except OSError as error:
        raise DeviceError(f"cannot open the on-chip memory of {place.directory.name}: {error}") from error
    return Scratched(layout.UNITS, layout.UNITS, len(faulty))


def _holds(handle: int, unit: int, key: bytes, *, writes: bool) -> bool:
    stream = hashlib.shake_128(key + unit.to_bytes(2)).digest(layout.UNIT_BYTES)
    held = _held(handle, unit, stream, writes=writes)
    return _held(handle, unit, bytes(layout.UNIT_BYTES), writes=writes) and held  # write the zeros in any case


def _held(handle: int, unit: int, data: bytes, *, writes: bool) -> bool:
    offset = unit * layout.UNIT_BYTES
    if writes:
        os.pwrite(handle, data, offset)
    return os.pread(handle, layout.UNIT_BYTES, offset) == data
