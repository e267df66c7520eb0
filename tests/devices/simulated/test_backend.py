"""Sight tells what the files say, and nothing when they do not say it."""

from __future__ import annotations

import shutil
import threading
import time

import pytest

from scrubber.core.model import Vitals, Xid
from scrubber.devices.base import Backend, DeviceError
from scrubber.devices.simulated import drills, layout, tenants
from scrubber.devices.simulated.backend import Simulated
from tests.patience import WITHIN


def test_the_backend_fits_the_port(bank) -> None:
    port: Backend = bank.backend
    assert port.name == "simulated"


def test_a_new_gpu_is_healthy_and_free(bank) -> None:
    assert bank.backend.vitals(bank.first) == Vitals()
    assert bank.backend.has_holders(bank.first) is False


def test_a_process_is_seen_on_the_gpu_it_uses_only(bank) -> None:
    pid = tenants.occupy(bank.root, bank.first, b"secret", "pod-a")
    assert bank.backend.has_holders(bank.first) is True
    assert bank.backend.has_holders(bank.second) is False
    assert bank.backend.container_of(pid) == "pod-a"


def test_a_lost_gpu_stays_listed_with_unknown_holders(bank) -> None:
    names = bank.backend.inventory()
    drills.lose(bank.root, bank.first)
    assert bank.backend.vitals(bank.first).lost
    assert bank.backend.has_holders(bank.first) is None
    assert bank.backend.inventory() == names


def test_a_removed_gpu_stays_listed_and_does_not_answer(bank) -> None:
    names = bank.backend.inventory()
    uuid = bank.first
    shutil.rmtree(bank.place(uuid).directory)
    assert bank.backend.inventory() == names
    with pytest.raises(DeviceError):
        bank.backend.vitals(uuid)
    with pytest.raises(DeviceError):
        bank.backend.has_holders(uuid)


def test_an_unreadable_gpu_stays_listed(bank) -> None:
    names = bank.backend.inventory()
    bank.place(names[0].uuid).device.write_text("{")
    assert bank.backend.inventory() == names
    with pytest.raises(DeviceError, match=r"device\.json of gpu0"):
        bank.backend.vitals(names[0].uuid)


def test_a_gpu_does_not_answer_for_the_one_it_replaced(bank) -> None:
    first, second = bank.first, bank.second
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


@pytest.mark.parametrize("name", ["readings", "faults", "device"])
def test_an_unreadable_gpu_has_no_readings_and_disturbs_no_other(bank, name: str) -> None:
    (bank.root / f"gpu0/{name}.json").write_text("{")
    assert [each.index for each in bank.backend.readings().values()] == [1]


@pytest.mark.parametrize("name", ["counters", "faults"])
def test_a_broken_document_is_never_read_as_healthy(bank, name: str) -> None:
    uuid = bank.first
    (bank.place(uuid).directory / f"{name}.json").write_text("{}")
    with pytest.raises(DeviceError, match=name):
        bank.backend.vitals(uuid)


@pytest.mark.parametrize(
    "log",
    ["79", "79\nseventy\n", "\n", "79 soon\n", "79 1.5 x\n", "79 inf\n", "79 nan\n"],
    ids=["half a line", "a word", "an empty line", "no time", "more", "never", "no number"],
)
def test_a_broken_event_log_is_never_read_as_quiet(bank, log: str) -> None:
    bank.place(bank.first).events.write_text(log)
    with pytest.raises(DeviceError, match=r"events\.log"):
        bank.backend.vitals(bank.first)


def test_events_are_numbered_in_order_with_their_time(bank) -> None:
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    drills.xid(bank.root, bank.first, 79)
    drills.xid(bank.root, bank.first, 13)
    first, second = bank.backend.vitals(bank.first).xids
    assert (first.code, second.code, first.number < second.number) == (79, 13, True)
    assert [int(it.at * 1e6) <= it.number for it in (first, second)] == [True, True]
    assert began <= first.at <= second.at <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_an_event_without_a_time_was_reported_at_boot(bank) -> None:
    bank.place(bank.first).events.write_text("79\n13 4.5\n")
    assert bank.backend.vitals(bank.first).xids == (Xid(1, 79), Xid(4_500_000, 13, 4.5))


def test_a_hanging_gpu_does_not_answer_until_it_is_healed(bank) -> None:
    uuid = bank.first
    drills.hang(bank.root, uuid)
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.append(bank.backend.vitals(uuid)), daemon=True),
        threading.Thread(target=lambda: answers.append(bank.backend.has_holders(uuid)), daemon=True),
    ]
    for thread in threads:
        thread.start()
    assert bank.backend.vitals(bank.second) == Vitals()  # the other one answers meanwhile
    assert answers == []
    drills.heal(bank.root, uuid)
    for thread in threads:
        thread.join(WITHIN)
    assert len(answers) == len(threads)


def test_an_unknown_name_is_an_error(bank) -> None:
    with pytest.raises(DeviceError, match="cannot find GPU-unknown"):
        bank.backend.vitals("GPU-unknown")
