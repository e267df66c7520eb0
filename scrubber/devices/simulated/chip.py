"""The on-chip memory of a simulated GPU, which belongs to the units that compute."""

from __future__ import annotations

import hashlib
import os

from ground import private_files
from scrubber.core.measurements import Scratched
from scrubber.devices.base import DeviceError, NotNowError
from scrubber.devices.simulated import layout
from scrubber.devices.simulated.layout import GpuFiles

UNITS = 8
UNIT_BYTES = 128 * 1024
_BYTES = UNITS * UNIT_BYTES
_ZEROS = bytes(UNIT_BYTES)


def make(place: GpuFiles) -> None:
    """Create the on-chip memory of all units."""
    handle = private_files.opened(place.chip, os.O_WRONLY | os.O_CREAT)
    os.ftruncate(handle, _BYTES)
    os.close(handle)


def scrub(place: GpuFiles, key: bytes, *, writes: bool = True) -> Scratched:
    """Write a keyed pattern and then zeros to new pages of each unit, and read both back.

    A unit is faulty if it fails twice. NotNowError if it does not fail the second time. Without ``writes``, nothing is
    written, and what is there is read back.
    """
    try:
        with layout.opened(place.chip) as handle:
            if writes:
                os.ftruncate(handle, 0)
            os.ftruncate(handle, _BYTES)
            faulty = [unit for unit in range(UNITS) if not _holds(handle, unit, key, writes=writes)]
            if any(_holds(handle, unit, key, writes=writes) for unit in faulty):
                raise NotNowError("another process wrote to the on-chip memory meanwhile; the memory itself is good")
    except OSError as error:
        raise DeviceError(f"cannot open the on-chip memory of {place.directory.name}: {error}") from error
    return Scratched(UNITS, UNITS, len(faulty))


def _holds(handle: int, unit: int, key: bytes, *, writes: bool) -> bool:
    stream = hashlib.shake_128(key + unit.to_bytes(2)).digest(UNIT_BYTES)
    held = _held(handle, unit, stream, writes=writes)
    return _held(handle, unit, _ZEROS, writes=writes) and held  # write the zeros in any case


def _held(handle: int, unit: int, data: bytes, *, writes: bool) -> bool:
    offset = unit * UNIT_BYTES
    if writes:
        os.pwrite(handle, data, offset)
    return os.pread(handle, UNIT_BYTES, offset) == data
