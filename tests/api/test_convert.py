"""Every view goes over the wire and comes back as it was."""

import dataclasses
from typing import get_type_hints

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from scrubber.api import convert, scrub_pb2
from scrubber.core import measurements, views
from scrubber.ground.device_messages import AdvertisedDevice, GrantedDevice, Proof

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(-(2**31), 2**31 - 1)
REAL = st.floats(allow_nan=False)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(int, COUNT)
st.register_type_strategy(float, REAL)

MESSAGES: dict[type, type[Message]] = {
    views.Status: scrub_pb2.StatusResponse,
    GrantedDevice: scrub_pb2.Granted,
    Proof: scrub_pb2.Proof,
    AdvertisedDevice: scrub_pb2.Advert,
    views.ScrubProgress: scrub_pb2.ScrubProgress,
    views.HistoryEntry: scrub_pb2.HistoryEntry,
    views.Explanation: scrub_pb2.ExplainResponse,
    views.DeviceStatus: scrub_pb2.DeviceStatus,
    views.ReceiptView: scrub_pb2.Receipt,
    measurements.Uncovered: scrub_pb2.Uncovered,
}


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_view_survives_the_wire(kind, data):
    said = data.draw(st.from_type(kind))
    message = convert.to_message(said, MESSAGES[kind]())
    decoded = convert.from_message(kind, MESSAGES[kind].FromString(message.SerializeToString()))
    assert decoded == said


@given(data=st.data())
def test_the_amounts_of_a_proof_survive_the_wire(data):
    """They have defaults, which ``from_type`` leaves alone."""
    amounts = (
        "residue_at uncovered patterns units units_reached shared_unreached_bytes tests searched_bytes unsupported"
    )
    hints = get_type_hints(views.ReceiptView)
    receipt = data.draw(st.builds(views.ReceiptView, **{name: st.from_type(hints[name]) for name in amounts.split()}))
    message = convert.to_message(receipt, scrub_pb2.Receipt())
    assert convert.from_message(views.ReceiptView, scrub_pb2.Receipt.FromString(message.SerializeToString())) == receipt


def test_no_units_are_not_none_of_the_units():
    decoded = convert.from_message(views.ReceiptView, scrub_pb2.Receipt())
    assert (decoded.units, decoded.units_reached) == (None, None)
    assert convert.from_message(views.ReceiptView, scrub_pb2.Receipt(units=0, units_reached=0)).units == 0


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_view_and_its_message_have_the_same_fields(kind):
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields == set(MESSAGES[kind].DESCRIPTOR.fields_by_name)
