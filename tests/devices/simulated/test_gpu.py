"""What a clear promises is true of the bytes in the file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scrubber.core import measurements
from scrubber.core.measurements import Mismatch, Scratched
from scrubber.core.model import Findings, Vitals
from scrubber.devices.base import DeviceError, DeviceLostError, NotNowError
from scrubber.devices.simulated import drills, layout
from scrubber.devices.simulated.gpu import CHUNK
from scrubber.devices.simulated.layout import Resetting, SimulatedSettings
from tests import few_rights
from tests.few_rights import takes_setpriv
from tests.patience import WITHIN

KEY = b"k" * 16
BOTH = ("random", "zero")
TESTS = ("random", "arithmetic")


def nowhere(_done: int, _total: int) -> None:
    """Progress is not reported."""


def size_of(bank) -> int:
    return int(bank.place(bank.first).memory.stat().st_size)


def test_a_clear_writes_its_last_pattern_and_reports_coverage(bank) -> None:
    gpu = bank.gpu(bank.first)
    assert gpu.clear(KEY, ("random", "ones"), nowhere).covered_bytes == size_of(bank)
    assert set(bank.place(bank.first).memory.read_bytes()) == {0xFF}
    assert gpu.clear(KEY, (), nowhere).covered_bytes == 0
    assert bank.backend.has_holders(bank.first) is False, "an idle worker keeps nothing open"


@pytest.mark.parametrize("patterns", [("zero",), BOTH], ids=["zero", "random+zero"])
def test_a_clear_counts_residue_and_leaves_zeros(bank, patterns) -> None:
    memory = bank.place(bank.first).memory
    memory.write_bytes(bytes(100) + os.urandom(5000).replace(b"\0", b"\1") + bytes(size_of(bank) - 5100))
    size = size_of(bank)
    assert bank.gpu(bank.first).clear(KEY, patterns, nowhere) == Findings(size, size, 5000, residue_at=(100,))
    assert memory.read_bytes() == bytes(size)
    assert bank.gpu(bank.first).verify(nowhere) == Findings(size, size)


def test_the_random_pattern_is_keyed_and_differs_in_every_place(bank) -> None:
    memory = bank.place(bank.first).memory
    bank.gpu(bank.first).clear(KEY, ("random",), nowhere)
    one = memory.read_bytes()
    bank.gpu(bank.first).clear(b"another key", ("random",), nowhere)
    assert one != memory.read_bytes()
    blocks = [one[at : at + 4096] for at in range(0, len(one), 4096)]
    assert len(set(blocks)) == len(blocks)
    assert one.count(0) < len(one) / 128


def test_an_invalid_pattern_is_refused_before_any_change(bank) -> None:
    memory = bank.place(bank.first).memory
    memory.write_bytes(b"x" * size_of(bank))
    for key, patterns in ((b"", BOTH), (KEY, ("zero", "noise"))):
        with pytest.raises(ValueError, match="cannot write pattern"):
            bank.gpu(bank.first).clear(key, patterns, nowhere)
    assert memory.read_bytes() == b"x" * size_of(bank)


@pytest.mark.parametrize("offset", [0, 5, CHUNK - 1, CHUNK, 3 * 2**20 + 4095])
@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_stuck_bit_is_found_by_each_step_on_memory(bank, offset: int, bit: int) -> None:
    drills.bad_memory(bank.root, bank.first, offset, bit)
    drills.bad_memory(bank.root, bank.first, size_of(bank) - 1, bit)
    gpu, count = bank.gpu(bank.first), len({offset, size_of(bank) - 1})
    expected = Mismatch(offset, 0, 1 << bit, count)
    assert (gpu.clear(KEY, ("zero",), nowhere).mismatch, gpu.verify(nowhere).mismatch) == (expected, expected)
    tested = gpu.selftest(KEY, 60, nowhere)
    assert tested.mismatch is not None
    assert tested.mismatch.count >= count


def test_a_foreign_write_during_the_clear_is_no_memory_fault(bank) -> None:
    memory = bank.place(bank.first).memory
    written = iter([True])

    def write_once(done: int, total: int) -> None:
        if done >= total // 2 and next(written, False):
            with memory.open("r+b") as file:
                file.write(b"x")

    with pytest.raises(NotNowError, match="another process wrote to the memory"):
        bank.gpu(bank.first).clear(KEY, ("zero",), write_once)
    assert bank.gpu(bank.first).clear(KEY, ("zero",), nowhere).mismatch is None


def test_a_foreign_write_after_the_clear_is_no_memory_fault(bank) -> None:
    """A fault of the memory would quarantine the device until a person decides."""
    with bank.place(bank.first).memory.open("r+b") as memory:
        memory.write(b"x")
    with pytest.raises(NotNowError, match="another process wrote to the memory after the clear"):
        bank.gpu(bank.first).verify(nowhere)
    assert bank.gpu(bank.first).verify(nowhere).mismatch is None


def test_pages_that_a_tenant_kept_hold_nothing_of_the_next(bank) -> None:
    """Pages in a pipe outlive every open file, so the kernel names no holder."""
    place = bank.place(bank.first)
    kept = {}
    for file in (place.memory, place.chip):
        with file.open("r+b") as opened:
            opened.write(b"the first tenant")
            kept[file], into = os.pipe()
            assert os.splice(opened.fileno(), into, 16, offset_src=0) == 16
            os.close(into)
    bank.gpu(bank.first).clear(KEY, ("zero",), nowhere)
    bank.gpu(bank.first).scratch(KEY)
    for file, pipe in kept.items():
        with file.open("r+b") as opened:
            opened.write(b"the next tenant!")
        assert os.read(pipe, 16) == b"the first tenant"
        os.close(pipe)


CLEAR = """
import sys
from pathlib import Path
from scrubber.devices.simulated.gpu import SimulatedGpu
gpu = SimulatedGpu(Path(sys.argv[1]))
print(gpu.clear(b"", ("zero",), print).covered_bytes, gpu.scratch(b"key").reached)
"""
TAMPERED: dict[str, Callable[[Path], object]] = {
    "cut off": lambda file: os.truncate(file, 4711),
    "grown": lambda file: os.truncate(file, 2**40),
    "no mode": lambda file: file.chmod(0),
    "every mode": lambda file: file.chmod(0o666),
    "another group": lambda file: os.chown(file, -1, 65534),
    "another owner": lambda file: os.chown(file, 65534, 65534),
}


@takes_setpriv
@pytest.mark.parametrize("how", TAMPERED)
def test_a_scrub_restores_the_files_that_a_tenant_changed(bank, how: str) -> None:
    place = bank.place(bank.first)
    made = [file.stat() for file in (place.memory, place.chip)]
    TAMPERED[how](place.memory)
    TAMPERED[how](place.chip)
    more = frozenset({"CHOWN"} if how == "another owner" else ())
    assert few_rights.printed(CLEAR, place.directory, more) == f"{made[0].st_size} {layout.UNITS}"
    for file, before in zip((place.memory, place.chip), made, strict=True):
        now = file.stat()
        restored = (now.st_size, now.st_uid, now.st_gid, now.st_mode)
        assert restored == (before.st_size, before.st_uid, before.st_gid, before.st_mode)


def test_crossed_addresses_are_found_by_clear_and_self_test(bank, monkeypatch) -> None:
    """Such memory holds what was written, elsewhere."""
    write = os.pwrite

    def crossed(handle: int, data: bytes, offset: int) -> int:
        return write(handle, data, {0: CHUNK, CHUNK: 0}.get(offset, offset))

    monkeypatch.setattr(os, "pwrite", crossed)
    cleared, tested = (
        bank.gpu(bank.first).clear(KEY, ("random",), nowhere),
        bank.gpu(bank.first).selftest(KEY, 60, nowhere),
    )
    for mismatch in (cleared.mismatch, tested.mismatch):
        assert mismatch is not None
        assert mismatch.count > CHUNK


@pytest.mark.parametrize("held", [b"", b"secret"], ids=["clean memory", "a secret"])
def test_a_clear_that_writes_nothing_does_not_find_its_pattern(bank, held: bytes) -> None:
    bank.place(bank.first).memory.write_bytes(held + bytes(size_of(bank) - len(held)))
    drills.skip_clears(bank.root, bank.first)
    mismatch = bank.gpu(bank.first).clear(KEY, BOTH, nowhere, confirm=False).mismatch
    assert mismatch is not None
    assert mismatch.count > size_of(bank) // 2
    assert bank.place(bank.first).memory.read_bytes().startswith(held)


def test_verify_finds_what_a_clear_neither_wrote_nor_read(bank) -> None:
    bank.place(bank.first).memory.write_bytes(b"secret" + bytes(size_of(bank) - 6))
    drills.skip_clears(bank.root, bank.first)
    assert bank.gpu(bank.first).clear(KEY, ("zero",), nowhere, confirm=False).mismatch is None
    assert bank.gpu(bank.first).verify(nowhere).mismatch == Mismatch(0, 0, ord("s"), 6)


@pytest.mark.parametrize("name", ["memory", "chip"])
def test_memory_that_cannot_be_opened_is_an_error(bank, name: str) -> None:
    gpu, file = bank.gpu(bank.first), getattr(bank.place(bank.first), name)
    file.unlink()
    with pytest.raises(DeviceError, match=r"cannot open the .*memory of gpu0"):
        gpu.verify(nowhere) if name == "memory" else gpu.scratch(KEY)


def test_progress_grows_to_its_end(bank) -> None:
    said: list[tuple[int, int]] = []
    bank.gpu(bank.first).clear(KEY, BOTH, lambda done, total: said.append((done, total)))
    assert said == sorted(said)
    assert said[-1] == (4 * size_of(bank), 4 * size_of(bank))
    assert {total for _, total in said} == {4 * size_of(bank)}


def test_a_reset_forgets_what_is_volatile_and_keeps_the_memory(bank) -> None:
    bank.place(bank.first).memory.write_bytes(b"secret" + bytes(size_of(bank) - 6))
    drills.ecc(bank.root, bank.first)
    drills.leak(bank.root, bank.first)
    drills.remap(bank.root, bank.first)
    drills.remap(bank.root, bank.first, failed=True)
    bank.gpu(bank.first).reset()
    assert bank.gpu(bank.first).vitals() == Vitals(remap_failed=True)
    assert bank.place(bank.first).memory.read_bytes().startswith(b"secret")


def test_changed_settings_are_restored_and_reported_once(bank) -> None:
    gpu = bank.gpu(bank.first)
    drills.drift(bank.root, bank.first, power_limit_watts=700)
    assert gpu.restore_settings().drift == ("power_limit_watts: 700 -> 350",)
    assert gpu.restore_settings().drift == ()
    assert layout.read(bank.place(bank.first).settings, SimulatedSettings) == layout.BASELINE


def test_a_reset_leaves_settings_to_restore(bank) -> None:
    bank.gpu(bank.first).reset()
    restored = bank.gpu(bank.first).restore_settings()
    assert restored.drift == ("power_limit_watts: 400 -> 350", "persistence: False -> True")


@pytest.mark.parametrize(("how", "words"), [(Resetting.REFUSED, "in use"), (Resetting.FAILS, "did not come back")])
def test_a_failed_reset_is_an_error_and_changes_nothing(bank, how: Resetting, words: str) -> None:
    drills.remap(bank.root, bank.first)
    drills.break_reset(bank.root, bank.first, how)
    with pytest.raises(DeviceError, match=words):
        bank.gpu(bank.first).reset()
    assert bank.gpu(bank.first).vitals().remap_pending


def test_a_slow_reset_takes_its_time(bank, monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("scrubber.devices.simulated.gpu.time.sleep", slept.append)
    drills.break_reset(bank.root, bank.first, Resetting.SLOW, 3)
    bank.gpu(bank.first).reset()
    assert slept == [3.0]


def test_every_operation_fails_on_a_lost_gpu(bank) -> None:
    gpu = bank.gpu(bank.first)
    drills.lose(bank.root, bank.first)
    deeds = (
        gpu.reset,
        gpu.vitals,
        gpu.restore_settings,
        lambda: gpu.verify(nowhere),
        lambda: gpu.clear(KEY, BOTH, nowhere),
        lambda: gpu.scratch(KEY),
        lambda: gpu.selftest(KEY, 60, nowhere),
    )
    for deed in deeds:
        with pytest.raises(DeviceLostError):
            deed()


def test_residue_is_reported_by_place_and_never_by_content(bank) -> None:
    memory = bank.place(bank.first).memory
    memory.write_bytes(bytes(7) + b"secret" + bytes(9) + b"more" + bytes(CHUNK - 26) + b"x" * (size_of(bank) - CHUNK))
    cleared = bank.gpu(bank.first).clear(KEY, ("zero",), nowhere)
    assert cleared.residue_at == (7, CHUNK, 2 * CHUNK, 3 * CHUNK)


@pytest.mark.parametrize(("from_", "to"), [(0, "half"), (1.75, "whole")])
def test_a_stalled_clear_continues_when_it_is_healed(bank, from_: float, to: str) -> None:
    uuid, memory, size = bank.first, bank.place(bank.first).memory, size_of(bank)
    memory.write_bytes(b"x" * size)
    stalled, results = threading.Event(), []
    written = -1

    def progress(done: int, _total: int) -> None:
        nonlocal written
        if done == written:  # no further than before
            stalled.set()
        if written < from_ * size <= done:
            drills.stall_clears(bank.root, uuid)
        written = done

    # A daemon, so that a red test still ends.
    clear = threading.Thread(target=lambda: results.append(bank.gpu(uuid).clear(KEY, ("ones",), progress)), daemon=True)
    clear.start()
    assert stalled.wait(WITHIN)
    assert (size // 2 <= written < size) if to == "half" else (written == 2 * size)
    assert memory.read_bytes() == (b"x" * (size - written) if to == "half" else b"\xff" * size)
    assert results == []
    drills.heal(bank.root, uuid)
    clear.join(WITHIN)
    assert results == [Findings(size, size, size, residue_at=tuple(range(0, 4 * CHUNK, CHUNK)))]


def test_a_good_gpu_passes_the_self_test_and_is_zero(bank) -> None:
    cells, said = bank.place(bank.first).memory, list[tuple[int, int]]()
    cells.write_bytes(os.urandom(size_of(bank)))
    tested = bank.gpu(bank.first).selftest(KEY, 60, lambda done, total: said.append((done, total)))
    assert tested == measurements.Tested(TESTS, (), size_of(bank), None, layout.UNITS)
    assert cells.read_bytes() == bytes(size_of(bank))
    assert said == sorted(said)
    assert said[-1] == (4 * size_of(bank), 4 * size_of(bank))


def test_units_that_compute_wrongly_are_named(bank) -> None:
    for unit in (2, 7):
        drills.bad_compute(bank.root, bank.first, unit)
    tested = bank.gpu(bank.first).selftest(KEY, 60, nowhere)
    assert (tested.deviating, tested.mismatch, tested.tests) == ((2, 7), None, TESTS)


@pytest.mark.parametrize("done", [0, 1], ids=["no test", "one test"])
def test_a_self_test_out_of_time_still_leaves_zeros(bank, monkeypatch, done: int) -> None:
    drills.bad_memory(bank.root, bank.first, offset=9, bit=0)
    cells = bank.place(bank.first).memory
    cells.write_bytes(os.urandom(size_of(bank)))
    clock = iter([0.0, *[1.0] * done, *[99.0] * 20])
    monkeypatch.setattr("scrubber.devices.simulated.gpu.time.monotonic", lambda: next(clock))
    tested = bank.gpu(bank.first).selftest(KEY, 10, nowhere)
    assert (tested.tests, tested.skipped, tested.units) == (TESTS[:done], TESTS[done:], 0)
    assert tested.mismatch is not None
    assert tested.mismatch.offset == 9
    assert set(cells.read_bytes()) == {0, 1}


def test_a_gpu_lost_during_its_self_test_fails_it(bank) -> None:
    gpu, uuid = bank.gpu(bank.first), bank.first
    with pytest.raises(DeviceLostError):
        gpu.selftest(KEY, 60, lambda _done, _total: drills.lose(bank.root, uuid))


# What a scratch promises is true of the bytes on the chip.

KEY = b"k" * 16


def test_the_chip_is_zero_after_a_scratch(bank) -> None:
    file = bank.place(bank.first).chip
    size = layout.UNITS * layout.UNIT_BYTES
    file.write_bytes(os.urandom(size))
    assert bank.gpu(bank.first).scratch(KEY) == Scratched(layout.UNITS, layout.UNITS)
    assert file.read_bytes() == bytes(size)


def test_each_faulty_unit_is_counted_once(bank, monkeypatch) -> None:
    write = os.pwrite

    def spoilt(handle: int, data: bytes, offset: int) -> int:
        return write(handle, b"\1" + data[1:] if offset in (0, 3 * layout.UNIT_BYTES) else data, offset)

    monkeypatch.setattr(os, "pwrite", spoilt)
    assert bank.gpu(bank.first).scratch(KEY) == Scratched(layout.UNITS, layout.UNITS, 2)


def test_a_unit_that_another_process_wrote_to_is_not_faulty(bank, monkeypatch) -> None:
    write, spoil = os.pwrite, iter([True])

    def spoilt(handle: int, data: bytes, offset: int) -> int:
        return write(handle, b"\1" + data[1:] if next(spoil, False) else data, offset)

    monkeypatch.setattr(os, "pwrite", spoilt)
    with pytest.raises(NotNowError, match="another process wrote to the on-chip memory"):
        bank.gpu(bank.first).scratch(KEY)
    assert bank.gpu(bank.first).scratch(KEY) == Scratched(layout.UNITS, layout.UNITS)


def test_each_unit_is_overwritten_with_its_own_keyed_pattern(bank, monkeypatch) -> None:
    written: list[bytes] = []
    write = os.pwrite

    def noted(handle: int, data: bytes, offset: int) -> int:
        written.append(bytes(data))
        return write(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", noted)
    for key in (KEY, b"another key"):
        bank.gpu(bank.first).scratch(key)
    assert len({data for data in written if any(data)}) == 2 * layout.UNITS
    assert all(len(data) == layout.UNIT_BYTES for data in written)
