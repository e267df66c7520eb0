"""What is on a simulated GPU's chip: units with a little memory of their own, and with arithmetic."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection

from scrubber.core.measurements import Scratched
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated.layout import GpuFiles

UNITS = 8
UNIT_BYTES = 128 * 1024
_ROUNDS = 2000  # of the computation: milliseconds in all
_ZEROS = bytes(UNIT_BYTES)


def make(place: GpuFiles) -> None:
    """The memory of all units, where there is none yet; what is there stays."""
    if not place.chip.exists():
        place.chip.touch(mode=0o600)
        os.truncate(place.chip, UNITS * UNIT_BYTES)


def scrub(place: GpuFiles, key: bytes) -> Scratched:
    """Write under the key, read back, write zeros, read back, unit by unit; one that is cut short was not reached."""
    try:
        make(place)
        handle = os.open(place.chip, os.O_RDWR | os.O_CLOEXEC)
        try:
            there = min(UNITS, os.fstat(handle).st_size // UNIT_BYTES)
            faulty = sum(not _holds(handle, unit, key) for unit in range(there))
        finally:
            os.close(handle)
    except OSError as error:
        raise DeviceError(f"cannot reach the memory on the chip of {place.directory.name}: {error}") from error
    return Scratched(UNITS, there, faulty)


def deviating(key: bytes, bad: Collection[int]) -> tuple[int, ...]:
    """The units whose result is not, to the last bit, that of most of them."""
    results = [_computed(key, wrong=unit in bad) for unit in range(UNITS)]
    [(common, _)] = Counter(results).most_common(1)
    return tuple(unit for unit, result in enumerate(results) if result != common)


def _holds(handle: int, unit: int, key: bytes) -> bool:
    stream = hashlib.shake_128(key + unit.to_bytes(2)).digest(UNIT_BYTES)
    held = _held(handle, unit, stream)
    return _held(handle, unit, _ZEROS) and held  # zeros in any case


def _held(handle: int, unit: int, data: bytes) -> bool:
    offset = unit * UNIT_BYTES
    os.pwrite(handle, data, offset)
    return os.pread(handle, UNIT_BYTES, offset) == data


def _computed(key: bytes, *, wrong: bool) -> bytes:
    result = hashlib.pbkdf2_hmac("sha256", key, b"", _ROUNDS)
    return bytes((result[0] ^ 1,)) + result[1:] if wrong else result
