"""The id of a hand-over is new for each tenancy, and cannot be guessed."""

from dataclasses import replace

from scrubber.core.model import DeviceInfo, Incarnation, Moment, Record, State
from scrubber.receipts.handover import handover_id, owner_digest

RECORD = Record(DeviceInfo("GPU-1", 0, "sim", 1), Incarnation("b", "d"), State.DIRTY, Moment(1.0, 1.0), vacated=7)


def test_the_id_is_the_agreed_one():
    """Others compute it too: an id of another form would lose the files of a tenant."""
    assert handover_id(b"secret", RECORD) == "c09cedefa4b9ce305611f3fe"
    assert handover_id(b"secret", replace(RECORD, vacated=0)) == "54c929df005fbf1a02ce6ecf"


def test_each_tenancy_device_and_node_has_another_id():
    others = (
        handover_id(b"secret", replace(RECORD, vacated=8)),
        handover_id(b"secret", replace(RECORD, device=replace(RECORD.device, uuid="GPU-2"))),
        handover_id(b"other", RECORD),
    )
    assert len({handover_id(b"secret", RECORD), *others}) == 4
    moved = replace(RECORD, device=replace(RECORD.device, index=4), incarnation=Incarnation("c", "e"))
    assert handover_id(b"secret", moved) == handover_id(b"secret", RECORD)  # a restart of the node changes these


def test_an_owner_has_another_digest_in_each_handover():
    digests = {owner_digest(b"secret", handover, "pod") for handover in ("a", "b")} | {owner_digest(b"x", "a", "pod")}
    assert len(digests) == 3
    assert owner_digest(b"secret", "a", "") == ""
