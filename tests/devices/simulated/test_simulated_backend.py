"""Sight tells what the files say, and nothing when they do not say it."""

from __future__ import annotations

import os
import shutil

import pytest

from scrubber.core.model import Vitals, Xid
from scrubber.core.use_counter import Missed
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import layout
from scrubber.devices.simulated.simulated_backend import Simulated


def test_a_removed_or_unreadable_gpu_stays_listed_without_answers(bank) -> None:
    names, first, second = bank.backend.inventory(), bank.first, bank.second
    bank.place(first).device.write_text("{")
    shutil.rmtree(bank.place(second).directory)
    assert bank.backend.inventory() == names
    for uuid, directory in ((first, "gpu0"), (second, "gpu1")):
        for question in (bank.backend.vitals, bank.backend.has_holders):
            with pytest.raises(DeviceError, match=rf"device\.json of {directory}"):
                question(uuid)


def test_a_gpu_does_not_answer_for_the_one_it_replaced(bank) -> None:
    first, second = bank.first, bank.second
    assert Simulated(bank.root).vitals(first) == Vitals(), "it need not be listed before"
    shutil.copy(bank.place(second).device, bank.place(first).device)
    with pytest.raises(DeviceError, match="another GPU"):
        bank.backend.vitals(first)


def test_an_unreadable_gpu_that_was_never_known_stops_the_inventory(bank) -> None:
    (bank.root / "gpu1/device.json").write_text("{")
    with pytest.raises(DeviceError, match=r"device\.json of gpu1"):
        bank.backend.inventory()


def test_gpus_are_the_directories_of_that_name(bank) -> None:
    (bank.root / "gpu9").touch()
    (bank.root / "other").mkdir()
    assert [place.directory.name for place in layout.places(bank.root)] == ["gpu0", "gpu1"]
    assert layout.places(bank.root / "nowhere") == ()


def test_a_root_that_cannot_be_listed_has_no_inventory(bank) -> None:
    with pytest.raises(DeviceError, match=r"cannot list the simulated GPUs under .*: Not a directory"):
        Simulated(bank.root / "driver.json").inventory()
    assert Simulated(bank.root / "driver.json").alarm() is None


@pytest.mark.parametrize("other", ["", "before", "after", "across"])
@pytest.mark.parametrize("work", ["memory", "chip"])
def test_only_the_closes_of_other_processes_are_uses(bank, other, work) -> None:
    """Nobody reads the reports of the kernel between the closes."""
    place, gpu = bank.place(bank.first), bank.gpu(bank.first)
    file = getattr(place, work)
    before = [bank.backend.read_uses(it) for it in (bank.first, bank.second)]
    held = os.open(file, os.O_RDWR) if other in ("before", "across") else None
    if held is not None and other == "before":
        os.close(held)
    gpu.clear(b"", ("zero",), lambda *_: None) if work == "memory" else gpu.scratch(b"key")
    if held is not None and other == "across":
        os.close(held)
    if other == "after":
        os.close(os.open(file, os.O_RDWR))
    used = bank.backend.read_uses(bank.first)
    assert (used.uses > before[0].uses) is (other != "")
    assert bank.backend.read_uses(bank.first) == used
    assert bank.backend.read_uses(bank.second) == before[1]


def test_what_replaces_a_memory_file_is_a_use(bank) -> None:
    """Nobody watched the new file until now."""
    memory, before = bank.place(bank.first).memory, bank.backend.read_uses(bank.first)
    memory.rename(memory.with_name("aside"))
    memory.with_name("aside").unlink()
    missed = bank.backend.read_uses(bank.first)
    assert isinstance(missed, Missed) or missed.uses > before.uses
    assert "No such file" in bank.backend.read_uses(bank.first).why
    memory.write_bytes(b"")
    assert bank.backend.read_uses(bank.first).uses > before.uses + 1


@pytest.mark.parametrize("name", ["readings", "faults", "device"])
def test_an_unreadable_gpu_has_no_readings_and_disturbs_no_other(bank, name: str) -> None:
    (bank.root / f"gpu0/{name}.json").write_text("{")
    assert [each.index for each in bank.backend.readings().values()] == [1]


@pytest.mark.parametrize(
    "log",
    ["79", "79\nseventy\n", "\n", "79 soon\n", "79 1.5 x\n", "79 inf\n", "79 nan\n"],
    ids=["half a line", "a word", "an empty line", "no time", "more", "never", "no number"],
)
def test_a_broken_event_log_is_never_read_as_quiet(bank, log: str) -> None:
    bank.place(bank.first).events.write_text(log)
    with pytest.raises(DeviceError, match=r"events\.log"):
        bank.backend.vitals(bank.first)


def test_events_have_numbers_that_rise_with_their_time(bank) -> None:
    bank.place(bank.first).events.write_text("79\n13 4.5\n13 4.5\n")
    found = bank.backend.vitals(bank.first).xids
    assert found == (Xid(1, 79), Xid(4_500_000, 13, 4.5), Xid(4_500_001, 13, 4.5))
