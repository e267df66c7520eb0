"""Which device a name means, and how a command names a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ground.errors import InvalidRequest, Reason
from scrubber.core import device_names
from scrubber.core.model import Ailment, AilmentKind
from scrubber.core.record import Record
from tests.core import lives


def board(uuid: str, index: int, out: AilmentKind | None = None, at: float = 0.0, number: int | None = None) -> Record:
    """A device, and why it was quarantined at which time."""
    info = replace(lives.DEVICE, uuid=uuid, index=index, slice=number)
    if out is None:
        return replace(lives.CLEAN, device=info)
    since = replace(lives.NOW, wall=at)
    return lives.but(
        lives.QUARANTINED, device=info, quarantine=replace(lives.quarantine(Ailment(out, "")), since=since)
    )


def by_uuid(*records: Record) -> Mapping[str, Record]:
    return {record.device.uuid: record for record in records}


FIRST, SECOND = board("GPU-1", 0, AilmentKind.REPLACED, 10.0), board("GPU-2", 0, AilmentKind.LOST, 20.0)


def test_an_index_means_the_gpu_that_is_there():
    for there in (board("GPU-3", 0), board("GPU-3", 0, AilmentKind.XID, 1.0)):
        assert device_names.find(by_uuid(there, FIRST, SECOND), "0") == "GPU-3"
    assert device_names.find(by_uuid(FIRST, SECOND), "GPU-1") == "GPU-1"


def test_the_index_of_missing_gpus_means_the_last_one():
    assert device_names.find(by_uuid(SECOND, FIRST), "0") == device_names.find(by_uuid(FIRST, SECOND), "0") == "GPU-2"


def test_the_beginning_of_a_uuid_means_its_only_gpu():
    assert device_names.find(by_uuid(FIRST, board("MIG-1", 0)), "gpu") == "GPU-1"


@pytest.mark.parametrize("name", ["", "7", "GPU-3"])
def test_a_name_of_no_gpu_is_an_unknown_device(name):
    with pytest.raises(InvalidRequest, match="no device has this name") as refused:
        device_names.find(by_uuid(FIRST), name)
    assert refused.value.reason is Reason.UNKNOWN_DEVICE


def test_no_slice_of_a_missing_gpu_is_chosen():
    slices = [board(f"MIG-{number}", 0, AilmentKind.LOST, 5.0 + number, number) for number in (0, 1)]
    with pytest.raises(InvalidRequest, match=r"could be any of 0:0 .*, 0:1 .*; give its UUID"):
        device_names.find(by_uuid(*slices), "0")
    assert device_names.find(by_uuid(*slices), "0:1") == "MIG-1"


def test_two_gpus_that_are_there_are_both_named():
    with pytest.raises(InvalidRequest, match=r"any of 0 \(GPU-1\), 0 \(GPU-3\); give its UUID"):
        device_names.find(by_uuid(board("GPU-3", 0), board("GPU-1", 0)), "0")


def test_the_last_other_gpu_with_an_index_is_named():
    records = by_uuid(FIRST, SECOND, board("GPU-3", 0), board("GPU-4", 1))
    [sentence] = device_names.had_index(records, "0", "GPU-3")
    assert sentence == "another GPU had the index 0 at another time: `autoclave explain GPU-2` is about that one"
    [sentence] = device_names.had_index({**records, **by_uuid(board("GPU-5", 0, AilmentKind.XID, 1.0))}, "0", "GPU-3")
    assert "`autoclave explain GPU-5`" in sentence, "it is there"
    assert device_names.had_index(records, "GPU-3", "GPU-3") == device_names.had_index(records, "1", "GPU-4") == ()


def test_commands_name_a_missing_gpu_by_its_uuid():
    assert [device_names.argument(record) for record in (FIRST, board("GPU-3", 0))] == ["GPU-1", "0"]
