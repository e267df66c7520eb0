"""A document is exactly right, or the device cannot be read."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from scrubber.core.model import DeviceInfo
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import layout
from scrubber.devices.simulated.layout import Counters, Faults, Measured, Resetting, SimulatedSettings, StuckBit


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
