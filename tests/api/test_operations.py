"""One operation through both houses: the plugin's line, the service's, the job's and the rows bear the same id."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from ground import operation_id
from ground.errors import AutoclaveError, Reason, Refused
from plugin.devices import MigStrategy, own_devices
from plugin.kubelet_api import deviceplugin_pb2 as wire
from plugin.kubelet_api import deviceplugin_pb2_grpc
from plugin.listing import Listing
from plugin.response import Strategy, Style
from scrubber.core import events as ev
from scrubber.core import ownership
from scrubber.core.events import LedgerEntry
from tests.api.conftest import House
from tests.plugin.live_plugin import serving

GPU, WITHIN = "nvidia.com/gpu", 10.0
FRESH = re.compile(r"[0-9a-f]{8}")


@pytest.fixture
async def kubelet(house: House) -> AsyncIterator[deviceplugin_pb2_grpc.DevicePluginAsyncStub]:
    """The kubelet's end of a real plugin that asks the real service."""
    async with house.scrubber() as scrubber:
        listing = Listing(scrubber, own_devices("nvidia.com", MigStrategy.NONE))
        following = asyncio.create_task(listing.follow())
        async with asyncio.timeout(WITHIN):
            await listing.until_known()
        style = Style(strategies=(Strategy.ENVVAR,))
        async with serving(listing, scrubber, house.config.run_dir / "plugin.sock", style) as stub:
            yield stub
        following.cancel()
        await asyncio.wait({following})


async def allocate(kubelet: deviceplugin_pb2_grpc.DevicePluginAsyncStub, *uuids: str) -> None:
    request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=uuids)])
    await kubelet.Allocate(request, timeout=WITHIN)


async def since(house: House, row: int) -> list[LedgerEntry]:
    """What was recorded after this row."""
    return [entry for entry in (await house.built.ledger.history(None, None, 1000)).entries if entry.seq > row]


async def soil(house: House, uuid: str) -> int:
    """Its proof holds no longer, and no monitor runs that would see to it. The row that says so."""
    await house.built.ledger.append("05011ed0", (uuid, ev.Soiled("it was used without a grant")))
    return house.built.ledger.seq


async def test_an_allocate_with_a_scrub_is_one_operation(house, kubelet) -> None:
    uuid = house.uuids[0]
    row = await soil(house, uuid)
    with capture_logs() as lines:
        await allocate(kubelet, uuid)
    by_room = {line["room"]: line for line in lines if line["log_level"] != "debug"}
    assert sum(line["log_level"] != "debug" for line in lines) == 4
    assert by_room.pop("receipts")["event"] == "checkpoint"  # of the whole ledger
    op = by_room["device plugin"]["op"]
    assert FRESH.fullmatch(op)
    assert {room: (line["event"], line["op"], line["outcome"]) for room, line in by_room.items()} == {
        "jobs": ("job ended", op, "ok"),
        "api": ("request granted", op, "ok"),
        "device plugin": ("request granted", op, "ok"),
    }
    entries = await since(house, row)
    assert {entry.op for entry in entries} == {op}
    kinds = {type(entry.event) for entry in entries}
    assert {ev.ScrubStarted, ev.StepsRecorded, ev.ScrubPassed, ev.Granted} <= kinds
    (receipt,) = [entry.event.receipt for entry in entries if isinstance(entry.event, ev.ScrubPassed)]
    job = by_room["jobs"]
    assert (job["device"], job["path"], job["trigger"], job["state"], job["receipt"]) == (
        uuid, "fast", "acquire", "clean", receipt.id,
    )  # fmt: skip
    assert 0 <= job["seconds"] <= by_room["api"]["seconds"] <= by_room["device plugin"]["seconds"] + 0.01


async def test_each_request_is_one_log_line_when_it_ends(house, monkeypatch) -> None:
    monkeypatch.setattr(ownership, "STARTS_WITHIN", 3600.0)  # who was let start may come yet, however slow we are
    one, other = house.uuids  # also the pod's name: another test may run a process of a "pod-a", which then ends
    with capture_logs() as lines:
        async with house.scrubber() as scrubber:
            await scrubber.acquire([one], announced=True, op="abcd")
            await scrubber.start([one], f"pod-of-{one}", op="ABCDEF0123456789abcdef0123456789")
            with pytest.raises(AutoclaveError):
                await scrubber.acquire([one, other], op="beef")
            await scrubber.release([other], op="cafe")
    logged = [
        (it["request"], it["op"], it["devices"], it["outcome"], it["log_level"]) for it in lines if it["room"] == "api"
    ]
    assert logged == [
        ("acquire", "abcd", [one], "ok", "info"),
        ("start", "ABCDEF0123456789abcdef0123456789", [one], "ok", "info"),
        ("acquire", "beef", [one, other], "refused", "warning"),
        ("release", "cafe", [other], "ok", "info"),
    ]


async def test_the_scrub_after_a_release_has_its_operation_id(house) -> None:
    uuid = house.uuids[0]
    async with house.scrubber() as scrubber:
        await scrubber.acquire([uuid])
        row = house.built.ledger.seq
        with capture_logs() as lines:
            await scrubber.release([uuid], op="5c5c5c5c")
            await house.clean(uuid)
    assert {entry.op for entry in await since(house, row)} == {"5c5c5c5c"}
    assert [it["op"] for it in lines if it["event"] == "job ended"] == ["5c5c5c5c"]


async def test_a_command_logs_one_operation_with_each_device(house) -> None:
    one, other = house.uuids
    row = house.built.ledger.seq
    with capture_logs() as lines:
        async with house.admin() as admin:
            await admin.status()
            await admin.quarantine(one, "it smells", "ann")
            async for _ in admin.scrub([], every=True):
                pass
            async for _ in admin.reinstate([one], "aired", "ann"):
                pass
            await admin.explain(one)
    shown = [it for it in lines if it["log_level"] != "debug"]
    asked = sorted((it["request"], it["devices"], it["outcome"], it["reason"]) for it in shown if it["room"] == "api")
    assert asked == [
        ("quarantine", [one], "ok", ""),
        ("reinstate", [one], "ok", ""),
        ("scrub", [one], "refused", "quarantined"),
        ("scrub", [other], "ok", ""),
    ]
    ops = {it["request"]: it["op"] for it in shown if it["room"] == "api"}
    assert len(set(ops.values())) == 3
    assert {entry.op for entry in await since(house, row)} == set(ops.values())
    jobs = {it["job"]: it["op"] for it in shown if it["event"] == "job ended"}
    begun = {it["job"]: it["op"] for it in shown if it["room"] == "api" and "job" in it}
    assert jobs == begun
    assert {it["request"] for it in lines if it["log_level"] == "debug" and it["room"] == "api"} == {
        "status", "scrub", "reinstate", "explain",
    }  # fmt: skip


async def test_a_return_without_evidence_is_one_operation(house) -> None:
    uuid = house.uuids[0]
    async with house.admin() as admin:
        await admin.quarantine(uuid, "it smells", "ann")
        row = house.built.ledger.seq
        with capture_logs() as lines:
            async for _ in admin.reinstate([uuid], "aired", "ann", without_evidence=True):
                pass
    ops = {it["op"] for it in lines if it["room"] in ("api", "jobs")}
    assert {entry.op for entry in await since(house, row)} == ops
    assert len(ops) == 1


async def test_an_internal_fault_is_one_line_with_its_traceback(house, monkeypatch) -> None:
    monkeypatch.setattr(
        house.built.service.tenant_requests, "acquire", lambda *_, **__: 1 / 0
    )  # its text may name a tenant
    async with house.scrubber() as scrubber:
        with capture_logs() as lines, pytest.raises(Refused) as failed:
            await scrubber.acquire(house.uuids, op="abcd")
    assert failed.value.reason is Reason.INTERNAL
    assert "division" not in failed.value.message
    (line,) = lines
    assert (line["event"], line["log_level"], line["op"]) == ("internal error in the scrub service", "error", "abcd")
    assert line["exc_info"]


async def test_a_caller_that_leaves_is_logged_as_such(house) -> None:
    uuid = house.uuids[0]
    async with house.built.service.context.jobs.locks.of([uuid]), house.scrubber() as scrubber:
        with capture_logs() as lines:
            asking = asyncio.create_task(scrubber.acquire([uuid], op="abcd"))
            while not house.built.service.context.jobs.locks._locks[uuid]._waiters:  # noqa: ASYNC110 - a lock has no event
                await asyncio.sleep(0)
            asking.cancel()
            async with asyncio.timeout(WITHIN):
                while not lines:  # noqa: ASYNC110 - the log has no event
                    await asyncio.sleep(0.01)
    assert [(it["event"], it["outcome"], it["op"]) for it in lines] == [
        ("the caller cancelled the request", "cancelled", "abcd")
    ]


@pytest.mark.parametrize("sent", ["", "abc", "g" * 8, "a" * 33, "abcd\n", "ab cd", b"abcd"])
def test_an_invalid_operation_id_is_ignored(sent: str | bytes) -> None:
    assert FRESH.fullmatch(operation_id.from_metadata(((operation_id.KEY, sent), ("else", "abcd"))))


def test_an_id_is_carried_as_it_was_given() -> None:
    assert [operation_id.from_metadata(operation_id.to_metadata(op)) for op in ("abcd", "0" * 32)] == ["abcd", "0" * 32]
    assert operation_id.to_metadata("") == ()
    assert operation_id.from_metadata(None) != operation_id.from_metadata(())
