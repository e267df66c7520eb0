"""Every view comes back from the socket for operators as it was, or not at all."""

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any, get_type_hints

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ground import paths
from ground.documents import strict_json
from ground.errors import Refused
from scrub_api import admin_client, measurements, scrub_pb2, views
from scrubber.core.events import ScrubPassed
from scrubber.ledger import ledger_rows
from scrubber.words import event_text
from tests.core import lives

VIEWS = views.Status, views.DeviceStatus, views.ScrubProgress, views.Explanation, views.History
st.register_type_strategy(str, st.text(max_size=20))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
for view in (*VIEWS, views.HistoryEntry, views.ReceiptView, measurements.Uncovered):
    # also the fields with a default, which ``from_type`` leaves alone otherwise
    hints = get_type_hints(view)
    values = {field.name: st.from_type(hints[field.name]) for field in dataclasses.fields(view)}
    st.register_type_strategy(view, st.builds(view, **values))
ROW = views.HistoryEntry(1, "GPU-1", 0, 1750000000.25, "op", "granted", "it was granted", "{}")
DONE = views.ScrubProgress("GPU-1", "job", result=views.ScrubResult(clean=False, state="dirty"))


@pytest.mark.parametrize("kind", VIEWS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_view_survives_the_wire(kind, data):
    said = data.draw(st.from_type(kind))
    assert strict_json.decode(kind, strict_json.encode(said)) == said


def test_a_page_of_signed_receipts_fits_into_a_message():
    """An envelope has at most 3 KiB. The rest of a row is the receipt, once as data and once as a sentence."""
    receipt = dataclasses.replace(lives.proof(lives.CLEAN), envelope=lives.ENVELOPE.replace("e30=", "x" * 3000))
    passed = ScrubPassed("job-1", receipt)
    row = dataclasses.replace(
        ROW, body=ledger_rows.encode(passed)[1], text=event_text.tell(passed), device="GPU-" + "x" * 36
    )
    assert admin_client.PAGE * 1.2 * len(strict_json.encode(row)) < 4 * 2**20


class Service:
    """A service that gives the same answer to everybody."""

    text = b""

    async def answer(self, _request: bytes, _context: object) -> bytes:
        return scrub_pb2.View(json=self.text).SerializeToString()

    async def stream(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield await self.answer(_request, _context)


@pytest.fixture
async def answers(short_tmp):
    """The service, and a client of it."""
    server, service = grpc.aio.server(), Service()
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "History": grpc.unary_unary_rpc_method_handler(service.answer),
        "Scrub": grpc.unary_stream_rpc_method_handler(service.stream),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("autoclave.v1.Admin", methods)])
    server.add_insecure_port(f"unix:{paths.admin_socket(short_tmp)}")
    await server.start()
    async with admin_client.AdminClient(paths.admin_socket(short_tmp)) as admin:
        yield service, admin
    await server.stop(None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"op": "op", ', ""),
        ('"op": ', '"newer": 1, "op": '),
        ('"op": "op"', '"op": null'),
        ("1750000000.25", "NaN"),
        ("}", ""),
    ],
    ids=["no key", "another key", "another type", "no number", "no JSON"],
)
async def test_an_answer_of_another_version_is_refused(answers, old, new):
    service, admin = answers
    text = strict_json.encode(views.History((ROW,))).decode()
    service.text = text.encode()
    assert await admin.history() == (ROW,)
    service.text = text.replace(old, new).encode()
    assert service.text != text.encode()
    with pytest.raises(Refused, match="it speaks another version of the API"):
        await admin.history()


async def test_progress_of_another_version_is_refused(answers):
    service, admin = answers
    service.text = strict_json.encode(DONE)
    assert [it async for it in admin.scrub([])] == [DONE]
    service.text = json.dumps(json.loads(service.text) | {"newer": 1}).encode()
    with pytest.raises(Refused, match="it speaks another version of the API"):
        await anext(admin.scrub([]))
