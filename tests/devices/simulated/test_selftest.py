"""A self-test finds what is broken, says what it ran, and leaves nothing but zeros."""

from __future__ import annotations

import array
import os

import pytest

from scrubber.core import measurements
from scrubber.core.measurements import Mismatch
from scrubber.devices import base
from scrubber.devices.simulated import chip, drills, layout, memory, patterns
from scrubber.devices.simulated.layout import Faults

KEY = b"k" * 16


def nowhere(_done: int, _total: int) -> None:
    """Progress is not reported."""


def size_of(bank) -> int:
    return int(bank.place(bank.first).memory.stat().st_size)


TESTS = ("address", "inversions", "random", "arithmetic")


def test_a_good_gpu_passes_the_self_test_and_is_zero(bank) -> None:
    cells = bank.place(bank.first).memory
    cells.write_bytes(os.urandom(size_of(bank)))
    assert bank.gpu(bank.first).selftest(KEY, 60, nowhere) == measurements.Tested(
        TESTS, (), size_of(bank), None, chip.UNITS
    )
    assert cells.read_bytes() == bytes(size_of(bank))


@pytest.mark.parametrize("offset", [0, 5, 2**20 - 1, 2**20, 3 * 2**20 + 4095])
@pytest.mark.parametrize("bit", range(8))
def test_a_self_test_finds_a_stuck_bit_wherever_it_is(bank, offset: int, bit: int) -> None:
    drills.bad_memory(bank.root, bank.first, offset, bit)
    found = bank.gpu(bank.first).selftest(KEY, 60, nowhere).mismatch
    assert found is not None
    assert found.offset == offset


def test_inversions_name_the_lowest_bad_byte_from_both_ends(bank) -> None:
    for offset in (2 * 2**20, 77):
        drills.bad_memory(bank.root, bank.first, offset, bit=1)
    with memory.opened(bank.place(bank.first), layout.read(bank.place(bank.first).faults, Faults).stuck_bits) as cells:
        cells.fill(patterns.even, lambda _: None)
        assert cells.compare(patterns.even, lambda _: None, patterns.odd, downwards=True) == Mismatch(77, 0x55, 0x57, 2)
        cells.fill(patterns.even, lambda _: None)
        assert cells.compare(patterns.even, lambda _: None, patterns.odd) == Mismatch(77, 0x55, 0x57, 2)


def test_every_word_of_the_address_pattern_is_its_own_address() -> None:
    for number in (0, 1, 255, 256, 70_000):
        words = array.array("Q", patterns.address(number, patterns.CHUNK).tobytes())
        assert words[0] == number << 32
        assert words[-1] == (number << 32) + patterns.CHUNK - 8
        assert len(set(words)) == patterns.CHUNK // 8


def test_crossed_addresses_fail_the_self_test(bank, monkeypatch) -> None:
    write = os.pwrite

    def crossed(handle: int, data: bytes, offset: int) -> int:
        return write(handle, data, {0: 2**20, 2**20: 0}.get(offset, offset))

    monkeypatch.setattr(os, "pwrite", crossed)
    assert bank.gpu(bank.first).selftest(KEY, 60, nowhere).mismatch is not None


def test_units_that_compute_wrongly_are_named(bank) -> None:
    for unit in (2, 7):
        drills.bad_compute(bank.root, bank.first, unit)
    tested = bank.gpu(bank.first).selftest(KEY, 60, nowhere)
    assert (tested.deviating, tested.mismatch, tested.tests) == ((2, 7), None, TESTS)


def test_a_self_test_that_runs_out_of_time_leaves_zeros(bank) -> None:
    cells = bank.place(bank.first).memory
    cells.write_bytes(os.urandom(size_of(bank)))
    assert bank.gpu(bank.first).selftest(KEY, 0, nowhere) == measurements.Tested((), TESTS, size_of(bank), None, 0)
    assert cells.read_bytes() == bytes(size_of(bank))


def test_errors_found_before_the_deadline_are_reported(bank, monkeypatch) -> None:
    drills.bad_memory(bank.root, bank.first, offset=9, bit=0)
    clock = iter([0.0, *[1.0] * 3, *[99.0] * 20])  # the start, the pass that writes, the one that reads, too late
    monkeypatch.setattr("scrubber.devices.simulated.selftest.time.monotonic", lambda: next(clock))
    tested = bank.gpu(bank.first).selftest(KEY, 10, nowhere)
    assert (tested.tests, tested.skipped) == (("address",), TESTS[1:])
    assert tested.mismatch is not None
    assert tested.mismatch.offset == 9


def test_a_self_test_tells_its_progress_up_to_the_end(bank) -> None:
    said: list[tuple[int, int]] = []
    bank.gpu(bank.first).selftest(KEY, 60, lambda done, total: said.append((done, total)))
    assert said == sorted(said)
    assert said[-1] == (9 * size_of(bank), 9 * size_of(bank))


def test_a_gpu_lost_during_its_self_test_fails_it(bank) -> None:
    gpu = bank.gpu(bank.first)

    def lose(done: int, _total: int) -> None:
        if done == size_of(bank):
            drills.lose(bank.root, bank.backend.inventory()[0].uuid)

    with pytest.raises(base.DeviceLostError):
        gpu.selftest(KEY, 60, lose)
