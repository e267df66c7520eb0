"""A document is exactly right, or the device cannot be read."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"ecc_uncorrectable": 0, "remap_pending": fal',
        "[]",
        "{}",
        json.dumps(asdict(Counters()) | {"colour": "red"}),
        json.dumps(asdict(Counters()) | {"remap_pending": 0}),
        json.dumps(asdict(Counters()) | {"ecc_uncorrectable": True}),
        json.dumps(asdict(Counters()) | {"ecc_uncorrectable": None}),
    ],
)
def test_an_invalid_document_is_an_error_not_a_default(tmp_path: Path, text: str) -> None:
    (tmp_path / "counters.json").write_text(text)
    with pytest.raises(DeviceError, match=r"cannot read counters\.json"):
        layout.read(tmp_path / "counters.json", Counters)


def without(name: str) -> dict[str, object]:
    said = asdict(Faults()) | {"reset": "works"}
    del said[name]
    return said


@pytest.mark.parametrize("name", [it.name for it in fields(Faults)])
def test_a_document_that_lacks_a_field_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "faults.json").write_text(json.dumps(without(name)))
    with pytest.raises(DeviceError, match="expected exactly the fields"):
        layout.read(tmp_path / "faults.json", Faults)


def test_a_missing_document_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError):
        layout.read(tmp_path / "counters.json", Counters)


def test_an_unknown_word_is_an_error(tmp_path: Path) -> None:
    layout.write(tmp_path / "faults.json", Faults())
    text = (tmp_path / "faults.json").read_text()
    (tmp_path / "faults.json").write_text(text.replace('"works"', '"perhaps"'))
    with pytest.raises(DeviceError, match="perhaps"):
        layout.read(tmp_path / "faults.json", Faults)


def test_a_write_leaves_no_other_file(tmp_path: Path) -> None:
    layout.write(tmp_path / "counters.json", Counters())
    assert [path.name for path in tmp_path.iterdir()] == ["counters.json"]
