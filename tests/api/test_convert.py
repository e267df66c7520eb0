"""Every view goes over the wire and comes back as it was."""

import dataclasses

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from scrubber.api import convert, scrub_pb2
from scrubber.core import view

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(-(2**31), 2**31 - 1)
REAL = st.floats(allow_nan=False)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(int, COUNT)
st.register_type_strategy(float, REAL)

MESSAGES: dict[type, type[Message]] = {
    view.Status: scrub_pb2.StatusResponse,
    view.Granted: scrub_pb2.Granted,
    view.Advert: scrub_pb2.Advert,
    view.ScrubProgress: scrub_pb2.ScrubProgress,
    view.HistoryEntry: scrub_pb2.HistoryEntry,
    view.Explanation: scrub_pb2.ExplainResponse,
    view.DeviceStatus: scrub_pb2.DeviceStatus,
    view.ReceiptView: scrub_pb2.Receipt,
}


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_view_survives_the_wire(kind, data):
    said = data.draw(st.from_type(kind))
    message = convert.to_message(said, MESSAGES[kind]())
    heard = convert.from_message(kind, MESSAGES[kind].FromString(message.SerializeToString()))
    assert heard == said


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_view_and_its_message_have_the_same_fields(kind):
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields == set(MESSAGES[kind].DESCRIPTOR.fields_by_name)
