"""What a scratch promises is true of the bytes on the chip."""

from __future__ import annotations

import os

import pytest

from scrubber.core.measurements import Scratched
from scrubber.devices.base import NotNowError
from scrubber.devices.simulated import chip

KEY = b"k" * 16


def test_the_chip_is_zero_after_a_scratch(bank) -> None:
    file = bank.place(bank.first).chip
    size = chip.UNITS * chip.UNIT_BYTES
    file.write_bytes(os.urandom(size))
    assert bank.gpu(bank.first).scratch(KEY) == Scratched(chip.UNITS, chip.UNITS)
    assert file.read_bytes() == bytes(size)


def test_each_faulty_unit_is_counted_once(bank, monkeypatch) -> None:
    write = os.pwrite

    def spoilt(handle: int, data: bytes, offset: int) -> int:
        return write(handle, b"\1" + data[1:] if offset in (0, 3 * chip.UNIT_BYTES) else data, offset)

    monkeypatch.setattr(os, "pwrite", spoilt)
    assert bank.gpu(bank.first).scratch(KEY) == Scratched(chip.UNITS, chip.UNITS, 2)


def test_a_unit_that_another_process_wrote_to_is_not_faulty(bank, monkeypatch) -> None:
    write, spoil = os.pwrite, iter([True])

    def spoilt(handle: int, data: bytes, offset: int) -> int:
        return write(handle, b"\1" + data[1:] if next(spoil, False) else data, offset)

    monkeypatch.setattr(os, "pwrite", spoilt)
    with pytest.raises(NotNowError, match="another process wrote to the on-chip memory"):
        bank.gpu(bank.first).scratch(KEY)
    assert bank.gpu(bank.first).scratch(KEY) == Scratched(chip.UNITS, chip.UNITS)


def test_each_unit_is_overwritten_with_its_own_keyed_pattern(bank, monkeypatch) -> None:
    written: list[bytes] = []
    write = os.pwrite

    def noted(handle: int, data: bytes, offset: int) -> int:
        written.append(bytes(data))
        return write(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", noted)
    for key in (KEY, b"another key"):
        bank.gpu(bank.first).scratch(key)
    assert len({data for data in written if any(data)}) == 2 * chip.UNITS
    assert all(len(data) == chip.UNIT_BYTES for data in written)
