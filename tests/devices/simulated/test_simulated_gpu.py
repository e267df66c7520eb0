"""What a clear promises is true of the bytes in the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scrubber.core import measured
from scrubber.core.measured import Scratched
from scrubber.core.model import Vitals
from scrubber.devices.base import DeviceError, NotNowError
from scrubber.devices.simulated import drills, layout
from scrubber.devices.simulated.layout import Resetting, SimulatedSettings
from tests import few_rights
from tests.few_rights import takes_setpriv

KEY = b"k" * 16
BOTH = ("random", "zero")
TESTS = ("random", "arithmetic")


def nowhere(_done: int, _total: int) -> None:
    """Progress is not reported."""


def size_of(bank) -> int:
    return int(bank.place(bank.first).memory.stat().st_size)


def test_the_random_pattern_is_keyed_and_differs_in_every_place(bank) -> None:
    memory = bank.place(bank.first).memory
    bank.gpu(bank.first).clear(KEY, ("random",), nowhere)
    one = memory.read_bytes()
    bank.gpu(bank.first).clear(b"another key", ("random",), nowhere)
    assert one != memory.read_bytes()
    blocks = [one[at : at + 4096] for at in range(0, len(one), 4096)]
    assert len(set(blocks)) == len(blocks)
    assert one.count(0) < len(one) / 128


def test_a_foreign_write_during_the_clear_is_no_memory_fault(bank) -> None:
    memory = bank.place(bank.first).memory
    written = iter([True])

    def write_once(done: int, total: int) -> None:
        if done >= total // 2 and next(written, False):
            with memory.open("r+b") as file:
                file.write(b"x")

    with pytest.raises(NotNowError, match="another process wrote to the memory"):
        bank.gpu(bank.first).clear(KEY, BOTH, write_once)
    assert bank.gpu(bank.first).clear(KEY, ("zero",), nowhere).mismatch is None


@pytest.mark.parametrize("passes", [("random",), BOTH])
def test_a_foreign_write_after_the_clear_is_no_memory_fault(bank, passes) -> None:
    """A fault of the memory would quarantine the device until a person decides."""
    gpu = bank.gpu(bank.first)
    gpu.clear(KEY, passes, nowhere)
    with bank.place(bank.first).memory.open("r+b") as memory:
        memory.write(b"x")
    with pytest.raises(NotNowError, match="another process wrote to the memory after the clear"):
        gpu.verify(nowhere)
    assert gpu.verify(nowhere).mismatch is None


def test_a_worker_reads_back_only_what_it_has_written_itself(bank) -> None:
    gpu = bank.gpu(bank.first)
    gpu.clear(KEY, ("random",), nowhere)
    assert (gpu.verify(nowhere).patterns, gpu.verify(nowhere).mismatch) == (("random",), None)
    with pytest.raises(NotNowError, match="this worker has not written all of it"):
        bank.gpu(bank.first).verify(nowhere)
    gpu.selftest(KEY, 1.0, nowhere)
    assert (gpu.verify(nowhere).patterns, gpu.verify(nowhere).mismatch) == (("zero",), None)


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
from scrubber.devices.simulated.simulated_gpu import SimulatedGpu
gpu = SimulatedGpu(Path(sys.argv[1]))
print(gpu.clear(b"", ("zero",), print).covered_bytes, gpu.scratch(b"key").units_reached)
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


@pytest.mark.parametrize("name", ["memory", "chip"])
def test_memory_that_cannot_be_opened_is_an_error(bank, name: str) -> None:
    gpu, file = bank.gpu(bank.first), getattr(bank.place(bank.first), name)
    gpu.clear(KEY, ("zero",), nowhere)
    file.unlink()
    with pytest.raises(DeviceError, match=r"cannot open the .*memory of gpu0"):
        gpu.verify(nowhere) if name == "memory" else gpu.scratch(KEY)


def test_progress_grows_to_its_end(bank) -> None:
    said: list[tuple[int, int]] = []
    bank.gpu(bank.first).clear(KEY, BOTH, lambda done, total: said.append((done, total)))
    assert said == sorted(said)
    assert said[-1] == (3 * size_of(bank), 3 * size_of(bank))
    assert {total for _, total in said} == {3 * size_of(bank)}


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
    assert layout.read(bank.place(bank.first).settings, SimulatedSettings) == layout.FIRST_SEEN


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


def test_a_good_gpu_passes_the_self_test_and_is_zero(bank) -> None:
    cells, said = bank.place(bank.first).memory, list[tuple[int, int]]()
    cells.write_bytes(os.urandom(size_of(bank)))
    tested = bank.gpu(bank.first).selftest(KEY, 60, lambda done, total: said.append((done, total)))
    assert tested == measured.Tested(TESTS, (), size_of(bank), None, layout.UNITS)
    assert cells.read_bytes() == bytes(size_of(bank))
    assert said == sorted(said)
    assert said[-1] == (4 * size_of(bank), 4 * size_of(bank))


# What a scratch promises is true of the bytes on the chip.


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
