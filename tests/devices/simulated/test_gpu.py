"""What a clear promises is true of the bytes in the file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scrubber.core.measurements import Mismatch
from scrubber.core.model import Findings, Vitals
from scrubber.devices.base import DeviceError, DeviceLostError, Gpu, NotNowError
from scrubber.devices.simulated import chip, creation, drills, layout
from scrubber.devices.simulated.layout import Resetting, SimulatedSettings
from scrubber.devices.simulated.patterns import CHUNK
from tests import few_rights
from tests.few_rights import takes_setpriv
from tests.patience import WITHIN

KEY = b"k" * 16
BOTH = ("random", "zero")


def nowhere(_done: int, _total: int) -> None:
    """Progress is not reported."""


def size_of(bank) -> int:
    return int(bank.place(bank.first).memory.stat().st_size)


def test_the_gpu_fits_the_port(bank) -> None:
    port: Gpu = bank.gpu(bank.first)
    assert port.vitals() == Vitals()


@pytest.mark.parametrize("patterns", [("zero",), BOTH], ids=["zero", "random+zero"])
def test_a_clear_counts_residue_and_leaves_zeros(bank, patterns) -> None:
    memory = bank.place(bank.first).memory
    memory.write_bytes(bytes(100) + os.urandom(5000).replace(b"\0", b"\1") + bytes(size_of(bank) - 5100))
    size = size_of(bank)
    assert bank.gpu(bank.first).clear(KEY, patterns, nowhere) == Findings(size, size, 5000, residue_at=(100,))
    assert memory.read_bytes() == bytes(size)
    assert bank.gpu(bank.first).verify(nowhere) == Findings(size, size)


def test_ones_set_every_bit(bank) -> None:
    bank.gpu(bank.first).clear(KEY, ("random", "ones"), nowhere)
    assert set(bank.place(bank.first).memory.read_bytes()) == {0xFF}


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


def test_without_a_pattern_coverage_is_zero(bank) -> None:
    assert bank.gpu(bank.first).clear(KEY, (), nowhere).covered_bytes == 0


@pytest.mark.parametrize("offset", [0, 5, 2**20 - 1, 2**20, 3 * 2**20 + 4095])
def test_a_stuck_bit_is_found_at_its_exact_offset(bank, offset: int) -> None:
    drills.bad_memory(bank.root, bank.first, offset, bit=3)
    cleared = bank.gpu(bank.first).clear(KEY, ("zero",), nowhere)
    assert cleared.mismatch == Mismatch(offset, 0, 8, 1)
    assert bank.gpu(bank.first).verify(nowhere).mismatch == Mismatch(offset, 0, 8, 1)


def test_all_bad_bytes_are_counted_and_the_first_is_named(bank) -> None:
    for offset in (2**21, 77, 78):
        drills.bad_memory(bank.root, bank.first, offset, bit=0)
    assert bank.gpu(bank.first).clear(KEY, ("zero",), nowhere).mismatch == Mismatch(77, 0, 1, 3)


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
    assert few_rights.printed(CLEAR, place.directory, more) == f"{made[0].st_size} {chip.UNITS}"
    for file, before in zip((place.memory, place.chip), made, strict=True):
        now = file.stat()
        restored = (now.st_size, now.st_uid, now.st_gid, now.st_mode)
        assert restored == (before.st_size, before.st_uid, before.st_gid, before.st_mode)


def test_swapped_chunks_are_noticed(bank, monkeypatch) -> None:
    """Memory whose addresses are crossed holds what was written, elsewhere."""
    write = os.pwrite

    def crossed(handle: int, data: bytes, offset: int) -> int:
        return write(handle, data, {0: CHUNK, CHUNK: 0}.get(offset, offset))

    monkeypatch.setattr(os, "pwrite", crossed)
    mismatch = bank.gpu(bank.first).clear(KEY, ("random",), nowhere).mismatch
    assert mismatch is not None
    assert mismatch.count > CHUNK


def test_verify_finds_one_byte_that_was_left(bank) -> None:
    with bank.place(bank.first).memory.open("r+b") as memory:
        memory.seek(2**20 + 17)
        memory.write(b"\x2a")
    drills.skip_clears(bank.root, bank.first)
    assert bank.gpu(bank.first).verify(nowhere).mismatch == Mismatch(2**20 + 17, 0, 0x2A, 1)


def test_a_clear_that_lies_is_caught_by_verify(bank) -> None:
    bank.place(bank.first).memory.write_bytes(b"secret" + bytes(size_of(bank) - 6))
    drills.skip_clears(bank.root, bank.first)
    assert bank.gpu(bank.first).clear(KEY, BOTH, nowhere).mismatch is None
    assert bank.gpu(bank.first).verify(nowhere).mismatch == Mismatch(0, 0, ord("s"), 6)


def test_memory_that_is_gone_is_an_error(bank) -> None:
    gpu = bank.gpu(bank.first)
    bank.place(bank.first).memory.unlink()
    with pytest.raises(DeviceError, match="cannot open the memory"):
        gpu.verify(nowhere)


def test_progress_grows_to_its_end(bank) -> None:
    said: list[tuple[int, int]] = []
    bank.gpu(bank.first).clear(KEY, BOTH, lambda done, total: said.append((done, total)))
    assert said == sorted(said)
    assert said[-1] == (4 * size_of(bank), 4 * size_of(bank))
    assert {total for _, total in said} == {4 * size_of(bank)}


def test_an_idle_gpu_does_not_keep_its_memory_open(bank) -> None:
    gpu = bank.gpu(bank.first)
    gpu.clear(KEY, BOTH, nowhere)
    gpu.verify(nowhere)
    assert bank.backend.has_holders(bank.first) is False


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
    assert layout.read(bank.place(bank.first).settings, SimulatedSettings) == creation.BASELINE


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
