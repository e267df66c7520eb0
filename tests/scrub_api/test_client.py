"""Every view goes over the wire and comes back as it was."""

import dataclasses
from typing import Any, get_type_hints

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from scrub_api import admin_client, client, measurements, scrub_pb2, views
from scrub_api.device_messages import GrantedDevice, ReportedDevice
from scrubber.core.events import ScrubPassed
from scrubber.ledger import ledger_rows
from scrubber.words import event_text
from tests.core import lives

MESSAGES: dict[Any, type[Message]] = {
    views.Status: scrub_pb2.StatusResponse,
    GrantedDevice: scrub_pb2.Granted,
    ReportedDevice: scrub_pb2.ReportedDevice,
    views.ScrubProgress: scrub_pb2.ScrubProgress,
    views.HistoryEntry: scrub_pb2.HistoryEntry,
    views.Explanation: scrub_pb2.ExplainResponse,
    views.DeviceStatus: scrub_pb2.DeviceStatus,
    views.ReceiptView: scrub_pb2.Receipt,
    measurements.Uncovered: scrub_pb2.Uncovered,
}
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
st.register_type_strategy(int, st.integers(-(2**31), 2**31 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
for view in MESSAGES:  # also the fields with a default, which ``from_type`` leaves alone otherwise
    hints = get_type_hints(view)
    fields = {field.name: st.from_type(hints[field.name]) for field in dataclasses.fields(view)}
    st.register_type_strategy(view, st.builds(view, **fields))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_view_survives_the_wire(kind, data):
    said = data.draw(st.from_type(kind))
    message = MESSAGES[kind](**dataclasses.asdict(said))
    assert client.view(kind, MESSAGES[kind].FromString(message.SerializeToString())) == said


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_view_and_its_message_have_the_same_fields(kind):
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields == set(MESSAGES[kind].DESCRIPTOR.fields_by_name)


def test_a_page_of_signed_receipts_fits_into_a_message():
    """An envelope has at most 3 KiB. The rest of a row is the receipt, once as data and once as a sentence."""
    receipt = dataclasses.replace(lives.proof(lives.CLEAN), envelope=lives.ENVELOPE.replace("e30=", "x" * 3000))
    passed = ScrubPassed("job-1", receipt)
    row = scrub_pb2.HistoryEntry(
        body=ledger_rows.encode(passed)[1], text=event_text.tell(passed), device="GPU-" + "x" * 36
    )
    assert admin_client.PAGE * 1.2 * row.ByteSize() < 4 * 2**20
