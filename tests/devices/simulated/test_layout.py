"""A document is exactly right, or the device cannot be read."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from autoclave.doctor.facts import container_toolkit
from ground.errors import FatalError
from scrubber import assembly
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.core.model import DeviceInfo, Vitals
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import drills, layout
from scrubber.devices.simulated.layout import Counters, Faults, Measured, Resetting, SimulatedSettings, StuckBit
from scrubber.devices.simulated.simulated_backend import Simulated


@pytest.mark.parametrize(
    "document",
    [
        Counters(ecc_uncorrectable=3, remap_pending=True),
        SimulatedSettings(),
        Measured(celsius=97.5),
        Faults(reset=Resetting.SLOW, reset_seconds=2.5, stuck_bits=(StuckBit(7, 1), StuckBit(9, 0))),
        Faults(bad_units=(1, 7), skip_scratch=True),
        DeviceInfo("GPU-1", 0, "Simulated GPU", 4096, numa_node=1),
    ],
)
def test_a_written_document_is_read_back(tmp_path: Path, document: layout.Document) -> None:
    layout.write(tmp_path / "document.json", document)
    assert layout.read(tmp_path / "document.json", type(document)) == document
    assert [path.name for path in tmp_path.iterdir()] == ["document.json"]


GOOD = asdict(Faults()) | {"reset": "works"}
INVALID = {
    "nothing": "",
    "a part": json.dumps(GOOD)[:40],
    "a list": "[]",
    "one more field": json.dumps(GOOD | {"colour": "red"}),
    "an unknown word": json.dumps(GOOD | {"reset": "perhaps"}),
    "a number for a truth": json.dumps(GOOD | {"lost": 0}),
    "a truth for a number": json.dumps(GOOD | {"reset_seconds": True}),
    "null": json.dumps(GOOD | {"hang": None}),
    **{f"without {name}": json.dumps({it: GOOD[it] for it in GOOD if it != name}) for name in GOOD},
}


@pytest.mark.parametrize("text", [None, *INVALID.values()], ids=["no file", *INVALID])
def test_an_invalid_document_is_an_error_not_a_default(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "faults.json").write_text(text)
    with pytest.raises(DeviceError, match=r"cannot read faults\.json"):
        layout.read(tmp_path / "faults.json", Faults)


def test_a_gpu_of_another_version_says_what_to_remove(tmp_path: Path) -> None:
    layout.create(tmp_path, 1, 4096)
    [place] = layout.places(tmp_path)
    place.device.write_text(place.device.read_text().replace('"mig": false,', ""))
    with pytest.raises(DeviceError, match=r"or another version has written it, stop the service, remove .*gpu0: "):
        place.info()


def test_memory_is_opened_and_closed_under_its_directorys_lock(bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks which process has it open holds the same lock."""
    memory, locked, handles = bank.place(bank.first).memory, list[bool](), list[int]()
    open_, close = os.open, os.close

    def note_lock() -> None:
        directory = open_(memory.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked.append(False)
        except BlockingIOError:
            locked.append(True)
        close(directory)

    def opening(path, *flags) -> int:
        handle = open_(path, *flags)
        if path == memory:
            note_lock()
            handles.append(handle)
        return handle

    def closing(handle: int) -> None:
        close(handle)
        if handle in handles:
            note_lock()
            handles.remove(handle)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "close", closing)
    with layout.opened(memory):
        note_lock()
    assert locked == [True, True, True, False, True], "it is opened twice, and closed twice"


def test_memory_is_closed_also_if_its_directory_cannot_be_locked(bank) -> None:
    memory = bank.place(bank.first).memory
    with pytest.raises(FileNotFoundError), layout.opened(memory) as handle:
        memory.parent.rename(memory.parent.with_name("away"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


# GPUs are made once and stay who they are.


def test_a_gpu_keeps_its_name_and_its_memory_over_restarts(tmp_path: Path) -> None:
    layout.create(tmp_path, 1, 4096)
    before = Simulated(tmp_path).inventory()
    (tmp_path / "gpu0/memory").write_bytes(b"x" * 4096)
    layout.create(tmp_path, 2, 8192)
    after = Simulated(tmp_path).inventory()
    assert after[:1] == before
    assert (tmp_path / "gpu0/memory").read_bytes() == b"x" * 4096
    assert [info.memory_bytes for info in after] == [4096, 8192]


def test_an_emptied_gpu_can_be_made_anew(tmp_path: Path) -> None:
    """A power cut empties what was not written to the disk yet."""
    layout.create(tmp_path, 2, 4096)
    [emptied, other] = layout.places(tmp_path)
    kept = other.info()
    emptied.device.write_text("")
    with pytest.raises(DeviceError, match=f"remove {emptied.directory}: another GPU takes its place at the next start"):
        Simulated(tmp_path).inventory()
    shutil.rmtree(emptied.directory)
    layout.create(tmp_path, 2, 4096)
    assert [info.index for info in Simulated(tmp_path).inventory()] == [0, 1]
    assert other.info() == kept


@pytest.mark.parametrize(("name", "size"), [("memory", 64 * 2**20), ("scratch", 2**20)])
def test_a_new_file_is_private_sparse_and_kept_over_restarts(tmp_path: Path, name: str, size: int) -> None:
    layout.create(tmp_path / "gpus", 1)
    file = tmp_path / "gpus/gpu0" / name
    made = file.stat()
    assert (made.st_size, made.st_blocks, stat.S_IMODE(made.st_mode)) == (size, 0, 0o600)
    assert [stat.S_IMODE(file.parents[above].stat().st_mode) for above in (0, 1)] == [0o700, 0o700]
    file.write_bytes(b"secret")
    layout.create(tmp_path / "gpus", 1)
    assert file.read_bytes() == b"secret"


def test_a_reboot_changes_the_driver_instance_and_clears_volatile_state(tmp_path: Path) -> None:
    layout.create(tmp_path, 1, 4096, "boot-1")
    [place] = layout.places(tmp_path)
    uuid = place.info().uuid
    drills.xid(tmp_path, uuid, 79)
    drills.ecc(tmp_path, uuid)
    drills.remap(tmp_path, uuid, failed=True)
    before = layout.read(layout.driver_file(tmp_path), layout.Driver)

    layout.create(tmp_path, 1, 4096, "boot-1")
    assert layout.read(layout.driver_file(tmp_path), layout.Driver) == before
    assert layout.vitals(place).xids != ()

    layout.create(tmp_path, 1, 4096, "boot-2")
    assert layout.read(layout.driver_file(tmp_path), layout.Driver).instance != before.instance
    assert layout.vitals(place) == Vitals(remap_failed=True)
    assert place.info().uuid == uuid


def test_the_doctor_finds_each_gpu_with_its_memory(bank, tmp_path):
    directory = tmp_path / "var/run/cdi"
    directory.mkdir(parents=True)
    layout.write_cdi(directory, layout.places(bank.root))
    [specification] = container_toolkit.specifications(directory)
    assert (specification.kind, specification.fault) == ("nvidia.com/gpu", None)
    assert {bank.first, bank.second} <= set(specification.names)
    devices = json.loads((directory / layout.CDI_NAME).read_text())["devices"]
    mounts = {it["name"]: it["containerEdits"]["mounts"] for it in devices}
    for index, uuid in enumerate((bank.first, bank.second)):
        [mount] = mounts[uuid]
        seen_as = f"/dev/simulated-gpu{index}"
        assert (mount["hostPath"], mount["containerPath"]) == (str(bank.place(uuid).memory), seen_as)


def test_an_older_specification_is_replaced_as_a_whole(bank, tmp_path):
    (tmp_path / layout.CDI_NAME).write_text("{")
    (tmp_path / f".{layout.CDI_NAME}.new").symlink_to(tmp_path / "elsewhere")
    layout.write_cdi(tmp_path, layout.places(bank.root))
    assert json.loads((tmp_path / layout.CDI_NAME).read_text())["devices"]
    assert [it.name for it in tmp_path.glob("*autoclave-simulated*")] == [layout.CDI_NAME]
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_directory_is_named_with_its_flag(tmp_path):
    config = ScrubberConfig(
        backend=BackendChoice.SIMULATED, simulated_dir=tmp_path / "gpus", simulated_cdi_dir=tmp_path / "missing"
    )
    with pytest.raises(FatalError, match=r"No such file or directory; give a directory .* with --simulated-cdi-dir"):
        assembly.build_backend(config)
