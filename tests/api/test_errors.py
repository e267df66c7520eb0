"""Each kind of error crosses the wire as what it is: class, reason, sentence and gRPC code."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from ground.errors import AutoclaveError, InvalidRequest, LedgerUnavailable, NotReady, Reason, Refused, Unreachable
from scrub_api import client, scrub_pb2, scrub_pb2_grpc
from scrubber.api import server
from scrubber.metrics.counters import ServiceCounters

CODE = grpc.StatusCode
CASES = [
    (Refused(Reason.IN_USE, "cannot: it is in use"), Refused, CODE.FAILED_PRECONDITION),
    (Refused(Reason.SICK, "cannot: it is unhealthy", device="GPU-1"), Refused, CODE.FAILED_PRECONDITION),
    (NotReady(Reason.SCRUBBING, "cannot yet"), NotReady, CODE.UNAVAILABLE),
    (NotReady(Reason.SHUTTING_DOWN, "cannot any more"), NotReady, CODE.UNAVAILABLE),
    (InvalidRequest("two names are one"), InvalidRequest, CODE.INVALID_ARGUMENT),
    (InvalidRequest("no such device", reason=Reason.UNKNOWN_DEVICE), InvalidRequest, CODE.NOT_FOUND),
    (LedgerUnavailable("the disk; is: full", "make room", "or wait; the disk"), NotReady, CODE.UNAVAILABLE),
]


@pytest.fixture
async def door(short_tmp):
    """The real door before a service that can only say no."""

    async def acquire(*_, **__) -> None:
        raise service.no

    service = SimpleNamespace(tenant_requests=SimpleNamespace(acquire=acquire), no=None, socket=short_tmp / "s.sock")
    listening = grpc.aio.server()
    asked = server.ScrubberServicer(cast("Any", service), cast("Any", None), ServiceCounters(CollectorRegistry()))
    scrub_pb2_grpc.add_ScrubberServicer_to_server(asked, listening)
    listening.add_insecure_port(f"unix:{service.socket}")
    await listening.start()
    yield service
    await listening.stop(None)


@pytest.mark.parametrize(("said", "kind", "code"), CASES, ids=[said.reason.value for said, _, _ in CASES])
async def test_the_client_raises_the_error_of_the_service(door, said, kind, code):
    door.no = said
    async with client.ScrubberClient(door.socket) as service:
        with pytest.raises(AutoclaveError) as caught:
            await service.acquire(["GPU-1"])
    assert type(caught.value) is kind
    assert vars(caught.value) == vars(said)
    async with grpc.aio.insecure_channel(f"unix:{door.socket}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raw:
            await scrub_pb2_grpc.ScrubberStub(channel).Acquire(scrub_pb2.AcquireRequest(devices=["GPU-1"]))
    assert (raw.value.code(), raw.value.details()) == (code, said.message)


async def test_a_server_that_never_answers_is_unreachable(door):
    """The command then ends with code 3, as where no server listens."""

    async def hang(*_, **__) -> None:
        await asyncio.Event().wait()

    door.tenant_requests.acquire = hang
    async with client.ScrubberClient(door.socket) as service:
        with pytest.raises(AutoclaveError, match="did not answer in time") as caught:
            await service.acquire(["GPU-1"], timeout=0.5)
    assert (type(caught.value), caught.value.reason) == (Unreachable, Reason.TIMED_OUT)


async def test_an_unknown_reason_is_still_a_refusal(door, monkeypatch):
    door.no = Refused(Reason.SICK, "cannot hand out GPU-1: the moon is full")
    monkeypatch.delitem(client._REASONS, Reason.SICK.value)
    async with client.ScrubberClient(door.socket) as service:
        with pytest.raises(Refused) as caught:
            await service.acquire(["GPU-1"])
    assert (caught.value.reason, caught.value.message) == (Reason.INTERNAL, door.no.message)


async def test_a_call_cut_off_by_shutdown_is_no_fault(short_tmp):
    class Ending(server.ScrubberServicer):
        async def Acquire(self, _request: Any, context: Any) -> Any:  # noqa: N802, ANN401 - gRPC's own at its end
            await context.abort(CODE.CANCELLED, "CANCELLED")

    ending = grpc.aio.server()
    asked = Ending(cast("Any", None), cast("Any", None), ServiceCounters(CollectorRegistry()))
    scrub_pb2_grpc.add_ScrubberServicer_to_server(asked, ending)
    ending.add_insecure_port(f"unix:{short_tmp}/s.sock")
    await ending.start()
    async with client.ScrubberClient(short_tmp / "s.sock") as service:
        with pytest.raises(NotReady) as caught:
            await service.acquire(["GPU-1"])
    assert caught.value.reason is Reason.SHUTTING_DOWN
    await ending.stop(None)


async def test_a_call_that_an_older_service_lacks_says_so(short_tmp):
    older = grpc.aio.server()
    older.add_insecure_port(f"unix:{short_tmp}/s.sock")
    await older.start()
    async with client.ScrubberClient(short_tmp / "s.sock") as service:
        with pytest.raises(Refused, match="the scrub service is older than this program") as caught:
            await service.distrust("GPU-1", "another program calls it unhealthy")
    assert caught.value.reason is Reason.INTERNAL
    await older.stop(None)
