"""Both doors, over real sockets: what is asked, what is answered, and what an error says to whom."""

import asyncio
import os
import stat
import threading
from contextlib import suppress

import grpc.aio
import pytest

from ground.errors import InvalidRequest, LedgerUnavailable, NotReady, Reason, Refused
from scrub_api import admin_client, scrub_pb2, scrub_pb2_grpc
from scrubber.api import answering, server
from scrubber.core import events as ev
from scrubber.core.model import Ailment, AilmentKind, Moment, Quarantine, State
from scrubber.devices.simulated import drills
from scrubber.ledger import ledger
from scrubber.service import history, tenant_requests
from tests.patience import WITHIN


def state(house, uuid):
    return house.built.ledger.records[uuid].state


async def occupied(house, uuid):
    """A tenant that must not be named to others: its command line and container say 'precious'."""
    root = house.config.simulation
    return await asyncio.to_thread(drills.occupy, root, uuid, b"secret", f"precious-{uuid}")


async def released(house, uuid):
    await asyncio.to_thread(drills.release, house.config.simulation, uuid)


async def test_each_clean_device_is_granted_with_its_own_receipt(house):
    async with house.scrubber() as service:
        grants = await service.acquire(list(reversed(house.uuids)))
    records = [house.built.ledger.records[uuid] for uuid in house.uuids]
    assert [record.state for record in records] == [State.GRANTED] * 2
    assert [(it.device, it.receipt) for it in grants] == [(it.device.uuid, it.scrubs.receipt.id) for it in records]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"exclusive": True, "owner": "both", "group": 4711, "pods": ["pod-1"]}, "names both a control group and pods"),
        ({"exclusive": True, "pods": ["pod-1"]}, "no owner that keeps the devices"),  # nobody would give them back
        ({"announced": True, "owner": "job"}, "is not exclusive"),
        ({"announced": True, "group": 4711}, "is not exclusive"),
        ({"announced": True, "pods": ["pod-1"]}, "is not exclusive"),
    ],
)
async def test_a_request_is_of_one_kind(house, asked, why):
    """For a pod, a claim or a job."""
    async with house.scrubber() as service:
        with pytest.raises(InvalidRequest, match=why):
            await service.acquire(house.uuids, **asked)
    assert {house.built.ledger.records[uuid].state for uuid in house.uuids} == {State.CLEAN}


async def test_messages_to_a_tenant_name_no_other_tenant(house, monkeypatch):
    monkeypatch.setattr(
        tenant_requests, "OVERRUN", WITHIN
    )  # ends the budgets at once; the one observation may take long
    uuid = house.uuids[0]
    pid = await occupied(house, uuid)
    async with house.scrubber() as service:
        for ask in (service.acquire([uuid], timeout=WITHIN), service.start([uuid], "pod-b", timeout=WITHIN)):
            with pytest.raises((Refused, NotReady)) as refusal:
                await ask
            assert refusal.value.reason is Reason.IN_USE
            for private in ("precious", str(pid), "python", "tenant", "secret"):
                assert private not in refusal.value.message
    async with house.admin() as admin:
        explained = await admin.explain(uuid)
    assert any(str(pid) in entry.text for entry in explained.entries)
    await released(house, uuid)


async def test_a_caller_sends_its_deadline_to_the_service(house, monkeypatch):
    waits = []

    async def refuse(*_, within, **__) -> None:
        waits.append(within)
        raise NotReady(Reason.SCRUBBING, "cannot hand out: it is being scrubbed")

    monkeypatch.setattr(house.built.service.tenant_requests, "acquire", refuse)
    monkeypatch.setattr(house.built.service.tenant_requests, "start", refuse)
    async with house.scrubber() as door:
        for ask in (door.acquire, door.start):
            with pytest.raises(NotReady):
                await ask(house.uuids, timeout=90.0)
    assert waits == [pytest.approx(90.0, abs=60.0)] * 2


async def test_an_oversized_message_is_refused_before_it_is_read(house):
    async with house.scrubber() as service:
        with pytest.raises(Refused):
            await service.acquire(["G" * 100_000])


async def answer(channel, method, name) -> object:
    if method.server_streaming:
        return await channel.unary_stream(name)(b"\xff", timeout=WITHIN).read()
    return await channel.unary_unary(name)(b"\xff", timeout=WITHIN)


@pytest.mark.parametrize("service", scrub_pb2.DESCRIPTOR.services_by_name.values(), ids=lambda it: it.name)
async def test_an_undecodable_request_is_invalid_in_every_method(house, service):
    async with grpc.aio.insecure_channel(f"unix:{house.config.run_dir / service.name.lower()}.sock") as channel:
        for method in service.methods:
            name = f"/{service.full_name}/{method.name}"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await answer(channel, method, name)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            assert method.input_type.name in (refused.value.details() or ""), name


async def place_found(service):
    while True:
        with suppress(NotReady):
            return await anext(service.watch())


async def asked_again_and_again(admin):
    while True:
        await admin.status()


async def test_streams_without_number_leave_a_place_for_requests(house):
    async with house.scrubber() as service:
        streams = [aiter(service.watch()) for _ in range(600)]
        found = await asyncio.gather(*map(anext, streams), return_exceptions=True)
        refused = [each for each in found if isinstance(each, BaseException)]
        assert {(type(each), getattr(each, "reason", None)) for each in refused} == {(NotReady, Reason.TOO_MANY_CALLS)}
        assert len(found) - len(refused) == answering.MOST[answering.STREAMS]
        await service.acquire([house.uuids[0]])
        for stream in streams:
            await stream.aclose()
        await asyncio.wait_for(place_found(service), WITHIN)


async def test_requests_have_a_limit_of_their_own(house, monkeypatch):
    monkeypatch.setitem(answering.MOST, answering.REQUESTS, 1)
    async with house.admin() as admin:
        rows = (await admin.status()).service.ledger_rows
        waiting = asyncio.create_task(admin.status(newer_than=rows, wait=WITHIN))
        with pytest.raises(NotReady, match="more than 1 requests at the same time"):
            await asked_again_and_again(admin)  # until the other request has arrived
        waiting.cancel()


async def test_watch_says_everything_at_once_and_again_at_a_change(house):
    async with house.scrubber() as service, house.admin() as admin:
        watch = aiter(service.watch())
        first = await anext(watch)
        assert [(device.uuid, device.healthy, device.clean) for device in first.devices] == [
            (uuid, True, True) for uuid in house.uuids
        ]
        await admin.quarantine(house.uuids[0], "because", "a test")
        second = await asyncio.wait_for(anext(watch), WITHIN)
        assert [device.healthy for device in second.devices] == [False, True]


async def test_a_scrub_goes_on_when_its_caller_leaves(house):
    uuid = house.uuids[0]
    drills.stall_clears(house.config.simulation, uuid)
    async with house.admin() as leaver, house.admin() as stayer:
        leaving, staying = leaver.scrub([uuid]), stayer.scrub([uuid])
        first, other = await anext(leaving), await anext(staying)
        assert first.job == other.job
        await leaving.aclose()
        drills.heal(house.config.simulation, uuid)
        last = [progress async for progress in staying][-1]
    assert last.result is not None
    assert (last.job, last.result.clean) == (first.job, True)


async def test_a_waiting_scrub_learns_its_place_in_the_queue(house):
    workers = house.built.service.context.jobs.slots.workers = asyncio.Semaphore(0)
    async with house.admin() as admin:
        stream = admin.scrub([], every=True)
        places: set[int | None] = set()
        while not places >= {1, 2}:
            places.add((await asyncio.wait_for(anext(stream), WITHIN)).queue_place)
        workers.release()
        last = {it.device: it async for it in stream if it.result}
    assert [it.result.clean for it in last.values()] == [True, True]
    assert [it.queue_place for it in last.values()] == [None, None]


async def test_a_request_for_all_omits_devices_replaced_long_ago(house):
    gone, good = house.uuids
    drills.lose(house.config.simulation, gone)
    out = Quarantine(Ailment(AilmentKind.REPLACED, "x"), Moment(0.0, 0.0), "autoclave", next_probe=1e9)
    await house.built.ledger.append("op", (gone, ev.Quarantined(out)))
    await house.built.service.upkeep.reconcile(gone)
    async with house.admin() as admin:
        assert {it.device for it in (await admin.status()).devices} == {good}
        assert {it.device async for it in admin.scrub([], every=True)} == {good}
        assert [it.quarantine.reason for it in (await admin.status([gone])).devices] == ["replaced"]


async def test_a_failed_scrub_reports_cause_and_state(house):
    uuid = house.uuids[0]
    drills.bad_memory(house.config.simulation, uuid, 4242, 3)
    async with house.admin() as admin:
        [result] = [it.result async for it in admin.scrub([uuid]) if it.result]
    assert (result.clean, result.state, result.reason) == (False, "quarantined", "quarantined")
    assert "0x1092" in result.why


@pytest.mark.parametrize("page", [1, 3, 1000])
async def test_history_in_several_answers_is_complete_without_repeats(house, monkeypatch, page):
    monkeypatch.setattr(admin_client, "PAGE", page)
    async with house.admin() as admin:
        everything = await admin.history(limit=10_000)
        assert [it.seq for it in everything] == sorted({it.seq for it in everything})
        assert len(everything) == len((await house.built.ledger.history(None, None, 10_000)).entries)
        assert await admin.history(limit=4) == everything[-4:]
        assert {entry.device for entry in await admin.history(house.uuids[0])} == {house.uuids[0]}
        assert await admin.history(after=everything[2].seq, limit=10_000) == everything[3:]


async def test_history_shows_only_what_is_asked_for(house, monkeypatch):
    monkeypatch.setattr(history, "MAX_ENTRIES", 2)
    async with house.admin() as admin:
        await admin.quarantine("0", "because", "a test")
        everything = await admin.history(limit=2)
        assert await admin.history(kinds=["quarantined"], limit=2) == everything[-1:]
        warnings = await admin.history(warnings=True, limit=2)
        assert warnings[-1] == everything[-1]
        assert {it.kind for it in await admin.history(kinds=["discovered"])} == {"discovered"}
        assert await admin.history(kinds=["discovered"], warnings=True) == ()
        with pytest.raises(InvalidRequest, match="no event is of kind nonsense; the kinds are discovered, "):
            await admin.history(kinds=["nonsense"])


async def test_a_history_from_memory_says_that_it_is_partial(house, monkeypatch):
    go = threading.Event()
    said: list[str] = []
    monkeypatch.setattr(ledger, "READ", 0.01)
    monkeypatch.setattr(house.built.ledger._store, "history", lambda *_: go.wait() and ())
    async with house.admin() as admin:
        entries = await admin.history(limit=admin_client.PAGE, warn=said.append)
        go.set()
    assert entries
    assert said == [admin_client.PARTIAL]


async def test_warnings_are_found_among_other_rows(house, monkeypatch):
    monkeypatch.setattr(history, "MAX_ENTRIES", 1)
    async with house.admin() as admin, house.scrubber() as scrubber:
        await admin.quarantine("0", "because", "a test")
        other = (await admin.status(["1"])).devices[0].device
        await scrubber.acquire([other], announced=True)
        await scrubber.start([other], f"pod-of-{other}")
        [newest] = await admin.history(limit=1)
        [warning] = await admin.history(warnings=True, limit=1)
    assert (newest.kind, warning.kind) == ("in-use", "quarantined")


async def test_status_waits_for_news_and_not_longer(house):
    async with house.admin() as admin:
        before = await admin.status()
        rows = before.service.ledger_rows
        assert (await admin.status(newer_than=rows, wait=0.05)).service.ledger_rows == rows
        waiting = asyncio.create_task(admin.status(newer_than=rows, wait=30))
        await admin.quarantine("0", "because", "a test")
        assert (await waiting).service.ledger_rows > rows


async def test_watch_tells_the_same_again_so_that_silence_means_something(house, monkeypatch):
    monkeypatch.setattr(server, "HEARTBEAT", 0.1)
    monkeypatch.setattr(server, "WATCH_AT_LEAST_EVERY", 0.05)
    async with house.scrubber() as service:
        watch = aiter(service.watch())
        assert await anext(watch) is await asyncio.wait_for(anext(watch), WITHIN)  # decoded once


async def test_the_sockets_are_for_their_owner(house):
    for path in (house.config.run_dir / "scrubber.sock", house.config.run_dir / "admin.sock"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600  # noqa: PTH116 - one call for both


async def test_a_stop_ends_the_calls_that_wait_for_news(house, monkeypatch):
    """So the next service gets its turn at once."""
    news = house.built.service.context.news
    asked, after = asyncio.Event(), news.after

    async def waits(count, within) -> bool:
        if within == server.LONGEST_WAIT:
            asked.set()
        newer: bool = await after(count, within)
        return newer

    monkeypatch.setattr(news, "after", waits)
    monkeypatch.setattr(server, "LONGEST_WAIT", 3 * WITHIN)
    async with house.scrubber() as service, house.admin() as admin:
        watch = aiter(service.watch())
        await anext(watch)
        rows = (await admin.status()).service.ledger_rows
        waiting = asyncio.create_task(admin.status(newer_than=rows, wait=server.LONGEST_WAIT))
        await asked.wait()
        await house.built.service.stop()
        await asyncio.wait_for(house.doors.close(grace=10 * WITHIN), WITHIN)
        assert (await waiting).service.ledger_rows == rows
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_a_closed_socket_answers_every_request_with_the_reason(short_tmp):
    doors = server.RefusingServers(short_tmp)
    await doors.open()
    doors.fault = LedgerUnavailable("the disk is full")
    async with grpc.aio.insecure_channel(f"unix:{short_tmp}/admin.sock") as channel:
        stub = scrub_pb2_grpc.AdminStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="the disk is full") as refusal:
            await stub.Status(scrub_pb2.StatusRequest())
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError, match="the disk is full"):
            await anext(aiter(stub.Scrub(scrub_pb2.ScrubRequest(all=True))))
    await doors.close()
